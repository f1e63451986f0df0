"""The policy: what it accepts and refuses, and what it decides about exceptions and dead-letter queues."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from datetime import timedelta
from typing import Any

import pytest

from redelivery.errors import ConfigurationError
from redelivery.settings import FIELDS, RedeliveryPolicy
from redelivery.settings.exceptions import name_of
from redelivery.settings.general import read_general


class Refused(Exception):
    """An application's own exception."""


class RefusedForGood(Refused):
    """A kind of `Refused`."""


def test_defaults_are_those_of_the_contract() -> None:
    """A policy without fields has the documented defaults."""
    policy = RedeliveryPolicy()
    assert (policy.max_delivery_attempts, policy.redelivery_delay, policy.redelivery_delay_multiplier) == (10, 1.0, 2.0)
    assert (policy.cap, policy.redelivery_collision_avoidance_factor, policy.max_age) == (600.0, 0.25, None)
    assert (policy.dead_letter_queue_for("orders"), policy.persist_delivery_count, policy.enabled) == (
        "DLQ.orders",
        "suspects",
        True,
    )
    assert policy.auto_create_dead_letter_resources
    assert not policy.auto_delete_dead_letter_resources
    assert (policy.respect_time_to_live, policy.max_time_to_live, policy.delivery_delay) == (True, None, 0.0)


def test_fields_for_type_checkers_are_the_fields_of_the_policy() -> None:
    """The typed keywords of `@redeliver` are the policy's fields, in the same order."""
    assert tuple(each.name for each in dataclasses.fields(RedeliveryPolicy) if each.init) == FIELDS


def test_durations_are_seconds_or_timedelta() -> None:
    """A `timedelta`, an integer and a float of the same duration make equal policies."""
    made = [RedeliveryPolicy(redelivery_delay=each) for each in (90, 90.0, timedelta(minutes=1, seconds=30))]  # type: ignore[arg-type]
    assert made[0] == made[1] == made[2]
    assert isinstance(made[0].redelivery_delay, float)


def test_zero_is_a_value() -> None:
    """0 means no delay, no age and no delivery delay. It never means unset."""
    policy = RedeliveryPolicy(redelivery_delay=0, max_redelivery_delay=0, max_age=0, delivery_delay=0)
    assert (policy.redelivery_delay, policy.cap, policy.max_age, policy.delivery_delay) == (0.0, 0.0, 0.0, 0.0)


@pytest.mark.parametrize(("delay", "cap"), [(1, 600), (60, 600), (60.1, 601), (0, 600)])
def test_the_default_cap_is_ten_delays_or_ten_minutes(delay: float, cap: float) -> None:
    """The default is the greater of 600 s and ten times the delay."""
    assert RedeliveryPolicy(redelivery_delay=delay).cap == pytest.approx(cap)


def test_no_duration_is_longer_than_a_hundred_years() -> None:
    """A longer one means for ever, and no clock, sleep or script could handle it."""
    century = 36_525 * 86_400
    assert (RedeliveryPolicy(delivery_delay=1e300).delivery_delay, RedeliveryPolicy(max_age=1e14).max_age) == (century, century)
    assert read_general("outcome_export_every", timedelta.max) == century


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("max_delivery_attempts", 0, "must be 1 or more, or -1 for no limit, not 0"),
        ("max_delivery_attempts", -2, "or -1 for no limit"),
        ("max_delivery_attempts", 3.0, "or -1 for no limit"),
        ("max_delivery_attempts", True, "or -1 for no limit"),
        ("redelivery_delay", -0.001, "must be 0 seconds or more"),
        ("redelivery_delay", timedelta(seconds=-1), "must be 0 seconds or more"),
        ("redelivery_delay", True, "must be seconds (a number) or a timedelta"),
        ("redelivery_delay", "10", "must be seconds (a number) or a timedelta, not '10'"),
        ("redelivery_delay", None, "must be seconds (a number) or a timedelta"),
        ("redelivery_delay", float("nan"), "must be a finite number"),
        ("max_redelivery_delay", float("inf"), "must be a finite number"),
        ("redelivery_delay", 10**400, "is too large"),
        ("redelivery_delay_multiplier", 0, "must be more than 0"),
        ("redelivery_delay_multiplier", -1, "must be more than 0"),
        ("redelivery_collision_avoidance_factor", 1.01, "must be from 0.0 to 1.0"),
        ("redelivery_collision_avoidance_factor", -0.01, "must be from 0.0 to 1.0"),
        ("dead_letter_queue", "", "must be a queue's name"),
        ("dead_letter_queue_prefix", 5, "must be text"),
        ("enabled", 1, "must be true or false"),
        ("persist_delivery_count", "suspect", "did you mean 'suspects'?"),
        ("overflow", "refuse", "must be 'dead_letter_oldest' or 'refuse_publish'"),
        ("max_length", 0, "must be 1 or more"),
        ("max_length", 1.5, "must be a whole number"),
        ("max_length", 10**30, "must be 9007199254740992 or less"),
        ("max_time_to_live", 0, "must be more than 0 seconds"),
        ("non_retryable", 5, "must be a list of exception classes"),
        ("non_retryable", int, "int is not an exception class"),
        ("non_retryable", "OSEror", "did you mean 'OSError'?"),
        ("non_retryable", "Refused", "write its module too"),
        ("non_retryable", "shop errors", "must be an exception class or its dotted name"),
        ("rules", [OSError], "must map exception classes"),
        ("rules", {OSError: 30}, "must be a table of settings"),
        ("rules", {OSError: {"redelivry_delay": 30}}, "did you mean 'redelivery_delay'?"),
        ("rules", {OSError: {"max_redelivery_delay": 0.5}}, "rules['OSError']: max_redelivery_delay (0.5 s) is below"),
    ],
)
def test_wrong_values_are_refused_with_one_line(field: str, value: Any, message: str) -> None:
    """The error is one line, which names the field and the rule."""
    with pytest.raises(ConfigurationError) as refused:
        RedeliveryPolicy(**{field: value})
    line = str(refused.value)
    assert message in line
    assert field in line
    assert "\n" not in line


