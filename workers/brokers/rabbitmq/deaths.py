"""Imports dead letters that RabbitMQ itself made, and adds redelivery's death record.

Such a message came into its queue through a dead-letter exchange, with the header `x-death`. A `Death` is the move to the
dead-letter queue of its origin's policy, with its event. The event's id is derived from the death: a death that is imported twice,
after a crash or by two operators, counts once. If the message was never recorded before, another event begins its life.

`RedriveError` refuses a message without `x-death`, a message that only waited in a delay level, an unknown reason, and a message
whose policy keeps no dead letters. Limits: RabbitMQ gives the time of death in seconds. If one queue ended the message twice for
the same reason, it gives only the first time.
"""

from __future__ import annotations

import hashlib
import json
import time
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from redelivery.errors import RedriveError
from redelivery.middleware.brokers.rabbitmq.journal.entries import moved_of
from redelivery.middleware.brokers.rabbitmq.messages import envelope_of, message_of
from redelivery.middleware.brokers.rabbitmq.names import DELAY_PREFIX
from redelivery.middleware.brokers.rabbitmq.peek import Look, depth_of
from redelivery.middleware.brokers.rabbitmq.publisher import Move
from redelivery.middleware.messages.envelope import ANNOUNCED, HEADER, mapping
from redelivery.middleware.messages.events import Outcome, Reason
from redelivery.middleware.messages.steps import dead, opened, sealed
from redelivery.middleware.ports import Answer, ignore
from redelivery.middleware.transitions.homes import Homes

from ...letters import Contents
from .copies import Copies, Fate
from .letters import TIMEOUT, AmqpLetterStore, answer_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from redelivery.middleware.brokers.rabbitmq.peek import Found
    from redelivery.middleware.brokers.rabbitmq.transport import AmqpTransport
    from redelivery.middleware.messages.events import Event
    from redelivery.middleware.runtime import Runtime

#: RabbitMQ's reasons for ending a message, and redelivery's reasons.
REASONS = {"expired": Reason.EXPIRED, "maxlen": Reason.MAX_LENGTH, "rejected": Reason.REJECTED, "delivery_limit": Reason.EXHAUSTED}
#: The prefixes of the delay queues of redelivery and of Celery: a message that leaves them has not died.
DELAYS = (f"{DELAY_PREFIX}_", "celery_delayed_")
#: Milliseconds added to the whole seconds of `x-death`, so that a death is not earlier than the events before it.
SECOND = 999
DEATHS, MESSAGE = "x-death", "message"


@dataclass(frozen=True, slots=True)
class Death:
    """A dead letter that the broker made.

    `letter` is the stored message. `move` imports it. `opening`, if there is one, records the beginning of its life first.
    """

    found: Found
    letter: bytes
    move: Move
    opening: Move | None
    target: str
    reason: Reason

    @property
    def events(self) -> list[Event]:
        """The events of the import, each with its id."""
        moves = [move for move in (self.opening, self.move) if move is not None]
        return [replace(move.event, event_id=move.event_id) for move in moves if move.event is not None]


@contextmanager
def deaths_in(runtime: Runtime, name: str) -> Iterator[AmqpDeathList]:
    """Open a queue behind a dead-letter exchange; the app's policies apply to its messages. Raises the broker's errors."""
    transport = cast("AmqpTransport", runtime.transport)
    with transport.connect() as connection:
        depth = depth_of(connection, name) or 0
        with Look(connection, name, most=depth, read=read) as look, closing(Copies(transport)) as copies:
            yield AmqpDeathList(runtime, AmqpLetterStore(transport), name, look, depth, copies)


@dataclass(frozen=True, slots=True)
class AmqpDeathList:
    """The messages of a queue behind a dead-letter exchange; there were `total` when it was opened."""

    runtime: Runtime
    store: AmqpLetterStore
    name: str
    look: Look
    total: int
    copies: Copies

    def __iter__(self) -> Iterator[Death | str]:
        """Yield the death of each message, the oldest first, or the reason why the message stays."""
        for found in self.look:
            try:
                death = death_of(self.runtime, self.store, found, self.name)
            except RedriveError as exc:
                yield str(exc)
            else:
                yield death

    def bury(self, deaths: Sequence[Death]) -> list[Answer]:
        """Publish and record these deaths, then remove the messages that were confirmed. Raises `BrokerError`.

        A message that an earlier import published before it died is only recorded and removed.
        """
        again = [death.letter for death in deaths if death.found.taken]
        fates = self.copies.fates(self.name, again)
        asked = [(death, self._submitted(death, fates.get(death.letter))) for death in deaths]
        return [self._ended(death, moves) for death, moves in asked]

    def _submitted(self, death: Death, fate: Fate | None) -> list[Move]:
        """Submit the death. If it was published before, submit only its events; if its fate is in doubt, submit nothing."""
        if fate is None:
            moves = [move for move in (death.opening, death.move) if move is not None]
        elif fate.is_in_doubt:
            return []
        else:
            moves = [Move(event, ignore, may_wait=False, event_id=event.event_id) for event in death.events]
        return [self.store.transport.publisher.submit(move) for move in moves]

    def _ended(self, death: Death, moves: list[Move]) -> Answer:
        if not moves:
            return Answer.UNSURE
        answer = answer_of(moves, time.monotonic() + TIMEOUT)
        if answer is Answer.DONE:
            self.look.take(death.found)
        return answer


