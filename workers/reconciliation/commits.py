"""What the export says that it wrote: one commit for each batch, beside the files, written after them.

A commit names the batch's files, with their sizes. So a file that no commit names was left by an export that died, and is not read:
the next export writes its events again. And a file that a commit names and that is not there is a missing part of the books, and
is refused. A folder without commits (events that something else wrote) is read as it stands.

Enters: the URI of the outcomes, the whole folder or one of its days. Leaves: the files to read. Refuses, with `InputError`, a
missing file, a file of another size, and a commit that cannot be read.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from redelivery.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from collections.abc import Set as AbstractSet

    from .files import File, Files

#: Where the export puts its commits: `_commits/<date>/<name>.json`. Spark skips such names.
COMMITS: Final = "_commits"

#: A file that the export writes; whatever else lies there is somebody's, and is read without a commit.
_OURS: Final = re.compile(r"outcomes-\d+-\d+-\d+-\d+\.(?:parquet|jsonl)$")
_DATE: Final = re.compile(r"/date=(\d{4}-\d{2}-\d{2})(?=/)")


@dataclass(slots=True)
class Listing:
    """What there is to read: `files` by key, the commits that name them, and how many files were left aside, uncommitted."""

    files: dict[str, File] = field(default_factory=dict)
    commits: set[str] = field(default_factory=set)
    uncommitted: int = 0
    gaps: list[dict[str, Any]] = field(default_factory=list)


def root_of(uri: str) -> str:
    """The folder of the whole export, where `uri` is one of its days or hours."""
    found = _DATE.search(f"{uri.rstrip('/')}/")
    return uri.rstrip("/") if found is None else uri[: found.start()]


def key_of(path: str, root: str) -> str:
    """What names a file wherever the export lies: its path from the date on, or from the folder's root."""
    found = _DATE.search(path)
    return path[found.start() + 1 :] if found is not None else path.removeprefix(root).lstrip("/")


def date_of(key: str) -> str | None:
    """The date of a file (`YYYY-MM-DD`, UTC), where its folder has one."""
    found = _DATE.search(f"/{key}")
    return None if found is None else found[1]


def listing(files: Files, uri: str, found: Iterable[File], *, known: AbstractSet[str] = frozenset(), since: str = "") -> Listing:
    """The files among `found` to read.

    Left out are those and the commits that are `known`, and what is of a date before `since`.
    """
    root = files.absolute(root_of(uri))
    whole, part = root.rstrip("/"), files.absolute(uri).rstrip("/")
    here = {key: file for file in found if (key := key_of(file.path, whole)) not in known and (date_of(key) or "9") >= since}
    result = Listing()
    folder = f"{whole}/{COMMITS}"
    if not files.exists(folder):
        result.files = here
        return result
    named: dict[str, str] = {}
    sizes: dict[str, int] = {}
    for name, found_commit in _commits(files, folder, known, since):
        keys = [str(each["file"]) for each in found_commit["files"]]
        sizes |= {str(each["file"]): int(each["bytes"]) for each in found_commit["files"] if "bytes" in each}
        result.gaps += found_commit.get("gaps", [])
        inside = [key for key in keys if f"{whole}/{key}".startswith((f"{part}/", part))]
        named |= dict.fromkeys(inside, name)
        if len(inside) == len(keys):
            result.commits.add(name)
    missing = sorted(key for key in named if key not in here and key not in known and (date_of(key) or "9") >= since)
    if missing:
        raise InputError(_missing(uri, missing))
    for key in named.keys() & here.keys() & sizes.keys():
        check_size(here[key], sizes[key])
    result.files = {key: file for key, file in here.items() if key in named or not _OURS.search(key)}
    result.uncommitted = len(here) - len(result.files)
    return result


def check_size(file: File, size: int) -> None:
    """Raises `InputError` where a file has not the size that it was written with: lines that end early look whole."""
    if file.size != size:
        msg = f"{file.path} has {file.size} bytes and was written with {size}: it is cut off, or was changed. Restore it"
        raise InputError(msg)


def _commits(files: Files, folder: str, known: AbstractSet[str], since: str) -> Iterable[tuple[str, dict[str, Any]]]:
    """Commits by name."""
    for date in files.names(folder):
        if date < since:
            continue
        for name in files.names(f"{folder}/{date}"):
            if f"{date}/{name}" in known or not name.endswith(".json") or name.startswith("."):
                continue
            text = files.read(f"{folder}/{date}/{name}")
            try:
                commit = json.loads(text or "")
                [each["file"] for each in commit["files"]]
            except (ValueError, TypeError, KeyError) as exc:
                msg = f"{folder}/{date}/{name} is no commit of an export ({exc}): only `redelivery outcomes export` writes there"
                raise InputError(msg) from exc
            yield f"{date}/{name}", commit


def _missing(uri: str, missing: list[str]) -> str:
    dates = sorted({date_of(key) or "no date" for key in missing})
    days = ", ".join(dates[:3]) + (f" and {len(dates) - 3} more" if len(dates) > 3 else "")  # noqa: PLR2004 - enough to find them
    return (
        f"{uri}: {len(missing)} files of {days} were exported and are not there, the first is {missing[0]}: restore them; "
        f"what was removed on purpose needs its commits removed too ({COMMITS})"
    )
