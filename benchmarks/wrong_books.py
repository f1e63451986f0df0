"""Books in which every life is wrong, in the format of `redelivery reconcile`, for the page that shows them."""

from __future__ import annotations

import json
import uuid
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyarrow import parquet

from redelivery.workers.reconciliation.outputs.pages import COLUMNS

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["write_books"]

#: The number of lives that are written at once, the start of the first life (ms), and the steps of a life.
BATCH, BEGAN_MS, OUTCOMES = 50_000, 1_769_860_800_000, ("published", "received", "dead_lettered")
_EVENT = pa.struct(
    {
        "outcome": pa.string(),
        "at_ms": pa.int64(),
        "attempt": pa.int32(),
        "worker": pa.string(),
        "reason": pa.string(),
        "exception": pa.string(),
    }
)
_NUMBERS = {"generation": pa.int32(), "first_ms": pa.int64(), "last_ms": pa.int64(), "events": pa.int64(), "nesting": pa.int32()}
_SCHEMA = pa.schema(
    {name: _NUMBERS.get(name, pa.string()) for name in COLUMNS if name != "history"} | {"history": pa.list_(_EVENT)}
)


def write_books(folder: Path, lives: int) -> Path:
    """Write lives whose dead letters are missing. Returns the folder."""
    (folder / "verdicts").mkdir(parents=True)
    with parquet.ParquetWriter(folder / "verdicts" / "part-0.parquet", _SCHEMA) as file:
        for start in range(0, lives, BATCH):
            rows = [_life(number) for number in range(start, min(start + BATCH, lives))]
            file.write_table(pa.Table.from_pylist(rows, schema=_SCHEMA))
    verdicts = {"missing_dead_letter": lives}
    summary = {"balanced": False, "as_of_ms": BEGAN_MS + lives, "lives": lives, "events": len(OUTCOMES) * lives}
    (folder / "summary.json").write_text(json.dumps(summary | {"possible_repeats": 0, "verdicts": verdicts, "gaps": []}))
    return folder


def _life(number: int) -> dict[str, Any]:
    at_ms = BEGAN_MS + number
    history = [
        {
            "outcome": outcome,
            "at_ms": at_ms + 1000 * step,
            "attempt": 1,
            "worker": "w1@shop",
            "exception": "shop.Declined: card declined",
        }
        for step, outcome in enumerate(OUTCOMES)
    ]
    return {
        "task_id": str(uuid.uuid4()),
        "verdict": "missing_dead_letter",
        "queue": "celery",
        "task": "benchmarks.app.noop",
        "generation": 0,
        "cause": "somebody has emptied the dead-letter queue",
        "advice": "look who has purged it",
        "rule": "dead_lettered, and in no dead-letter queue",
        "first_ms": at_ms,
        "last_ms": at_ms + 1000 * len(OUTCOMES),
        "events": len(OUTCOMES),
        "nesting": 0,
        "history": history,
    }
