"""The brokers of the conformance suite: Valkey, Debian's Redis, Debian's RabbitMQ with classic and with quorum queues, and files.

"Files" is kombu's filesystem transport. It stands for all of kombu's other transports, with real processes and without a server.
"""

from __future__ import annotations

import json
import os
import sys
import types
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import amqp
import pytest
from click.testing import CliRunner

from redelivery.middleware.brokers.kombu.filesystem import FilesystemTransport
from redelivery.middleware.brokers.kombu.generic import capabilities_of as of_channel
from redelivery.middleware.brokers.rabbitmq.messages import message_of
from redelivery.middleware.brokers.rabbitmq.peek import Look
from redelivery.middleware.brokers.rabbitmq.transport import AmqpTransport
from redelivery.middleware.brokers.redis.keys import Keys
from redelivery.middleware.brokers.redis.transport import RedisTransport
from redelivery.middleware.messages.envelope import Attempt, Failed
from redelivery.middleware.messages.steps import dead, opened, sealed
from redelivery.middleware.ports import Capability
from redelivery.workers.cli.main import redelivery
from tests.support.desk import LETTERS, QUEUE, Desk, task_message
from tests.support.files import Files
from tests.support.running import Shop
from tests.support.servers import Server, binaries
from tests.support.skeleton_broker.server import SkeletonFile
from tests.support.skeleton_broker.transport import SkeletonTransport

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from celery import Celery

    from tests.support.rabbit import Node, Rabbit

__all__ = ["AMQP", "BROKERS", "FILES", "QUICK", "REDIS", "Place", "capabilities_of", "letter", "opened_place"]

REDIS = ("valkey", "redis")
AMQP = ("rabbit-classic", "rabbit-quorum")
FILES = ("files",)
#: The skeleton of a new broker, as `docs/brokers.md` shows it.
SKELETON = ("skeleton",)
BROKERS = (*REDIS, *AMQP, *FILES, *SKELETON)
#: One broker of each kind, for the quick lane; the full lane tests the others too.
QUICK = ("valkey", "rabbit-classic", "files", "skeleton")


def capabilities_of(name: str) -> frozenset[Capability]:
    """The capabilities that the transport of this broker declares."""
    if name in FILES:
        return of_channel(FilesystemTransport.Channel)
    if name in SKELETON:
        return SkeletonTransport.capabilities
    return RedisTransport.capabilities if name in REDIS else AmqpTransport.capabilities


