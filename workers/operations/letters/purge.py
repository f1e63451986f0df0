"""The purge: an operator removes dead letters for good.

If it is asked to, a purge first archives a batch. Then it takes each letter out of the queue and records `purged` with reason
`operator`, in one script. A crash between the two leaves letters in the archive and in the queue; run again, the purge goes on.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from redelivery.display import scrubbed
from redelivery.middleware.messages.events import Outcome, Reason

from ...brokers.broker import broker_of, needed
from ..telling import tell
from .archive import archive
from .walk import Walk, WalkContext, Walked

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from redelivery.middleware.messages.events import Event
    from redelivery.middleware.ports import Answer

    from ...letters import Letter
    from ...ports import Transitions
    from .filter import Filter


@dataclass(slots=True, kw_only=True)
class Purge(Walked):
    """What a purge did, or would do: `moved` dead letters are gone; `files` of the archive hold them, if there is one."""

    kind: ClassVar[str] = "purge"

    archive: str | None = None
    files: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """The values for JSON; `moved` is called `purged` there."""
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
    context: WalkContext | None = None,
    actor: str | None = None,
) -> Purge:
    """Remove dead letters of one queue for good: at most `limit`, archived first if `archive_to` says where.

    Raises `BrokerError` if the broker refuses or does not answer, `InputError` if the archive cannot be written.
    """
    result = Purge(dead_letter_queue=name, dry_run=dry_run, archive=None if archive_to is None else scrubbed(archive_to))

    context = context or WalkContext()
    store = context.letters or needed(broker_of(transport).letters)

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
        told=lambda letter: tell(transport, letter, name, purged(letter, name, Reason.OPERATOR, actor), time.time_ns()),
        on_progress=on_progress,
        limit=limit,
        rate=rate,
        context=context,
    )
    walk.run()
    return result


def purged(letter: Letter, name: str, reason: Reason, actor: str | None = None) -> Event:
    """The event of a dead letter that is removed for good."""
    return letter.event(Outcome.PURGED, letter.queue or name, reason=reason, actor=actor)
