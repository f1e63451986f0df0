"""Tenacity's strategies across deliveries: their answers are as in one call, and a bad strategy loses no message."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
import tenacity
from hypothesis import given
from hypothesis import strategies as st
from tenacity import (
    RetryCallState,
    TryAgain,
    retry_if_exception,
    retry_if_exception_message,
    retry_if_exception_type,
    retry_if_not_result,
    retry_if_result,
    retry_never,
    retry_unless_exception_type,
    stop_after_attempt,
    stop_after_delay,
    stop_before_delay,
    stop_never,
    stop_when_event_set,
    wait_chain,
    wait_combine,
    wait_exception,
    wait_exponential,
    wait_fixed,
    wait_incrementing,
    wait_none,
    wait_random,
)
from tenacity.asyncio import retry_if_result as asynchronous_retry_if_result

from redelivery.middleware.messages.events import Reason
from redelivery.middleware.policy import task_exceptions as raised
from redelivery.middleware.policy.decision import DeadLetter, Discard, Failure, Redeliver
from redelivery.middleware.policy.options import Options
from redelivery.middleware.policy.strategies import UNSET, StrategyFailed, decide_with_tenacity
from redelivery.settings import RedeliveryPolicy, RedeliverySettings
from redelivery.settings.values import MAX_DURATION

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class NoJitter:
    """Randomness that always draws the middle."""

    def choice(self, signs: Sequence[int], /) -> int:
        """The first sign."""
        return signs[0]

    def random(self) -> float:
        """Nothing."""
        return 0.0


def asked(strategies: dict[str, Any], *, result: Any = UNSET, settings: dict[str, Any] | None = None, **known: Any) -> Any:
    """The decision for a task with these strategies, on a queue with these settings."""
    options = Options.of(strategies)
    resolved = RedeliverySettings.load(settings, {}).policy_for("q", "t", options.fields)
    options = options.under(resolved.sources)
    attempt = {name: known.pop(name) for name in ("task_args", "task_kwargs", "fn", "idle_for") if name in known}
    exception = KeyError("x") if result is UNSET and "cause" not in known else None
    failure = Failure(**{"attempt": 1, "age": 0.0, "exception": exception, **known})
    return decide_with_tenacity(options, resolved.policy, failure, result=result, random=NoJitter(), **attempt)


def test_without_strategies_the_policy_decides() -> None:
    """Without options, or with policy fields only, the policy decides. Any result is accepted."""
    policy = RedeliveryPolicy(redelivery_delay=4)
    for options in (None, Options.of({})):
        assert decide_with_tenacity(
            options, policy, Failure(attempt=1, age=0, exception=KeyError()), random=NoJitter()
        ) == Redeliver(4.0)
        assert decide_with_tenacity(options, policy, Failure(attempt=1, age=0), result=5, random=NoJitter()) is None


@pytest.mark.parametrize(
    ("wait", "delays"),
    [
        (wait_fixed(3), [3, 3, 3]),
        (wait_none(), [0, 0, 0]),
        (wait_exponential(multiplier=1, max=3), [1, 2, 3]),
        (wait_incrementing(1, 10), [1, 11, 21]),
        (wait_chain(wait_fixed(1), wait_fixed(5)), [1, 5, 5]),
        (wait_fixed(1) + wait_incrementing(1, 1), [2, 3, 4]),
        (wait_combine(wait_fixed(1), wait_fixed(2)), [3, 3, 3]),
        (wait_exception(lambda exc: len(str(exc))), [3, 3, 3]),
        (wait_random(2, 2), [2, 2, 2]),
        (lambda state: state.attempt_number * 10, [10, 20, 30]),
        (lambda _state: timedelta(minutes=1), [60, 60, 60]),
    ],
)
def test_wait_says_the_delay_of_each_attempt(wait: Any, delays: list[float]) -> None:
    """Tenacity's own waits, combined waits and a user's functions, by the number of the attempt."""
    assert [asked({"wait": wait}, attempt=n) for n in (1, 2, 3)] == [Redeliver(float(each)) for each in delays]


def test_wait_is_not_capped_by_the_policy_and_stays_in_the_calendar() -> None:
    """A wait longer than the built-in cap is kept. tenacity's endless waits become 100 years."""
    assert asked({"wait": wait_fixed(86_400)}) == Redeliver(86_400.0)
    assert asked({"wait": wait_exponential(), "stop": stop_never}, attempt=10_000) == Redeliver(MAX_DURATION)


def test_without_wait_the_policy_s_delay_is_used() -> None:
    """With only `stop` or `retry`, the policy and its rules set the delay."""
    rules = {"queues": {"#": {"redelivery_delay": 7, "rules": {"OSError": {"redelivery_delay": 9}}}}}
    assert asked({"stop": stop_never}, settings=rules) == Redeliver(7.0)
    assert asked({"stop": stop_never}, settings=rules, exception=ConnectionError()) == Redeliver(9.0)


