"""Sentinel: three real sentinels, a master and a replica; the master is killed under load, and the replica takes its place."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import tempfile
import threading
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from redis import Redis
from redis.exceptions import RedisError
from structlog.testing import capture_logs

from redelivery.middleware.brokers.redis.replicas import ConfirmedRedis
from redelivery.middleware.messages.events import Event, Outcome
from redelivery.middleware.messages.steps import sealed
from tests.support.desk import Desk, task_message
from tests.support.running import Shop, until
from tests.support.servers import Asked, Server, binaries

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.xdist_group("sentinel")

NAME = "shop"
OPTIONS = {"master_name": NAME, "socket_timeout": 5.0, "socket_connect_timeout": 5.0}


def free_ports(count: int) -> list[int]:
    """Ports of the loopback that nobody listens on."""
    with ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in probes]


@dataclass
class Watched(Asked):
    """A master and a replica under sentinels, used by a shop like a `Server`. `client` is connected to the current master."""

    folder: Path
    binary: str
    servers: dict[int, Server] = field(default_factory=dict)
    sentinels: dict[int, subprocess.Popen[bytes]] = field(default_factory=dict)

    def start(self, sentinels: int) -> Watched:
        """Start them all, and wait until the replica is in sync and the sentinels know of it and of one another."""
        ports = free_ports(2 + sentinels)
        for port in ports[:2]:
            options = {"port": str(port), "bind": "127.0.0.1", "appendonly": "yes", "repl-diskless-sync-delay": "0"}
            if self.servers:
                options["replicaof"] = f"127.0.0.1 {ports[0]}"
            folder = self.folder / str(port)
            folder.mkdir()
            self.servers[port] = Server(folder, self.binary, options)
            self.servers[port].start()
        until(lambda: self.servers[ports[1]].client.info("replication")["master_link_status"] == "up")
        for port in ports[2:]:
            self._watch(port, ports[0], quorum=sentinels // 2 + 1)
        until(
            lambda: {self._state(port) for port in self.sentinels} == {(1, sentinels - 1)}, 60, "the sentinels to know each other"
        )
        return self

    def _watch(self, port: int, master: int, quorum: int) -> None:
        config = self.folder / f"sentinel-{port}.conf"
        config.write_text(
            f"port {port}\nbind 127.0.0.1\ndir {self.folder}\nsentinel monitor {NAME} 127.0.0.1 {master} {quorum}\n"
            f"sentinel down-after-milliseconds {NAME} 4000\nsentinel failover-timeout {NAME} 5000\n"
        )
        with (self.folder / f"sentinel-{port}.log").open("ab") as log:
            command = [self.binary, str(config), "--sentinel"]
            self.sentinels[port] = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)

    def _state(self, port: int) -> tuple[int, int]:
        try:
            with Redis(port=port) as client:
                state: Any = client.sentinel_master(NAME)
        except (RedisError, OSError):
            return 0, 0
        return state["num-slaves"], state["num-other-sentinels"]

    @property
    def master(self) -> int:
        """The port of the master, according to most sentinels."""
        said = []
        for port in self.sentinels:
            with Redis(port=port) as client:
                address: Any = client.sentinel_get_master_addr_by_name(NAME)
            said.append(int(address[1]))
        return max(set(said), key=said.count)

    @property
    def url(self) -> str:
        """The sentinels, as Celery takes them."""
        return ";".join(f"sentinel://127.0.0.1:{port}" for port in self.sentinels)

    @property
    def client(self) -> Any:
        """A client of the master."""
        return self.servers[self.master].client

    def stop(self) -> None:
        """End them all."""
        for process in self.sentinels.values():
            os.kill(process.pid, signal.SIGKILL)
            process.wait(20)
        for server in self.servers.values():
            server.stop(9)


@pytest.fixture
def watched() -> Iterator[Watched]:
    """A master and a replica, watched by three sentinels; Debian's, where it is installed."""
    with tempfile.TemporaryDirectory(prefix="rd-", ignore_cleanup_errors=True) as name:
        here = Watched(Path(name), binaries().get("redis", binaries()["valkey"]))
        try:
            yield here.start(3)
        finally:
            here.stop()


