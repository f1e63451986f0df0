"""Types of options, and several options as one decorator."""

from __future__ import annotations

import functools
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar

import click

from redelivery.errors import InputError
from redelivery.settings.values import host_and_port

from ...operations.words.numbers import rate_of, seconds, share_of

if TYPE_CHECKING:
    from collections.abc import Callable

Value = TypeVar("Value")
#: The maximum of a number option: about three hundred years in seconds. The maximum of a count.
FOREVER, MAX_COUNT = 1e10, 10**12


class Read(click.ParamType[Value]):
    """An option whose text `read` parses. `read` raises `InputError` or `ValueError` for an invalid text."""

    def __init__(self, name: str, read: Callable[[str], Value], metavar: str | None = None) -> None:
        self.name, self._read, self._metavar = name, read, metavar

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str | None:  # noqa: ARG002 - click's signature
        """The word for a value in the help; None: the type's name."""
        return self._metavar

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Value:
        """Parse the text. Raises click's usage error."""
        try:
            return self._read(value) if isinstance(value, str) else value
        except (InputError, ValueError) as exc:
            self.fail(str(exc), param, ctx)


def _place(text: str) -> str:
    if not text.strip():
        msg = "it is empty: name a folder, or a URI"
        raise InputError(msg)
    return text


def _between(parse: Callable[[str], Value], what: str, least: float, most: float) -> Callable[[str], Value]:
    def read(text: str) -> Value:
        try:
            number: Any = parse(text)
        except ValueError:
            msg = f"{text!r} is not {what}"
            raise InputError(msg) from None
        if not least <= number <= most:
            msg = f"{text} is not in the range {least:g} to {most:,.0f}"
            raise InputError(msg)
        return number  # type: ignore[no-any-return]

    return read


def milliseconds_of(text: str) -> int:
    """Milliseconds since the epoch of an ISO 8601 time, in UTC if it names no zone. Raises `ValueError`, `OverflowError`."""
    moment = datetime.fromisoformat(text)
    return round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).astimezone(UTC).timestamp() * 1000)


#: A path or a URI of a folder or file. An empty text is refused: it comes from a shell variable that is not set.
PLACE = Read("text", _place)
#: `90s`, `15m`, `2h`, `3d`.
SECONDS = Read("duration", seconds)
#: A part of all, in percent: `5%`, `0.5%`.
SHARE = Read("share", share_of)
#: Dead letters a second: `50`, `50/s`, `600/m`, `1000/h`.
RATE = Read("rate", rate_of)
#: An address to listen on: `9540` and `:9540` on the loopback, `10.0.0.5:9540`, `[::]:9540`; port 0 means any free port.
ADDRESS = Read("address", host_and_port)


def at_least(least: float) -> Read[float]:
    """A number from `least` to `FOREVER`, without `inf` and `nan`."""
    return Read("float", _between(float, "a number", least, FOREVER), "NUMBER")


def whole(least: int, most: int = MAX_COUNT) -> Read[int]:
    """A whole number in this range."""
    return Read("integer range", _between(int, "a whole number", least, most), "NUMBER")


def together(*options: Callable[..., Any]) -> Callable[..., Any]:
    """One decorator for several options. The help shows them in this order."""
    return lambda command: functools.reduce(lambda decorated, option: option(decorated), reversed(options), command)
