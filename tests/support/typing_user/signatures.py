"""A user's file: a decorated function keeps its exact signature, and a wrong call is an error.

`@redeliver` keeps the whole type of what it decorates. A ParamSpec would keep only the parameters and the result: the last lines
show what a task would lose.
"""

from collections.abc import Callable, Iterator
from typing import Any, ParamSpec, TypeVar, overload

from redelivery import redeliver
from typed_tasks import above

T = TypeVar("T")
P = ParamSpec("P")
R = TypeVar("R")
Number = TypeVar("Number", bound=float)


@redeliver(max_age=60)
async def coroutine(order_id: int, *, card: str = "visa") -> str:
    return card


@redeliver
def generic(first: T, *rest: T) -> list[T]:
    return [first, *rest]


@redeliver(max_age=60)
def bounded(value: Number) -> Number:
    return value


@redeliver
def generator(count: int) -> Iterator[int]:
    yield count


@redeliver(max_age=60)
def keywords(**counts: int) -> None: ...


@overload
def either(value: int) -> int: ...
@overload
def either(value: str) -> str: ...
@redeliver
def either(value: Any) -> Any:
    return value


class Shop:
    @redeliver(max_age=60)
    def method(self, order_id: int) -> str:
        return str(order_id)

    @staticmethod
    @redeliver
    def static(order_id: int) -> str:
        return str(order_id)

    @classmethod
    @redeliver
    def of_class(cls, order_id: int) -> str:
        return str(order_id)


# seen by mypy: def (order_id: int, *, card: str =) -> Coroutine[Any, Any, str]
# seen by pyright: (order_id: int, *, card: str = "visa") -> CoroutineType[Any, Any, str]
reveal_type(coroutine)

# seen by mypy: def [T] (first: T, *rest: T) -> list[T]
# seen by pyright: (first: T@generic, *rest: T@generic) -> list[T@generic]
reveal_type(generic)

# seen by mypy: list[int]
# seen by pyright: list[int]
reveal_type(generic(1, 2))

# seen by mypy: bool
# seen by pyright: bool
reveal_type(bounded(True))

# seen by mypy: def (count: int) -> Iterator[int]
# seen by pyright: (count: int) -> Iterator[int]
reveal_type(generator)

# seen by mypy: def (**counts: int)
# seen by pyright: (**counts: int) -> None
reveal_type(keywords)

# seen by mypy: Overload(def (value: int) -> int, def (value: str) -> str)
# seen by pyright: Overload[(value: int) -> int, (value: str) -> str]
reveal_type(either)

# seen by mypy: def (order_id: int) -> str
# seen by pyright: (order_id: int) -> str
reveal_type(Shop().method)

# seen by mypy: def (order_id: int) -> str
# seen by pyright: (order_id: int) -> str
reveal_type(Shop.static)

# seen by mypy: def (order_id: int) -> str
# seen by pyright: (order_id: int) -> str
reveal_type(Shop.of_class)


async def calls() -> None:
    # seen by mypy: str
    # seen by pyright: str
    reveal_type(await coroutine(1))

    # refused by mypy: arg-type
    # refused by pyright: reportArgumentType
    await coroutine("one")


# refused by mypy: call-arg
# refused by pyright: reportCallIssue
generic()

# refused by mypy: type-var
# refused by pyright: reportArgumentType
bounded("one")

# refused by mypy: arg-type
# refused by pyright: reportArgumentType
keywords(one="one")

# refused by mypy: arg-type
# refused by pyright: reportArgumentType
Shop().method("one")

# refused by mypy: arg-type
# refused by pyright: reportArgumentType
Shop.static("one")

# refused by mypy: type-var
# refused by pyright: reportArgumentType
redeliver(max_age=60)(3)


def by_parameters(function: Callable[P, R]) -> Callable[P, R]:
    return function


# seen by mypy: def (order_id: int, *, card: str =) -> float
# seen by pyright: (order_id: int, *, card: str = "visa") -> float
reveal_type(by_parameters(above))

# refused by mypy: attr-defined
# refused by pyright: reportFunctionMemberAccess
by_parameters(above).delay(7)

# seen by mypy: str
# seen by pyright: str
reveal_type(redeliver(max_age=60)(above).delay(7))
