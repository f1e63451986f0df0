"""An operator's desk: an app on a private broker, whose messages the real transitions put where a test needs them."""

from __future__ import annotations

import base64
import json
import re
import sys
import types
import unicodedata
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
from celery import Celery
from click.testing import CliRunner

from redelivery import Redelivery
from redelivery.middleware.brokers.redis.scripts import Script
from redelivery.middleware.messages.envelope import Attempt, Envelope, Failed
from redelivery.middleware.messages.events import Event, Outcome, entries
from redelivery.middleware.messages.steps import dead, sealed
from redelivery.workers.brokers.redis.transport import redis_of
from redelivery.workers.cli.main import redelivery

if TYPE_CHECKING:
    from collections.abc import Iterator

    from click.testing import Result
    from redis import Redis

    from redelivery.middleware.brokers.redis.broker import RedisBroker
    from redelivery.middleware.brokers.redis.keys import Keys
    from tests.support.servers import Server

__all__ = ["QUEUE", "Desk", "body_of", "copies", "desk", "each_desk", "harmless", "task_message"]

QUEUE, LETTERS = "orders", "DLQ.orders"


def harmless(text: str) -> bool:
    """Whether a text has only newlines and tabs as control characters, and none that changes the text direction."""
    return not any(unicodedata.category(char) in {"Cc", "Cf", "Cs"} for char in re.sub(r"[\n\t]", "", text))


def body_of(*args: Any, chord: Any = None) -> str:
    embed = {"callbacks": None, "errbacks": None, "chain": None, "chord": chord}
    return base64.b64encode(json.dumps([list(args), {}, embed]).encode()).decode()


def task_message(
    task_id: str = "", task: str = "desk.pack", *, body: str | None = None, priority: int = 0, **headers: Any
) -> dict[str, Any]:
    return {
        "body": body_of() if body is None else body,
        "content-type": "application/json",
        "content-encoding": "utf-8",
        "headers": {"id": task_id or str(uuid.uuid4()), "task": task, "retries": 0, "eta": None, **headers},
        "properties": {
            "priority": priority,
            "body_encoding": "base64",
            "delivery_tag": str(uuid.uuid4()),
            "delivery_info": {"exchange": "", "routing_key": QUEUE},
        },
    }


