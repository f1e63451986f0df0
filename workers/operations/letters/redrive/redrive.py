"""Sends dead letters back to their origin queue, where they are delivered again.

The letters that are in the queue at the beginning are read, the oldest first. A letter that the filter chooses becomes its original
message again, in the next generation, with its history. It is no longer a member of its chord, which has counted its failure. One
script takes it out of the dead-letter queue, adds it to the origin's list, and records `redriven`. A guard may stop the redrive
(`guard.py`).

A letter stays if it has no origin, if the app does not know its origin, or if its bytes were never a message. Limits: after an
interruption, the same command continues. If two redrives of one queue run at once, each moves some of the letters.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from redelivery.errors import EnvelopeError, RedriveError
from redelivery.middleware.transitions.homes import Homes, required
from redelivery.middleware.transitions.redrive import redrive as go_back

from ....brokers.broker import broker_of
from ...spans import send_span
from ..walk import ALL, Walk, Walked, WalkOptions

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from redelivery.middleware.messages.events import Event
    from redelivery.middleware.ports import Answer, Transport

    from ....letters import Letter
    from ..filter import Filter
    from .guard import Guard


@dataclass(slots=True, kw_only=True)
class Redrive(Walked):
    """The result of a redrive, or (`dry_run`) what it would do.

    `by_queue` counts the `moved` letters by target queue, `by_target` by queue with exchange and key. `chords` of them belonged to
    a chord. A guard adds `canary`, the last event of each canary letter, `died_again`, the known deaths of redriven letters, and
    `stopped`, the reason why it stopped the redrive.
    """

    kind: ClassVar[str] = "redrive"
    went: ClassVar[str] = "had gone back"

    chords: int = 0
    by_queue: Counter[str] = field(default_factory=Counter)
    by_target: Counter[str] = field(default_factory=Counter)
    canary: list[dict[str, Any]] = field(default_factory=list)
    died_again: list[dict[str, Any]] = field(default_factory=list)
    stopped: str = ""

    def count(self, move: Moved) -> None:
        """Count a redriven letter."""
        self.chords += move.left_chord
        self.by_queue[move.queue] += 1
        self.by_target[move.target] += 1

    def saw(self, guard: Guard) -> None:
        """Copy the guard's events of letters."""
        self.canary = [_fate(event) for event in guard.canaries]
        self.died_again = [_fate(event) for event in guard.died_again]


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """Changes to redriven letters; None changes nothing. `queue` replaces their origin queue."""

    args: Sequence[Any] | None = None
    kwargs: Mapping[str, Any] | None = None
    task: str | None = None
    queue: str | None = None


def redrive(
    transport: Transport,
    name: str,
    chosen: Filter,
    how: WalkOptions = ALL,
    *,
    edit: Edit | None = None,
    guard: Guard | None = None,
    actor: str | None = None,
) -> Redrive:
    """Redrive letters of one dead-letter queue, changed as `edit` says.

    `guard` may stop the redrive; then the result says why. A dry run needs no guard. `actor` is recorded in the events.

    Raises `BrokerError`, whose text says how many letters were redriven, and `InputError` if no message may be sent to the queue of
    `edit`.
    """
    result, homes = Redrive(dead_letter_queue=name, dry_run=how.dry_run), Homes(transport, name)
    if edit is not None and edit.queue is not None:
        required(transport, edit.queue)
    letters = how.letters or broker_of(transport).letters

    def send(moves: list[Moved]) -> Sequence[Answer | Exception]:
        return letters.redrive_many(name, [move.parts for move in moves])

    def carry(moves: list[Moved]) -> Sequence[Answer | Exception]:
        return send(moves) if guard is None else guard.carry(moves, [move.parts[-1] for move in moves], send)

    def finish() -> None:
        if guard is not None and not how.dry_run:
            guard.end()

    walk = Walk(
        letters=letters,
        transport=transport,
        chosen=chosen,
        result=result,
        prepare=lambda letter: returned(letter, homes, edit, actor),
        carry=carry,
        count=result.count,
        on_moved=lambda move: send_span(transport, move.letter, name, move.parts[-1], move.prepared_ns),
        finish=finish,
        how=how,
    )
    try:
        walk.run()
    except RedriveError as exc:
        result.stopped = str(exc)
    finally:
        if guard is not None:
            result.saw(guard)
        how.on_progress(result)
    return result


def _fate(event: Event) -> dict[str, Any]:
    return {name: getattr(event, name) for name in ("task_id", "generation", "queue", "outcome", "reason", "attempt", "exception")}


@dataclass(frozen=True, slots=True)
class Moved:
    """One letter to redrive: the arguments for `LetterStore.redrive_many`, and the target as people see it."""

    letter: Letter
    parts: tuple[bytes, str, bytes, Event]
    queue: str
    target: str
    left_chord: bool
    prepared_ns: int = field(default_factory=time.time_ns)


def returned(letter: Letter, homes: Homes, edit: Edit | None, actor: str | None) -> Moved:
    """Prepare a letter for the redrive. Raises `RedriveError`, whose text is the reason why the letter stays."""
    if not letter.is_message:
        msg = "its bytes were never a message"
        raise RedriveError(msg)
    if not letter.death:
        msg = "it has no death record: somebody else put it here"
        raise RedriveError(msg)
    assert letter.message is not None  # noqa: S101 - a message has been seen just above
    wanted: dict[str, Any] = {} if edit is None else {"to": edit.queue, "args": edit.args, "kwargs": edit.kwargs, "task": edit.task}
    try:
        back = go_back(letter.message, letter.raw, homes.dead_letter_queue, letter.envelope, homes, actor=actor, **wanted)
    except EnvelopeError as exc:
        raise RedriveError(str(exc)) from exc
    parts = letter.raw, homes.transport.keys.list_name(back.home.queue, back.priority), back.raw, back.event
    return Moved(letter, parts, back.home.queue, homes.in_words(back.home), back.left_chord)