@pytest.mark.parametrize(
    ("stop", "last"),
    [
        (stop_after_attempt(3), {"attempt": 3}),
        (stop_after_delay(60), {"age": 60.5}),
        (stop_before_delay(60), {"age": 55.5}),
        (stop_after_attempt(9) | stop_after_delay(60), {"attempt": 2, "age": 61.0}),
        (stop_after_attempt(2) & stop_after_delay(60), {"attempt": 2, "age": 61.0}),
        (lambda state: state.idle_for > 20, {"idle_for": 21.0}),
        (lambda state: "stop" in state.args, {"task_args": ("stop",)}),
        (lambda state: isinstance(state.outcome.exception(), OSError), {"exception": OSError()}),
    ],
)
def test_stop_ends_the_message(stop: Any, last: dict[str, Any]) -> None:
    """The message is delivered again until the last attempt, and then dies as `exhausted`."""
    strategies = {"wait": wait_fixed(5), "stop": stop}
    assert asked(strategies, attempt=1, age=50.0) == Redeliver(5.0)
    found = asked(strategies, **last)
    assert isinstance(found, DeadLetter)
    assert found.reason is Reason.EXHAUSTED


def test_stop_is_the_limit_in_place_of_the_policy_s() -> None:
    """20 attempts, although the settings say 10; 30 minutes, although a queue says 1."""
    strategies = {"wait": wait_fixed(1), "stop": stop_after_attempt(20)}
    settings = {"queues": {"#": {"max_age": 60}}}
    assert asked(strategies, attempt=19, age=1800.0, settings=settings) == Redeliver(1.0)
    assert asked(strategies, attempt=20, settings=settings).reason is Reason.EXHAUSTED


def test_an_event_stops_it() -> None:
    """`stop_when_event_set` is evaluated at each attempt."""
    event = threading.Event()
    assert asked({"stop": stop_when_event_set(event)}) == Redeliver(1.0)
    event.set()
    assert asked({"stop": stop_when_event_set(event)}).reason is Reason.EXHAUSTED


@pytest.mark.parametrize(
    ("retry", "exception", "again"),
    [
        (retry_if_exception_type(OSError), ConnectionError(), True),
        (retry_if_exception_type(OSError), KeyError(), False),
        (retry_if_exception_type(OSError) | retry_if_exception_message(match="busy"), ValueError("busy now"), True),
        (retry_if_exception_type(OSError) & retry_if_exception_message(match="busy"), OSError("gone"), False),
        (retry_if_exception(lambda exc: "x" in str(exc)), KeyError("x"), True),
        (retry_unless_exception_type(KeyError), KeyError(), False),
        (retry_never, KeyError(), False),
        (retry_never, TryAgain(), True),
        (lambda state: state.outcome.failed and state.attempt_number < 5, KeyError(), True),
    ],
)
def test_retry_says_which_exceptions_are_delivered_again(retry: Any, exception: BaseException, again: bool) -> None:
    """If `retry` says no, the reason is `non_retryable`. `TryAgain` is always delivered again, as in tenacity."""
    found = asked({"retry": retry}, exception=exception)
    assert isinstance(found, Redeliver if again else DeadLetter)
    if isinstance(found, DeadLetter):
        assert found.reason is Reason.NON_RETRYABLE


@pytest.mark.parametrize(
    ("retry", "result", "again"),
    [
        (retry_if_result(lambda found: found is None), None, True),
        (retry_if_result(lambda found: found is None), 5, False),
        (retry_if_not_result(bool), [], True),
        (retry_if_exception_type(OSError), None, False),
        (retry_if_exception_type(OSError) | retry_if_result(lambda found: found == "busy"), "busy", True),
    ],
)
def test_retry_may_refuse_a_result(retry: Any, result: Any, again: bool) -> None:
    """For an accepted result the decision is None. After a refused one, the task is delivered again after the wait."""
    assert asked({"retry": retry, "wait": wait_fixed(2)}, result=result) == (Redeliver(2.0) if again else None)


def test_a_refused_result_is_bounded_like_a_failure() -> None:
    """If each result is refused, the task ends as if each attempt raised."""
    never = {"retry": retry_if_result(lambda _found: True), "stop": stop_after_attempt(3)}
    assert asked(never, result=1, attempt=2) == Redeliver(2.0)
    assert asked(never, result=1, attempt=3).reason is Reason.EXHAUSTED


