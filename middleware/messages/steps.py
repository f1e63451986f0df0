"""How each step of a message's life rewrites its history; `docs/architecture.md` lists what each step writes.

The body and all other properties and headers never change. Histories are bounded: the last 20 attempts, 20 deaths (the first one
always stays), a traceback of 16 KiB. Messages are read with the plain JSON codec, because kombu's changes some values.
"""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from redelivery.errors import EnvelopeError

from .envelope import (
    HEADER,
    MAX_ATTEMPTS,
    MAX_DEATHS,
    MAX_MESSAGE,
    RELEASED,
    Attempt,
    Envelope,
    Failed,
    count,
    mapping,
)
from .ttl import PUBLISHED, TIME_TO_LIVE

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Characters of a routing key (AMQP's bound).
MAX_ROUTING_KEY = 255

Raw = dict[str, Any]

_encoded = json.JSONEncoder(separators=(",", ":")).encode


def opened(raw: bytes) -> Raw:
    """The message in these bytes. Raises `EnvelopeError` if they are not JSON, or JSON of another shape."""
    try:
        message = json.loads(raw)
    except (ValueError, RecursionError) as exc:
        msg = f"the message is not valid JSON: {exc}; look at its bytes with `redelivery dlq show`"
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
    return _encoded(message).encode()


def redelivered(
    message: Raw,
    queue: str,
    *,
    seen_ms: int,
    attempt: Attempt | None,
    crash: bool = False,
    suspect: bool = False,
    requeued: bool = False,
    due_ms: int | None = None,
    lost: str = "",
) -> Raw:
    """The message as it is delivered again.

    `attempt` is the counted delivery that ended; None if it does not count (`suspect`: its worker died, and the task may not have
    begun). `crash` and `requeued` (the task raised `Reject`) do not change Celery's `retries`, which limits `Task.retry`. The
    message waits until `due_ms`. `lost` is the span's context of a delivery that does not count. A dead letter goes to its handler
    again, and only its `handled` counts.
    """
    envelope = _begun(Envelope.of(message["headers"]), message, queue, seen_ms)
    if envelope.is_letter:
        envelope = replace(envelope, handled=envelope.handled + (attempt is not None))
        attempt = None
    headers = {**message["headers"], "redelivered": True}
    if attempt is not None and not crash and not requeued:
        headers["retries"] = count(headers.get("retries")) + 1
    if due_ms is not None:
        headers["eta"] = iso(due_ms)
    envelope = replace(
        envelope,
        attempt=envelope.attempt + (attempt is not None),
        delivery=envelope.delivery + 1,
        suspect=envelope.suspect or crash or suspect,
        attempts=envelope.attempts if attempt is None else (*envelope.attempts, attempt.to_header())[-MAX_ATTEMPTS:],
        served_eta=envelope.served_eta if due_ms is None else headers["eta"],
        lost={"delivery": envelope.delivery + 1, "trace": lost} if lost else None,
    )
    headers[HEADER] = envelope.to_header()
    info = {**mapping(message["properties"].get("delivery_info")), "redelivered": True}
    return {**message, "headers": headers, "properties": {**message["properties"], "delivery_info": info}}


def republished(header: object, delivery_info: object, queue: str, *, seen_ms: int, attempt: Attempt) -> dict[str, Any]:
    """The header, with the history, of the message that `Task.retry` publishes in place of this one.

    `header` and `delivery_info` are this message's, in any form; `attempt` is the delivery that ends.
    """
    message = {"headers": {HEADER: header}, "properties": {"delivery_info": mapping(delivery_info)}}
    again = redelivered(message, queue, seen_ms=seen_ms, attempt=attempt)
    return {**again["headers"][HEADER], "served_eta": None}


def deferred(message: Raw, queue: str, *, seen_ms: int, eta: str | None = None) -> Raw:
    """The message as it waits for its producer's ETA, or for the later `eta` of its delivery delay."""
    envelope = _begun(Envelope.of(message["headers"]), message, queue, seen_ms)
    headers = message["headers"] if eta is None else {**message["headers"], "eta": eta}
    envelope = replace(envelope, served_eta=headers.get("eta"))
    return {**message, "headers": {**headers, HEADER: envelope.to_header()}}


def unserved(message: Raw) -> Raw:
    """The message without the mark that its ETA was served: the next worker lets it wait."""
    headers = message["headers"]
    if HEADER not in headers:
        return message
    return {**message, "headers": {**headers, HEADER: replace(Envelope.of(headers), served_eta=None).to_header()}}


def released(message: Raw) -> Raw:
    """The message, which has not run, as a stopping worker publishes it again."""
    headers = message["headers"]
    return {**message, "headers": {**headers, RELEASED: count(headers.get(RELEASED)) + 1}}


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
    parked: bool = False,
) -> Raw:
    """The complete message as a dead letter, with the death record in its header.

    A dead letter that dies again (its handler failed) keeps the failure and the attempts of its task. The handler's failure becomes
    the new death's detail.
    """
    envelope = _begun(Envelope.of(message["headers"]), message, queue, seen_ms)
    failure: Mapping[str, Any] | None = None if failed is None else failed.to_header()
    if envelope.is_letter:
        handler_failure = "" if failed is None else failed.text
        attempt, failure, detail = None, envelope.failure, " | ".join(part for part in (detail, handler_failure) if part)
    attempts = envelope.attempts if attempt is None else (*envelope.attempts, attempt.to_header())[-MAX_ATTEMPTS:]
    headers = dict(message["headers"])
    properties = dict(message["properties"])
    lifetime = {
        "expires": headers.pop("expires", None),
        "time_to_live": headers.pop(TIME_TO_LIVE, None),
        "expiration": properties.pop("expiration", None),
        "published": headers.pop(PUBLISHED, None),
    }
    envelope = replace(
        envelope,
        attempt=envelope.attempt + (attempt is not None),
        delivery=envelope.delivery + 1,
        attempts=attempts,
        deaths=_with_death(envelope, message, queue, reason=reason, at_ms=at_ms, lifetime=lifetime, detail=detail),
        first_death=_first_death(envelope) or {"queue": queue, "reason": str(reason), "at": at_ms},
        failure=failure,
        suspect=False,
        parked=parked,
        handled=0,
        lost=None,
    )
    headers[HEADER] = envelope.to_header()
    properties["delivery_info"] = {"exchange": "", "routing_key": dead_letter_queue}
    return {**message, "headers": headers, "properties": properties}


