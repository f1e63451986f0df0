"""Recovery on Redis: gives the messages of dead workers back, one after the other.

If the broker refuses to move a message (its dead-letter queue is a key of another type, for example), an error is logged, the
message stays, and the others are given back. The message is tried again after pauses that grow up to a minute.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from redelivery.middleware.logs import log
from redelivery.middleware.messages.envelope import json_mapping
from redelivery.middleware.ports import Answer
from redelivery.middleware.transitions.recovery import recover

from ...brokers.redis.transport import redis_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from redelivery.middleware.brokers.redis.transport import RedisTransport
    from redelivery.middleware.runtime import Runtime

#: The first and the longest pause (seconds) before refused messages are tried again.
FIRST_PAUSE, MAX_PAUSE = 1.0, 60.0
PAGE = 100


class Recovery:
    """Recovers the messages of all fenced owners. When `is_over` returns True, it stops after the current message."""

    def __init__(self, runtime: Runtime, is_over: Callable[[], bool] = lambda: False) -> None:
        self._runtime, self._is_over = runtime, is_over
        self._pauses: dict[str, tuple[float, float]] = {}  # token → how long, until when

    def step(self) -> None:
        """Recover the messages of all fenced owners. Raises the errors of the broker's driver."""
        transport = redis_of(self._runtime)
        fenced: Any = transport.client.hkeys(transport.keys.recovering)
        tokens = [token.decode() for token in fenced]
        self._pauses = {token: pause for token, pause in self._pauses.items() if token in tokens}
        for token in tokens:
            if not self._is_over() and time.monotonic() >= self._pauses.get(token, (0.0, 0.0))[1]:
                self._recover(token)

    def _recover(self, token: str) -> None:
        transport, given_back, failed = redis_of(self._runtime), 0, 0
        worker, now_ms = name_of(transport, token), transport.now_ms()
        newest_first = sorted(transport.leases.held_by(token), key=lambda each: int(each.tag.rpartition(":")[2]), reverse=True)
        for at in range(0, len(newest_first), PAGE):
            page = newest_first[at : at + PAGE]
            for held, started in zip(page, transport.leases.started([each.tag for each in page]), strict=True):
                if self._is_over():
                    return
                try:
                    answer = recover(self._runtime, held, started=started, worker=worker, now_ms=now_ms)
                except Exception as exc:
                    if self._runtime.transport.is_transient(exc):
                        raise
                    failed += 1
                    error = f"{type(exc).__name__}: {exc}"
                    log.error("message.not_recovered", tag=held.tag, queue=held.queue, worker=worker, error=error)
                else:
                    given_back += answer is Answer.DONE
        if failed:
            pause = min(self._pauses.get(token, (FIRST_PAUSE / 2, 0.0))[0] * 2, MAX_PAUSE)
            self._pauses[token] = pause, time.monotonic() + pause
        else:
            transport.leases.unregister(token)
        log.warning("owner.recovered", token=token, worker=worker, given_back=given_back, failed=failed)


def name_of(transport: RedisTransport, token: str) -> str:
    """Return the name of the worker that registered this token."""
    about: Any = transport.client.hget(transport.keys.owners, token)
    return str(json_mapping(about).get("worker") or "?")
