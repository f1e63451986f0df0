"""Moves dead letters to another dead-letter queue.

A move is recorded as `redriven`, which begins the letter's next generation, and at once as `dead_lettered` with reason `operator`.
So the books know where the letter is, and its history says who moved it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from redelivery.errors import EnvelopeError, RedriveError
from redelivery.middleware.brokers.errors import BROKER_ERRORS
from redelivery.middleware.messages.envelope import HEADER
from redelivery.middleware.messages.events import Outcome, Reason
from redelivery.middleware.messages.steps import dead, redriven, sealed
from redelivery.middleware.transitions.homes import Homes

from ...brokers.broker import broker_of
from ..spans import send_span
from .live_queues import require_rest
from .walk import ALL, Walk, Walked, WalkOptions

if TYPE_CHECKING:
    from redelivery.middleware.messages.events import Event
    from redelivery.middleware.ports import Transport

    from ...letters import Letter
    from .filter import Filter


@dataclass(slots=True, kw_only=True)
class Move(Walked):
    """The result of a move to the dead-letter queue `target`."""

    kind: ClassVar[str] = "move"
    went: ClassVar[str] = "had been moved"

    target: str


def move(
    transport: Transport,
    name: str,
    target: str,
    chosen: Filter,
    how: WalkOptions = ALL,
    *,
    actor: str | None = None,
) -> Move:
    """Move dead letters to another dead-letter queue.

    Raises `BrokerError`, and `InputError` if no message may be sent there or workers would run the dead letters (`live_queues`).
    """
    result, now_ms = Move(dead_letter_queue=name, dry_run=how.dry_run, target=target), transport.now_ms()
    try:
        require_rest(transport, target)
    except BROKER_ERRORS as exc:
        raise result.cut_short(exc) from exc
    homes, store = Homes(transport, name), how.letters or broker_of(transport).letters

    Walk(
        letters=store,
        transport=transport,
        chosen=chosen,
        result=result,
        prepare=lambda letter: _moved(letter, homes, target, now_ms, actor),
        carry=lambda moves: store.move_many(name, target, [move.parts for move in moves]),
        on_moved=lambda move: send_span(transport, move.letter, name, move.parts[-1][-1], move.prepared_ns),
        how=how,
    ).run()
    return result


class _Moved(NamedTuple):
    """A dead letter to move. `parts` are its old and new bytes, its origin queue, and its two events."""

    letter: Letter
    parts: tuple[bytes, bytes, str, tuple[Event, Event]]
    prepared_ns: int


def _moved(letter: Letter, homes: Homes, target: str, now_ms: int, actor: str | None) -> _Moved:
    """Prepare a dead letter for the move. Raises `RedriveError`, whose text is the reason why the letter must stay."""
    if not letter.is_message or not letter.death:
        msg = "it is not a dead letter of redelivery's: its bytes were never a message, or somebody else put it here"
        raise RedriveError(msg)
    message, failure = letter.message, letter.envelope.failure
    assert message is not None  # noqa: S101 - a message has been seen just above
    try:
        home = homes.of(letter.envelope)
    except EnvelopeError as exc:
        raise RedriveError(str(exc)) from exc
    living = redriven(message, home.address)
    again = dead(
        living,
        homes.dead_letter_queue,
        dead_letter_queue=target,
        reason=Reason.OPERATOR,
        at_ms=now_ms,
        seen_ms=now_ms,
        attempt=None,
        failed=None,
        detail=f"moved to {target}",
    )
    header = again["headers"][HEADER]
    if failure is not None:
        header["failure"] = dict(failure)
    header["attempt"] = letter.envelope.attempt
    opened = letter.event(Outcome.REDRIVEN, home.queue, generation=letter.generation + 1, actor=actor)
    died = replace(opened, outcome=Outcome.DEAD_LETTERED, reason=Reason.OPERATOR)
    return _Moved(letter, (letter.raw, sealed(again), home.queue, (opened, died)), time.time_ns())
