"""Real deployments: TLS with passwords, another database, a key prefix; and several applications on one server."""

from __future__ import annotations

import json
import socket
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest
import trustme
from celery import Celery
from redis import Redis
from structlog.testing import capture_logs

from redelivery import Redelivery
from redelivery.errors import BrokerUnavailable
from tests.support.desk import Desk
from tests.support.running import Shop, until
from tests.support.servers import Asked, Server, binaries

if TYPE_CHECKING:
    from collections.abc import Iterator

SETTINGS = {"queues": {"#": {"redelivery_delay": 0.1, "max_delivery_attempts": 2}}, "lease": 3}
PREFIX, DATABASE = "shop:", 3


def free_port() -> int:
    """A port of the loopback that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass
class Tls(Asked):
    """A server with TLS only, one user and one database; a shop and a desk use it like a `Server`."""

    server: Server
    port: int
    folder: Path

    def address(self, authority: str = "ca.pem", database: int = DATABASE) -> str:
        """Its address, with the certificate authority that has signed its certificate."""
        where = f"ssl_cert_reqs=required&ssl_ca_certs={quote(str(self.folder / authority))}"
        return f"rediss://:secret@localhost:{self.port}/{database}?{where}"

    @property
    def url(self) -> str:
        """Its address."""
        return self.address()

    @property
    def client(self) -> Any:
        """A client in its database, without TLS."""
        return Redis(unix_socket_path=self.server.socket, db=DATABASE, password="secret")


class Locked(Server):
    """A server that asks for a password on its socket, too."""

    @property
    def client(self) -> Any:
        """A client that knows it."""
        return Redis(unix_socket_path=self.socket, password="secret")


@pytest.fixture(scope="module")
def tls() -> Iterator[Shop]:
    """A shop whose broker is behind TLS, a password, a database's number and a prefix. The embedded Valkey has no TLS."""
    binary = binaries().get("redis")
    if binary is None:
        pytest.skip("there is no redis-server on this machine: ./dev test installs it where it may")
    with tempfile.TemporaryDirectory(prefix="rd-", ignore_cleanup_errors=True) as name:
        folder, port, authority = Path(name), free_port(), trustme.CA()
        certificate = authority.issue_cert("localhost", "127.0.0.1")
        authority.cert_pem.write_to_path(folder / "ca.pem")
        trustme.CA().cert_pem.write_to_path(folder / "stranger.pem")
        certificate.private_key_pem.write_to_path(folder / "key.pem")
        certificate.cert_chain_pems[0].write_to_path(folder / "cert.pem")
        options = {
            "bind": "127.0.0.1",
            "tls-port": str(port),
            "tls-cert-file": str(folder / "cert.pem"),
            "tls-key-file": str(folder / "key.pem"),
            "tls-ca-cert-file": str(folder / "ca.pem"),
            "tls-auth-clients": "no",
            "requirepass": "secret",
        }
        server = Locked(folder, binary, options).start()
        conf = {"broker_transport_options": {"global_keyprefix": PREFIX}, "prefix": PREFIX}
        here = Shop(Tls(server, port, folder), folder, settings=SETTINGS, conf=conf)  # type: ignore[arg-type]
        here.start()
        yield here
        here.stop()
        server.stop(9)


@pytest.mark.xdist_group("tls")
def test_a_life_behind_tls_a_prefix_and_a_database(tls: Shop) -> None:
    """Tasks succeed, fail, are redelivered, wait in the delay store, die and are redriven, as without TLS and prefix."""
    tls.ended(tls.send("ok"), "succeeded")
    retried = tls.send("fails", 1)
    tls.ended(retried, "succeeded")
    assert tls.outcomes_of(retried) == ["published", "redelivery_scheduled", "succeeded"]
    waited = tls.send("ok", countdown=1.5)
    tls.ended(waited, "succeeded")
    assert tls.outcomes_of(waited) == ["published", "deferred", "succeeded"]
    dead = tls.send("fails", 2)
    tls.ended(dead, "dead_lettered")
    [letter] = [each for each in tls.letters(f"{PREFIX}DLQ.celery") if each["headers"]["id"] == dead]
    assert letter["headers"]["redelivery"]["deaths"][0]["queue"] == "celery"
    desk = Desk(tls.server, prefix=PREFIX)
    assert desk.json("dlq", "redrive", "DLQ.celery", "--id", dead, "--yes")
    until(lambda: tls.outcomes_of(dead).count("dead_lettered") == 2)


@pytest.mark.xdist_group("tls")
def test_everything_lies_below_the_prefix_and_in_the_database(tls: Shop) -> None:
    """No key without the prefix, none in another database."""
    tls.ended(tls.send("fails", 2), "dead_lettered")
    keys = [name.decode() for name in tls.server.client.keys("*")]
    assert keys
    assert [name for name in keys if not name.startswith(PREFIX)] == []
    assert list(tls.server.client.info("keyspace")) == [f"db{DATABASE}"]