@pytest.mark.parametrize(
    ("written", "meant"), [("max_delivery_atempts", "max_delivery_attempts"), ("DEAD_LETTER_QUEUE", "dead_letter_queue")]
)
def test_misspelt_fields_are_answered_with_did_you_mean(written: str, meant: str) -> None:
    """A misspelt keyword is a `ConfigurationError` with the nearest field, not a bare `TypeError`."""
    with pytest.raises(ConfigurationError, match=f"unknown setting '{written}'; did you mean '{meant}'"):
        RedeliveryPolicy(**{written: 3})  # type: ignore[arg-type]


def test_a_cap_below_the_delay_is_refused() -> None:
    """An explicit cap may equal the delay, and may not be below it."""
    assert RedeliveryPolicy(redelivery_delay=5, max_redelivery_delay=5).cap == 5
    with pytest.raises(ConfigurationError, match="raise the one or lower the other"):
        RedeliveryPolicy(redelivery_delay=5, max_redelivery_delay=4.999)


def test_a_dead_letter_queue_is_named_after_its_origin_or_by_itself_or_missing() -> None:
    """`default` is prefix + queue + suffix, a name is that queue, and None (also as the text none or None) is no queue."""
    assert RedeliveryPolicy(dead_letter_queue_prefix="", dead_letter_queue_suffix=".dead").dead_letter_queue_for("a") == "a.dead"
    assert RedeliveryPolicy(dead_letter_queue="morgue").dead_letter_queue_for("a") == "morgue"
    assert RedeliveryPolicy(dead_letter_queue=None).dead_letter_queue_for("a") is None
    assert RedeliveryPolicy(dead_letter_queue="none").dead_letter_queue_for("a") is None
    assert RedeliveryPolicy(dead_letter_queue="None").dead_letter_queue_for("a") is None
    assert RedeliveryPolicy().dead_letter_queue_for("DLQ.a") == "DLQ.DLQ.a"


def test_a_queue_that_is_its_own_dead_letter_queue_is_refused() -> None:
    """A name, or an empty prefix and suffix, must not send a dead letter back to its origin."""
    with pytest.raises(ConfigurationError, match="'a' is 'a' itself"):
        RedeliveryPolicy(dead_letter_queue="a").dead_letter_queue_for("a")
    with pytest.raises(ConfigurationError, match="both empty"):
        RedeliveryPolicy(dead_letter_queue_prefix="")


def test_the_expired_go_to_the_expiry_queue_or_the_dead_letter_queue() -> None:
    """Without an `expiry_queue` they go to the DLQ. The origin is refused as `expiry_queue`."""
    assert RedeliveryPolicy().expiry_queue_for("a") == "DLQ.a"
    assert RedeliveryPolicy(expiry_queue="late").expiry_queue_for("a") == "late"
    with pytest.raises(ConfigurationError, match="expiry_queue of queue 'late'"):
        RedeliveryPolicy(expiry_queue="late").expiry_queue_for("late")


