"""The policy: all settings for how the messages of one queue, or one task, are delivered again and die.

The fields and their meaning follow Artemis's address settings, or Solace's and RabbitMQ's settings if Artemis has none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, Self, TypedDict

from redelivery.errors import ConfigurationError

from . import names, values
from .exceptions import distance, name_of, names_of
from .values import checks_of, setting

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import timedelta

#: `max_delivery_attempts` without a limit.
UNLIMITED = -1
#: The value for the dead-letter queue that is named after its origin queue.
DEFAULT_QUEUE = "default"
#: The default cap is the greater of this number of seconds and this multiple of the delay (Artemis: ten times the delay).
MIN_DEFAULT_CAP, DEFAULT_CAP_FACTOR = 600.0, 10


class PolicyFields(TypedDict, total=False):
    """The fields of a policy as they are written in settings; each may be absent. See `RedeliveryPolicy`."""

    max_delivery_attempts: int
    redelivery_delay: float | timedelta
    redelivery_delay_multiplier: float
    max_redelivery_delay: float | timedelta | None
    redelivery_collision_avoidance_factor: float
    redeliveries_per_second: float | None
    max_age: float | timedelta | None
    deadline: float | timedelta | None
    dead_letter_queue: str | None
    dead_letter_queue_prefix: str
    dead_letter_queue_suffix: str
    auto_create_dead_letter_resources: bool
    auto_delete_dead_letter_resources: bool
    expiry_queue: str | None
    persist_delivery_count: Literal["off", "suspects", "always"]
    enabled: bool
    dead_letter_eligible: bool
    respect_time_to_live: bool
    max_time_to_live: float | timedelta | None
    delivery_delay: float | timedelta
    max_length: int | None
    overflow: Literal["dead_letter_oldest", "refuse_publish"]
    dead_letter_time_to_live: float | timedelta | None
    max_dead_letters: int | None
    non_retryable: type[BaseException] | str | Sequence[type[BaseException] | str]
    rules: Mapping[type[BaseException] | str, Mapping[str, Any]]


def _rules(setting: str, value: Any) -> Mapping[str, Mapping[str, Any]]:
    if not isinstance(value, Mapping):
        msg = f"{setting} must map exception classes or dotted names to settings, not {value!r}"
        raise ConfigurationError(msg)
    read: dict[str, Mapping[str, Any]] = {}
    for written, rule in value.items():
        key = name_of(setting, written)
        where = f"{setting}[{key!r}]"
        if not isinstance(rule, Mapping):
            msg = f"{where} must be a table of settings such as {{'redelivery_delay': 30}}, not {rule!r}"
            raise ConfigurationError(msg)
        read[key] = MappingProxyType(_checked(rule, _IN_RULES, where))
    return MappingProxyType(read)


@dataclass(frozen=True, slots=True, kw_only=True)
class RedeliveryPolicy:
    """The policy for one queue, or one task on it. Durations are given in seconds or as `timedelta`, and kept in seconds.

    Raises `ConfigurationError` when it is built from values that are wrong or contradict each other.

    Each field with its unit, its default, and the broker whose setting it follows. `redelivery.middleware.policy.backoff` has the
    formula of the delays.

    - `max_delivery_attempts` (deliveries; 10): a message dies when this many deliveries have failed. A crash
      of a task's process counts. -1 is no limit. Artemis.
    - `redelivery_delay` (seconds; 1): how long a message waits before the second attempt. Artemis.
    - `redelivery_delay_multiplier` (factor; 2): each further wait is the wait before it, multiplied by this. Below 1
      the waits become shorter. Artemis.
    - `max_redelivery_delay` (seconds; None): the longest wait (`cap`). None means 600, or 10 times the delay if that is
      more. Artemis.
    - `redelivery_collision_avoidance_factor` (fraction, 0 to 1; 0.25): each wait is made longer or shorter at
      random, by this fraction of it at most. Artemis.
    - `redeliveries_per_second` (redeliveries; None): the retry budget. All workers together redeliver at most this many
      messages of a queue in a second; the others wait longer. None is no limit. It belongs to a queue, not to a task.
    - `max_age` (seconds; None): a message whose next attempt would begin later than this after it was first seen dies instead of
      waiting. None is no limit.
    - `deadline` (seconds; None): a task should succeed within this time after its publication. The books count the tasks that did
      not. It has no other effect. None is no deadline.
    - `dead_letter_queue` (queue; "default"): where dead letters go. "default" means prefix + queue + suffix. With None
      there are no dead letters: after its last attempt a message is discarded, and recorded as discarded. Artemis.
    - `dead_letter_queue_prefix` (text; "DLQ."): the text before the name of the origin queue, in "default".
      Artemis.
    - `dead_letter_queue_suffix` (text; ""): the text after that name. Artemis.
    - `auto_create_dead_letter_resources` (flag; true): if false, a worker does not start while the dead-letter queue is
      missing. Artemis.
    - `auto_delete_dead_letter_resources` (flag; false): an empty dead-letter queue is removed from the
      list of them. Its next dead letter creates it again. Artemis.
    - `expiry_queue` (queue; None): where expired messages go. None means the dead-letter queue. Artemis.
    - `persist_delivery_count` (word; "suspects"): which starts of tasks are recorded, so that a crash counts as an attempt.
      "suspects": those of messages that a dead worker held. "always": every start, with one write for each. "off": none.
      Artemis.
    - `enabled` (flag; true): with false, Celery alone decides about the task. Its outcome is still recorded.
    - `dead_letter_eligible` (flag; true): with false, dead messages are discarded. A header of the producer can
      decide otherwise for one message. Solace.
    - `respect_time_to_live` (flag; true): whether a message's own time to live counts. Solace.
    - `max_time_to_live` (seconds; None): the queue's time to live. If the message has one, too, the lower of the two applies.
      Solace.
    - `delivery_delay` (seconds; 0): the shortest time between publication and consumption. Solace.
    - `max_length` (messages; None): how many messages may wait in a queue; None is no limit. It belongs to a queue, not to a
      task. RabbitMQ.
    - `overflow` (word; "dead_letter_oldest"): what happens beyond `max_length`. "dead_letter_oldest": the oldest message
      dies. "refuse_publish": the new message is refused. It belongs to a queue, not to a task. RabbitMQ.
    - `dead_letter_time_to_live` (seconds; None): how long a dead letter of this queue is kept before it is moved to the
      archive. None is for ever. It belongs to a queue, not to a task.
    - `max_dead_letters` (letters; None): how many dead letters the dead-letter queue may hold. The oldest ones beyond it are
      moved to the archive. None is no limit. It belongs to a queue, not to a task. If queues share a dead-letter queue, the
      highest value applies.
    - `non_retryable` (exceptions; none): exception classes, or their dotted names. A task that raises one of them, or a
      subclass, is dead-lettered at once.
    - `rules` (table; none): other values for one exception class (or dotted name): delay fields, `max_delivery_attempts`,
      `max_age`, `non_retryable`. For example `{"requests.Timeout": {"redelivery_delay": 60}}`. If several classes match, the
      nearest one wins. A rule wins over the list `non_retryable`.
    """

    max_delivery_attempts: int = setting(values.attempts, default=10, in_rules=True)
    redelivery_delay: float = setting(values.duration, default=1.0, in_rules=True)
    redelivery_delay_multiplier: float = setting(values.factor, default=2.0, in_rules=True)
    max_redelivery_delay: float | None = setting(values.optional(values.duration), default=None, in_rules=True)
    redelivery_collision_avoidance_factor: float = setting(values.fraction, default=0.25, in_rules=True)
    redeliveries_per_second: float | None = setting(values.optional(values.rate), default=None)
    max_age: float | None = setting(values.optional(values.duration), default=None, in_rules=True)
    deadline: float | None = setting(values.optional(values.positive_duration), default=None)
    dead_letter_queue: str | None = setting(values.optional(values.queue), default=DEFAULT_QUEUE)
    dead_letter_queue_prefix: str = setting(values.text, default="DLQ.")
    dead_letter_queue_suffix: str = setting(values.text, default="")
    auto_create_dead_letter_resources: bool = setting(values.flag, default=True)
    auto_delete_dead_letter_resources: bool = setting(values.flag, default=False)
    expiry_queue: str | None = setting(values.optional(values.queue), default=None)
    persist_delivery_count: Literal["off", "suspects", "always"] = setting(
        values.choice("off", "suspects", "always"), default="suspects"
    )
    enabled: bool = setting(values.flag, default=True)
    dead_letter_eligible: bool = setting(values.flag, default=True)
    respect_time_to_live: bool = setting(values.flag, default=True)
    max_time_to_live: float | None = setting(values.optional(values.positive_duration), default=None)
    delivery_delay: float = setting(values.duration, default=0.0)
    max_length: int | None = setting(values.optional(values.count(1)), default=None)
    overflow: Literal["dead_letter_oldest", "refuse_publish"] = setting(
        values.choice("dead_letter_oldest", "refuse_publish"), default="dead_letter_oldest"
    )
    dead_letter_time_to_live: float | None = setting(values.optional(values.positive_duration), default=None)
    max_dead_letters: int | None = setting(values.optional(values.count(1)), default=None)
    non_retryable: tuple[str, ...] = setting(names_of, default=())
    rules: Mapping[str, Mapping[str, Any]] = field(default_factory=dict, hash=False, metadata={"check": _rules})
    _ruled: Mapping[str, RedeliveryPolicy] = field(init=False, repr=False, compare=False)

    def __new__(cls, **given: Any) -> Self:
        """Raise the usual error for an unknown field; the generated `__init__` does the rest."""
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
        return partial(type(self), **{**given, "rules": {key: dict(rule) for key, rule in self.rules.items()}}), ()

    @property
    def cap(self) -> float:
        """The longest delay, in seconds: `max_redelivery_delay`, or the default cap if it is None."""
        if self.max_redelivery_delay is not None:
            return self.max_redelivery_delay
        return max(MIN_DEFAULT_CAP, DEFAULT_CAP_FACTOR * self.redelivery_delay)

    @property
    def most_deliveries(self) -> int:
        """The largest `max_delivery_attempts` that an exception may have, by the policy or by one of its rules; -1 is no limit."""
        limits = {self.max_delivery_attempts, *(each.max_delivery_attempts for each in self._ruled.values())}
        return UNLIMITED if UNLIMITED in limits else max(limits)

    def dead_letter_queue_for(self, queue: str) -> str | None:
        """Where `queue`'s dead letters go; None: they are discarded. Raises `ConfigurationError` if that is `queue` itself."""
        if self.dead_letter_queue is None:
            return None
        if self.dead_letter_queue == DEFAULT_QUEUE:
            return f"{self.dead_letter_queue_prefix}{queue}{self.dead_letter_queue_suffix}"
        return _other_queue("dead_letter_queue", self.dead_letter_queue, queue)

    def expiry_queue_for(self, queue: str) -> str | None:
        """Where `queue`'s expired messages go: `expiry_queue`, or its dead-letter queue."""
        if self.expiry_queue is None:
            return self.dead_letter_queue_for(queue)
        return _other_queue("expiry_queue", self.expiry_queue, queue)

    def for_exception(self, exception: type[BaseException]) -> RedeliveryPolicy:
        """The policy, with the changes of the nearest rule for this exception class."""
        nearest = self._nearest(exception, self.rules)
        return self if nearest is None else self._ruled[nearest[1]]

    def is_non_retryable(self, exception: type[BaseException]) -> bool:
        """Whether this exception class is dead-lettered at once. A rule wins, unless a class in the list is nearer."""
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
            msg = "dead_letter_queue_prefix and dead_letter_queue_suffix are both empty, so a queue would be its own DLQ: set one"
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


