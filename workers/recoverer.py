"""The recoverer: gives back, one by one, what dead workers held.

A native thread of its own in each worker, so that the lease is renewed and others are watched while it works, however much there
is. It takes up every token that stands in `recovering`, its own fence's or another's: a recoverer that died half-way left it there.
A message that the broker will not move (its dead-letter queue is a key of another type, say) is named in an error line and stays
where it is; it does not stop the others, and is tried again, ever more seldom.
"""

from __future__ import annotations

import json
import threading
import time
from typing import TYPE_CHECKING, Any

from redelivery.middleware.logs import log
from redelivery.middleware.recovery import recover
from redelivery.middleware.transports.base import Answer
from redelivery.workers.duty import Duty
from redelivery.workers.redis_transport import redis_of

if TYPE_CHECKING:
    from redelivery.middleware.runtime import Runtime
    from redelivery.middleware.transports.redis import RedisTransport

__all__ = ["Recoverer", "name_of"]

#: Seconds between two looks at who is to be recovered, where nobody said so; and before what failed is tried again.
EVERY = 1.0
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0
PAGE = 100


class Recoverer(Duty):
    """Recovers the messages of all fenced owners."""

    title = "recoverer"

    def __init__(self, install: Runtime) -> None:
        super().__init__(EVERY)
        self._install = install
        self._woken = threading.Event()
        self._pauses: dict[str, tuple[float, float]] = {}  # token → how long, until when

    def wake(self) -> None:
        """Somebody has been fenced: look now."""
        self._woken.set()

    def stop(self) -> None:
        """End, after the message that is under way; another worker's recoverer goes on."""
        self._stopped.set()
        self._woken.set()
        super().stop()

    def rest(self) -> None:
        """Wait until somebody is fenced, or a second."""
        self._woken.wait(self._every)
        self._woken.clear()

    def unanswered(self, exc: Exception) -> None:
        """It goes on in a second."""
        log.warning("recoverer.waiting", error=str(exc))

    def failed(self, exc: Exception) -> None:  # noqa: ARG002 - the line has what is being handled
        """A fault of ours."""
        log.exception("recoverer.failed")

    def step(self) -> None:
        """Recover whoever is to be recovered. Raises what the broker does where it is away."""
        transport = redis_of(self._install)
        fenced: Any = transport.client.hkeys(transport.keys.recovering)
        tokens = [token.decode() for token in fenced]
        self._pauses = {token: pause for token, pause in self._pauses.items() if token in tokens}
        for token in tokens:
            if not self._stopped.is_set() and time.monotonic() >= self._pauses.get(token, (0.0, 0.0))[1]:
                self._recover(token)

    def _recover(self, token: str) -> None:
        transport, given_back, failed = redis_of(self._install), 0, 0
        worker, now_ms = name_of(transport, token), transport.now_ms()
        newest_first = sorted(transport.held_by(token), key=lambda each: int(each.tag.rpartition(":")[2]), reverse=True)
        for at in range(0, len(newest_first), PAGE):
            page = newest_first[at : at + PAGE]
            for held, started in zip(page, transport.started([each.tag for each in page]), strict=True):
                if self._stopped.is_set():
                    return
                try:
                    answer = recover(self._install, held, started=started, worker=worker, now_ms=now_ms)
                except Exception as exc:
                    if self._install.transport.is_transient(exc):
                        raise
                    failed += 1
                    error = f"{type(exc).__name__}: {exc}"
                    log.error("message.not_recovered", tag=held.tag, queue=held.queue, worker=worker, error=error)
                else:
                    given_back += answer is Answer.DONE
        if failed:
            pause = min(self._pauses.get(token, (FIRST_PAUSE / 2, 0.0))[0] * 2, LONGEST_PAUSE)
            self._pauses[token] = pause, time.monotonic() + pause
        else:
            transport.unregister(token)
        log.warning("owner.recovered", token=token, worker=worker, given_back=given_back, failed=failed)


def name_of(transport: RedisTransport, token: str) -> str:
    """The name of the worker that registered this token."""
    about: Any = transport.client.hget(transport.keys.owners, token)
    return str(json.loads(about)["worker"]) if about is not None else "?"