def test_policies_are_frozen_values() -> None:
    """They compare and hash by value, can be pickled and copied, and cannot be changed."""
    given: dict[str, Any] = {"redelivery_delay": 3, "rules": {OSError: {"redelivery_delay": 30}}, "non_retryable": [ValueError]}
    policy = RedeliveryPolicy(**given)
    assert policy == RedeliveryPolicy(**given) == pickle.loads(pickle.dumps(policy)) == copy.deepcopy(policy)  # noqa: S301 - our own
    assert hash(policy) == hash(RedeliveryPolicy(**given))
    assert dataclasses.replace(policy, redelivery_delay=4).for_exception(OSError).redelivery_delay == 30
    with pytest.raises(dataclasses.FrozenInstanceError):
        policy.redelivery_delay = 5  # type: ignore[misc]
    with pytest.raises(TypeError):
        policy.rules["OSError"] = {}  # type: ignore[index]


def test_a_table_that_is_changed_later_changes_no_policy() -> None:
    """The policy keeps a copy."""
    rules = {"OSError": {"redelivery_delay": 30}}
    policy = RedeliveryPolicy(rules=rules)
    rules["OSError"]["redelivery_delay"] = 1
    assert policy.for_exception(OSError).redelivery_delay == 30


@pytest.mark.parametrize("named", [Refused, f"{__name__}.Refused"])
def test_subclasses_are_matched_by_class_and_by_name(named: Any) -> None:
    """A class and its dotted name mean the same: the class and its subclasses."""
    policy = RedeliveryPolicy(non_retryable=named)
    assert policy.is_non_retryable(Refused)
    assert policy.is_non_retryable(RefusedForGood)
    assert not policy.is_non_retryable(ValueError)
    assert policy == RedeliveryPolicy(non_retryable=(Refused,))  # type: ignore[arg-type]


def test_a_name_is_matched_without_importing_its_module() -> None:
    """A name in a module that was never loaded is accepted, and matches nothing."""
    policy = RedeliveryPolicy(non_retryable=("no.such.module.Error",))
    assert not policy.is_non_retryable(Refused)


@pytest.mark.parametrize("alias", ["IOError", "EnvironmentError", "builtins.OSError", "socket.error", "os.error"])
def test_other_names_of_a_class_are_followed(alias: str) -> None:
    """A class matches under any name that a loaded module has for it."""
    assert RedeliveryPolicy(non_retryable=(alias,)).is_non_retryable(ConnectionResetError)


def test_a_class_and_its_name_are_kept_as_one() -> None:
    """A class that is named twice, in two ways, is kept once."""
    assert RedeliveryPolicy(non_retryable=(OSError, "IOError", "OSError")).non_retryable == ("OSError",)  # type: ignore[arg-type]
    assert name_of("here", Refused) == f"{__name__}.Refused"


def test_the_nearest_rule_wins() -> None:
    """If several rules match an exception, only the rule of its nearest ancestor applies, and only with the fields that it has."""
    rules = {
        Exception: {"redelivery_delay": 2},
        Refused: {"redelivery_delay": 30, "max_delivery_attempts": 3},
        OSError: {"max_age": 60},
    }
    policy = RedeliveryPolicy(max_age=3600, rules=rules)  # type: ignore[arg-type]
    assert policy.for_exception(RefusedForGood).redelivery_delay == 30
    assert policy.for_exception(RefusedForGood).max_delivery_attempts == 3
    assert policy.for_exception(RefusedForGood).max_age == 3600
    assert policy.for_exception(ConnectionError).max_age == 60
    assert policy.for_exception(ConnectionError).redelivery_delay == 1
    assert policy.for_exception(KeyError).redelivery_delay == 2
    assert policy.for_exception(KeyboardInterrupt) is policy


def test_a_rule_and_the_list_are_weighed_by_nearness() -> None:
    """A rule's `non_retryable` wins, unless a class of the list is nearer to the exception."""
    spared = RedeliveryPolicy(non_retryable=("OSError",), rules={"ConnectionError": {"non_retryable": False}})
    assert spared.is_non_retryable(FileNotFoundError)
    assert not spared.is_non_retryable(ConnectionResetError)
    listed = RedeliveryPolicy(non_retryable=("ConnectionResetError",), rules={"OSError": {"non_retryable": False}})
    assert listed.is_non_retryable(ConnectionResetError)
    assert not listed.is_non_retryable(ConnectionRefusedError)
    assert RedeliveryPolicy(rules={"OSError": {"non_retryable": True}}).is_non_retryable(ConnectionError)
