"""Gaps: entries that left the broker before they were exported, noted in `_gaps.jsonl` of the folder that lacks them.

An app with a key prefix has its own file, `_gaps-<eight digits>.jsonl`, because another app may export to the same folder.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from ..ports import Gap
from .commits import ending_of
from .tables import names, read_lines, write_rows

if TYPE_CHECKING:
    from collections.abc import Iterable

#: The prefix of the files' names. Spark skips such names.
NAME = "_gaps"
GAPS = pa.schema({"after": pa.string(), "before": pa.string(), "lost": pa.int64(), "why": pa.string(), "noticed_ms": pa.int64()})
_NEEDED = {"after": str, "before": str, "why": str, "noticed_ms": int}


def note(gaps: Iterable[Gap], folder: str, log: str) -> None:
    """Add gaps of a log (or audit) to those noted in this folder. Raises `InputError` if that fails."""
    name = f"{NAME}{ending_of(log)}"
    known = {row["after"]: row for row in read_lines(folder, f"{name}.jsonl", _NEEDED)}
    # After a crash the same gap is found again, with the same beginning: note it once.
    known |= {gap.after: asdict(gap) for gap in gaps}
    write_rows(known.values(), folder, GAPS, name=name, format="jsonl")


def noted(folder: str) -> list[Gap]:
    """The gaps noted in this folder, of any log. Raises `InputError` if they cannot be read."""
    files = [each for each in names(folder) if each.startswith(NAME) and each.endswith(".jsonl")]
    rows: list[dict[str, Any]] = [{"lost": None, **row} for file in files for row in read_lines(folder, file, _NEEDED)]
    return [Gap(**{name: row[name] for name in GAPS.names}) for row in rows]
