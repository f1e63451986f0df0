"""What may be shown: text that no terminal obeys, and addresses without their credentials.

Any text becomes one line that moves no cursor, in which a URL has neither user nor password. Limits: if a
password holds a space, the part before it stays; of several URLs without a space between them the last host alone is left.
"""

from __future__ import annotations

import re
import shlex
import unicodedata

__all__ = ["harmless", "safe", "scrubbed"]

_HIDDEN = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
#: What a URL is a part of.
_WORD = re.compile(r"\S+")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*\Z")
#: Where a container stands before the @, as long as there is no colon in it.
_CONTAINERS = ("abfs", "abfss", "wasb", "wasbs")
#: A user whose password is masked already, as kombu does it.
_MASKED = re.compile(r"[^:/?#@]*:\*\*")
#: Parameters of a URL that carry credentials: access_key, secret_key, sas_token, sig, password.
_PARAMETER = re.compile(r"([?&][\w.%-]{0,40}?(?:key|secret|token|passw|pwd|sig|credential)[\w.%-]{0,40}=)[^&\s'\"]+", re.IGNORECASE)


def safe(value: object) -> str:
    """Text on one line, harmless to a terminal."""
    text = value if isinstance(value, str) else str(value)
    if text.isascii() and text.isprintable():
        return text
    return "".join(ascii(char)[1:-1] if unicodedata.category(char) in _HIDDEN else char for char in text)


def word(text: str) -> str:
    """A name as one word of a command to paste, even if a stranger has chosen it."""
    return shlex.quote(safe(text))


def scrubbed(text: str) -> str:
    """The same text; every URL in it is without user and password, and without parameters that carry credentials."""
    if "://" not in text:
        return text
    return _PARAMETER.sub(r"\1**", _WORD.sub(_without_user, text))


def harmless(text: str) -> str:
    """Both: text on one line, without control characters and without credentials."""
    return safe(scrubbed(text))


def _without_user(word: re.Match[str]) -> str:
    """All between `://` and the last @ goes: a password that was not encoded may hold any character, / and @ as well."""
    before, mark, behind = word[0].partition("://")
    user, at, host = behind.rpartition("@")
    scheme = _SCHEME.search(before[-10:])
    is_container = scheme is not None and scheme[0].lower() in _CONTAINERS and ":" not in user
    return word[0] if not at or is_container or _MASKED.fullmatch(user) else f"{before}{mark}**@{host}"
