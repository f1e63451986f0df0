"""Lazy values: the names of a module (PEP 562), and the properties of an object."""

from __future__ import annotations

import functools
import sys
from contextlib import nullcontext
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["cached_property", "lazily"]

T = TypeVar("T")


class cached_property(functools.cached_property[T]):  # noqa: N801, TID251 - it replaces functools' own
    """`functools.cached_property` without a lock, as it is since Python 3.12.

    In Python 3.11 all objects of a class share one lock. If a thread holds it while the pool forks, it stays locked in the child,
    and the child waits for ever.
    """

    def __init__(self, func: Callable[[Any], T]) -> None:
        super().__init__(func)
        self.lock = nullcontext()


def lazily(module: str, places: Mapping[str, str]) -> Callable[[str], Any]:
    """A `__getattr__` for `module`, which imports each name from the module in `places`. A submodule is its own place."""

    def __getattr__(name: str) -> Any:  # noqa: N807 - the module's own
        if name not in places:
            msg = f"module {module!r} has no attribute {name!r}"
            raise AttributeError(msg)
        place = import_module(places[name])
        value = place if places[name] == f"{module}.{name}" else getattr(place, name)
        setattr(sys.modules[module], name, value)
        return value

    return __getattr__
