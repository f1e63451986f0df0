"""A user's file with a typed Celery, as with stubs: under `@redeliver` a task keeps its type, `delay` and its parameters."""

from collections.abc import Callable
from typing import Generic, ParamSpec, TypeVar

from redelivery import redeliver

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


class Task(Generic[P, R_co]):
    """Celery's task, typed by its function."""

    def __init__(self, run: Callable[P, R_co]) -> None:
        self.run = run

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        return self.run(*args, **kwargs)

    def delay(self, *args: P.args, **kwargs: P.kwargs) -> str:
        return f"{args} {kwargs}"


def task(run: Callable[P, R]) -> Task[P, R]:
    return Task(run)


@redeliver(max_delivery_attempts=3)
@task
def above(order_id: int, *, card: str = "visa") -> float:
    return float(order_id)


@redeliver
@task
def bare(order_id: int) -> None: ...


@task
@redeliver(max_delivery_attempts=3)
def below(order_id: int, *, card: str = "visa") -> float:
    return float(order_id)


# seen by mypy: Task[[order_id: int, *, card: str =], float]
# seen by pyright: Task[(order_id: int, *, card: str = "visa"), float]
reveal_type(above)

# seen by mypy: Task[[order_id: int], None]
# seen by pyright: Task[(order_id: int), None]
reveal_type(bare)

# seen by mypy: Task[[order_id: int, *, card: str =], float]
# seen by pyright: Task[(order_id: int, *, card: str = "visa"), float]
reveal_type(below)

# refused by mypy: arg-type
# refused by pyright: reportArgumentType
above.delay("seven")

# refused by mypy: call-arg
# refused by pyright: reportCallIssue
below.delay(7, currency="EUR")
