"""The envelope: what a message carries of its own history, and every header that this project writes.

The life of a message, and what each step writes:

1. *Published.* `redelivery-announced` says that the publication was recorded. A producer may set `redelivery-dead-letter-eligible`,
`redelivery-time-to-live-ms` and
   `redelivery-delivery-delay-ms`, and no others.
2. *Received.* Nothing is written: a first delivery has attempt 1, generation 0, and is first seen when its worker receives it.
3. *Redelivered* (`redelivered`). `headers["redelivery"]` appears: one more attempt, the delay it was given, when it was first seen
   and where it came from. Celery's `retries` is counted on (a crash does not count there), its `eta` says until when the message
   waits, and `delivery_info["redelivered"]` is true.
4. *Deferred* (`deferred`). An ETA message that waits in the delay store: only `served_eta` is written, so that no clock judges
   the ETA a second time.
5. *Dead* (`dead`). The death is added to `deaths`, the `failure` says what happened, Celery's `expires` is taken off (it is kept in
   the death), and `delivery_info` names the dead-letter queue.
6. *Redriven* (`redriven`). `generation` is counted on, `attempt` and `retries` begin anew, `delivery_info` names the origin again;
   the history stays.

The body, the properties and all other headers are never touched. Histories are bounded: the last 20 attempts, 20 deaths (the first
one always stays), a traceback of 16 KiB.

Refuses nothing: a `redelivery` header that cannot be read, whoever wrote it, counts as absent. A message is opened with the plain
JSON codec, not kombu's, so that values with a meaning to kombu come out as they went in.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Self

from redelivery.errors import EnvelopeError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "ANNOUNCED",
    "ELIGIBLE",
    "HEADER",
    "Attempt",
    "Envelope",
    "Failed",
    "dead",
    "deferred",
    "eligible_of",
    "opened",
    "redelivered",
    "redriven",
    "sealed",
]

HEADER = "redelivery"
#: Set by our own producers, which record what they publish.
ANNOUNCED = "redelivery-announced"
ELIGIBLE = "redelivery-dead-letter-eligible"
VERSION = 1
MOST_ATTEMPTS = 20
MOST_DEATHS = 20
MOST_TRACEBACK = 16 * 1024
MOST_MESSAGE = 1024

Raw = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """What an attempt died of. `fingerprint` is equal for failures of one cause."""

    type: str
    message: str = ""
    traceback: str = ""
    fingerprint: str = ""

    def to_header(self) -> dict[str, str]:
        """The header's `failure`, with its caps applied: a traceback keeps its end, where the error is."""
        return {
            "type": self.type,
            "message": self.message[:MOST_MESSAGE],
            "traceback": self.traceback[-MOST_TRACEBACK:],
            "fingerprint": self.fingerprint,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One counted delivery that ended: when (ms), at which worker, of what, and the delay (ms) that followed."""

    at_ms: int
    worker: str
    exception: str
    delay_ms: int | None = None

    def to_header(self) -> dict[str, Any]:
        """One entry of the header's `attempts`."""
        return {"at": self.at_ms, "worker": self.worker, "exception": self.exception[:MOST_MESSAGE], "delay": self.delay_ms}


@dataclass(frozen=True, slots=True, kw_only=True)
class Envelope:
    """What a message's `redelivery` header says.

    `attempt` counts the deliveries that ended and count; `delivery` every hand-over that ended. `suspect` says that a worker died
    while it held the message. `served_eta` is the ETA that the delay store has already waited for.
    """

    attempt: int = 0
    delivery: int = 0
    generation: int = 0
    first_seen_ms: int | None = None
    origin: Mapping[str, Any] = field(default_factory=dict)
    attempts: tuple[Mapping[str, Any], ...] = ()
    deaths: tuple[Mapping[str, Any], ...] = ()
    failure: Mapping[str, Any] | None = None
    suspect: bool = False
    served_eta: str | None = None

    @classmethod
    def of(cls, headers: Mapping[str, Any] | None) -> Self:
        """Read it from a message's headers; what is absent or cannot be read has its default."""
        header = headers.get(HEADER) if isinstance(headers, dict) else None
        if not isinstance(header, dict):
            return cls()
        return cls(
            attempt=_count(header.get("attempt")),
            delivery=_count(header.get("delivery")),
            generation=_count(header.get("generation")),
            first_seen_ms=_count(header.get("first_seen")) or None,
            origin=_mapping(header.get("origin")),
            attempts=_mappings(header.get("attempts")),
            deaths=_mappings(header.get("deaths")),
            failure=_mapping(header.get("failure")) or None,
            suspect=header.get("suspect") is True,
            served_eta=header["served_eta"] if isinstance(header.get("served_eta"), str) else None,
        )

    def to_header(self) -> dict[str, Any]:
        """What is written; what has its default is left out, but for the counters."""
        header: dict[str, Any] = {
            "version": VERSION,
            "attempt": self.attempt,
            "delivery": self.delivery,
            "generation": self.generation,
            "first_seen": self.first_seen_ms,
            "origin": dict(self.origin),
        }
        if self.attempts:
            header["attempts"] = [dict(each) for each in self.attempts]
        if self.deaths:
            header["deaths"] = [dict(each) for each in self.deaths]
        if self.failure is not None:
            header["failure"] = dict(self.failure)
        if self.suspect:
            header["suspect"] = True
        if self.served_eta is not None:
            header["served_eta"] = self.served_eta
        return header


def opened(raw: bytes) -> Raw:
    """The message in these bytes. Raises `EnvelopeError` where they hold none: no JSON, or JSON of another shape."""
    try:
        message = json.loads(raw)
    except (ValueError, RecursionError) as exc:
        msg = f"the message is no JSON: {exc}; look at its bytes with `redelivery dlq show`"
        raise EnvelopeError(msg) from exc
    if (
        not isinstance(message, dict)
        or not isinstance(message.get("headers"), dict)
        or not isinstance(message.get("properties"), dict)
    ):
        msg = "the message has no headers or no properties: it was not published by kombu; look at it with `redelivery dlq show`"
        raise EnvelopeError(msg)
    return message


def sealed(message: Raw) -> bytes:
    """The bytes of a message."""
    return json.dumps(message, separators=(",", ":")).encode()


def redelivered(
    message: Raw,
    queue: str,
    *,
    seen_ms: int,
    attempt: Attempt | None,
    crash: bool = False,
    suspect: bool = False,
    due_ms: int | None = None,
) -> Raw:
    """The message as it is delivered again.

    `attempt` is the counted delivery that ended; None where it does not count (`suspect`: its worker died, and it may not have been
    running). `crash` keeps Celery's `retries` as it is. `due_ms` is until when it waits.
    """
    envelope = _begun(Envelope.of(message["headers"]), message, queue, seen_ms)
    envelope = replace(
        envelope,
        attempt=envelope.attempt + (attempt is not None),
        delivery=envelope.delivery + 1,
        suspect=envelope.suspect or crash or suspect,
    )
    if attempt is not None:
        envelope = replace(envelope, attempts=(*envelope.attempts, attempt.to_header())[-MOST_ATTEMPTS:])
    headers = {**message["headers"], "redelivered": True}
    if attempt is not None and not crash:
        headers["retries"] = _count(headers.get("retries")) + 1
    if due_ms is not None:
        headers["eta"] = iso(due_ms)
        envelope = replace(envelope, served_eta=headers["eta"])
    headers[HEADER] = envelope.to_header()
    return {**message, "headers": headers, "properties": _redelivered_properties(message)}


def deferred(message: Raw, queue: str, *, seen_ms: int) -> Raw:
    """The message as it waits for the ETA that its producer gave it."""
    envelope = _begun(Envelope.of(message["headers"]), message, queue, seen_ms)
    envelope = replace(envelope, served_eta=message["headers"].get("eta"))
    return {**message, "headers": {**message["headers"], HEADER: envelope.to_header()}}


def dead(
    message: Raw,
    queue: str,
    *,
    dead_letter_queue: str,
    reason: str,
    at_ms: int,
    seen_ms: int,
    attempt: Attempt | None,
    failed: Failed | None,
    detail: str = "",
) -> Raw:
    """The message as a dead letter: whole, with the death record in its header."""
    envelope = _begun(Envelope.of(message["headers"]), message, queue, seen_ms)
    attempts = envelope.attempts if attempt is None else (*envelope.attempts, attempt.to_header())[-MOST_ATTEMPTS:]
    headers = dict(message["headers"])
    expires = headers.pop("expires", None)
    envelope = replace(
        envelope,
        attempt=envelope.attempt + (attempt is not None),
        delivery=envelope.delivery + 1,
        attempts=attempts,
        deaths=_with_death(envelope.deaths, message, queue, reason=reason, at_ms=at_ms, expires=expires, detail=detail),
        failure=None if failed is None else failed.to_header(),
        suspect=False,
    )
    headers[HEADER] = envelope.to_header()
    properties = {**message["properties"], "delivery_info": {"exchange": "", "routing_key": dead_letter_queue}}
    return {**message, "headers": headers, "properties": properties}


def redriven(message: Raw) -> Raw:
    """The message as it goes back to its origin for another life. Raises `EnvelopeError` where it names no origin."""
    envelope = Envelope.of(message["headers"])
    if not envelope.origin.get("queue"):
        msg = "the letter names no origin queue: move it by hand, or purge it"
        raise EnvelopeError(msg)
    envelope = replace(envelope, attempt=0, delivery=0, generation=envelope.generation + 1, first_seen_ms=None, failure=None)
    headers = {**message["headers"], "retries": 0, HEADER: envelope.to_header()}
    headers.pop("eta", None)
    info = {"exchange": envelope.origin.get("exchange", ""), "routing_key": envelope.origin.get("routing_key", "")}
    return {**message, "headers": headers, "properties": {**message["properties"], "delivery_info": info}}


def eligible_of(headers: Mapping[str, Any]) -> bool | None:
    """What the producer said of keeping the message as a dead letter; None where it said nothing."""
    said = headers.get(ELIGIBLE)
    return said if isinstance(said, bool) else None


def iso(ms: int) -> str:
    """This time (milliseconds since the epoch) as Celery writes an ETA."""
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat()


def _begun(envelope: Envelope, message: Raw, queue: str, seen_ms: int) -> Envelope:
    """The envelope with its origin and its first sight, where this is the first time that we write it."""
    if envelope.first_seen_ms is None:
        envelope = replace(envelope, first_seen_ms=seen_ms)
    if not envelope.origin.get("queue"):
        info = _mapping(message["properties"].get("delivery_info"))
        origin = {"queue": queue, "exchange": info.get("exchange", ""), "routing_key": info.get("routing_key", queue)}
        envelope = replace(envelope, origin=origin)
    return envelope


def _redelivered_properties(message: Raw) -> Raw:
    info = {**_mapping(message["properties"].get("delivery_info")), "redelivered": True}
    return {**message["properties"], "delivery_info": info}


def _with_death(
    deaths: tuple[Mapping[str, Any], ...],
    message: Raw,
    queue: str,
    *,
    reason: str,
    at_ms: int,
    expires: object,
    detail: str,
) -> tuple[Mapping[str, Any], ...]:
    """One entry for each queue and reason, the newest first (RabbitMQ's `x-death`); the first death never leaves."""
    info = _mapping(message["properties"].get("delivery_info"))
    known = next((each for each in deaths if each.get("queue") == queue and each.get("reason") == reason), None)
    death = {
        "queue": queue,
        "reason": reason,
        "count": 1 + (_count(known.get("count")) if known else 0),
        "first": known.get("first", at_ms) if known else at_ms,
        "last": at_ms,
        "exchange": info.get("exchange", ""),
        "routing_keys": [info.get("routing_key", queue)],
    }
    if expires is not None:
        death["expires"] = expires
    if detail:
        death["detail"] = detail[:MOST_MESSAGE]
    others = [each for each in deaths if each is not known]
    if len(others) >= MOST_DEATHS:
        others = [*others[: MOST_DEATHS - 2], others[-1]]
    return (death, *others)


def _count(value: object) -> int:
    """A counter from an untrusted header: a whole number that is not negative, or 0."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53 else 0


def _mapping(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _mappings(value: object) -> tuple[Mapping[str, Any], ...]:
    return tuple(each for each in value if isinstance(each, dict)) if isinstance(value, list) else ()
