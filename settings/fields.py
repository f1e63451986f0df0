"""The fields of a policy by name: how each is written, and how it is checked by itself.

Enters: some fields, from a decorator, a row of a table, or a whole policy. Leaves: the same fields in the form in which they are
kept. Refuses, with `ConfigurationError`, unknown fields and values out of range; fields that contradict each other are the policy's
own matter, because they may come from different rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from redelivery.errors import ConfigurationError

from . import values
from .exceptions import name_of, names_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import timedelta

__all__ = ["FIELDS", "PolicyFields", "read_fields"]


class PolicyFields(TypedDict, total=False):
    """The fields of a policy as people write them, any number of them; see `RedeliveryPolicy`."""

    max_delivery_attempts: int
    redelivery_delay: float | timedelta
    redelivery_delay_multiplier: float
    max_redelivery_delay: float | timedelta | None
    redelivery_collision_avoidance_factor: float
    redeliveries_per_second: float | None
    max_age: float | timedelta | None
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


#: The fields of a policy, in the order in which they are shown.
FIELDS: tuple[str, ...] = tuple(PolicyFields.__annotations__)


def read_fields(given: Mapping[str, Any], where: str = "") -> dict[str, Any]:
    """Some fields of a policy, each checked by itself and in the form in which it is kept. Raises `ConfigurationError`.

    `where` begins the error's line, as in `queues["orders.*"] (app.conf.redelivery)`.
    """
    return _checked(given, _CHECKS, where)


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
        read[key] = MappingProxyType(_checked(rule, _RULE_CHECKS, where))
    return MappingProxyType(read)


def _checked(given: Mapping[str, Any], checks: Mapping[str, values.Check], where: str) -> dict[str, Any]:
    read = {}
    for key, value in given.items():
        if key not in checks:
            raise values.unknown(where, key, checks)
        read[key] = checks[key](f"{where}: {key}" if where else key, value)
    return read


_DELAYS: dict[str, values.Check] = {
    "max_delivery_attempts": values.attempts,
    "redelivery_delay": values.duration,
    "redelivery_delay_multiplier": values.factor,
    "max_redelivery_delay": values.optional(values.duration),
    "redelivery_collision_avoidance_factor": values.fraction,
    "max_age": values.optional(values.duration),
}
_RULE_CHECKS: dict[str, values.Check] = {**_DELAYS, "non_retryable": values.flag}
_CHECKS: dict[str, values.Check] = {
    **_DELAYS,
    "redeliveries_per_second": values.optional(values.rate),
    "dead_letter_queue": values.optional(values.queue),
    "dead_letter_queue_prefix": values.text,
    "dead_letter_queue_suffix": values.text,
    "auto_create_dead_letter_resources": values.flag,
    "auto_delete_dead_letter_resources": values.flag,
    "expiry_queue": values.optional(values.queue),
    "persist_delivery_count": values.choice("off", "suspects", "always"),
    "enabled": values.flag,
    "dead_letter_eligible": values.flag,
    "respect_time_to_live": values.flag,
    "max_time_to_live": values.optional(values.positive_duration),
    "delivery_delay": values.duration,
    "max_length": values.optional(values.count(1)),
    "overflow": values.choice("dead_letter_oldest", "refuse_publish"),
    "dead_letter_time_to_live": values.optional(values.positive_duration),
    "max_dead_letters": values.optional(values.count(1)),
    "non_retryable": names_of,
    "rules": _rules,
}