@dataclass
class Place:
    """A private broker, and the desks and shops on it."""

    name: str
    server: Server | Rabbit | Files
    folder: Path
    _shops: list[Shop] = field(default_factory=list)

    @property
    def capabilities(self) -> frozenset[Capability]:
        """The capabilities that its transport declares."""
        return capabilities_of(self.name)

    @property
    def opening(self) -> tuple[str, int, int]:
        """The first event of a life, with attempt and delivery: `published` if producers can write to the outcome log."""
        return ("published", 0, 0) if Capability.OUTCOME_LOG in self.capabilities else ("received", 1, 1)

    @property
    def waits(self) -> list[str]:
        """The events of a message that waits until it is due; none if it waits in a worker's memory."""
        return ["deferred"] if Capability.BROKER_DELAYS in self.capabilities else []

    @property
    def queue_type(self) -> str:
        """The type of the queues, if the broker has types."""
        return self.name.partition("-")[2] or "classic"

    @property
    def conf(self) -> dict[str, Any]:
        """The Celery settings that this broker needs."""
        if isinstance(self.server, Files):
            return self.server.conf
        if self.queue_type != "quorum":
            return {}
        return {"task_default_queue_type": "quorum", "task_create_missing_queue_type": "quorum"}

    def shop(self, **options: Any) -> Shop:
        """A shop: its producers are in this process, its workers in others."""
        options.setdefault("settings", {"queues": {"#": {"redelivery_delay": 0.2, "max_delivery_attempts": 3}}})
        options["conf"] = self.conf | options.get("conf", {})
        self._shops.append(Shop(cast("Server", self.server), self.folder, **options))
        return self._shops[-1]

    def desk(self) -> Desk:
        """An operator's desk, whose queue `orders` is declared."""
        desk = Desk(cast("Server", self.server))
        desk.app.conf.update(self.conf)
        self.declare(desk, QUEUE)
        return desk

    @staticmethod
    def declare(desk: Desk | Shop, name: str) -> None:
        """Declare a queue of this desk's app, as a worker does."""
        with desk.app.connection_for_write() as connection:
            desk.app.amqp.queues[name].bind(connection.default_channel).declare()

    @staticmethod
    def command(app: Celery, *words: str) -> Any:
        """The output of `redelivery -A <this app> … --json`, run in this process. Raises `AssertionError` if it fails."""
        module = types.ModuleType(f"operator_{uuid.uuid4().hex}")
        module.app = app  # type: ignore[attr-defined]
        sys.modules[module.__name__] = module
        try:
            done = CliRunner().invoke(redelivery, ["-A", module.__name__, *words, "--json"])
        finally:
            del sys.modules[module.__name__]
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout)

    def close(self) -> None:
        """End the shops' workers."""
        for shop in self._shops:
            shop.stop()

    def queue_of(self, name: str, priority: int = 0) -> str:
        """The queue of messages with this priority: Redis has a list for each priority step."""
        return Keys().list_name(name, priority) if isinstance(self.server, Server) else name

    # putting and reading messages without redelivery

    def put(self, *raws: bytes, name: str = LETTERS) -> None:
        """Put dead letters into a dead-letter queue, the oldest first."""
        assert not isinstance(self.server, Files)
        if isinstance(self.server, Server):
            if raws:
                self.server.client.lpush(name, *raws)
            self.server.client.hset("redelivery:dead_letter_queues", name, name.removeprefix("DLQ."))
            return
        with self.server.connection() as connection:
            channel = connection.connection.channel()
            channel.confirm_select()
            arguments = {"x-queue-type": "quorum"} if self.queue_type == "quorum" else {}
            channel.queue_declare(name, durable=True, auto_delete=False, arguments=arguments)
            for raw in raws:
                amqp.Channel.basic_publish_confirm(channel, message_of(raw, target=("", name)), "", name)

    def lose(self, name: str) -> None:
        """Remove one message from a queue without a record."""
        assert not isinstance(self.server, Files)
        if isinstance(self.server, Server):
            assert self.server.client.lpop(name) is not None
            return
        with self.server.connection() as connection:
            assert connection.default_channel.basic_get(name, no_ack=True) is not None

    def messages(self, name: str) -> list[dict[str, Any]]:
        """The messages of a queue, the next one first. RabbitMQ marks them as delivered."""
        assert not isinstance(self.server, Files)
        if isinstance(self.server, Server):
            return [opened(raw) for raw in self.server.client.lrange(name, 0, -1)[::-1]]
        with self.server.connection() as connection, Look(connection, name) as look:
            return [opened(found.raw) for found in look]

    def ids(self, name: str) -> list[str]:
        """The task ids of the messages of a queue, the next one first."""
        return [message["headers"]["id"] for message in self.messages(name)]


def letter(
    message: dict[str, Any] | None = None,
    *,
    reason: str = "exhausted",
    exception: str = "ValueError",
    died_ms: int = 1_700_000_000_000,
    into: str = LETTERS,
) -> bytes:
    """A dead letter's bytes, as every transport keeps it."""
    return sealed(
        dead(
            task_message() if message is None else message,
            QUEUE,
            dead_letter_queue=into,
            reason=reason,
            at_ms=died_ms,
            seen_ms=died_ms,
            attempt=Attempt(at_ms=died_ms, worker="w@desk", exception=f"{exception}: no"),
            failed=Failed(type=exception, message="no", traceback=f"Traceback\n{exception}: no", fingerprint=f"f-{exception}"),
        )
    )


def opened_place(name: str, folder: Path, node: Callable[[], Node]) -> Iterator[Place]:
    """The broker of this name, for a fixture. If the machine does not have it, the test is skipped, except in CI.

    `node` gives the run's RabbitMQ.
    """
    if name in AMQP:
        rabbit = node().vhost()
        place = Place(name, rabbit, folder)
        yield place
        place.close()
        rabbit.remove()
        return
    if name in FILES + SKELETON:
        place = Place(name, Files(folder) if name in FILES else SkeletonFile(folder), folder)
        yield place
        place.close()
        return
    binary = binaries().get(name)
    if binary is None:
        message = f"there is no {name} on this machine: ./dev test installs it where it may"
        (pytest.fail if os.environ.get("CI") else pytest.skip)(message)
    server = Server(folder, str(binary), {"appendonly": "yes"}).start()
    place = Place(name, server, folder)
    yield place
    place.close()
    server.stop(9)
