"""The Lua scripts, one for each transition, and how they are loaded.

A script's text is its file in `middleware/lua/`, behind the shared pieces that it names in its line `-- uses:`.
"""

from __future__ import annotations

from functools import cache
from hashlib import sha1
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from redis.exceptions import NoScriptError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from redis import Redis

__all__ = ["Script"]


@cache
def source(name: str) -> str:
    """The whole text of a script. Raises `FileNotFoundError` where there is none of that name."""
    text = _file(name)
    for line in text.splitlines():
        if line.startswith("-- uses:"):
            return "".join(_file(piece) for piece in line.removeprefix("-- uses:").split()) + text
    return text


def _file(name: str) -> str:
    return files("redelivery.middleware.lua").joinpath(f"{name}.lua").read_text("utf-8")


class Script:
    """One script: called by its digest, loaded where the server does not know it (after a restart, say)."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.text = source(name)
        self.sha = sha1(self.text.encode(), usedforsecurity=False).hexdigest()

    def __call__(self, client: Redis, keys: Sequence[str], args: Sequence[Any]) -> Any:
        """Run it. Raises whatever redis-py raises; a script that the server refused has changed nothing."""
        try:
            return client.execute_command("EVALSHA", self.sha, len(keys), *keys, *args)
        except NoScriptError:
            return client.execute_command("EVAL", self.text, len(keys), *keys, *args)
