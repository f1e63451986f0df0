"""The least rights: the ACL lines of `docs/deploying.md` are enough for worker, operator and producer, and each is needed."""

from __future__ import annotations

import re
import socket
import tempfile
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from celery import Celery
from kombu.exceptions import OperationalError
from redis import Redis
from redis.exceptions import RedisError, ResponseError
from structlog.testing import capture_logs

from redelivery import Redelivery
from redelivery.errors import RedeliveryError
from tests.support.desk import QUEUE, Desk
from tests.support.lanes import first_quick
from tests.support.operators.paths import PATHS, PREFIX
from tests.support.running import Shop, until
from tests.support.servers import Asked, Server, binaries

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.xdist_group("rights")

DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "deploying.md"
LINE = re.compile(r"^user (\w+) (.+)$", re.MULTILINE)
DATABASE = 1
#: redis-py sends its version to the server, and goes on if it may not; Redis 7.0 lacks the command, so no line can allow it.
HARMLESS = {"command client|setinfo"}
SETTINGS = {"queues": {"#": {"redelivery_delay": 0.1, "max_delivery_attempts": 2}}}
CONF = {"broker_transport_options": {"global_keyprefix": PREFIX}, "prefix": PREFIX}


def documented(user: str) -> list[str]:
    """The rules of this user's line in the document."""
    return next(rules.split() for name, rules in LINE.findall(DOCUMENT.read_text()) if name == user)


def commands(user: str) -> list[str]:
    """The commands that the line allows."""
    return [rule.removeprefix("+") for rule in documented(user) if rule.startswith("+")]


@dataclass
class Guarded(Asked):
    """A server that is reached as one of its users; a shop and a desk use it like a `Server`."""

    server: Server
    user: str
    port: int

    @property
    def url(self) -> str:
        """Its address, with the user's name and password."""
        return f"redis://{self.user}:secret@127.0.0.1:{self.port}/{DATABASE}"

    @cached_property
    def client(self) -> Any:
        """The administrator's client."""
        return Redis(unix_socket_path=self.server.socket, db=DATABASE)

    def admit(self, user: str, *rules: str) -> None:
        """Connect as this user from now on, with its documented rights and then these."""
        self.user = user
        self.client.execute_command("ACL", "SETUSER", user, "reset", *documented(user), *rules)
        self.client.execute_command("ACL", "LOG", "RESET")

    @property
    def denials(self) -> set[str]:
        """The commands that the server has denied its users since the last call."""
        entries: Any = self.client.acl_log()
        return {f"{each['reason']} {each['object']}" for each in entries} - HARMLESS


@contextmanager
def server_of(kind: str) -> Iterator[Guarded]:
    """A server of this kind, on a port of the loopback."""
    if kind not in binaries():
        pytest.skip("there is no redis-server on this machine: ./dev test installs it where it may")
    with tempfile.TemporaryDirectory(prefix="rd-", ignore_cleanup_errors=True) as name:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        server = Server(Path(name), binaries()[kind], {"port": str(port), "bind": "127.0.0.1"}).start()
        try:
            yield Guarded(server, "worker", port)
        finally:
            server.stop(9)


@pytest.fixture(scope="module", params=first_quick(["redis", "valkey"]))
def guarded(request: pytest.FixtureRequest) -> Iterator[Guarded]:
    """Each kind of server: their users' rights are not quite the same."""
    with server_of(request.param) as here:
        yield here


@pytest.fixture(scope="module")
def valkey() -> Iterator[Guarded]:
    """The server that every machine has, for tests that do not depend on its kind."""
    with server_of("valkey") as here:
        yield here


