"""`@redeliver`: where it may be written, what it stores, and what it refuses."""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any, assert_type

import pytest
import tenacity
from celery import Celery, Task, shared_task
from celery.local import PromiseProxy
from tenacity import (
    retry_if_exception_type,
    retry_if_result,
    stop_after_attempt,
    stop_after_delay,
    stop_never,
    wait_exponential_jitter,
    wait_fixed,
)
from tenacity.asyncio import retry_if_result as asynchronous_retry_if_result

from redelivery.errors import ConfigurationError
from redelivery.middleware.policy.decorator import options_of, redeliver
from redelivery.middleware.policy.options import HOOKS
from redelivery.settings import RedeliverySettings

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def app() -> Iterator[Celery]:
    """A new app."""
    app = Celery("shop", set_as_current=False)
    yield app
    app.close()


def attempts_of(task: Any) -> Any:
    """The limit of attempts that the decorator of a task sets."""
    options = options_of(task)
    return None if options is None else options.fields["max_delivery_attempts"]


def test_it_stands_below_the_task_decorator(app: Celery) -> None:
    """The decorator is on the function, and its options are found on the task."""

    @app.task
    @redeliver(max_delivery_attempts=3)
    def charge() -> int:
        """Return 1."""
        return 1

    assert attempts_of(charge) == 3
    assert charge() == 1


def test_it_stands_above_the_task_decorator(app: Celery) -> None:
    """On Celery's lazy task: it evaluates nothing, returns the same object, and its options are found on the task."""

    @app.task
    def charge() -> int:
        """Return 1."""
        return 1

    assert type(charge) is PromiseProxy
    assert redeliver(max_delivery_attempts=3)(charge) is charge
    assert not charge.__evaluated__()
    assert not app.finalized
    assert attempts_of(charge) == 3
    assert attempts_of(app.tasks[charge.name]) == 3


def test_it_stands_above_an_evaluated_task(app: Celery) -> None:
    """A task of a finalized app is not lazy, and a lazy task may be evaluated already."""
    app.finalize()

    @redeliver(max_delivery_attempts=3)
    @app.task
    def charge() -> None:
        """Do nothing."""

    @app.task(bind=True)
    def refund(self: Any) -> None:
        """Do nothing."""

    assert isinstance(refund, Task)
    redeliver(max_delivery_attempts=4)(refund)
    assert attempts_of(charge) == 3
    assert attempts_of(app.tasks[refund.name]) == 4


def test_it_stands_above_and_below_a_shared_task(app: Celery) -> None:
    """It does not evaluate a shared task either. Every app that registers the function finds the options."""

    @redeliver(max_delivery_attempts=3)
    @shared_task(name="shared.above")
    def above() -> None:
        """Do nothing."""

    @shared_task(name="shared.below", bind=True)
    @redeliver(max_delivery_attempts=4)
    def below(self: Any) -> None:
        """Do nothing."""

    assert not app.finalized
    assert attempts_of(app.tasks["shared.above"]) == 3
    assert attempts_of(app.tasks["shared.below"]) == 4


def test_it_works_with_and_without_parentheses(app: Celery) -> None:
    """Without parentheses it has no options."""

    @app.task
    @redeliver
    def bare() -> None:
        """Do nothing."""

    @app.task
    @redeliver()
    def empty() -> None:
        """Do nothing."""

    for task in (bare, empty):
        options = options_of(task)
        assert options is not None
        assert options.fields == {}
        assert not options.has_strategy


def test_it_works_on_bound_tasks_class_tasks_and_autoretry(app: Celery) -> None:
    """The options are found, whatever Celery makes of the function."""

    @app.task(bind=True, autoretry_for=(OSError,))
    @redeliver(max_delivery_attempts=3)
    def bound(self: Any) -> None:
        """Do nothing."""

    class Refund(Task):
        name = "shop.refund"

        @redeliver(max_delivery_attempts=4)
        def run(self) -> None:
            """Do nothing."""

    assert attempts_of(bound) == 3
    assert attempts_of(app.register_task(Refund())) == 4


def test_other_decorators_may_stand_between(app: Celery) -> None:
    """`functools.wraps` keeps the options. They are also found below a wrapper that does not use it."""

    def careful(function: Any) -> Any:
        @functools.wraps(function)
        def wrapper(*args: Any) -> Any:
            return function(*args)

        return wrapper

    def careless(function: Any) -> Any:
        def wrapper(*args: Any) -> Any:
            return function(*args)

        wrapper.__wrapped__ = function  # type: ignore[attr-defined]
        return wrapper

    for decorate in (careful, careless):

        @app.task(name=decorate.__name__)
        @decorate
        @redeliver(max_delivery_attempts=3)
        def charge() -> None:
            """Do nothing."""

        assert attempts_of(charge) == 3


def test_a_task_without_it_has_no_options(app: Celery) -> None:
    """None are found."""

    @app.task
    def charge() -> None:
        """Do nothing."""

    assert options_of(charge) is None


def test_it_gives_back_the_function_itself() -> None:
    """It does not wrap the function, so a type checker still sees its parameters and result."""

    def charge(amount: int) -> int:
        return amount

    def refund(card: str, *, amount: int) -> list[int]:
        return [amount] * len(card)

    bare = redeliver(charge)
    with_options = redeliver(max_age=5)(refund)
    assert_type(bare(5), int)
    assert_type(with_options("visa", amount=5), list[int])
    assert bare is charge
    assert with_options is refund