def test_strategies_get_a_true_state() -> None:
    """Every attribute that tenacity documents has the value that it has if one call makes all attempts."""
    seen: list[RetryCallState] = []

    def charge(card: str, *, amount: int) -> None:
        """Do nothing."""

    def stop(state: RetryCallState) -> bool:
        seen.append(state)
        return False

    error = OSError("busy")
    wait = wait_fixed(7)
    known: dict[str, Any] = {"attempt": 4, "age": 90.0, "exception": error, "idle_for": 33.0}
    asked({"wait": wait, "stop": stop}, fn=charge, task_args=("visa",), task_kwargs={"amount": 5}, **known)
    (state,) = seen
    assert type(state) is RetryCallState
    assert (state.fn, state.args, state.kwargs) == (charge, ("visa",), {"amount": 5})
    assert (state.attempt_number, state.idle_for, state.upcoming_sleep, state.next_action) == (4, 33.0, 7.0, None)
    assert state.seconds_since_start == pytest.approx(90.0)
    assert state.outcome is not None
    assert (state.outcome.failed, state.outcome.exception(), state.outcome.attempt_number) == (True, error, 4)
    assert isinstance(state.retry_object, tenacity.Retrying)
    assert (state.retry_object.wait, state.retry_object.stop) == (wait, stop)
    assert state.retry_object.statistics["attempt_number"] == 4
    assert state.get_fn_name().endswith("charge")


def test_the_order_is_tenacity_s() -> None:
    """`retry` is called first, then `wait`, then `stop`, each once."""
    order: list[str] = []

    def noting(name: str, answer: Any) -> Callable[[RetryCallState], Any]:
        def strategy(_state: RetryCallState) -> Any:
            order.append(name)
            return answer

        return strategy

    answers = {"stop": False, "wait": 1.0, "retry": True}
    assert asked({name: noting(name, answer) for name, answer in answers.items()}) == Redeliver(1.0)
    assert order == ["retry", "wait", "stop"]


@given(
    waits=st.lists(st.integers(0, 9), min_size=1, max_size=6),
    limit=st.integers(1, 8),
    before=st.integers(1, 40),
)
def test_deliveries_go_as_tenacity_s_own_loop_goes(waits: list[int], limit: int, before: int) -> None:
    """Attempts and delays are those of `tenacity.Retrying` with a clock that only `sleep` moves."""
    strategies = {
        "wait": wait_chain(*map(wait_fixed, waits)),
        "stop": stop_after_attempt(limit) | (lambda state: state.idle_for + state.upcoming_sleep >= before),  # type: ignore[operator]
        "retry": retry_if_exception_type(KeyError),
    }
    slept: list[float] = []

    def fail() -> None:
        raise KeyError

    with pytest.raises(tenacity.RetryError):
        tenacity.Retrying(sleep=slept.append, **strategies)(fail)  # type: ignore[arg-type]
    delivered: list[float] = []
    while isinstance(
        found := asked(strategies, attempt=len(delivered) + 1, age=sum(delivered), idle_for=sum(delivered)), Redeliver
    ):
        delivered.append(found.delay)
    assert delivered == slept


def test_what_lies_beneath_stays_in_force() -> None:
    """`DeadLetter`, `throws`, `non_retryable`, eligibility and the settings' override apply before the strategies."""
    always = {"wait": wait_fixed(1), "stop": stop_never, "retry": lambda _state: True}
    assert asked(always, exception=raised.DeadLetter("stolen")) == DeadLetter(Reason.NON_RETRYABLE, "stolen")
    assert asked(always, throws=(KeyError,)).reason is Reason.NON_RETRYABLE
    assert asked(always, settings={"queues": {"#": {"non_retryable": ["KeyError"]}}}).reason is Reason.NON_RETRYABLE
    hot = {"override": {"queues": {"#": {"max_delivery_attempts": 1}}}}
    assert asked(always, settings=hot).reason is Reason.EXHAUSTED
    ended = asked({"stop": lambda _state: True}, eligible=False)
    assert isinstance(ended, Discard)
    assert ended.reason is Reason.NOT_ELIGIBLE


@pytest.mark.parametrize("table", [{"queues": {"q": {}}}, {"tasks": {"t": {}}}])
@pytest.mark.parametrize(
    ("strategies", "override", "attempt", "expected"),
    [
        ({"wait": wait_fixed(1)}, {"redelivery_delay": 60}, 1, Redeliver(60.0)),
        ({"wait": wait_fixed(1)}, {"max_redelivery_delay": 7, "redelivery_delay": 5}, 2, Redeliver(7.0)),
        ({"stop": stop_after_attempt(2), "wait": wait_fixed(1)}, {"max_delivery_attempts": 5}, 4, Redeliver(1.0)),
        ({"stop": stop_after_attempt(2), "wait": wait_fixed(1)}, {"max_age": 60}, 1, Redeliver(1.0)),
        ({"wait": wait_fixed(1)}, {"dead_letter_queue": None}, 1, Redeliver(1.0)),
    ],
    ids=["delay", "cap", "more attempts", "age", "what no strategy says"],
)
def test_an_override_beats_the_strategy_that_says_the_same(
    table: dict[str, Any], strategies: dict[str, Any], override: dict[str, Any], attempt: int, expected: Any
) -> None:
    """The override of the settings beats `wait` and `stop`. The strategies decide everything else."""
    settings = {"override": {name: dict.fromkeys(rows, override) for name, rows in table.items()}}
    assert asked(strategies, settings=settings, attempt=attempt) == expected


