"""Celery's `purge` on Redis: discards the messages in a queue, and records each task in the same step.

Messages that a worker holds, or that wait in the delay store, stay, as in Celery. Messages that are not tasks are discarded without
a record. Limits: one round trip for each message; Celery deletes the whole list in one.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from redelivery.errors import EnvelopeError

from ....messages.envelope import ANNOUNCED, HEADER, Envelope
from ....messages.events import Event, Outcome, Reason
from ....messages.recording import about
from ....messages.steps import opened
from .bounds import Eviction, evict_oldest

if TYPE_CHECKING:
    from redis import Redis

    from ..keys import Keys


def purge(client: Redis, keys: Keys, queue: str) -> int:
    """Discard the messages in a queue, the oldest first, at most as many as there are now; return how many were discarded."""
    bound = sum(int(client.llen(keys.list(name))) for name in keys.list_names(queue))
    gone = 0
    state, at, raw = evict_oldest(client, keys, queue, most=0)
    while state != "within" and gone < bound:
        state, at, raw = evict_oldest(
            client, keys, queue, most=0, known=(at, raw), eviction=Eviction(b"", None, _events(raw, queue))
        )
        if state == "done":
            gone += 1
            if not raw:
                break
    return gone


def _events(raw: bytes, queue: str) -> tuple[Event, ...]:
    """The events of a purged message; none if it is not a task."""
    try:
        headers = opened(raw)["headers"]
    except EnvelopeError:
        return ()
    if not isinstance(headers.get("id"), str) or not isinstance(headers.get("task"), str):
        return ()
    event = about(headers, queue, raw, Outcome.PURGED, reason=Reason.OPERATOR)
    if Envelope.of(headers).is_letter:
        return (replace(event, delivery=0),)
    if ANNOUNCED in headers or HEADER in headers:
        return (event,)
    return event, about(headers, queue, raw, Outcome.RECEIVED, reason="unannounced")