_CHECKS = checks_of(RedeliveryPolicy)
#: The fields of a policy, in the order in which they are shown.
FIELDS: tuple[str, ...] = tuple(_CHECKS)
#: Fields that belong to a queue: in a row of `tasks`, or in a decorator, they have no effect.
OF_QUEUES = frozenset({"redeliveries_per_second", "max_length", "overflow", "dead_letter_time_to_live", "max_dead_letters"})
_IN_RULES = {each.name: _CHECKS[each.name] for each in fields(RedeliveryPolicy) if each.metadata.get("in_rules")}
_IN_RULES["non_retryable"] = values.flag


def read_fields(given: Mapping[str, Any], where: str = "") -> dict[str, Any]:
    """Some fields of a policy, each checked alone and converted. Raises `ConfigurationError`.

    `where` is the beginning of the error's text, for example `queues["orders.*"] (app.conf.redelivery)`.
    """
    return _checked(given, _CHECKS, where)


def _checked(given: Mapping[str, Any], checks: Mapping[str, values.Check], where: str) -> dict[str, Any]:
    read = {}
    for key, value in given.items():
        if key not in checks:
            raise values.unknown(where, key, checks)
        read[key] = checks[key](f"{where}: {key}" if where else key, value)
    return read


def _other_queue(setting: str, target: str, queue: str) -> str:
    if target == queue:
        msg = f"{setting} of queue {queue!r} is {queue!r} itself: name another queue, or None to discard"
        raise ConfigurationError(msg)
    return target