def undelivered(letter: Raw, dead_letter_queue: str | None) -> Raw:
    """The dead letter as it waits until its dead-letter queue exists; with None, as it is sent there."""
    envelope = replace(Envelope.of(letter["headers"]), undelivered=dead_letter_queue)
    return {**letter, "headers": {**letter["headers"], HEADER: envelope.to_header()}}


def redriven(
    message: Raw, address: tuple[str, str] | None = None, *, on_purpose: bool = True, known: Envelope | None = None
) -> Raw:
    """The message in a new generation, for this exchange and routing key; None: for the origin queue that its header names.

    `on_purpose`: an operator or a handler redrives it; otherwise a worker only consumes its dead-letter queue. `known` is its
    envelope, if it has been read already. Raises `EnvelopeError` if it must go to its origin and its header names none.
    """
    envelope = Envelope.of(message["headers"]) if known is None else known
    if address is None:
        address = ("", str(envelope.origin.get("queue") or ""))
        if not address[1]:
            msg = "the dead letter names no origin queue: move it by hand, or purge it"
            raise EnvelopeError(msg)
    generation = envelope.generation + 1
    envelope = replace(
        envelope,
        attempt=0,
        delivery=0,
        generation=generation,
        first_seen_ms=None,
        failure=None,
        parked=False,
        handled=0,
        since=generation if on_purpose else envelope.since,
        lost=None,
    )
    headers = {**message["headers"], "retries": 0, HEADER: envelope.to_header()}
    headers.pop("eta", None)
    info = {"exchange": address[0], "routing_key": address[1]}
    return {**message, "headers": headers, "properties": {**message["properties"], "delivery_info": info}}


def iso(ms: int) -> str:
    """This time (milliseconds since the epoch) in the form of Celery's ETA."""
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat()


def _begun(envelope: Envelope, message: Raw, queue: str, seen_ms: int) -> Envelope:
    """The envelope, completed with the message's origin and the time when it was first seen."""
    if envelope.first_seen_ms is None:
        envelope = replace(envelope, first_seen_ms=seen_ms)
    if not envelope.origin.get("queue"):
        info = mapping(message["properties"].get("delivery_info"))
        origin = {"queue": queue, "exchange": info.get("exchange", ""), "routing_key": info.get("routing_key", queue)}
        envelope = replace(envelope, origin=origin)
    return envelope


def _copies(headers: Mapping[str, Any]) -> list[str]:
    """The routing keys of a message's copies (RabbitMQ's `CC`), `MAX_DEATHS` at most."""
    given = headers.get("CC")
    return [each[:MAX_ROUTING_KEY] for each in given if isinstance(each, str)][:MAX_DEATHS] if isinstance(given, list) else []


def _first_death(envelope: Envelope) -> Mapping[str, Any] | None:
    """The first death so far. Older versions did not record it: then it is the death with the earliest `first`."""
    if envelope.first_death is not None or not envelope.deaths:
        return envelope.first_death
    first = min(envelope.deaths, key=lambda each: count(each.get("first")))
    return {"queue": first.get("queue"), "reason": first.get("reason"), "at": first.get("first")}


def _with_death(
    envelope: Envelope,
    message: Raw,
    queue: str,
    *,
    reason: str,
    at_ms: int,
    lifetime: Mapping[str, Any],
    detail: str,
) -> tuple[Mapping[str, Any], ...]:
    """The deaths with a new one: an entry for each queue and reason, the newest first, as in RabbitMQ's `x-death`."""
    deaths, info = envelope.deaths, mapping(message["properties"].get("delivery_info"))
    known = next((each for each in deaths if each.get("queue") == queue and each.get("reason") == reason), None)
    death: dict[str, Any] = {
        "queue": queue,
        "reason": reason,
        "count": 1 + (count(known.get("count")) if known else 0),
        "first": known.get("first", at_ms) if known else at_ms,
        "last": at_ms,
        "generation": envelope.generation,
        "exchange": info.get("exchange", ""),
        "routing_keys": [info.get("routing_key", queue), *_copies(message["headers"])],
    }
    death.update({name: value for name, value in lifetime.items() if value is not None})
    if detail:
        death["detail"] = detail[:MAX_MESSAGE]
    others = [each for each in deaths if each is not known]
    if len(others) >= MAX_DEATHS:
        first = min(range(len(others)), key=lambda at: count(others[at].get("first")))
        staying = [at for at in range(len(others)) if at != first][: MAX_DEATHS - 2]
        others = [others[at] for at in sorted({*staying, first})]
    return (death, *others)