def test_its_fields_are_a_layer_of_the_settings(app: Celery) -> None:
    """It stores the mapping that `policy_for` takes, the same object each time."""

    @app.task
    @redeliver(redelivery_delay=3, rules={OSError: {"redelivery_delay": 30}})
    def charge() -> None:
        """Do nothing."""

    options = options_of(charge)
    assert options is not None
    settings = RedeliverySettings.load({"tasks": {"#": {"redelivery_delay": 9}}}, {})
    resolved = settings.policy_for("q", charge.name, options.fields)
    assert (resolved.policy.redelivery_delay, resolved.sources["redelivery_delay"]) == (3.0, "decorator")
    assert resolved is settings.policy_for("q", charge.name, options_of(charge).fields)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"max_delivery_atempts": 3}, "@redeliver: unknown setting 'max_delivery_atempts'; did you mean 'max_delivery_attempts'?"),
        ({"stopp": stop_never}, "did you mean 'stop'?"),
        ({"max_age": -1}, "@redeliver: max_age must be 0 seconds or more"),
        ({"wait": 5}, "for a fixed delay write redelivery_delay=... or wait=wait_fixed(...)"),
        ({"stop": 5}, "stop must be one of tenacity's stop objects"),
        ({"wait": wait_fixed}, "wait is the class wait_fixed, and must be an object: write wait_fixed(...)"),
        ({"wait": wait_fixed(1), "redelivery_delay": 1}, "wait and redelivery_delay both say how long to wait: keep one"),
        ({"retry": asynchronous_retry_if_result(lambda _: True)}, "retry is asynchronous"),  # type: ignore[arg-type,return-value]
    ],
)
def test_wrong_options_are_refused_where_they_are_written(given: dict[str, Any], message: str) -> None:
    """The error is raised at import, before a task is made."""
    with pytest.raises(ConfigurationError) as refused:
        redeliver(**given)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


def test_an_asynchronous_callable_is_refused() -> None:
    """A coroutine function cannot be called for an answer, with or without a `partial` around it."""

    async def stop(_state: Any) -> bool:
        return True

    for strategy in (stop, functools.partial(stop)):
        with pytest.raises(ConfigurationError, match="stop is asynchronous"):
            redeliver(stop=strategy)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "hook", ["sleep", "before", "after", "before_sleep", "retry_error_cls", "retry_error_callback", "reraise", "name"]
)
def test_hooks_that_make_no_sense_across_deliveries_are_refused_by_name(hook: str) -> None:
    """The error has the name of the hook, the reason, and what to do instead."""
    with pytest.raises(ConfigurationError, match=rf"@redeliver: {hook} is not for redelivery: .+; .+"):
        redeliver(**{hook: print})  # type: ignore[call-overload]


def test_every_argument_of_tenacity_is_taken_or_refused_by_name() -> None:
    """So a new hook of tenacity is not taken for a spelling mistake."""
    known = set(inspect.signature(tenacity.Retrying).parameters)
    assert known == set(HOOKS) | {"wait", "stop", "retry", "enabled"}


@pytest.mark.parametrize("given", [5, "charge", wait_fixed(5), stop_after_attempt(3), retry_if_exception_type(OSError)])
def test_a_strategy_or_a_value_in_the_task_s_place_is_refused(given: Any) -> None:
    """For `@redeliver(wait_fixed(5))`, the error says how to write it."""
    with pytest.raises(ConfigurationError, match="takes keyword arguments only"):
        redeliver(given)


def test_it_stands_once_on_a_task(app: Celery) -> None:
    """Two decorators could contradict each other, and nothing would say so."""

    @app.task
    @redeliver(max_age=1)
    def charge() -> None:
        """Do nothing."""

    with pytest.raises(ConfigurationError, match=r"is on .*charge twice: put all of it into one"):
        redeliver(max_age=2)(charge)


@pytest.mark.parametrize(
    ("stop", "attempts"),
    [
        (stop_after_attempt(4), 4),
        (stop_after_attempt(20) | stop_after_delay(3600), 20),
        (stop_after_attempt(20) | stop_after_attempt(6), 6),
        (stop_after_attempt(20) & stop_after_attempt(6), 20),
        (stop_after_attempt(20) & stop_after_delay(3600), -1),
        (stop_after_delay(3600), -1),
        (stop_never, -1),
        (lambda _state: False, -1),
    ],
)
def test_stop_replaces_the_limits_of_the_settings(stop: Any, attempts: int) -> None:
    """If `stop` is a number of attempts, that is the limit of the policy. Otherwise `stop` alone decides."""
    task = redeliver(stop=stop)(lambda: None)
    options = options_of(task)
    assert options is not None
    assert options.fields == {"max_delivery_attempts": attempts, "max_age": None}
    conf = {
        "queues": {"#": {"max_delivery_attempts": 2, "max_age": 9}},
        "override": {"queues": {"hot": {"max_delivery_attempts": 1}}},
    }
    settings = RedeliverySettings.load(conf, {})
    assert settings.policy_for("q", "t", options.fields).policy.max_delivery_attempts == attempts
    assert settings.policy_for("q", "t", options.fields).policy.max_age is None
    assert settings.policy_for("hot", "t", options.fields).policy.max_delivery_attempts == 1


def test_a_limit_beside_stop_stays() -> None:
    """`stop` does not replace a limit that the decorator sets itself."""
    options = options_of(redeliver(stop=stop_after_delay(60), max_delivery_attempts=7)(lambda: None))
    assert options is not None
    assert options.fields == {"max_delivery_attempts": 7, "max_age": None}
    assert options.implied == {"max_age"}


def test_tenacity_s_objects_are_kept_as_they_are() -> None:
    """The example of the documentation."""
    wait, retry = wait_exponential_jitter(1, 60), retry_if_exception_type(IOError) | retry_if_result(lambda found: found is None)
    options = options_of(redeliver(wait=wait, stop=stop_after_attempt(5) | stop_after_delay(3600), retry=retry)(lambda: None))
    assert options is not None
    assert (options.wait, options.retry) == (wait, retry)
    assert options.has_strategy
