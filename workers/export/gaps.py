"""Gaps: what left the broker before it was exported, noted in `_gaps.jsonl` of the folder that it is missing from."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from ..ports import Gap
from .tables import read_lines, write_rows

if TYPE_CHECKING:
    from collections.abc import Iterable

GAPS = pa.schema({"after": pa.string(), "before": pa.string(), "lost": pa.int64(), "why": pa.string(), "noticed_ms": pa.int64()})


def note(gaps: Iterable[Gap], folder: str) -> None:
    """Add these to what is noted in this folder. Raises `InputError` where it cannot be read or written."""
    known = {row["after"]: row for row in read_lines(folder, "_gaps.jsonl")}
    # After a crash the same gap is noticed again: it begins where it began.
    known |= {gap.after: asdict(gap) for gap in gaps}
    write_rows(known.values(), folder, GAPS, name="_gaps", format="jsonl")


def noted(folder: str) -> list[Gap]:
    """What is noted in this folder. Raises `InputError` where it cannot be read."""
    rows: list[dict[str, Any]] = [{"lost": None, **row} for row in read_lines(folder, "_gaps.jsonl")]
    return [Gap(**{name: row[name] for name in GAPS.names}) for row in rows]
