"""Text that is safe to show: without control characters, and with URLs that have no credentials.

Any text becomes one line that cannot move a terminal's cursor, and a URL in it has no user and no password. Limits: if a password
holds a space, the part before the space is still shown; if several URLs have no space between them, only the last host is shown.
"""

from __future__ import annotations

import re
import shlex
import sys
import unicodedata
from typing import NoReturn

__all__ = ["harmless", "refuse", "safe", "scrubbed"]

_HIDDEN = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
#: A word of the text, which may contain a URL.
_WORD = re.compile(r"\S+")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*\Z")
#: Schemes in which the part before the @ is a container, not a user, if it has no colon.
_CONTAINERS = ("abfs", "abfss", "wasb", "wasbs")
#: A user whose password is already masked, in kombu's way.
_MASKED = re.compile(r"[^:/?#@]*:\*\*")
#: Parameters of a URL that carry credentials: access_key, secret_key, sas_token, sig, password.
_PARAMETER = re.compile(r"([?&][\w.%-]{0,40}?(?:key|secret|token|passw|pwd|sig|credential)[\w.%-]{0,40}=)[^&\s'\"]+", re.IGNORECASE)


def safe(value: object) -> str:
    """The text on one line, with control characters as escapes."""
    text = value if isinstance(value, str) else str(value)
    if text.isascii() and text.isprintable():
        return text
    return "".join(ascii(char)[1:-1] if unicodedata.category(char) in _HIDDEN else char for char in text)


def word(text: str) -> str:
    """The name quoted as one word of a shell command, so that a pasted command is safe whatever the name is."""
    return shlex.quote(safe(text))


def scrubbed(text: str) -> str:
    """The text with its URLs stripped of user, password and parameters that carry credentials."""
    if "://" not in text:
        return text
    return _PARAMETER.sub(r"\1**", _WORD.sub(_without_user, text))


def harmless(text: str) -> str:
    """The text on one line, without control characters and without credentials."""
    return safe(scrubbed(text))


def refuse(*errors: object) -> NoReturn:
    """End the process with a line for each error, without a traceback."""
    sys.stderr.writelines(f"redelivery: error: {harmless(str(each))}\n" for each in errors)
    raise SystemExit(1)


def _without_user(word: re.Match[str]) -> str:
    """Replace all text between `://` and the last @: a password that is not encoded may hold any character, also / and @."""
    before, mark, behind = word[0].partition("://")
    user, at, host = behind.rpartition("@")
    scheme = _SCHEME.search(before[-10:])
    is_container = scheme is not None and scheme[0].lower() in _CONTAINERS and ":" not in user
    return word[0] if not at or is_container or _MASKED.fullmatch(user) else f"{before}{mark}**@{host}"
