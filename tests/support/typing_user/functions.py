"""A user's file: `@redeliver` returns the decorated function itself, with and without arguments."""

from collections.abc import Callable
from datetime import timedelta
from typing import ParamSpec, TypeVar

from redelivery import DeadLetter, Outcome, Reason, RedeliverAfter, RedeliveryPolicy, RedeliverySettings, errors, redeliver
from tenacity import retry_if_exception_type, stop_after_attempt, stop_after_delay, wait_exponential_jitter

P = ParamSpec("P")
R = TypeVar("R")


@redeliver
def bare(order_id: int, *, card: str = "visa") -> str:
    return f"{order_id} {card}"


@redeliver(max_delivery_attempts=3, redelivery_delay=timedelta(seconds=10), rules={OSError: {"redelivery_delay": 30}})
def with_fields(order_id: int, *, card: str = "visa") -> str:
    return f"{order_id} {card}"


@redeliver(
    wait=wait_exponential_jitter(1, 60),
    stop=stop_after_attempt(5) | stop_after_delay(3600),
    retry=retry_if_exception_type(OSError),
)
def with_tenacity(*parts: bytes) -> list[bytes]:
    if not parts:
        raise RedeliverAfter(30)
    if parts[0] == b"stolen":
        raise DeadLetter("card stolen")
    return list(parts)


def again(function: Callable[P, R]) -> Callable[P, R]:
    return redeliver(max_age=60)(function)


@again
def by_another(order_id: int) -> None: ...


# seen by mypy: def (order_id: int, *, card: str =) -> str
# seen by pyright: (order_id: int, *, card: str = "visa") -> str
reveal_type(bare)

# seen by mypy: def (order_id: int, *, card: str =) -> str
# seen by pyright: (order_id: int, *, card: str = "visa") -> str
reveal_type(with_fields)

# seen by mypy: def (*parts: bytes) -> list[bytes]
# seen by pyright: (*parts: bytes) -> list[bytes]
reveal_type(with_tenacity)

# seen by mypy: def (order_id: int)
# seen by pyright: (order_id: int) -> None
reveal_type(by_another)

# refused by mypy: arg-type
# refused by pyright: reportArgumentType
bare("seven")

# refused by mypy: call-arg
# refused by pyright: reportCallIssue
with_fields(7, currency="EUR")

# seen by mypy: str
# seen by pyright: str
reveal_type(with_fields.__name__)

# seen by mypy: float
# seen by pyright: float
reveal_type(RedeliveryPolicy(redelivery_delay=5).redelivery_delay)

# seen by mypy: str | None
# seen by pyright: str | None
reveal_type(RedeliverySettings.load({}).policy_for("orders").policy.dead_letter_queue)

# seen by mypy: Literal[Outcome.SUCCEEDED]?
# seen by pyright: Literal[Outcome.SUCCEEDED]
reveal_type(Outcome.SUCCEEDED)

# seen by mypy: Literal['exhausted']?
# seen by pyright: Literal['exhausted']
reveal_type(Reason.EXHAUSTED.value)

caught: type[Exception] = errors.RedeliveryError
