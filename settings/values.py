"""Single values of the settings: a check for each kind of value, and the error if a value is wrong.

Durations become float seconds. Booleans, NaN and infinities are not accepted as numbers. 0 is always a value and never means
"unset"; `None` means "unset". TOML has no null, so the word `"none"` means `None` wherever a setting may be `None`.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable
from dataclasses import field, fields
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from redelivery.display import scrubbed
from redelivery.errors import ConfigurationError

from .names import objection

if TYPE_CHECKING:
    from collections.abc import Iterable

#: Gets the setting's name and the value as written. Returns the value to use, or raises `ConfigurationError`.
Check = Callable[[str, Any], Any]

#: Means None in notations without a null.
NONE = "none"
#: The host if only a port is given; the highest port.
LOOPBACK, LAST_PORT = "127.0.0.1", 65_535
MAX_SHOWN = 60
#: 100 years in seconds. A much longer time would end in a year that Celery cannot write.
MAX_DURATION = 100 * 365.25 * 86_400
#: The largest whole number that is exact on every broker: Lua counts in floats, and AMQP in 64 bits.
MAX_COUNT = 2**53


def setting(check: Check, *, default: Any, in_rules: bool = False) -> Any:
    """A field of a settings class; `in_rules` says whether a policy's `rules` may have it."""
    return field(default=default, metadata={"check": check, "in_rules": in_rules})


def checks_of(owner: type) -> dict[str, Check]:
    """The checks of a class's fields, by name, in order."""
    return {each.name: each.metadata["check"] for each in fields(owner) if "check" in each.metadata}


def number(setting: str, value: Any) -> float:
    """A finite number, as a float."""
    if not _is_number(value):
        raise _refused(setting, "must be a number", value)
    try:
        read = float(value)
    except OverflowError:
        raise _refused(setting, "is too large; write a number below 1e308", "an integer of hundreds of digits") from None
    if not math.isfinite(read):
        raise _refused(setting, "must be a finite number", value)
    return read + 0.0  # -0.0 is 0.0


def duration(setting: str, value: Any) -> float:
    """Seconds from a number or a `timedelta`, 0 or more; at most 100 years, also for `timedelta.max`."""
    given = value.total_seconds() if isinstance(value, timedelta) else value
    if not _is_number(given):
        raise _refused(setting, "must be seconds (a number) or a timedelta", value)
    seconds = number(setting, given)
    if seconds < 0:
        raise _refused(setting, "must be 0 seconds or more", given)
    return min(seconds, MAX_DURATION)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _where(holds: Callable[[Any], bool], rule: str, read: Check = lambda _, value: value) -> Check:
    """A check that reads the value with `read` and refuses it unless `holds` is true; `rule` is the rule in words."""

    def check(setting: str, value: Any) -> Any:
        answer = read(setting, value)
        if not holds(answer):
            raise _refused(setting, rule, value)
        return answer

    return check


positive_duration = _where(lambda seconds: seconds > 0, "must be more than 0 seconds", duration)
fraction = _where(lambda read: 0 <= read <= 1, "must be from 0.0 to 1.0", number)
factor = _where(lambda read: read > 0, "must be more than 0 (1.0 keeps the delay the same)", number)
rate = _where(lambda read: read > 0, "must be more than 0 (0.1 is one in ten seconds), or none for no limit", number)
attempts = _where(lambda value: _is_whole(value) and (value >= 1 or value == -1), "must be 1 or more, or -1 for no limit")
flag = _where(lambda value: isinstance(value, bool), "must be true or false")
#: Any string, also an empty one.
text = _where(lambda value: isinstance(value, str), "must be text")
some_text = _where(lambda value: isinstance(value, str) and value != "", "must be text, and not empty")
name = _where(lambda value: isinstance(value, str) and value != "", "must be a queue's name")


def duration_from(least: float) -> Check:
    """Seconds from a number or a `timedelta`, at least `least`."""
    return _where(lambda seconds: seconds >= least, f"must be {least:g} seconds or more", duration)


