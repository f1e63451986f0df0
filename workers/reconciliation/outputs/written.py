"""Read the output of a run without Spark: its summary, and the trend over the last runs."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from redelivery.display import scrubbed
from redelivery.errors import InputError

from ..rules import DISCREPANCIES, RULES, VERDICTS

if TYPE_CHECKING:
    from pyarrow import fs

#: The maximum number of bytes that are read of a file.
MAX_BYTES: Final = 4 * 1024 * 1024
#: What to do about an output that is damaged.
AGAIN: Final = "run `redelivery reconcile` again"
_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")


@dataclass(frozen=True, slots=True)
class Written:
    """`summary` is that of `summary.json`; `trend` has the oldest line first."""

    summary: dict[str, Any]
    trend: list[dict[str, Any]]

    @property
    def wrong(self) -> dict[str, int]:
        """The discrepancies, with their numbers of lives."""
        return {name: count for name in DISCREPANCIES if (count := self.summary["verdicts"][name])}

    @property
    def rules(self) -> dict[str, str]:
        """The rule of each verdict."""
        return RULES


def written(output: str) -> Written:
    """Read an output (a path, or a URI that pyarrow knows). Raises `InputError` if there is none."""
    summary, trend = _read(output, "summary.json"), _read(output, "trend.json", is_needed=False)
    if not isinstance(summary, dict) or not _is_complete(summary):
        msg = scrubbed(f"{output}/summary.json is not a summary of these books: name a folder that `redelivery reconcile` wrote")
        raise InputError(msg)
    counts = {name: summary["verdicts"].get(name) or 0 for name in VERDICTS}
    found = trend if isinstance(trend, list) else []
    lines = [each for each in found if isinstance(each, dict) and isinstance(each.get("as_of_ms"), int)]
    return Written({"gaps": [], "balanced": False, **summary, "verdicts": counts}, lines)


def _is_complete(summary: dict[str, Any]) -> bool:
    """Whether the summary has all fields that are needed, with the right types."""
    verdicts = summary.get("verdicts")
    if not isinstance(verdicts, dict) or not isinstance(summary.get("gaps", []), list):
        return False
    numbers = [summary.get(name) for name in ("as_of_ms", "lives", "events", "possible_repeats")]
    return all(isinstance(each, int) for each in (*numbers, *(verdicts.get(name) or 0 for name in VERDICTS)))


def place_of(output: str) -> tuple[fs.FileSystem, str]:
    """The filesystem of an output, and its folder there. Raises `InputError` for a URI that pyarrow does not know."""
    from pyarrow import ArrowException, fs  # noqa: PLC0415 - as below

    if _SCHEME.match(output) is None:
        return fs.LocalFileSystem(), output.rstrip("/")
    try:
        system, path = fs.FileSystem.from_uri(re.sub("^s3a:", "s3:", output))  # Hadoop's name for s3 is s3a
    except (ArrowException, OSError, ValueError) as exc:
        msg = scrubbed(f"{output!r} is not a place that pyarrow knows ({exc}): give a path, or a URI such as s3://bucket/books")
        raise InputError(msg) from exc
    return system, path.rstrip("/")


def named(output: str, name: str) -> str:
    """A file of an output, for messages; the options after a URI's `?` stay away."""
    return f"{(output.partition('?')[0] if _SCHEME.match(output) else output).rstrip('/')}/{name}"


def unreadable(output: str, name: str, exc: Exception) -> InputError:
    """The error for a file or folder `name` of an output that cannot be read: what is wrong with it, and what to do."""
    if isinstance(exc, OSError) and exc.errno is not None:
        what, remedy = os.strerror(exc.errno), "look at its rights and at the disk"
    elif isinstance(exc, OSError) and _SCHEME.match(output) is not None:  # an answer of an object store
        what, remedy = " ".join(str(exc).split()), "look at your rights there"
    else:
        what, remedy = "it is cut, damaged or of another program", AGAIN
    return InputError(scrubbed(f"{named(output, name)} cannot be read: {what}; {remedy}"))


def _read(output: str, name: str, *, is_needed: bool = True) -> Any:
    from pyarrow import ArrowException  # noqa: PLC0415 - pyarrow is an optional dependency

    system, folder = place_of(output)
    try:
        with system.open_input_stream(f"{folder}/{name}") as file:
            return json.loads(file.read(MAX_BYTES))
    except FileNotFoundError as exc:
        if not is_needed:
            return []
        msg = scrubbed(f"there are no books in {output}: name the folder that `redelivery reconcile --output` wrote")
        raise InputError(msg) from exc
    except (ArrowException, OSError, ValueError, RecursionError) as exc:
        raise unreadable(output, name, exc) from exc
