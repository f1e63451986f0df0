"""Writes histories to files, with the disorder of real exports.

Some events are exported twice, some a day late, and some have a clock that is wrong by up to an hour. The order in the files is
arbitrary. This module imports nothing of the project either.

It writes `outcomes/` and `inventory/` (Parquet) and `truth.parquet` (task_id, generation, verdict); on request also the inventory
of an earlier time, for books in two runs. Its memory is bounded, whatever the number of tasks.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyarrow import parquet

from benchmarks.histories import FAULTS, HEALTHY, HOUR, START_MS, TAKEN_MS, Task

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

__all__ = ["Untidy", "write_histories"]

#: The number of rows in a buffer, which is shuffled before it is written.
BUFFERED: Final = 20_000

EVENTS: Final = pa.schema(
    [
        *((name, pa.string()) for name in ("event_id", "task_id", "outcome", "task", "queue", "reason", "clock", "worker")),
        *((name, pa.string()) for name in ("exception", "fingerprint")),
        *((name, pa.int64()) for name in ("generation", "attempt", "delivery", "delay_ms", "due_ms", "at_ms")),
    ]
)
INVENTORY: Final = pa.schema(
    [
        *((name, pa.string()) for name in ("task_id", "task", "queue", "place", "owner", "message")),
        *((name, pa.int64()) for name in ("generation", "due_ms", "seen_ms")),
    ]
)
TRUTH: Final = pa.schema([("task_id", pa.string()), ("generation", pa.int64()), ("verdict", pa.string())])


@dataclass(frozen=True, slots=True, kw_only=True)
class Untidy:
    """The shares of events that are exported `twice` or a day `late`, and of tasks with a `skewed` clock."""

    twice: float = 0.05
    late: float = 0.05
    skewed: float = 0.05


class _Files:
    """Parquet files that are written in shuffled buffers."""

    def __init__(self, paths: Sequence[Path], schema: pa.Schema, chance: random.Random) -> None:
        self._chance, self._schema = chance, schema
        for path in paths:
            path.parent.mkdir(parents=True, exist_ok=True)
        self._writers = [parquet.ParquetWriter(path, schema) for path in paths]
        self._buffers: list[list[dict[str, Any]]] = [[] for _ in paths]

    def put(self, row: dict[str, Any], of: range) -> None:
        """Add a row to a random file of `of`."""
        number = self._chance.choice(of)
        self._buffers[number].append(row)
        if len(self._buffers[number]) >= BUFFERED:
            self._flush(number)

    def close(self) -> None:
        for number, writer in enumerate(self._writers):
            self._flush(number)
            writer.close()

    def _flush(self, number: int) -> None:
        self._chance.shuffle(self._buffers[number])
        self._writers[number].write_table(pa.Table.from_pylist(self._buffers[number], self._schema))
        self._buffers[number].clear()


def write_histories(
    folder: Path,
    *,
    tasks: int,
    rates: dict[str, float] | float = 0.002,
    untidy: Untidy | None = None,
    seed: int = 1,
    parted_ms: int | None = None,
) -> dict[str, int]:
    """Write histories. `rates` is the share of tasks with each fault. Returns the number of each fault.

    With `parted_ms`, events after that time are in the second day's files, and `before/` is the inventory of that time.
    """
    chance = random.Random(seed)  # noqa: S311 - a seed makes it repeatable
    untidy = Untidy() if untidy is None else untidy
    days = [folder / "outcomes" / f"date=2026-0{day}" for day in ("1-31", "2-01")]
    events = _Files([day / f"hour=0{n}" / "outcomes.parquet" for day in days for n in range(4)], EVENTS, chance)
    taken = {"inventory": TAKEN_MS} | ({} if parted_ms is None else {"before": parted_ms})
    inventories = {ms: _Files([folder / name / "inventory.parquet"], INVENTORY, chance) for name, ms in taken.items()}
    truth = _Files([folder / "truth.parquet"], TRUTH, chance)
    planted = dict.fromkeys(FAULTS, 0)
    for name, task in _tasks(chance, tasks, rates, untidy.skewed):
        if name:
            planted[name] += 1
        for event, ms in zip(task.events, task.times, strict=True):
            is_second = parted_ms is not None and ms > parted_ms
            for _ in range(2 if chance.random() < untidy.twice else 1):
                events.put(event, range(4, 8) if is_second or chance.random() < untidy.late else range(4))
        for ms, inventory in inventories.items():
            for row in task.held_at(ms):
                inventory.put(row, range(1))
        for generation, verdict in task.truth.items():
            truth.put({"task_id": task.task_id, "generation": generation, "verdict": verdict}, range(1))
    for each in (events, *inventories.values(), truth):
        each.close()
    for name, ms in taken.items():
        noted = {"seen_ms": ms, "app": "shop", "broker": "redis://redis:6379/0"}
        (folder / name / "_taken.json").write_text(f"{json.dumps(noted)}\n", encoding="utf-8")
    return planted


def _tasks(chance: random.Random, tasks: int, rates: dict[str, float] | float, skewed: float) -> Iterator[tuple[str, Task]]:
    """Tasks with their histories, each with the name of its fault, which is empty for an ordinary task."""
    shares = dict.fromkeys(FAULTS, rates) if isinstance(rates, float) else rates
    weights = [shares.get(name, 0.0) for name in FAULTS]
    weights.append(1 - sum(weights))
    for name in chance.choices([*FAULTS, ""], weights, k=tasks):
        make = FAULTS[name] if name else chance.choices([*HEALTHY], [*HEALTHY.values()])[0]
        skew_ms = chance.randint(-HOUR, HOUR) if chance.random() < skewed else 0
        task = Task(f"{chance.getrandbits(128):032x}", chance, START_MS + chance.randint(2 * HOUR, 20 * HOUR), skew_ms)
        make(task)
        yield name, task
