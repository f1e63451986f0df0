"""The fleet on RabbitMQ: a node behind a proxy, and the processes of a run.

As `tests.faults.chaos.processes.fleet`, on a node of its own or on a given one. It asks the node itself, not the proxy, for the
messages on the broker.
"""

from __future__ import annotations

import subprocess
import time
from typing import TYPE_CHECKING, Any, ClassVar

from kombu import Queue
from webhooks.rabbit_node import USER

from redelivery.middleware.brokers.rabbitmq.names import AUDIT, JOURNAL, OUTCOMES
from redelivery.middleware.brokers.rabbitmq.peek import Look
from redelivery.workers.letters import Letter
from tests.faults.chaos.processes.fleet import Fleet
from tests.faults.chaos.processes.proxy import Proxy
from tests.support.rabbit import TAP, Node

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

__all__ = ["DIED", "QUORUM", "RabbitFleet", "queues"]

#: A quorum queue; one that lets its messages die by itself, and the queue where they lie then; one that gives `DLQ.spare` its name.
QUORUM, BRIEF, DIED = "counted", "brief", "died"
QUEUES = ("celery", QUORUM, BRIEF, "judged", "DLQ.judged", "spare")
#: At-least-once dead-lettering, which only quorum queues have, and which may refuse a publication instead of dropping a message.
OF_BRIEF = {
    "x-queue-type": "quorum",
    "x-message-ttl": 300,
    "x-dead-letter-exchange": "",
    "x-dead-letter-routing-key": DIED,
    "x-dead-letter-strategy": "at-least-once",
    "x-overflow": "reject-publish",
}
ARGUMENTS: Mapping[str, Mapping[str, Any]] = {QUORUM: {"x-queue-type": "quorum"}, BRIEF: OF_BRIEF}

#: Seconds for which an answer of the node is reused: each costs a process.
LOOK_EVERY = 0.7
#: Seconds after a restart until RabbitMQ passes on what was between two delay levels: three minutes, and a few.
RESTORING = 200.0


def queues() -> list[Queue]:
    """The queues of the fleet's app, for its producers."""
    return [Queue(name, routing_key=name, queue_arguments=ARGUMENTS.get(name)) for name in QUEUES]


class RabbitFleet(Fleet):
    """The node, the proxy and the processes."""

    PACKAGE = "tests.faults.chaos.rabbit"
    #: Without confirms a producer cannot know that a message which it published into a cut connection is gone.
    CONF: ClassVar[dict[str, Any]] = {"broker_transport_options": {"confirm_publish": True}, "broker_connection_max_retries": None}

    NEEDLE = OUTCOMES.encode()

    def __init__(self, folder: Path, settings: dict[str, Any], node: Node | None = None) -> None:
        super().__init__(folder, settings)
        self._is_own = node is None
        self.node = Node(folder / "rabbit") if node is None else node
        self._depths: dict[str, tuple[int, int]] | None = None
        self._looked_at = 0.0
        self._restarted_at: float | None = None

    def _open_broker(self) -> None:
        if self._is_own:
            self.node.start()
        self.rabbit = self.node.vhost()
        with self.rabbit.connection() as connection:
            connection.default_channel.queue_declare(DIED, durable=True, auto_delete=False)
        self.proxy = Proxy(self.node.port).start()

    def _close_broker(self) -> None:
        self.proxy.stop()
        if self._is_own:
            self.node.stop()
        else:
            self.rabbit.remove()

    @property
    def _url(self) -> str:
        return f"amqp://{USER}:{USER}@127.0.0.1:{self.proxy.port}/{self.rabbit.name}"

    def restart(self) -> None:
        """Kill the node, and start it again: everything that it had confirmed must be there."""
        self.node.kill()
        self.node.start()
        self._restarted_at = time.monotonic()

    def is_restoring(self) -> bool:
        """Whether messages between two delay levels may still arrive: until then no queue counts them."""
        return self._restarted_at is not None and time.monotonic() < self._restarted_at + RESTORING

    def _more_variables(self, queues: str) -> Mapping[str, str]:
        """A worker that consumes the quorum queue knows it."""
        return {"CHAOS_QUORUM": "1" if QUORUM in queues.split(",") else ""}

    # what is on the broker

    def depths(self) -> dict[str, tuple[int, int]] | None:
        """Ready and unacknowledged messages, by queue; None if the node does not answer."""
        if time.monotonic() > self._looked_at + LOOK_EVERY:
            try:
                self._depths = self.rabbit.depths()
            except (AssertionError, subprocess.SubprocessError):
                self._depths = None
            self._looked_at = time.monotonic()
        return self._depths

    def depth(self, queue: str) -> int:
        """Ready messages in a queue; none if the node does not answer."""
        return (self.depths() or {}).get(queue, (0, 0))[0]

    def waiting(self) -> int | None:
        """How many messages wait or are held, without the outcome log and without dead letters that no handler must see."""
        depths = self.depths()
        if depths is None:
            return None
        counted = {name: both for name, both in depths.items() if name in {"DLQ.judged", DIED} or not name.startswith("DLQ.")}
        return sum(sum(both) for name, both in counted.items() if name not in {OUTCOMES, AUDIT, JOURNAL, TAP})

    def held(self) -> int:
        """How many messages are unacknowledged."""
        return sum(unacked for _, unacked in (self.depths() or {}).values())

    def letters(self) -> list[tuple[str, int, int, str]]:
        """The life of each letter in a dead-letter queue: its task's id, nesting and generation, and its queue."""
        found = []
        with self.rabbit.connection() as connection:
            for name in (name for name in self.rabbit.depths() if name.startswith("DLQ.")):
                with Look(connection, name) as look:
                    letters = [Letter.of(each.raw) for each in look]
                found += [
                    (each.task_id, each.nesting, each.generation, each.envelope.life_queue(each.queue or name)) for each in letters
                ]
        return found
