"""The queue keeper: a duty of each worker that keeps queues within their policies, also against plain producers.

Once a second it looks at each of these:

- A queue with a `max_length`: messages beyond it are evicted, the oldest message of the least urgent priority first. With
  `overflow` `refuse_publish` nothing is evicted: a warning says that the queue is too long.
- A queue with a `max_time_to_live`: expired messages at its head die (`expired`). Plain producers do not write when a message was
  published: then the worker that receives it decides.
- A dead-letter queue with `auto_delete_dead_letter_resources`: the record of an empty one is deleted.

It looks at all queues that the app knows (`task_queues`), except for dead-letter queues named after their origin, which have other
bounds. Any number of keepers may run: one script evicts a message, once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from redelivery.errors import EnvelopeError
from redelivery.middleware.brokers.redis.publishing.bounds import alarm, announce_eviction, evict_oldest, evicted
from redelivery.middleware.brokers.redis.scripts import Script
from redelivery.middleware.logs import log
from redelivery.middleware.messages.envelope import Envelope
from redelivery.middleware.messages.events import Reason
from redelivery.middleware.messages.steps import opened
from redelivery.middleware.messages.ttl import PUBLISHED, expiry_ms, milliseconds
from redelivery.settings import DEFAULT_QUEUE

from ...brokers.redis.taken_keys import leaving_out_taken
from ...brokers.redis.transport import redis_of
from ..duty import Duty

if TYPE_CHECKING:
    from redelivery.middleware.runtime import Runtime
    from redelivery.settings import RedeliveryPolicy

EVERY = 1.0
#: The most evictions from one queue in one look; the next look goes on.
LIMIT = 5_000
#: Looks until a warning about a queue is repeated.
QUIET = 60


class QueueKeeper(Duty):
    """Looks at the queues once a second."""

    title = "queues"
    line_if_unanswered = "debug", "queue.not_seen"
    line_if_failed = "error", "queue.failed"

    def __init__(self, runtime: Runtime) -> None:
        super().__init__(EVERY)
        self._runtime = runtime
        self._quiet: dict[str, int] = {}
        self._forget = Script("forget")

    def step(self) -> None:
        """Look once. Raises the broker's errors."""
        queues, transport = self._runtime.app.amqp.queues, redis_of(self._runtime)
        self._quiet = {queue: looks - 1 for queue, looks in self._quiet.items() if looks > 1}
        policies = {queue: self._runtime.policies.policy_for(queue) for queue in list(queues)}
        kept = {
            policy.dead_letter_queue_for(queue) for queue, policy in policies.items() if policy.dead_letter_queue == DEFAULT_QUEUE
        }
        for queue, policy in policies.items():
            if not policy.enabled or queue in kept:
                continue
            targets = policy.dead_letter_queue_for(queue), policy.expiry_queue_for(queue)
            names = (name for each in (queue, *targets) if each is not None for name in transport.keys.list_names(each))
            with leaving_out_taken(transport.client, map(transport.keys.list, names)):
                self._keep(queue, policy)

    def _keep(self, queue: str, policy: RedeliveryPolicy) -> None:
        if policy.max_time_to_live is not None:
            self._end_expired(queue)
        if policy.max_length is not None:
            self._keep_within(queue, policy, policy.max_length)
        if policy.auto_delete_dead_letter_resources:
            self._forget_empty(queue, policy)

    def _keep_within(self, queue: str, policy: RedeliveryPolicy, most: int) -> None:
        transport = redis_of(self._runtime)
        if policy.overflow == "refuse_publish":
            length = sum(int(transport.client.llen(transport.keys.list(name))) for name in transport.keys.list_names(queue))
            if length > most and self._may_warn(queue):
                why = "messages came from producers that do not keep the limit"
                log.warning("queue.too_long", queue=queue, length=length, max_length=most, why=why)
            return
        why = f"the queue holds more than {most} messages (max_length)"
        self._evict(queue, Reason.MAX_LENGTH, why, most=most)

    def _end_expired(self, queue: str) -> None:
        """Let expired messages at the heads of the queue's lists die."""
        client, keys = redis_of(self._runtime).client, redis_of(self._runtime).keys
        for place, name in enumerate(keys.list_names(queue), start=5):  # numbered as the script's keys
            raw: Any = client.lindex(keys.list(name), -1)
            if raw is not None and self._is_expired(queue, raw):
                self._evict(queue, Reason.EXPIRED, "it expired while it waited in its queue", known=(place, raw))

    def _is_expired(self, queue: str, raw: bytes) -> bool:
        """Whether this message has expired. Without a date, the worker that receives it decides."""
        try:
            message = opened(raw)
        except EnvelopeError:
            return False
        headers, now_ms = message["headers"], self._runtime.owner.now_ms()
        envelope = Envelope.of(headers)
        if envelope.undelivered is not None or (PUBLISHED not in headers and envelope.first_seen_ms is None):
            return False
        policy = self._runtime.policies.policy_for(queue, str(headers.get("task")))
        expires_ms = milliseconds(headers.get("expires"), self._runtime.app)
        ends_ms = expiry_ms(headers, message["properties"], envelope, policy, seen_ms=now_ms, expires_ms=expires_ms)
        return ends_ms is not None and ends_ms <= now_ms

    def _evict(
        self, queue: str, reason: Reason, why: str, *, most: int | None = None, known: tuple[int, bytes] | None = None
    ) -> None:
        """Evict the oldest messages one by one, as long as the queue is too long or they have expired."""
        transport, count = redis_of(self._runtime), 0
        while count < LIMIT and not self._stopped.is_set():
            eviction = None
            if known is not None:
                if most is None and not self._is_expired(queue, known[1]):
                    break
                eviction = evicted(self._runtime, known[1], queue, reason, now_ms=self._runtime.owner.now_ms(), detail=why)
            state, at, raw = evict_oldest(transport.client, transport.keys, queue, most=most, known=known, eviction=eviction)
            if state == "done" and eviction is not None:
                count += 1
                announce_eviction(self._runtime, eviction, reason)
            if state == "missing" and eviction is not None and self._may_warn(queue):
                alarm(eviction, queue)
            if state in {"within", "missing"} or not raw:
                break
            known = at, raw

    def _may_warn(self, queue: str) -> bool:
        if queue in self._quiet:
            return False
        self._quiet[queue] = QUIET
        return True

    def _forget_empty(self, queue: str, policy: RedeliveryPolicy) -> None:
        """Delete the record of an empty dead-letter queue; Redis removes the empty list itself."""
        transport = redis_of(self._runtime)
        for target in {policy.dead_letter_queue_for(queue), policy.expiry_queue_for(queue)} - {None}:
            names = [transport.keys.dead_letter_queues, *map(transport.keys.list, transport.keys.list_names(str(target)))]
            if int(self._forget(transport.client, names, [target])):
                log.info("dead_letter_queue.forgotten", dead_letter_queue=target, queue=queue)