class Load(threading.Thread):
    """A producer that publishes until it is stopped. `confirmed` are the ids of publications that did not fail."""

    def __init__(self, shop: Shop) -> None:
        super().__init__(daemon=True)
        self.shop = shop
        self.confirmed: list[str] = []
        self.failed = 0
        self.over = threading.Event()

    def run(self) -> None:
        """Publish, some tasks with a delay and some that fail once."""
        kinds: list[tuple[tuple[Any, ...], dict[str, Any]]] = [(("ok",), {}), (("fails", 1), {}), (("ok",), {"countdown": 2})]
        while not self.over.wait(0.02):
            words, options = kinds[len(self.confirmed) % len(kinds)]
            try:
                self.confirmed.append(self.shop.send(*words, **options))
            except Exception:  # noqa: BLE001 - no master, for a while: in whichever of its words redis-py says so
                self.failed += 1


@pytest.mark.full
@pytest.mark.slow
def test_a_failover_under_load_loses_nothing_that_a_replica_confirmed(watched: Watched) -> None:
    """With `wait_replicas`, every publication that did not fail ends in its outcome, on the master that Sentinel chose."""
    with tempfile.TemporaryDirectory(prefix="rd-", ignore_cleanup_errors=True) as name:
        here = Shop(
            watched,  # type: ignore[arg-type]
            Path(name),
            settings={"queues": {"#": {"redelivery_delay": 0.2, "max_delivery_attempts": 10}}, "wait_replicas": 1},
            conf={"broker_transport_options": OPTIONS, "task_publish_retry": False},
        )
        try:
            worker = here.start()
            before = watched.master
            load = Load(here)
            load.start()
            until(lambda: len(load.confirmed) >= 60)
            watched.servers[before].kill()
            until(lambda: watched.master != before, 90, "Sentinel to choose another master")
            watched.servers[before].start()  # it comes back as a replica: until then no confirmation can come
            reached = len(load.confirmed)
            until(lambda: len(load.confirmed) >= reached + 30, 120, "publications to go on")
            load.over.set()
            load.join(60)
            ids = set(load.confirmed)
            until(lambda: ids <= ended(here), 120, "every confirmed task to end")
            assert worker.process.poll() is None
            until(lambda: here.leftovers() == {}, 60, f"nothing to be left, not {here.leftovers()}")
            assert {run["id"] for run in here.runs()} >= ids
        finally:
            here.stop()


def ended(shop: Shop) -> set[str]:
    """The ids of the tasks that have succeeded."""
    return {event.task_id for event in shop.events if event.outcome == "succeeded"}


def test_the_replica_confirms_before_a_transition_counts(any_server: Server) -> None:
    """`WAIT` runs on the connection that wrote: an answered write is on the replica already. Without a replica a line says so."""
    [port] = free_ports(1)
    folder = any_server.folder / "replica"
    folder.mkdir()
    any_server.stop()
    any_server.options |= {"port": str(port), "bind": "127.0.0.1", "repl-diskless-sync-delay": "0"}
    any_server.start()
    replica = Server(folder, any_server.binary, {"replicaof": f"127.0.0.1 {port}"}).start()
    try:
        until(lambda: replica.client.info("replication")["master_link_status"] == "up")
        desk = Desk(any_server)
        desk.install.policies.__dict__["settings"] = type(desk.install.settings).load({"wait_replicas": 1})
        assert isinstance(desk.client, ConfirmedRedis)
        with capture_logs() as lines:
            for _ in range(20):
                task_id = str(desk.app.send_task("desk.pack").id)
                assert replica.client.llen("orders") == 1
                tag = desk.hold()
                desk.transport.acknowledge(tag, Event(task_id=task_id, outcome=Outcome.SUCCEEDED))
                assert (replica.client.hlen("unacked"), replica.client.llen("orders")) == (0, 0)
        assert lines == []
    finally:
        replica.stop(9)
    with capture_logs() as lines:
        desk.publish(task_message())
        tag = desk.hold()
        answer = desk.transport.defer(tag, "orders", sealed(task_message()), task_id="a", event=None, delay_ms=60_000)
    assert answer == "done"
    assert [(line["event"], line["wanted"], line["confirmed"]) for line in lines] == [("replicas.behind", 1, 0)]