def test_a_delay_that_the_task_asks_for_is_not_asked_of_wait() -> None:
    """`RedeliverAfter` and `Task.retry` come before `wait` and `retry`. `stop` sees their delay."""
    seen: list[float] = []

    def stop(state: RetryCallState) -> bool:
        seen.append(state.upcoming_sleep)
        return False

    strategies = {"wait": wait_fixed(1), "retry": retry_never, "stop": stop}
    assert asked(strategies, exception=raised.RedeliverAfter(30)) == Redeliver(30.0)
    assert asked(strategies, requested_delay=40.0) == Redeliver(40.0)
    assert seen == [30.0, 40.0]


@pytest.mark.parametrize("cause", [Reason.WORKER_LOST, Reason.TIME_LIMIT])
def test_a_crash_is_not_asked_of_retry(cause: Reason) -> None:
    """The task has raised nothing, so only `wait` and `stop` are called. The cause stays the reason."""
    strategies = {
        "wait": wait_fixed(3),
        "stop": lambda state: state.attempt_number >= 2,
        "retry": retry_if_exception_type(KeyError),
    }
    assert asked(strategies, cause=cause) == Redeliver(3.0)
    assert asked(strategies, cause=cause, attempt=2).reason is cause


def broken(_state: RetryCallState) -> Any:
    """Fail, as a user's strategy may."""
    msg = "mistake"
    raise ZeroDivisionError(msg)


@pytest.mark.parametrize(
    ("name", "strategy", "message"),
    [
        ("wait", broken, "@redeliver's wait= failed (ZeroDivisionError: mistake)"),
        ("stop", broken, "@redeliver's stop= failed"),
        ("retry", broken, "@redeliver's retry= failed"),
        ("wait", lambda _state: None, "wait= failed (TypeError"),
        ("wait", lambda _state: -1, "-1 is not a delay in seconds"),
        ("wait", lambda _state: float("nan"), "nan is not a delay in seconds"),
        ("wait", lambda: 5, "wait= failed (TypeError"),
    ],
)
def test_a_strategy_that_fails_loses_no_message(name: str, strategy: Any, message: str) -> None:
    """The error names the strategy, and has its cause and the decision of the plain policy."""
    with pytest.raises(StrategyFailed) as failed:
        asked({name: strategy}, settings={"queues": {"#": {"redelivery_delay": 6}}})
    assert message in str(failed.value)
    assert failed.value.strategy == name
    assert failed.value.__cause__ is not None
    assert failed.value.decision == Redeliver(6.0)


def test_a_stop_that_fails_leaves_the_built_in_bound() -> None:
    """If the broken `stop` was the only limit, ten attempts are the limit."""
    with pytest.raises(StrategyFailed) as failed:
        asked({"stop": broken}, attempt=9)
    assert isinstance(failed.value.decision, Redeliver)
    with pytest.raises(StrategyFailed) as failed:
        asked({"stop": broken}, attempt=10)
    assert isinstance(failed.value.decision, DeadLetter)
    assert failed.value.decision.reason is Reason.EXHAUSTED


def test_a_result_that_a_broken_retry_cannot_judge_is_accepted() -> None:
    """The task has done its work. If a result was refused and `wait` fails, the policy's delay applies."""
    with pytest.raises(StrategyFailed) as failed:
        asked({"retry": broken}, result=5)
    assert failed.value.decision is None
    with pytest.raises(StrategyFailed) as failed:
        asked({"retry": retry_if_result(lambda _found: True), "wait": broken}, result=5)
    assert failed.value.decision == Redeliver(1.0)


def test_an_asynchronous_answer_is_told_and_closed() -> None:
    """If the decorator cannot see that a callable is asynchronous, its first call shows it. No coroutine stays unawaited."""
    hidden: Any = asynchronous_retry_if_result(lambda _found: True)  # type: ignore[arg-type,return-value]

    def retry(state: RetryCallState) -> Any:
        return hidden(state)

    with pytest.raises(StrategyFailed, match="it is asynchronous"):
        asked({"retry": retry})
