"""The policy: everything that can be said about how one queue's, or one task's, messages are delivered again and die.

Enters: field values as people write them. Leaves: one frozen, validated `RedeliveryPolicy`. Refuses, with `ConfigurationError` and
one line that says what to do: values out of range, misspelt fields, and fields that contradict each other. The fields and their
meaning follow Artemis's address settings; Solace's and RabbitMQ's where Artemis has none.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Self

from redelivery.errors import ConfigurationError

from . import names, values
from .exceptions import distance
from .fields import FIELDS, read_fields

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["DEFAULT_QUEUE", "UNLIMITED", "RedeliveryPolicy"]

#: `max_delivery_attempts` without a limit.
UNLIMITED = -1
#: The dead-letter queue that is named after its origin.
DEFAULT_QUEUE = "default"
#: The cap where none is set is the greater of these seconds and this many times the delay (Artemis: ten times the delay).
LEAST_DEFAULT_CAP, DEFAULT_CAP_FACTOR = 600.0, 10


@dataclass(frozen=True, slots=True, kw_only=True)
class RedeliveryPolicy:
    """What holds for one queue, or one task on it. Durations are given in seconds or as `timedelta`, and kept in seconds.

    Raises `ConfigurationError` when it is built from values that cannot hold.

    Each field with its unit, its default, and whose word it is. `redelivery.middleware.policy.backoff` has the formula of the
    delays.

    - `max_delivery_attempts` (deliveries; 10): how many are enough, crashes included; -1 is no limit. Artemis.
    - `redelivery_delay` (seconds; 1): the wait before the second attempt. Artemis.
    - `redelivery_delay_multiplier` (factor; 2): each further wait is so many times the one before; below 1 they shrink. Artemis.
    - `max_redelivery_delay` (seconds; None): the longest wait; None is the greater of 600 and 10 times the delay (`cap`). Artemis.
    - `redelivery_collision_avoidance_factor` (fraction, 0 to 1; 0.25): by how much of itself a wait is spread at random. Artemis.
    - `redeliveries_per_second` (redeliveries; None): the retry budget: at most so many of a queue's messages, all workers together,
      are delivered again in a second, and those beyond it wait longer; None is no limit. A queue's, not a task's.
    - `max_age` (seconds; None): give up so long after the message was first seen, before the wait that passes it; None is never.
    - `dead_letter_queue` (queue; "default"): "default" is prefix + queue + suffix, a name is that queue, None keeps no letters: the
      message is discarded after its last attempt, and recorded so. Artemis.
    - `dead_letter_queue_prefix` (text; "DLQ."): stands before the origin's name. Artemis.
    - `dead_letter_queue_suffix` (text; ""): stands behind it. Artemis.
    - `auto_create_dead_letter_resources` (flag; true): false refuses to start where the dead-letter queue is missing. Artemis.
    - `auto_delete_dead_letter_resources` (flag; false): a dead-letter queue that is empty and unused goes. Artemis.
    - `expiry_queue` (queue; None): where the expired go; None is the dead-letter queue. Artemis.
    - `persist_delivery_count` (word; "suspects"): "suspects" records the start of messages that a dead worker held, "always" every
      start, at one write each, "off" none. Artemis.
    - `enabled` (flag; true): false leaves the task to Celery alone.
    - `dead_letter_eligible` (flag; true): false discards instead of keeping, where the producer's header does not say. Solace.
    - `respect_time_to_live` (flag; true): whether a message's own time to live counts. Solace.
    - `max_time_to_live` (seconds; None): the queue's time to live; the lesser of it and the message's applies. Solace.
    - `delivery_delay` (seconds; 0): between publication and consumption, at least. Solace.
    - `max_length` (messages; None): how many a queue may hold; None is no limit. RabbitMQ.
    - `overflow` (word; "dead_letter_oldest"): what gives way beyond `max_length`: the oldest message, or with "refuse_publish" the
      new one. RabbitMQ.
    - `dead_letter_time_to_live` (seconds; None): how long a letter that died in this queue is kept before it goes into the archive;
      None is for ever. A queue's, not a task's.
    - `max_dead_letters` (letters; None): how many its dead-letter queue may hold before the oldest go into the archive; None is no
      limit. A queue's, not a task's; of queues that share a dead-letter queue, the greatest counts.
    - `non_retryable` (exceptions; none): classes, or their dotted names, that are dead-lettered at once, subclasses included.
    - `rules` (table; none): for an exception class or dotted name, other delay fields, `max_delivery_attempts`, `max_age`, or
      `non_retryable`. The nearest ancestor of what was raised wins, over `non_retryable` too.
    """

    max_delivery_attempts: int = 10
    redelivery_delay: float = 1.0
    redelivery_delay_multiplier: float = 2.0
    max_redelivery_delay: float | None = None
    redelivery_collision_avoidance_factor: float = 0.25
    redeliveries_per_second: float | None = None
    max_age: float | None = None
    dead_letter_queue: str | None = DEFAULT_QUEUE
    dead_letter_queue_prefix: str = "DLQ."
    dead_letter_queue_suffix: str = ""
    auto_create_dead_letter_resources: bool = True
    auto_delete_dead_letter_resources: bool = False
    expiry_queue: str | None = None
    persist_delivery_count: Literal["off", "suspects", "always"] = "suspects"
    enabled: bool = True
    dead_letter_eligible: bool = True
    respect_time_to_live: bool = True
    max_time_to_live: float | None = None
    delivery_delay: float = 0.0
    max_length: int | None = None
    overflow: Literal["dead_letter_oldest", "refuse_publish"] = "dead_letter_oldest"
    dead_letter_time_to_live: float | None = None
    max_dead_letters: int | None = None
    non_retryable: tuple[str, ...] = ()
    rules: Mapping[str, Mapping[str, Any]] = field(default_factory=dict, hash=False)
    _ruled: Mapping[str, RedeliveryPolicy] = field(init=False, repr=False, compare=False)

    def __new__(cls, **given: Any) -> Self:
        """Answer a misspelt field as everywhere else; the generated `__init__` does the rest."""
        for key in given:
            if key not in FIELDS:
                raise values.unknown(cls.__name__, key, FIELDS)
        return object.__new__(cls)

    def __post_init__(self) -> None:
        for key, value in read_fields({key: getattr(self, key) for key in FIELDS}).items():
            object.__setattr__(self, key, value)
        self._refuse_contradictions()
        object.__setattr__(self, "_ruled", {key: self._with_rule(key, rule) for key, rule in self.rules.items()})

    def __reduce__(self) -> tuple[Any, ...]:
        given = {key: getattr(self, key) for key in FIELDS}
        return _build, ({**given, "rules": {key: dict(rule) for key, rule in self.rules.items()}},)

    @property
    def cap(self) -> float:
        """The longest delay, in seconds: `max_redelivery_delay`, or what stands in where it is None."""
        if self.max_redelivery_delay is not None:
            return self.max_redelivery_delay
        return max(LEAST_DEFAULT_CAP, DEFAULT_CAP_FACTOR * self.redelivery_delay)

    @property
    def most_deliveries(self) -> int:
        """The largest `max_delivery_attempts` that an exception may have, by the policy or by one of its rules; -1 is no limit."""
        limits = {self.max_delivery_attempts, *(each.max_delivery_attempts for each in self._ruled.values())}
        return UNLIMITED if UNLIMITED in limits else max(limits)

    def dead_letter_queue_for(self, queue: str) -> str | None:
        """Where `queue`'s dead letters go; None is nowhere: they are discarded. Raises `ConfigurationError` for `queue`."""
        if self.dead_letter_queue is None:
            return None
        if self.dead_letter_queue == DEFAULT_QUEUE:
            return f"{self.dead_letter_queue_prefix}{queue}{self.dead_letter_queue_suffix}"
        return _elsewhere("dead_letter_queue", self.dead_letter_queue, queue)

    def expiry_queue_for(self, queue: str) -> str | None:
        """Where `queue`'s expired messages go; as `dead_letter_queue_for` where no `expiry_queue` is set."""
        if self.expiry_queue is None:
            return self.dead_letter_queue_for(queue)
        return _elsewhere("expiry_queue", self.expiry_queue, queue)

    def for_exception(self, exception: type[BaseException]) -> RedeliveryPolicy:
        """The policy as the nearest rule for this exception class changes it."""
        nearest = self._nearest(exception, self.rules)
        return self if nearest is None else self._ruled[nearest[1]]

    def is_non_retryable(self, exception: type[BaseException]) -> bool:
        """Whether this exception class is dead-lettered at once. A rule wins over a class of the list that is no nearer."""
        listed = self._nearest(exception, self.non_retryable)
        ruled = self._nearest(exception, [key for key, rule in self.rules.items() if "non_retryable" in rule])
        if ruled is not None and (listed is None or ruled[0] <= listed[0]):
            return bool(self.rules[ruled[1]]["non_retryable"])
        return listed is not None

    @staticmethod
    def _nearest(exception: type[BaseException], names: Iterable[str]) -> tuple[int, str] | None:
        found = [(steps, each) for each in names if (steps := distance(exception, each)) is not None]
        return min(found, key=lambda pair: pair[0], default=None)

    def _refuse_contradictions(self) -> None:
        if self.max_redelivery_delay is not None and self.max_redelivery_delay < self.redelivery_delay:
            msg = (
                f"max_redelivery_delay ({self.max_redelivery_delay:g} s) is below redelivery_delay ({self.redelivery_delay:g} s): "
                "raise the one or lower the other"
            )
            raise ConfigurationError(msg)
        if self.dead_letter_queue == DEFAULT_QUEUE and not (self.dead_letter_queue_prefix or self.dead_letter_queue_suffix):
            msg = "dead_letter_queue_prefix and dead_letter_queue_suffix are both empty, so that a queue would be its own: set one"
            raise ConfigurationError(msg)
        why = names.objection(f"{self.dead_letter_queue_prefix}queue{self.dead_letter_queue_suffix}")
        if why is not None:
            msg = f"dead_letter_queue_prefix and dead_letter_queue_suffix make a name that no queue may have: it {why}; change them"
            raise ConfigurationError(msg)

    def _with_rule(self, key: str, rule: Mapping[str, Any]) -> RedeliveryPolicy:
        own = {each: getattr(self, each) for each in FIELDS if each != "rules"}
        changed = {each: value for each, value in rule.items() if each != "non_retryable"}
        try:
            return RedeliveryPolicy(**{**own, **changed})
        except ConfigurationError as error:
            msg = f"rules[{key!r}]: {error}"
            raise ConfigurationError(msg) from None


def _build(given: dict[str, Any]) -> RedeliveryPolicy:
    return RedeliveryPolicy(**given)


def _elsewhere(setting: str, target: str, queue: str) -> str:
    if target == queue:
        msg = f"{setting} of queue {queue!r} is {queue!r} itself: name another queue, or None to discard"
        raise ConfigurationError(msg)
    return target
