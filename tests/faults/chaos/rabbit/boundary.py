"""The boundaries on RabbitMQ: all calls that ask its broker for something, by their steps.

A publication is a step named after its purpose (`defer`, `dead_letter`, `recover`, `release`, `record`, ...): `before` it, nothing
was sent; `after` it, the broker has confirmed it, and nothing else has happened. `confirm.before` is between the two: published,
and not confirmed. `moving`, `moved` and `had` are entries of the journal, whose confirmation nobody waits for (also `stayed`,
which no run reaches). Steps of a producer are `announce` (the event of a publication), `publish`, and `publish_batch` (a batch,
with its events). The others: `receive` (a worker gets a delivery), `start` (the start of a suspect is recorded), `acknowledge`,
`declare`, `keep` (a dead-letter queue is declared), `rest` (a stopping worker waits for its last acknowledgements), `look`,
`give_back` and `lock` (an operator's tool takes messages to read them, and puts them back; an export keeps others away), `listen`
(a queue of one's own beside the outcome log).

An order is read, counted and carried out by `tests.faults.chaos.boundary`.
"""

from __future__ import annotations

import os
import select
from typing import TYPE_CHECKING, Any

from redelivery.middleware.brokers.rabbitmq import channel as amqp_channel
from redelivery.middleware.brokers.rabbitmq import transport as amqp
from redelivery.middleware.brokers.rabbitmq.batch import Together
from redelivery.middleware.brokers.rabbitmq.channel import Channel
from redelivery.middleware.brokers.rabbitmq.consuming.deliveries import ChannelClaim
from redelivery.middleware.brokers.rabbitmq.consuming.start_markers import Starts
from redelivery.middleware.brokers.rabbitmq.journal.entries import (
    HAS_ENDED,
    HAS_MOVED,
    HAS_STAYED,
    IS_MOVING,
    IS_TURNING,
    IS_UNRECORDED,
)
from redelivery.middleware.brokers.rabbitmq.names import DELAY_PREFIX, JOURNAL, OUTCOMES
from redelivery.middleware.brokers.rabbitmq.peek import Look
from redelivery.middleware.brokers.rabbitmq.publisher import Publisher
from redelivery.middleware.messages.events import Outcome, Reason
from redelivery.workers.brokers.rabbitmq import letters as amqp_letters
from redelivery.workers.brokers.rabbitmq import outcome_log as amqp_outcomes
from tests.faults.chaos.boundary import begin, here, stand_around

if TYPE_CHECKING:
    from redelivery.middleware.brokers.rabbitmq.publisher import Move

__all__ = ["install", "step_of"]

#: The entries of the journal.
NOTES = {
    IS_MOVING: "moving",
    IS_TURNING: "moving",
    HAS_MOVED: "moved",
    IS_UNRECORDED: "moved",
    HAS_ENDED: "had",
    HAS_STAYED: "stayed",
}
#: The steps of an operator's command, by its role.
OF_ROLE = {"redrive": "redrive", "move": "move", "importer": "import", "reschedule": "reschedule", "cancel": "cancel"}


def install() -> None:
    """Watch every boundary of this process from here on. Once in a process."""
    begin()
    _at_publisher()
    _at_producer()
    _at_claim()
    _at_declarations()
    _at_looks()


def step_of(move: Move, role: str) -> str:
    """The step of a move's publication."""
    event = move.event
    if role in OF_ROLE:
        return OF_ROLE[role]
    if event is None and not move.target[0]:
        return "release"
    if event is not None and event.outcome == Outcome.REDRIVEN:
        return "redrive"
    if event is not None and event.outcome == Outcome.REDELIVERY_SCHEDULED and event.reason == Reason.WORKER_LOST:
        return "recover"
    return "defer" if move.target[0].startswith(DELAY_PREFIX) or event is None else "dead_letter"


def _at_publisher() -> None:
    send, publish, confirmed = Publisher._send, Publisher._publish, Publisher._confirmed
    sent: dict[int, str] = {}
    open_steps: set[str] = set()

    def send_here(self: Any, moves: Any, *, is_again: bool) -> None:
        listed, role = list(moves), os.environ.get("CHAOS_ROLE", "")
        sent.clear()
        sent.update({id(move.message): step_of(move, role) for move in listed if move.message is not None})
        send(self, listed, is_again=is_again)

    def publish_here(self: Any, message: Any, target: Any) -> int:
        step = NOTES[message.body[:1]] if target[1] == JOURNAL else "record" if target[1] == OUTCOMES else sent[id(message)]
        here(f"{step}.before", lambda: True)
        number = publish(self, message, target)
        if target[1] == JOURNAL:  # nobody waits for it
            here(f"{step}.after", lambda: True)
        else:
            open_steps.add(step)
        return number

    def confirmed_here(self: Any) -> None:
        steps = set(open_steps)
        open_steps.clear()
        here("confirm.before", lambda: _answered(self, steps))
        confirmed(self)
        for step in steps:
            here(f"{step}.after", lambda: True)

    Publisher._send = send_here  # type: ignore[method-assign]
    Publisher._publish = publish_here  # type: ignore[method-assign]
    Publisher._confirmed = confirmed_here  # type: ignore[method-assign]


def _answered(publisher: Any, steps: set[str]) -> set[str]:
    """Wait until an answer of the broker lies unread here. Until then the broker may drop what a dying process sent."""
    select.select([publisher._kombu.connection.sock], [], [], 5)
    return steps


def _at_producer() -> None:
    stand_around(Channel, "_announce", "announce", lambda _self, msg, exchange, *_: not exchange and _is_task(msg))
    stand_around(Channel, "basic_publish_confirm", "publish", lambda _self, msg, *_: _is_task(msg))
    stand_around(Together, "send", "publish_batch")
    stand_around(Together, "_confirmed", "confirm")


def _is_task(message: Any) -> bool:
    headers = message.properties.get("application_headers") or {}
    return "id" in headers and "task" in headers


def _at_claim() -> None:
    stand_around(ChannelClaim, "take", "receive", lambda _self, message: getattr(message, "received", None) is not None)
    stand_around(Starts, "note", "start")
    stand_around(Channel, "acknowledge", "acknowledge", lambda _self, tags: tags)
    stand_around(Channel, "await_acknowledged", "rest")


def _at_declarations() -> None:
    transports: Any = amqp
    channels: Any = amqp_channel
    letters: Any = amqp_letters
    for name in ("declare_outcomes", "declare_delays", "declare_journal", "bind_to_delays"):
        stand_around(transports, name, "declare")
    stand_around(channels, "declare_outcomes", "declare")
    stand_around(transports, "declare_letters", "keep")
    stand_around(letters, "declare_letters", "keep")


def _at_looks() -> None:
    exporting: Any = amqp_outcomes
    stand_around(Look, "take", "acknowledge")
    stand_around(Look, "_next", "look")
    stand_around(Look, "_give_back", "give_back")
    stand_around(exporting, "_lock", "lock")
    stand_around(exporting.Listening, "__init__", "listen")
