"""The text of a task's arguments, which a message's headers carry for people to read.

Celery's `saferepr` handles any argument, and takes ten times as long as `repr`. If all arguments are short and plain, both give the
same text.
"""

from __future__ import annotations

from typing import Any

_NUMBERS = frozenset({int, float, bool, type(None)})


def text_of_arguments(arguments: Any, limit: int | None) -> str | None:
    """The text of positional or named arguments, of `limit` characters at most; None if it needs `saferepr`."""
    kind = type(arguments)
    if kind is dict:
        is_plain = all(map(_is_plain, arguments)) and all(map(_is_plain, arguments.values()))
    else:
        is_plain = kind in {list, tuple} and all(map(_is_plain, arguments))
    text = repr(arguments) if is_plain else ""
    return text if text and (limit is None or len(text) <= limit) else None


def _is_plain(value: Any) -> bool:
    """Whether `saferepr` writes this value as `repr` does; it escapes only the quotation mark."""
    kind = type(value)
    return kind in _NUMBERS or (kind is str and value.isprintable() and "'" not in value and "\\" not in value)