#: For each command that a worker's line allows, a path that needs it.
NEEDS = {
    **dict.fromkeys(("select", "ping", "multi", "exec", "sadd", "evalsha", "script|load", "lpush", "xadd"), "publish"),
    "smembers": "publish_to_a_topic",
    **dict.fromkeys(("pexpire", "time"), "publish_to_a_queue_that_expires"),
    **dict.fromkeys(("lindex", "rpop", "exists", "hlen", "llen"), "publish_to_a_full_queue"),
    **dict.fromkeys(("hexists", "hmget", "hget", "hset", "zadd"), "receive"),
    **dict.fromkeys(("zrem", "hdel"), "succeed"),
    **dict.fromkeys(("hscan", "rpush"), "start_and_give_back"),
    **dict.fromkeys(("zrange", "zrangebyscore"), "delay_and_promote"),
    **dict.fromkeys(("lpop", "set"), "be_refused"),
    **dict.fromkeys(("get", "del", "subscribe"), "lead_and_listen"),
    **dict.fromkeys(("lrem", "lrange", "xlen", "type"), "redrive"),
    "hgetall": "look_at_letters",
    **dict.fromkeys(("zrangebylex", "zcard", "zscore"), "look_at_delays"),
    "publish": "change_delays",
    **dict.fromkeys(("hkeys", "xrevrange"), "follow_a_task"),
    **dict.fromkeys(("scan", "zmscore", "xrange"), "take_inventory"),
    **dict.fromkeys(("xinfo|stream", "xdel"), "export"),
    "xread": "follow_the_log",
    **dict.fromkeys(("memory|usage", "xtrim", "hsetnx", "hincrby"), "keep_the_log_within"),
    "info": "renew_and_watch",
    **dict.fromkeys(("client|tracking", "client|caching"), "wait_for_pushes"),
    "watch": "sweep_after_plain_workers",
    **dict.fromkeys(("brpop", "srem", "script|exists"), "ask_workers"),
    **dict.fromkeys(("psubscribe", "punsubscribe"), "hear_remote_control"),
}
#: What a producer does.
PRODUCING = (
    *("publish", "publish_to_a_topic", "publish_to_a_queue_that_expires", "publish_to_a_full_queue"),
    *("publish_a_batch", "publish_a_batch_that_is_taken_back"),
)


def denied_on(guarded: Guarded, path: str, user: str, *rules: str) -> set[str]:
    """What the server denies this user on this path, with these further rules; the path may fail because of it."""
    guarded.client.flushdb()
    guarded.client.script_flush()
    guarded.admit(user, *rules)
    desk = Desk(guarded, prefix=PREFIX)  # type: ignore[arg-type]
    with suppress(RedisError, RedeliveryError, AssertionError, ConnectionError, OperationalError):
        PATHS[path](desk)
    return guarded.denials


def done_by(guarded: Guarded, path: str, user: str) -> set[str]:
    """As above, but the path must run to its end."""
    guarded.client.flushdb()
    guarded.admit(user)
    PATHS[path](Desk(guarded, prefix=PREFIX))  # type: ignore[arg-type]
    return guarded.denials


def test_the_table_names_each_right_of_a_worker() -> None:
    """The line has no right that no path needs."""
    assert sorted(NEEDS) == sorted(commands("worker"))
    assert set(commands("producer")) <= set(NEEDS)


@pytest.mark.parametrize("path", sorted(PATHS))
def test_the_rights_are_enough(guarded: Guarded, path: str) -> None:
    """Every path runs to its end, and the server denies nothing."""
    assert done_by(guarded, path, "worker") == set()


@pytest.mark.parametrize("path", PRODUCING)
def test_a_producers_rights_are_enough_to_publish(guarded: Guarded, path: str) -> None:
    """With and without bounds on the queue."""
    assert done_by(guarded, path, "producer") == set()


@pytest.mark.parametrize("command", sorted(NEEDS))
def test_each_right_is_needed(valkey: Guarded, command: str) -> None:
    """Without it, the server denies the path that the table names."""
    assert f"command {command}" in denied_on(valkey, NEEDS[command], "worker", f"-{command}")


def test_each_right_of_a_producer_is_needed(valkey: Guarded) -> None:
    """Publishing needs them all, some only where the queue is bounded."""
    for command in commands("producer"):
        without = (denied_on(valkey, path, "producer", f"-{command}") for path in PRODUCING)
        assert any(f"command {command}" in denied for denied in without), command


