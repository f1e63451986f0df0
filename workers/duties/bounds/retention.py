"""The retention of dead letters: those that are too old for their queue, or too many, go into the archive.

It is a duty of every worker; one of them does it, by a lease on the broker. A batch is written to the archive
(`dead_letter_archive`), then one script takes each dead letter out and records it as `purged`. The reason is `expired` (the
`dead_letter_time_to_live` of the queue where it died), or `max_length` (the `max_dead_letters` of the queues that use the
dead-letter queue). After a crash between the two steps, dead letters are in both places until the next look. Without an archive
none is removed, and a warning is logged.

Limits: the oldest dead letters are checked every half a minute, from the tail of the queue on. An old one among younger ones (moved
there by hand) is removed within an hour. Times are the broker's.
"""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from redelivery.errors import RedeliveryError
from redelivery.middleware.logs import log
from redelivery.middleware.messages.events import Reason
from redelivery.middleware.ports import Answer

from ...brokers.redis.taken_keys import leaving_out_taken
from ...brokers.redis.transport import redis_of
from ...letters import Letter
from ...operations.letters import dead_letters
from ...operations.letters.archive import archive
from ...operations.letters.purge import purged
from ..duty import Duty

if TYPE_CHECKING:
    from redelivery.middleware.runtime import Runtime

#: Seconds between two looks, between two looks at whole queues, and of the lead.
EVERY, THOROUGHLY_EVERY, LEAD = 30.0, 3600.0, 90.0
#: The most dead letters of one batch, and so of one file.
BATCH = 500
#: Looks until a missing archive is logged again.
QUIET = 120


@dataclass(frozen=True, slots=True)
class Rule:
    """The limits of one dead-letter queue: its cap, and the lifetime (seconds) of each origin's dead letters."""

    most: int | None
    lifetimes: dict[str, float | None]


class Retention(Duty):
    """Keeps the dead letters within their bounds, if any setting limits them."""

    title = "retention"
    line_if_unanswered = "warning", "retention.waiting"
    line_if_failed = "error", "retention.failed"
    begins_at_once = True

    def __init__(self, runtime: Runtime) -> None:
        super().__init__(EVERY)
        self._runtime = runtime
        self._token = uuid.uuid4().hex
        self._thorough = -THOROUGHLY_EVERY
        self._quiet = 0

    def start(self, offset: float = 0.0) -> None:
        """Begin, if any setting limits dead letters; a second call changes nothing."""
        limits = {"dead_letter_time_to_live", "max_dead_letters"}
        if any(limits & row.fields.keys() for row in self._runtime.settings.rows):
            super().start(offset)

    def leads(self) -> bool:
        """Whether this worker does it, by a lease on the broker."""
        transport = redis_of(self._runtime)
        return transport.leases.lead(transport.keys.letter_keeper, self._token, LEAD)

    def failed(self, exc: Exception) -> None:
        """Log that the archive cannot be written; any other exception is a bug."""
        if isinstance(exc, RedeliveryError):
            log.error("retention.failed", error=str(exc))
        else:
            super().failed(exc)

    def step(self) -> int:
        """Look once at every dead-letter queue; return how many were removed. Raises the broker's and the archive's errors."""
        is_thorough = time.monotonic() - self._thorough >= THOROUGHLY_EVERY
        gone, transport = 0, redis_of(self._runtime)
        for name, rule in self._rules().items():
            with leaving_out_taken(transport.client, [transport.keys.list(name)]):
                gone += self._purge_expired(name, rule, is_thorough=is_thorough)
                gone += self._purge_excess(name, rule)
        if is_thorough:
            self._thorough = time.monotonic()
        return gone

    def _rules(self) -> dict[str, Rule]:
        runtime = self._runtime
        users = {name: {origin} for name, origin in dead_letters.known(runtime).items()}
        for queue in runtime.app.amqp.queues:
            target = runtime.policies.policy_for(queue).dead_letter_queue_for(queue)
            if target is not None:
                users.setdefault(target, set()).add(queue)
        found = {}
        for name, origins in users.items():
            caps = [runtime.policies.policy_for(origin).max_dead_letters for origin in origins]
            known = [each for each in caps if each is not None]
            most = max(known) if known and len(known) == len(caps) else None
            lifetimes = {origin: runtime.policies.policy_for(origin).dead_letter_time_to_live for origin in origins}
            found[name] = Rule(most, lifetimes)
        return found

    def _purge_expired(self, name: str, rule: Rule, *, is_thorough: bool) -> int:
        if not any(rule.lifetimes.values()):
            return 0
        transport, staying, gone = redis_of(self._runtime), 0, 0
        now_ms, key = transport.now_ms(), transport.keys.list(name)
        while not self._stopped.is_set():
            page: Any = transport.client.lrange(key, -(staying + BATCH), -(staying + 1))
            letters = [Letter.of(raw) for raw in reversed(page)]
            old = [letter for letter in letters if self._is_old(letter, rule, now_ms)]
            went = self._purge(name, old, Reason.EXPIRED)
            gone += went
            staying += len(letters) - len(old)
            if len(letters) < BATCH or (not went if old else not is_thorough):
                break  # without an archive, the next look finds the same old dead letters
        return gone

    def _is_old(self, letter: Letter, rule: Rule, now_ms: int) -> bool:
        if letter.died_ms is None:
            return False
        queue = letter.queue
        if queue not in rule.lifetimes:
            rule.lifetimes[queue] = self._runtime.policies.policy_for(queue).dead_letter_time_to_live
        lifetime = rule.lifetimes[queue]
        return lifetime is not None and letter.died_ms + lifetime * 1000 <= now_ms

    def _purge_excess(self, name: str, rule: Rule) -> int:
        transport, gone = redis_of(self._runtime), 0
        key = transport.keys.list(name)
        while rule.most is not None and not self._stopped.is_set():
            excess = int(transport.client.llen(key)) - rule.most
            if excess <= 0:
                break
            page: Any = transport.client.lrange(key, -min(excess, BATCH), -1)
            went = self._purge(name, [Letter.of(raw) for raw in reversed(page)], Reason.MAX_LENGTH, down_to=rule.most)
            gone += went
            if not went:
                break
        return gone

    def _purge(self, name: str, letters: list[Letter], reason: Reason, *, down_to: int | None = None) -> int:
        if not letters:
            return 0
        uri, transport = self._runtime.settings.dead_letter_archive, redis_of(self._runtime)
        if uri is None:
            self._quiet -= 1
            if self._quiet < 0:
                self._quiet = QUIET
                why = "dead_letter_archive is not set, and dead letters are removed only after they are archived"
                log.warning("letters.kept", dead_letter_queue=name, letters=len(letters), reason=reason, why=why)
            return 0
        file = archive(letters, uri, name, now_ms=transport.now_ms(), why=reason)
        gone = [(letter.raw, purged(letter, name, reason)) for letter in letters]
        answers = transport.stores.purge_many(name, gone, down_to=down_to)
        went = sum(answer is Answer.DONE for answer in answers)
        log.info("letters.purged", dead_letter_queue=name, letters=went, reason=reason, archive=uri, file=file)
        for answer in answers:
            if isinstance(answer, Exception):
                raise answer
        return went
