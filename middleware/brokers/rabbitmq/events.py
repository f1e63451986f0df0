"""The outcome events as messages of RabbitMQ: how they are packed, and read again.

One message holds one event or more: JSON, a list of tables with the short names of `ENTRY`, without empty values; `i` is the
event's id. The id, `<ms>-<publisher>.<number>`, is made with the event. It stays the same if the event is published a second time
because the confirmation was lost: a reader of the log counts an id once. The numbers of one publisher have no gap, so that a
missing event is noticed. The time is by the clock of the recording process (`clock` is `worker`): RabbitMQ does not report its own.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from redelivery.errors import EnvelopeError

from ...logs import log
from ...messages.events import ENTRY, Event

if TYPE_CHECKING:
    from collections.abc import Iterable

_ID: Final = re.compile(r"\d{1,15}-[\w.-]{1,100}", re.ASCII)


def packed(numbered: Iterable[tuple[str, Event]]) -> bytes:
    """The body of a message that holds these events, each with its id."""
    return json.dumps([_table(event_id, event) for event_id, event in numbered], separators=(",", ":")).encode()


def tell_refused(count: int, log_name: str) -> None:
    """Log that the outcome log has refused so many events of tasks that are published."""
    why = f"the outcome log {log_name} takes no events: does a policy of the broker limit its length?"
    log.error("publish.not_recorded", count=count, why=why)


def events_of(body: bytes | str) -> list[Event]:
    """The events of a message. Raises `EnvelopeError` if redelivery did not write it."""
    try:
        tables = json.loads(body)
        if not isinstance(tables, list):
            raise TypeError(type(tables).__name__)  # noqa: TRY301 - handled like any other error in it
        return [_event(table) for table in tables]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as exc:
        msg = f"this message of the outcome log was not written by redelivery: {type(exc).__name__}: {exc}"
        raise EnvelopeError(msg) from exc


def _event(table: dict[str, Any]) -> Event:
    """The event of a table; its id becomes a part of the names of files."""
    if not _ID.fullmatch(table["i"]):
        raise ValueError(table["i"])
    return replace(Event.from_entry(table["i"], {name: str(value) for name, value in table.items()}), clock="worker")


def _table(event_id: str, event: Event) -> dict[str, str]:
    said = {name: value for name, value in zip(ENTRY, event.to_entry(), strict=True) if value}
    return {"i": event_id, **said}
