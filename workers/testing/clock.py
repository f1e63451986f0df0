"""A clock that a test advances: nothing sleeps, and no clock is faked.

The due times in the delay store are brought nearer step by step: each step ends when the next message is due, and the worker
processes it. So a message that fails again within the whole time is also redelivered within it. The messages in the delay store
become older by the same time, so that `max_age`, `expires` and times to live hold.

Limits: only the delay store is affected. Beat, `eta`s below `eta_threshold`, and messages in a queue or a dead-letter queue go by
real time.
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from redelivery.errors import EnvelopeError, InputError
from redelivery.middleware.messages.envelope import HEADER, Envelope
from redelivery.middleware.messages.steps import opened, sealed
from redelivery.middleware.messages.ttl import PUBLISHED

from ..brokers.redis.transport import redis_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .worker import RunningWorker


class Clock:
    """`advance_time`: call it with seconds, or a `timedelta`."""

    def __init__(self, worker: RunningWorker) -> None:
        self._worker = worker

    def __call__(self, seconds: float | timedelta) -> None:
        """Let this much time pass for the messages in the delay store, and process those that become due.

        The worker first ends its current work. Raises `InputError` for a negative time, `TimeoutError` if the work does not end,
        for instance because a task has no limit of attempts.
        """
        left = round((seconds if isinstance(seconds, (int, float)) else seconds.total_seconds()) * 1000)
        if left < 0:
            msg = f"advance_time takes 0 seconds or more, not {seconds}"
            raise InputError(msg)
        worker, transport = self._worker, redis_of(self._worker.runtime)
        deadline = time.monotonic() + worker.timeout
        due = worker.rest()
        while due is not None and left > 0:
            step = min(due, left)
            transport.stores.advance(step, partial(aged, ms=step))
            left -= step
            due = worker.rest(_left(deadline, worker.timeout))


def aged(raw: bytes, ms: int) -> bytes:
    """The message as if it had been published, and first seen, `ms` milliseconds earlier."""
    try:
        message = opened(raw)
    except EnvelopeError:
        return raw
    headers = dict(message["headers"])
    envelope = Envelope.of(headers)
    if envelope.first_seen_ms is not None:
        # Change all times of its history, so that their order stays.
        headers[HEADER] = replace(
            envelope,
            first_seen_ms=envelope.first_seen_ms - ms,
            attempts=tuple(_earlier(each, ms, "at") for each in envelope.attempts),
            deaths=tuple(_earlier(each, ms, "first", "last") for each in envelope.deaths),
        ).to_header()
    if isinstance(headers.get(PUBLISHED), int):
        headers[PUBLISHED] -= ms
    with suppress(KeyError, TypeError, ValueError):  # a value that Celery cannot read stays
        headers["expires"] = (datetime.fromisoformat(headers["expires"]) - timedelta(milliseconds=ms)).isoformat()
    return sealed({**message, "headers": headers})


def _earlier(record: Mapping[str, Any], ms: int, *names: str) -> dict[str, Any]:
    times = {name: record[name] - ms for name in names if isinstance(record.get(name), int)}
    return {**record, **times}


def _left(deadline: float, timeout: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        msg = (
            f"advance_time took {timeout:g} s: the same messages come back again and again; limit their attempts, or move less time"
        )
        raise TimeoutError(msg)
    return left
