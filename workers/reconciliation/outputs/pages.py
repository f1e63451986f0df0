"""Pages: the verdicts in an output of the books, the worst first, read without Spark.

The output may be in any file system that pyarrow knows. The memory is bounded, whatever the number of lives: a first pass over
verdicts and times finds the lives that may be on the page, and only these are read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from pyarrow import compute, dataset, fs

from redelivery.display import scrubbed
from redelivery.errors import InputError

from ..rules import WORST_FIRST
from .written import place_of

#: The columns of a life on a page.
COLUMNS: Final = (
    *("task_id", "verdict", "queue", "task", "generation", "cause", "advice", "rule", "was"),
    *("first_ms", "last_ms", "events", "nesting", "history"),
)
_RANK: Final = "rank"
_ORDER: Final = [(name, "ascending") for name in (_RANK, "first_ms", "task_id", "generation", "nesting", "queue")]


@dataclass(frozen=True, slots=True)
class Page:
    """The lives of one page, the number of lives before them (`after`), and the number of all lives (`total`)."""

    lives: list[dict[str, Any]]
    after: int
    total: int

    @property
    def next(self) -> int | None:
        """The `after` of the next page; None on the last page."""
        end = self.after + len(self.lives)
        return end if end < self.total else None


def page_of(output: str, *, verdicts: tuple[str, ...] = (), limit: int, after: int = 0, with_history: bool = False) -> Page:
    """The lives with these verdicts (all lives, if empty), without the first `after` ones. Raises `InputError`."""
    columns = [name for name in COLUMNS if with_history or name != "history"]
    try:
        found = _opened(output)
        chosen = None if not verdicts else compute.field("verdict").isin(verdicts)
        total, first = _best(found, ["verdict", "first_ms"], chosen, after + limit, _ORDER[:2])
        _, best = _best(found, columns, _up_to(first, chosen), after + limit, _ORDER)
    except (pa.ArrowException, OSError) as exc:
        msg = scrubbed(f"the verdicts in {output} cannot be read: {exc}")
        raise InputError(msg) from exc
    lives = [] if best is None else best.drop_columns([_RANK]).slice(after).to_pylist()
    return Page(lives, after, total)


def _best(
    found: dataset.Dataset, columns: list[str], chosen: compute.Expression | None, count: int, order: list[tuple[str, str]]
) -> tuple[int, pa.Table | None]:
    """The number of chosen lives, and the first `count` of them in this order."""
    total, best = 0, None
    for batch in found.to_batches(columns=columns, filter=chosen):
        total += batch.num_rows
        ranked = _ranked(pa.Table.from_batches([batch]))
        best = ranked if best is None else pa.concat_tables([best, ranked])
        best = best.take(compute.select_k_unstable(best, count, order))
    return total, best


def _up_to(first: pa.Table | None, chosen: compute.Expression | None) -> compute.Expression | None:
    """Choose only lives up to the last one of `first`: with a worse verdict, or with the same verdict and not begun later."""
    if first is None or not first.num_rows or first[_RANK].null_count:
        return chosen
    rank, first_ms = max(zip(first[_RANK].to_pylist(), first["first_ms"].to_pylist(), strict=True))
    verdict, began = compute.field("verdict"), compute.field("first_ms")
    early = (verdict == WORST_FIRST[rank]) & (began.is_null() | (began <= first_ms))
    reached = early | verdict.isin(pa.array(WORST_FIRST[:rank], pa.string()))
    return reached if chosen is None else chosen & reached


def _opened(output: str) -> dataset.Dataset:
    """Open the table `verdicts` of an output. Raises `InputError` if there is none."""
    system, place = place_of(output)
    folder = f"{place}/verdicts"
    if system.get_file_info(folder).type is not fs.FileType.Directory:
        msg = scrubbed(f"there are no books in {output}: name the folder that `redelivery reconcile --output` wrote")
        raise InputError(msg)
    return dataset.dataset(folder, filesystem=system, format="parquet")


def _ranked(lives: pa.Table) -> pa.Table:
    """Add the rank of each verdict, and set the time of a life without events to 0."""
    rank = compute.index_in(lives["verdict"], pa.array(WORST_FIRST))
    first_ms = compute.fill_null(lives["first_ms"], 0)
    return lives.set_column(lives.schema.get_field_index("first_ms"), "first_ms", first_ms).append_column(_RANK, rank)
