"""Exception classes by name (`module.qualname`, built-ins without module), so that settings need not import them.

A name that is an alias (`requests.ConnectionError`, `IOError`) is resolved only in modules that the process has loaded already.
This is enough: the class of an exception that was raised comes from a loaded module.
"""

from __future__ import annotations

import builtins
import sys
from typing import Any

from redelivery.errors import ConfigurationError

from .values import suggestion

_BUILT_IN = sorted(key for key, value in vars(builtins).items() if isinstance(value, type) and issubclass(value, BaseException))


def name_of(setting: str, written: Any) -> str:
    """The name of an exception class, from the class or a dotted name. Raises `ConfigurationError`."""
    if isinstance(written, type):
        if issubclass(written, BaseException):
            return known_as(written)
        msg = f"{setting}: {written.__qualname__} is not an exception class"
        raise ConfigurationError(msg)
    if not isinstance(written, str) or not all(part.isidentifier() for part in written.split(".")):
        msg = f"{setting}: {written!r} must be an exception class or its dotted name, such as 'requests.exceptions.Timeout'"
        raise ConfigurationError(msg)
    bare = written.removeprefix("builtins.")
    if "." in bare:
        return bare
    if bare not in _BUILT_IN:
        hint = suggestion(bare, _BUILT_IN) or "; write its module too, as in 'shop.errors.Refused'"
        msg = f"{setting}: {bare!r} is not a built-in exception{hint}"
        raise ConfigurationError(msg)
    return known_as(getattr(builtins, bare))


def names_of(setting: str, written: Any) -> tuple[str, ...]:
    """The names of one class, or of several, each once and in the order written. Raises `ConfigurationError`."""
    if isinstance(written, (str, type)):
        written = (written,)
    if not isinstance(written, (list, tuple, set, frozenset)):
        msg = f"{setting} must be a list of exception classes or dotted names, not {written!r}"
        raise ConfigurationError(msg)
    return tuple(dict.fromkeys(name_of(setting, each) for each in written))


def distance(exception: type[BaseException], name: str) -> int | None:
    """How far the class `name` is above an exception class: 0 if it is the same class, None if it is no base class."""
    for steps, ancestor in enumerate(exception.__mro__):
        if known_as(ancestor) == name:
            return steps
    alias = _loaded(name)
    return exception.__mro__.index(alias) if isinstance(alias, type) and alias in exception.__mro__ else None


def known_as(cls: type) -> str:
    """The name of a class, which need not be an exception's."""
    return cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"


def _loaded(name: str) -> Any:
    """The object of this name in a loaded module; nothing is imported."""
    path = name.split(".")
    for end in range(len(path) - 1, 0, -1):
        found: Any = sys.modules.get(".".join(path[:end]))
        if found is None:
            continue
        for attribute in path[end:]:
            found = vars(found).get(attribute) if hasattr(found, "__dict__") else None
        return found
    return None