@pytest.mark.xdist_group("tls")
def test_a_server_that_a_stranger_vouches_for_is_not_talked_to(tls: Shop) -> None:
    """Its certificate is verified, also by the transitions' own connections."""
    server: Any = tls.server
    app = Celery("stranger", broker=server.address("stranger.pem"), set_as_current=False)
    app.conf.broker_connection_timeout = 5
    install = Redelivery(app)
    with pytest.raises(BrokerUnavailable, match=r"(?i)certificate"):
        install.transport.now_ms()


@pytest.mark.xdist_group("tls")
def test_its_password_is_in_no_line(tls: Shop) -> None:
    """No log line about the broker contains it."""
    text = tls.workers[0].text
    assert "event=worker.started" in text
    assert "secret" not in text


def test_a_server_that_may_evict_is_named_at_start(server: Server) -> None:
    """Only `noeviction` keeps every message; a server without a memory limit evicts nothing."""
    desk = Desk(server)
    for maxmemory, policy, times in (
        (0, "allkeys-lru", 0),
        (10**9, "noeviction", 0),
        (10**9, "allkeys-lru", 1),
        (10**9, "volatile-ttl", 1),
    ):
        server.client.config_set("maxmemory", maxmemory)
        server.client.config_set("maxmemory-policy", policy)
        with capture_logs() as lines:
            desk.install.transport.warn([], [], None)
        assert [line["maxmemory_policy"] for line in lines] == [policy] * times


@contextmanager
def application(server: Server, *queues: str, prefix: str, settings: dict[str, Any] = SETTINGS) -> Iterator[Shop]:
    """An application on this server, with a worker on its queues."""
    with tempfile.TemporaryDirectory(prefix="rd-", ignore_cleanup_errors=True) as name:
        conf = {"broker_transport_options": {"global_keyprefix": prefix}, "prefix": prefix, "task_default_queue": queues[0]}
        here = Shop(server, Path(name), settings=settings, conf=conf)
        try:
            here.start("-Q", ",".join(queues), "-n", f"{prefix.strip(':')}-{queues[0]}@shop")
            yield here
        finally:
            here.stop()


@pytest.fixture(scope="module")
def one_server() -> Iterator[Server]:
    """The server of several applications."""
    with tempfile.TemporaryDirectory(prefix="rd-", ignore_cleanup_errors=True) as name:
        server = Server(Path(name), binaries()["valkey"]).start()
        yield server
        server.stop(9)


@pytest.fixture(scope="module")
def first(one_server: Server) -> Iterator[Shop]:
    """The first application: prefix `one:`, queue `orders`."""
    with application(one_server, "orders", prefix="one:") as here:
        yield here


@pytest.mark.xdist_group("applications")
@pytest.mark.full
@pytest.mark.slow
def test_applications_with_their_own_prefixes_do_not_see_each_other(one_server: Server, first: Shop) -> None:
    """With the same queue and tasks, neither takes the other's messages, recovers its workers, or writes into its log."""
    with application(one_server, "orders", prefix="two:") as second:
        ids = {
            shop.conf["prefix"]: [shop.send("ok"), shop.send("fails"), shop.send("ok", countdown=1.5)] for shop in (first, second)
        }
        for shop in (first, second):
            ok, dead, late = ids[shop.conf["prefix"]]
            for task_id, outcome in ((ok, "succeeded"), (dead, "dead_lettered"), (late, "succeeded")):
                shop.ended(task_id, outcome)
        for shop, other in ((first, second), (second, first)):
            theirs = set(ids[other.conf["prefix"]])
            assert theirs.isdisjoint(event.task_id for event in shop.events)
            assert theirs.isdisjoint(run["id"] for run in shop.runs())
            assert len(shop.letters(f"{shop.conf['prefix']}DLQ.orders")) == 1
        held = second.send("stalls")
        until(lambda: second.runs(held))
        second.workers[0].kill()
        task_id = first.send("naps", 6)  # two leases of the application whose worker died
        first.ended(task_id, "succeeded")
        assert "presumed_dead" not in first.workers[0].text
        assert one_server.client.hlen("two:unacked") == 1


@pytest.mark.xdist_group("applications")
def test_applications_with_one_prefix_share_recovery_and_not_queues(one_server: Server, first: Shop) -> None:
    """A worker does not consume the other application's queue, but gives back there what a dead worker of it held."""
    with application(one_server, "mails", prefix="one:") as second:
        ours, theirs = first.send("ok"), second.send("ok")
        first.ended(ours, "succeeded")
        second.ended(theirs, "succeeded")
        assert not first.runs(theirs)
        assert not second.runs(ours)
        held = second.send("stalls")
        until(lambda: second.runs(held))
        second.workers[0].kill()
        first.ended(held, "redelivery_scheduled")
        assert "presumed_dead" in first.workers[0].text
        [raw] = until(lambda: one_server.client.lrange("one:mails", 0, -1))
        assert json.loads(raw)["headers"]["id"] == held
        assert not first.runs(held)
