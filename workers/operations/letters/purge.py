"""The purge: dead letters go for good, by an operator's hand; and the move to another dead-letter queue.

A purge archives a batch first, where it is told to, and then takes each letter out and records `purged` with reason `operator`, in
one script. A crash between the two leaves letters that are in the archive and in the queue, and the same purge goes on.

A move is recorded, too: the letter's next generation begins, and dies at once by the operator's hand (`redriven`, `dead_lettered`
with reason `operator`), so that the books know where it lies and its history says who put it there.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

from redelivery.display import scrubbed
from redelivery.errors import EnvelopeError, RedriveError
from redelivery.middleware.messages.events import Outcome, Reason
from redelivery.middleware.messages.steps import dead, redriven, sealed
from redelivery.middleware.transitions.homes import Homes, required

from ...brokers.broker import broker_of, needed
from .archive import archive
from .walk import Pace, Walk, Walked

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from redelivery.middleware.messages.events import Event
    from redelivery.middleware.ports import Answer

    from ...letters import Letter
    from ...ports import Transitions
    from .filter import Filter


@dataclass(slots=True, kw_only=True)
class Purge(Walked):
    """What a purge did, or would do: `moved` letters are gone; `files` of the archive hold them, where there is one."""

    kind: ClassVar[str] = "purge"

    archive: str | None = None
    files: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it; what was moved is called purged."""
        facts = Walked.to_dict(self)
        return {"purged" if name == "moved" else name: value for name, value in facts.items()}


def purge(
    transport: Transitions,
    name: str,
    chosen: Filter,
    *,
    dry_run: bool = False,
    limit: int | None = None,
    archive_to: str | None = None,
    rate: float | None = None,
    on_progress: Callable[[Purge], None] = lambda _: None,
    pace: Pace | None = None,
    actor: str | None = None,
) -> Purge:
    """Remove letters of one dead-letter queue for good: at most `limit`, archived first where `archive_to` says so.

    Raises `BrokerError` where the broker refuses or does not answer, `InputError` where the archive cannot be written.
    """
    result = Purge(dead_letter_queue=name, dry_run=dry_run, archive=None if archive_to is None else scrubbed(archive_to))

    pace = pace or Pace()
    store = pace.letters or needed(broker_of(transport).letters)

    def carry(letters: list[Letter]) -> Sequence[Answer | Exception]:
        if archive_to is not None:
            result.files.append(archive(letters, archive_to, name, now_ms=transport.now_ms(), why=Reason.OPERATOR))
        return store.purge_many(name, [(each.raw, purged(each, name, Reason.OPERATOR, actor)) for each in letters])

    walk = Walk(
        letters=store,
        transport=transport,
        chosen=chosen,
        result=result,
        prepare=lambda letter: letter,
        carry=carry,
        on_progress=on_progress,
        limit=limit,
        rate=rate,
        pace=pace,
    )
    walk.run()
    return result


def purged(letter: Letter, name: str, reason: Reason, actor: str | None = None) -> Event:
    """The event of a letter that goes for good."""
    return letter.event(Outcome.PURGED, letter.queue or name, reason=reason, actor=actor)


@dataclass(slots=True, kw_only=True)
class Move(Walked):
    """What a move did, or would do; `target` is the other dead-letter queue."""

    kind: ClassVar[str] = "move"
    went: ClassVar[str] = "had been moved"

    target: str


@dataclass(frozen=True, slots=True)
class _Moved:
    parts: tuple[bytes, bytes, str, tuple[Event, Event]]


def move(
    transport: Transitions,
    name: str,
    target: str,
    chosen: Filter,
    *,
    dry_run: bool = False,
    limit: int | None = None,
    rate: float | None = None,
    on_progress: Callable[[Move], None] = lambda _: None,
    pace: Pace | None = None,
    actor: str | None = None,
) -> Move:
    """Move letters to another dead-letter queue, at most `limit`.

    Raises `InputError` where nothing may be sent there, and `BrokerError` where the broker does not answer.
    """
    result, now_ms = Move(dead_letter_queue=name, dry_run=dry_run, target=target), transport.now_ms()
    required(transport, target)
    pace = pace or Pace()
    homes, store = Homes(transport, name), pace.letters or needed(broker_of(transport).letters)
    walk = Walk(
        letters=store,
        transport=transport,
        chosen=chosen,
        result=result,
        prepare=lambda letter: _moved(letter, homes, target, now_ms, actor),
        carry=lambda moves: store.move_many(name, target, [each.parts for each in moves]),
        on_progress=on_progress,
        limit=limit,
        rate=rate,
        pace=pace,
    )
    walk.run()
    return result


def _moved(letter: Letter, homes: Homes, target: str, now_ms: int, actor: str | None) -> _Moved:
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
    header = again["headers"]["redelivery"]
    if failure is not None:
        header["failure"] = dict(failure)
    header["attempt"] = letter.envelope.attempt
    opened = letter.event(Outcome.REDRIVEN, home.queue, generation=letter.generation + 1, actor=actor)
    died = replace(opened, outcome=Outcome.DEAD_LETTERED, reason=Reason.OPERATOR)
    return _Moved((letter.raw, sealed(again), home.queue, (opened, died)))