def count(least: int) -> Check:
    """An integer of at least `least`, and at most `MAX_COUNT`."""
    enough = _where(lambda value: value >= least, f"must be {least} or more", _where(_is_whole, "must be a whole number"))
    return _where(lambda value: value <= MAX_COUNT, f"must be {MAX_COUNT} or less", enough)


def queue(setting: str, value: Any) -> str:
    """A name that a queue of the app may have."""
    read: str = name(setting, value)
    why = objection(read)
    if why is not None:
        raise _refused(setting, f"must be a queue of the app's own: the name {why}; choose another", value)
    return read


def http_url(setting: str, value: Any) -> str:
    """An address of a web server. The error does not repeat the address, which may hold a password."""
    if isinstance(value, str) and _is_http_url(value):
        return value
    msg = f"{setting} must be an address such as http://host:15672; in a user or a password, write / ? # @ as %2F %3F %23 %40"
    raise ConfigurationError(msg)


def _is_http_url(value: str) -> bool:
    try:
        parts = urlsplit(value)
        parts.port  # noqa: B018 - raises if it is not a number
    except ValueError:
        return False
    behind = f"{parts.path}?{parts.query}#{parts.fragment}"
    return parts.scheme in {"http", "https"} and bool(parts.hostname) and "@" not in behind


def host_and_port(text: str) -> tuple[str, int]:
    """The host and the port of `9540`, `127.0.0.1:9540` or `[::1]:9540`; without a host, the loopback. Raises `ValueError`."""
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not (port.isascii() and port.isdecimal() and int(port) <= LAST_PORT):
        msg = f"{text!r} is not an address: write 9540, 127.0.0.1:9540 or [::1]:9540"
        raise ValueError(msg)
    return host or LOOPBACK, int(port)


def address(setting: str, value: Any) -> str:
    """An address to listen on. Raises `ConfigurationError`."""
    text = str(value) if isinstance(value, (str, int)) and not isinstance(value, bool) else ""
    try:
        host_and_port(text)
    except ValueError:
        rule = "must be an address such as 127.0.0.1:9541, [::1]:9541 or 9541"
        raise _refused(setting, rule, value) from None
    return text


def choice(*words: str) -> Check:
    """One of a few words."""

    def check(setting: str, value: Any) -> str:
        if isinstance(value, str) and value in words:
            return value
        listed = " or ".join(repr(word) for word in words)
        raise _refused(setting, f"must be {listed}", value, suggestion(value, words))

    return check


def optional(check: Check) -> Check:
    """A check that also accepts `None`, or the word "none" in any case."""

    def check_or_none(setting: str, value: Any) -> Any:
        return None if value is None or (isinstance(value, str) and value.lower() == NONE) else check(setting, value)

    return check_or_none


def suggestion(written: object, known: Iterable[str]) -> str:
    """`; did you mean 'x'?`, or an empty text if no known name is close."""
    by_lower = {each.lower(): each for each in sorted(known)}
    near = difflib.get_close_matches(str(written).lower(), by_lower, n=1)
    return f"; did you mean {by_lower[near[0]]!r}?" if near else ""


def unknown(where: str, written: object, known: Iterable[str]) -> ConfigurationError:
    """The error for an unknown key: it names the most similar known key, or all known keys."""
    names = sorted(known)
    answer = suggestion(written, names) or f"; known are {', '.join(names)}"
    return ConfigurationError(f"{where}{': ' if where else ''}unknown setting {written!r}{answer}")


def _refused(setting: str, rule: str, value: object, hint: str = "") -> ConfigurationError:
    return ConfigurationError(f"{setting} {rule}, not {_shown(value)}{hint}")


def _shown(value: object) -> str:
    shown = scrubbed(repr(value))
    return shown if len(shown) <= MAX_SHOWN else f"{shown[: MAX_SHOWN - 3]}..."
