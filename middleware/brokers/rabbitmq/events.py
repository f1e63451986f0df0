"""Outcome events as RabbitMQ messages: packs and reads them.

A message holds one event or more: JSON, a list of tables with the short names of `ENTRY`, without empty values; `i` is the event's
id, `<ms>-<publisher>.<number>`. If a confirmation is lost, the event is published again with the same id: readers count an id once.
The numbers of a publisher have no gaps, so that a missing event is noticed. The time is by the clock of the recording process
(`clock` is `worker`), because RabbitMQ does not report its own.
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
    """The body of a message with these events and their ids."""
    return json.dumps([_table(event_id, event) for event_id, event in numbered], separators=(",", ":")).encode()


def log_refused(count: int, log_name: str) -> None:
    """Log that the outcome log has refused this many events of published tasks."""
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
    """The event of a table. Its id is checked, because it becomes a part of file names."""
    if not _ID.fullmatch(table["i"]):
        raise ValueError(table["i"])
    return replace(Event.from_entry(table["i"], {name: str(value) for name, value in table.items()}), clock="worker")


def _table(event_id: str, event: Event) -> dict[str, str]:
    said = {name: value for name, value in zip(ENTRY, event.to_entry(), strict=True) if value}
    return {"i": event_id, **said}
