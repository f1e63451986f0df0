"""Removes dead letters.

A purge archives each batch first, if asked. Then one script removes each letter from its queue and records `purged` with reason
`operator`. After a crash between the two, letters are in the archive and in the queue; the same command continues.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from redelivery.display import scrubbed
from redelivery.middleware.messages.events import Outcome, Reason

from ...brokers.broker import broker_of
from ..spans import send_span
from .archive import archive
from .walk import ALL, Walk, Walked, WalkOptions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from redelivery.middleware.messages.events import Event
    from redelivery.middleware.ports import Answer, Transport

    from ...letters import Letter
    from .filter import Filter


@dataclass(slots=True, kw_only=True)
class Purge(Walked):
    """The result of a purge: `moved` dead letters were removed; the `files` of the archive have them, if there is one."""

    kind: ClassVar[str] = "purge"

    archive: str | None = None
    files: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """The values for JSON, with `moved` renamed to `purged`."""
        return {"purged" if name == "moved" else name: value for name, value in Walked.to_dict(self).items()}


def purge(
    transport: Transport,
    name: str,
    chosen: Filter,
    how: WalkOptions = ALL,
    *,
    archive_to: str | None = None,
    actor: str | None = None,
) -> Purge:
    """Remove dead letters of one queue, archived first if `archive_to` is given.

    Raises `BrokerError`, and `InputError` if the archive cannot be written.
    """
    result = Purge(dead_letter_queue=name, dry_run=how.dry_run, archive=None if archive_to is None else scrubbed(archive_to))
    store = how.letters or broker_of(transport).letters

    def carry(letters: list[Letter]) -> Sequence[Answer | Exception]:
        if archive_to is not None:
            result.files.append(archive(letters, archive_to, name, now_ms=transport.now_ms(), why=Reason.OPERATOR))
        return store.purge_many(name, [(each.raw, purged(each, name, Reason.OPERATOR, actor)) for each in letters])

    Walk(
        letters=store,
        transport=transport,
        chosen=chosen,
        result=result,
        prepare=lambda letter: letter,
        carry=carry,
        on_moved=lambda letter: send_span(transport, letter, name, purged(letter, name, Reason.OPERATOR, actor), time.time_ns()),
        how=how,
    ).run()
    return result


def purged(letter: Letter, name: str, reason: Reason, actor: str | None = None) -> Event:
    """Return the event of a dead letter that is removed."""
    return letter.event(Outcome.PURGED, letter.queue or name, reason=reason, actor=actor)