@pytest.mark.parametrize(
    ("path", "user", "denied"),
    [
        ("receive", "producer", "command hexists"),
        ("follow_the_log", "producer", "command xread"),
        ("ask_workers", "producer", "command publish"),
    ],
)
def test_a_producer_may_not_do_a_workers_work(valkey: Guarded, path: str, user: str, denied: str) -> None:
    """It can publish, but neither receive nor look."""
    assert denied in denied_on(valkey, path, user)


def test_waiting_for_replicas_needs_a_right_of_its_own(valkey: Guarded) -> None:
    """Without it nothing fails, because the write stands; a line says that no replica confirms it."""
    for rules, why in (((), "refuses WAIT"), (("+wait",), "may be lost")):
        valkey.client.flushdb()
        valkey.admit("producer", *rules)
        app = Celery("waits", broker=valkey.url, set_as_current=False)
        app.conf.broker_transport_options = {"global_keyprefix": PREFIX}
        Redelivery(app, {"wait_replicas": 1})
        with capture_logs() as lines:
            app.send_task("desk.pack", queue=QUEUE)
        assert valkey.client.llen(f"{PREFIX}{QUEUE}") == 1
        assert [(line["event"], why in line["why"]) for line in lines] == [("replicas.behind", True)]


def test_keys_and_channels_of_others_are_out_of_reach(valkey: Guarded) -> None:
    """Only the app's own prefix is allowed."""
    valkey.admit("worker")
    client = Redis.from_url(valkey.url)
    for words in (("LPUSH", "other:celery", "x"), ("PUBLISH", "other:redelivery:wake", "x"), ("LRANGE", "celery", "0", "-1")):
        with pytest.raises(ResponseError, match=r"(?i)no permission|noperm"):
            client.execute_command(*words)


def test_a_worker_with_the_least_rights_does_everything(guarded: Guarded) -> None:
    """It receives, redelivers, delays, dead-letters, obeys remote control and stops, and the server has denied nothing."""
    guarded.client.flushdb()
    guarded.admit("worker")
    with tempfile.TemporaryDirectory(prefix="rd-", ignore_cleanup_errors=True) as name:
        here = Shop(guarded, Path(name), settings=SETTINGS, conf=CONF)  # type: ignore[arg-type]
        worker = here.start("--task-events")
        delayed = here.send("ok", countdown=600)
        here.ended(delayed, "deferred")
        here.app.control.revoke(delayed)
        here.ended(delayed, "revoked")
        here.ended(here.send("ok"), "succeeded")
        here.ended(here.send("fails", 1), "succeeded")
        here.ended(here.send("fails"), "dead_lettered")
        assert here.app.control.ping(limit=1, timeout=30) == [{"w0@shop": {"ok": "pong"}}]
        until(lambda: guarded.client.exists(f"{PREFIX}redelivery:dispatcher"))
        worker.stop(seconds=120)
        text = worker.text
    assert guarded.denials == set()
    assert not re.search(r"NOPERM|event=\S+\.(refused|failed|not_seen|tracking_refused)", text), text[-2000:]


@pytest.mark.parametrize("right", ["info", "hset"])
def test_a_worker_without_a_right_that_it_needs_ends_with_one_line(guarded: Guarded, right: str) -> None:
    """The line says who has to do what: Celery alone would end with a traceback."""
    guarded.client.flushdb()
    guarded.admit("worker", f"-{right}")
    with tempfile.TemporaryDirectory(prefix="rd-", ignore_cleanup_errors=True) as name:
        worker = Shop(guarded, Path(name), settings=SETTINGS, conf=CONF).start(wait=False)  # type: ignore[arg-type]
        assert worker.process.wait(60) == 1
        [line] = [line for line in worker.text.splitlines() if "redelivery: error:" in line]
        assert "a worker's rights (deploying.md, the least rights)" in line
        assert "Traceback" not in worker.text
