"""The lifetime of a message: when it may run, and when it expires.

Times are milliseconds since the epoch, by the broker's clock; no clock is read here. A header that cannot be read counts as absent.

Durations count from the publication, if a producer with redelivery noted it (`PUBLISHED`), otherwise from the moment when a worker
first saw the message.

- A message *expires* at the earliest of: the producer's `expires` (Celery), its `TIME_TO_LIVE` header, and the queue's
  `max_time_to_live` (Solace's rule: the shorter one applies). Without `respect_time_to_live` only the queue's counts;
- it is *due* at the latest of: its ETA, its `DELIVERY_DELAY` header and the queue's `delivery_delay`. It waits for this once: a
  redelivery, or a redriven dead letter, does not wait for its publication's delay again;
- a dead letter does not expire, in any queue.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .envelope import count

if TYPE_CHECKING:
    from collections.abc import Mapping

    from redelivery.settings import RedeliveryPolicy

    from .envelope import Envelope

#: Headers that a producer may set for one message, in milliseconds.
TIME_TO_LIVE = "redelivery-time-to-live-ms"
DELIVERY_DELAY = "redelivery-delivery-delay-ms"
#: When a producer with redelivery published it, by the broker's clock (milliseconds since the epoch). Only lifetimes need it.
PUBLISHED = "redelivery-published"
#: 100 years: a longer duration counts as a mistake.
MAX_MS = 100 * 366 * 86_400_000


def header_ms(headers: Mapping[str, Any], name: str) -> int | None:
    """A producer's duration (ms); None if it is absent or cannot be read."""
    value = headers.get(name)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return round(value) if 0 <= value <= MAX_MS else None


def is_dated(headers: Mapping[str, Any]) -> bool:
    """Whether these headers need the time of publication."""
    return headers.get("expires") is not None or TIME_TO_LIVE in headers or DELIVERY_DELAY in headers or PUBLISHED in headers


def expiry_ms(
    headers: Mapping[str, Any],
    properties: Mapping[str, Any],
    envelope: Envelope,
    policy: RedeliveryPolicy,
    *,
    seen_ms: int,
    expires_ms: int | None,
) -> int | None:
    """When the message expires; None if it never does. `expires_ms` is Celery's `expires` header in milliseconds.

    Celery writes `expires` by the producer's clock, and the duration as `properties["expiration"]`. If the broker's time of
    publication is known, the duration counts from it, and the producer's clock does not matter.
    """
    if envelope.is_letter:
        return None
    published = _published(headers)
    since = _since(envelope, seen_ms) if published is None else published
    ends = []
    if policy.respect_time_to_live:
        own = header_ms(headers, TIME_TO_LIVE)
        if own is not None:
            ends.append(since + own)
        relative = _expiration(properties) if published is not None else None
        if expires_ms is not None:
            ends.append(expires_ms if relative is None else since + relative)
    if policy.max_time_to_live is not None:
        ends.append(since + round(policy.max_time_to_live * 1000))
    return min(ends, default=None)


def due_ms(
    headers: Mapping[str, Any],
    envelope: Envelope,
    policy: RedeliveryPolicy,
    *,
    seen_ms: int,
    eta_ms: int | None,
    eta_threshold_ms: float,
) -> int | None:
    """When the message may leave the delay store; None if it need not wait, or has waited already.

    `eta_ms` is its ETA, if the message has not waited for it yet. Within the threshold the worker itself waits for it.
    """
    dues = []
    if eta_ms is not None and eta_ms - seen_ms > eta_threshold_ms:
        dues.append(eta_ms)
    delay = max(header_ms(headers, DELIVERY_DELAY) or 0, round(policy.delivery_delay * 1000))
    if delay and not _has_waited(headers, envelope):
        published = _published(headers)
        due = (_since(envelope, seen_ms) if published is None else published) + delay
        if due > seen_ms:
            dues.append(due if eta_ms is None else max(due, eta_ms))
    return max(dues, default=None)


def _has_waited(headers: Mapping[str, Any], envelope: Envelope) -> bool:
    if envelope.attempt or envelope.generation or envelope.deaths:
        return True
    return envelope.served_eta is not None and envelope.served_eta == headers.get("eta")


def _since(envelope: Envelope, seen_ms: int) -> int:
    return seen_ms if envelope.first_seen_ms is None else envelope.first_seen_ms


def _published(headers: Mapping[str, Any]) -> int | None:
    return count(headers.get(PUBLISHED)) or None


def _expiration(properties: Mapping[str, Any]) -> int | None:
    """Kombu's per-message expiration (ms), a text of digits as in AMQP."""
    value = properties.get("expiration")
    return int(value) if isinstance(value, str) and value.isascii() and value.isdigit() and int(value) <= MAX_MS else None


def milliseconds(moment: object, app: Any) -> int | None:
    """The time in an `eta` or `expires` header; None if it cannot be read, which Celery reports."""
    from celery.utils.time import maybe_iso8601, maybe_make_aware  # noqa: PLC0415 - only for messages that have one

    try:
        return round(float(maybe_make_aware(maybe_iso8601(moment), app.conf.timezone).timestamp()) * 1000)
    except (AttributeError, ValueError, TypeError, OverflowError):
        return None
