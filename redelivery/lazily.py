"""Names of a module that are imported when they are first used (PEP 562)."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["lazily"]


def lazily(module: str, places: Mapping[str, str]) -> Callable[[str], Any]:
    """`__getattr__` for `module`: it imports a name from the module in `places`, and keeps it; a submodule names itself."""

    def __getattr__(name: str) -> Any:  # noqa: N807 - it is the module's
        if name not in places:
            msg = f"module {module!r} has no attribute {name!r}"
            raise AttributeError(msg)
        place = import_module(places[name])
        value = place if places[name] == f"{module}.{name}" else getattr(place, name)
        setattr(sys.modules[module], name, value)
        return value

    return __getattr__