@dataclass
class Desk:
    """The app, its broker, and the command line."""

    server: Server
    prefix: str = ""
    settings: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.app = Celery("desk", broker=self.server.url)
        self.app.conf.task_default_queue = QUEUE
        self.app.conf.broker_transport_options = {"global_keyprefix": self.prefix}
        self.install = Redelivery(self.app, {"queues": {"#": {"max_delivery_attempts": 3}}, **self.settings})
        self.module = types.ModuleType(f"desk_{uuid.uuid4().hex}")
        self.module.app = self.app  # type: ignore[attr-defined]

    @property
    def transport(self) -> RedisBroker:
        return redis_of(self.install)

    @property
    def client(self) -> Redis:
        return self.transport.client

    @property
    def keys(self) -> Keys:
        return self.transport.keys

    @property
    def events(self) -> list[Event]:
        raw: Any = self.client.xrange(self.keys.outcomes)
        return entries(raw)

    # put messages in their places

    def publish(self, message: dict[str, Any] | bytes | None = None, queue: str = QUEUE, priority: int = 0) -> str:
        """Put a message into a queue. Returns its task id."""
        message = task_message() if message is None else message
        raw = message if isinstance(message, bytes) else sealed(message)
        self.client.lpush(self.keys.list(self.keys.list_name(queue, priority)), raw)
        return "" if isinstance(message, bytes) else str(message["headers"].get("id"))

    def hold(self, owner: str = "w", worker: str = "w@desk", queue: str = QUEUE) -> str:
        """Receive one message as the worker with this owner token would. Returns its tag."""
        keys = self.keys
        if not self.client.hexists(keys.leases, owner):
            self.transport.leases.register(owner, {"worker": worker})
        number = int(self.client.hget(keys.received(owner), "number") or 0) + 1
        fixed = [keys.unacked, keys.unacked_index, keys.received(owner), keys.leases, keys.woken(owner)]
        fixed += [keys.watch(queue), keys.idle(queue)]
        lists = [keys.list(name) for name in keys.list_names(queue)]
        answer = Script("receive")(self.client, [*fixed, *lists], [owner, number, 1, 10**6, 1, -1, 0, f',"",{json.dumps(queue)}]'])
        return str(answer[4].decode())

    def delay(self, message: dict[str, Any], delay_ms: int = 3_600_000) -> str:
        """Publish, receive and defer a message. Returns its task id."""
        task_id = self.publish(message)
        tag = self.hold()
        event = Event(task_id=task_id, outcome=Outcome.DEFERRED, task=message["headers"]["task"], queue=QUEUE)
        self.transport.defer(tag, QUEUE, sealed(message), task_id=task_id, event=event, delay_ms=delay_ms)
        return task_id

    def die(
        self,
        message: dict[str, Any] | None = None,
        *,
        reason: str = "exhausted",
        exception: str = "ValueError",
        said: str = "no",
        ago_ms: int = 0,
        into: str = LETTERS,
        fingerprint: str | None = None,
    ) -> str:
        """Publish, receive and dead-letter a message. Returns its task id."""
        message = task_message() if message is None else message
        task_id = self.publish(message)
        tag, now = self.hold(), self.transport.now_ms()
        letter = dead(
            message,
            QUEUE,
            dead_letter_queue=into,
            reason=reason,
            at_ms=now - ago_ms,
            seen_ms=now - ago_ms,
            attempt=Attempt(at_ms=now - ago_ms, worker="w@desk", exception=f"{exception}: {said}"),
            failed=Failed(
                type=exception,
                message=said,
                traceback=f"Traceback\n{exception}: {said}",
                fingerprint=f"f-{exception}" if fingerprint is None else fingerprint,
            ),
        )
        facts: dict[str, Any] = {
            "task": message["headers"]["task"],
            "generation": Envelope.of(message["headers"]).generation,
            "exception": exception,
            "worker": "w@desk",
        }
        event = Event(task_id=task_id, outcome=Outcome.DEAD_LETTERED, queue=QUEUE, reason=reason, **facts)
        self.transport.dead_letter(tag, sealed(letter), dead_letter_queue=into, queue=QUEUE, event=event)
        return task_id

    # look at the broker

    def messages(self, name: str = QUEUE) -> list[dict[str, Any]]:
        """The messages of a queue, the next to be received first."""
        raws: Any = self.client.lrange(self.keys.list(name), 0, -1)
        return [json.loads(raw) for raw in reversed(raws)]

    def ids(self, name: str = QUEUE) -> list[str]:
        return [message["headers"]["id"] for message in self.messages(name)]

    # the command line

    def run(self, *words: str, **options: Any) -> Result:
        sys.modules[self.module.__name__] = self.module
        try:
            return CliRunner().invoke(redelivery, ["-A", self.module.__name__, *words], **options)
        finally:
            del sys.modules[self.module.__name__]

    def json(self, *words: str) -> Any:
        """The JSON that a command prints. Raises `AssertionError` if the command fails."""
        done = self.run(*words, "--json")
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout)


def copies(desk: Desk, count: int) -> list[str]:
    """Make `count` letters at once. Returns their task ids, the oldest first."""
    desk.die(task_message("first"))
    raw: Any = desk.client.lpop(LETTERS)
    ids = [f"task-{number:05}" for number in range(count)]
    desk.client.lpush(LETTERS, *[raw.replace(b'"id":"first"', f'"id":"{each}"'.encode()) for each in ids])
    return ids


@pytest.fixture
def desk(server: Server) -> Iterator[Desk]:
    made = Desk(server)
    yield made
    made.transport.close()


@pytest.fixture(name="desk")
def each_desk(any_server: Server) -> Iterator[Desk]:
    made = Desk(any_server)
    yield made
    made.transport.close()
