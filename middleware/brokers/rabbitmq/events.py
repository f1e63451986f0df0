"""The outcome events as messages of RabbitMQ: how they are packed, and read again.

One message holds one event or more: JSON, a list of tables with the short names of `ENTRY`, what is empty left out; `i` is
the event's id. The id is given when the event is made, `<ms>-<publisher>.<number>`, and is the same when it is published a second
time because the confirmation was lost: a reader of the log counts an id once. The numbers of one publisher have no gap, so that
a missing one shows. The time is the recorder's clock (`clock` says `worker`): RabbitMQ tells nobody its own.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

from redelivery.errors import EnvelopeError

from ...messages.events import ENTRY, Event

if TYPE_CHECKING:
    from collections.abc import Iterable


def packed(numbered: Iterable[tuple[str, Event]]) -> bytes:
    """The body of a message that holds these events, each with its id."""
    return json.dumps([_table(event_id, event) for event_id, event in numbered], separators=(",", ":")).encode()


def events_of(body: bytes | str) -> list[Event]:
    """The events of a message. Raises `EnvelopeError` where it holds none of ours."""
    try:
        tables = json.loads(body)
        if not isinstance(tables, list):
            raise TypeError(type(tables).__name__)  # noqa: TRY301 - answered as whatever else is wrong with it
        return [replace(Event.from_entry(table["i"], table), clock="worker") for table in tables]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as exc:
        msg = f"this message of the outcome log was not written by redelivery: {type(exc).__name__}: {exc}"
        raise EnvelopeError(msg) from exc


def _table(event_id: str, event: Event) -> dict[str, str]:
    said = {name: value for name, value in zip(ENTRY, event.to_entry(), strict=True) if value}
    return {"i": event_id, **said}