def read(message: Any) -> bytes:
    """Return as JSON the message before RabbitMQ ended it, and the deaths that RabbitMQ recorded, the newest first."""
    headers = message.properties.get("application_headers") or {}
    written = headers.get("x-death")
    deaths = [_plain(each) for each in written if isinstance(each, dict)] if isinstance(written, list) else []
    real = [each for each in deaths if not each["queue"].startswith(DELAYS)]
    came: Mapping[str, Any] = real[-1] if real else {}
    if came:
        message.delivery_info.update(exchange=came["exchange"], routing_key=came["routing_key"])
    envelope = envelope_of(message, queue=came.get("queue", ""))
    return json.dumps({DEATHS: deaths, MESSAGE: envelope.decode()}).encode()


def _plain(written: Mapping[str, Any]) -> dict[str, Any]:
    """Return one entry of `x-death`. Any client may have written it, so missing and wrong values are replaced."""
    keys, time, count = written.get("routing-keys"), written.get("time"), written.get("count")
    first = keys[0] if isinstance(keys, list) and keys else ""
    expiration = written.get("original-expiration")
    return {
        "queue": str(written.get("queue") or ""),
        "reason": str(written.get("reason") or ""),
        "exchange": str(written.get("exchange") or ""),
        "routing_key": str(first),
        "count": count if isinstance(count, int) else 1,
        "at_ms": round(time.replace(tzinfo=UTC).timestamp() * 1000) + SECOND if isinstance(time, datetime) else 0,
        "expiration": None if expiration is None else str(expiration),
    }


def death_of(runtime: Runtime, store: AmqpLetterStore, found: Found, name: str) -> Death:
    """Return how to import a dead letter. Raises `RedriveError`, whose text is the reason why the dead letter stays."""
    letter = json.loads(found.raw)
    deaths, contents = letter[DEATHS], Contents.of(letter[MESSAGE].encode())
    if not deaths:
        msg = "RabbitMQ did not make this dead letter: it has no x-death"
        raise RedriveError(msg)
    death, real = deaths[0], [each for each in deaths if not each["queue"].startswith(DELAYS)]
    if death not in real:
        msg = "it only waited in the delay store, and has not died"
        raise RedriveError(msg)
    reason = REASONS.get(death["reason"])
    if reason is None:
        msg = f"{death['reason'] or 'nothing'!r} of queue {death['queue']!r} is not a known reason of death"
        raise RedriveError(msg)
    queue = contents.envelope.life_queue(real[-1]["queue"])
    if (why := Homes(store.transport, name).objection_to(queue)) is not None:
        raise RedriveError(why)
    policy = runtime.policies.policy_for(queue, contents.task)
    target = (policy.expiry_queue_for if reason is Reason.EXPIRED else policy.dead_letter_queue_for)(queue)
    if target is None:
        msg = f"the policy of queue {queue!r} keeps no dead letters: give it a dead_letter_queue"
        raise RedriveError(msg)
    now_ms = store.transport.now_ms()
    at_ms = death["at_ms"] or now_ms
    buried = dead(
        _with_expiration(opened(contents.raw), death["expiration"]),
        queue,
        dead_letter_queue=target,
        reason=reason,
        at_ms=at_ms,
        seen_ms=at_ms,
        attempt=None,
        failed=None,
        detail=f"RabbitMQ itself ended it in {death['queue']}: {death['reason']}; imported from {name}",
    )
    envelope = contents.envelope
    facts = {"attempt": envelope.attempt, "delivery": envelope.delivery + 1}
    opening = None
    if ANNOUNCED not in contents.headers and HEADER not in contents.headers:
        seen = contents.event(Outcome.RECEIVED, queue, reason="unannounced", **facts)
        opening = Move(seen, ignore, may_wait=False, event_id=_event_id(contents, death, at_ms, "seen"))
    died, lies = contents.event(Outcome.DEAD_LETTERED, queue, reason=reason, **facts), sealed(buried)
    event_id = _event_id(contents, death, at_ms, "death")
    move = Move(
        died,
        ignore,
        message_of(lies, target=("", target)),
        ("", target),
        partial(store.keep, target, queue, ""),
        may_wait=False,
        event_id=event_id,
        moved=moved_of(contents.raw, lies, name, 0, target=target, events=[replace(died, event_id=event_id)], now_ms=now_ms),
    )
    return Death(found, contents.raw, move, opening, target, reason)


def _event_id(contents: Contents, death: Mapping[str, Any], at_ms: int, what: str) -> str:
    """Return the id of an event of this death, which is the same at each import."""
    names = ("queue", "reason", "count", "at_ms")
    said = [contents.task_id, contents.envelope.generation, contents.nesting, *(death[name] for name in names)]
    digest = hashlib.sha1(json.dumps(said).encode(), usedforsecurity=False).hexdigest()
    return f"{at_ms}-{what}{digest[:20]}"


def _with_expiration(message: dict[str, Any], expiration: str | None) -> dict[str, Any]:
    """Restore the expiration that RabbitMQ removed, so that the death record has it."""
    if expiration is None:
        return message
    return {**message, "properties": {**mapping(message["properties"]), "expiration": expiration}}
