"""Pages: the verdicts in an output of the books, the worst first, read without Spark.

The output may be in any file system that pyarrow knows. The memory is bounded, whatever the number of lives: a first pass over
verdicts and times finds the lives that may be on the page, and only these are read. A file that is missing or cannot be read is an
error, because lives would be missing on the page.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from pyarrow import compute, dataset, fs

from redelivery.display import scrubbed
from redelivery.errors import InputError

from ..rules import VERDICTS, WORST_FIRST
from .written import AGAIN, named, place_of, unreadable, written

#: The columns of a life on a page.
COLUMNS: Final = (
    *("task_id", "verdict", "queue", "task", "generation", "cause", "advice", "rule", "was"),
    *("first_ms", "last_ms", "events", "nesting", "history"),
)
_NUMBERS: Final = frozenset({"generation", "first_ms", "last_ms", "events", "nesting"})
_TABLE: Final = "verdicts"
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
    found = _opened(output)
    chosen = None if not verdicts else compute.field("verdict").isin(verdicts)
    try:
        _check_whole(found, output, [name for name in verdicts or VERDICTS if name != "balanced"])
        total, first = _best(found, ["verdict", "first_ms"], chosen, after + limit, _ORDER[:2])
        _, best = _best(found, columns, _up_to(first, chosen), after + limit, _ORDER)
        lives = [] if best is None else best.drop_columns([_RANK]).slice(after).to_pylist()
    except (pa.ArrowException, OSError, UnicodeDecodeError) as exc:
        raise _damage(found, output, exc) from exc
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


def _opened(output: str) -> dataset.FileSystemDataset:
    """Open the table `verdicts` of an output. Raises `InputError` if there is none, or if a file of it has no such columns."""
    system, place = place_of(output)
    try:
        is_there = system.get_file_info(f"{place}/{_TABLE}").type is fs.FileType.Directory
        files = system.get_file_info(fs.FileSelector(f"{place}/{_TABLE}")) if is_there else []
    except OSError as exc:
        raise unreadable(output, _TABLE, exc) from exc
    if not is_there:
        msg = scrubbed(f"there are no books in {output}: name the folder that `redelivery reconcile --output` wrote")
        raise InputError(msg)
    kind = dataset.ParquetFileFormat()
    paths = sorted(each.path for each in files if not each.base_name.startswith(("_", ".")))  # Spark reads these, too
    rows = [kind.make_fragment(path, system) for path in paths]
    if not rows:
        msg = scrubbed(f"{named(output, _TABLE)} has no files: {AGAIN}")
        raise InputError(msg)
    for each in rows:
        _check_columns(each, output)
    return dataset.FileSystemDataset(rows, rows[0].physical_schema, kind, system)


def _check_columns(file: dataset.FileFragment, output: str) -> None:
    """Raise `InputError` if this file cannot be read, or if it does not have the columns of verdicts."""
    try:
        found = {each.name: each.type for each in file.physical_schema}
    except (pa.ArrowException, OSError) as exc:
        raise unreadable(output, _name_of(file), exc) from exc
    for name in COLUMNS:
        is_right = pa.types.is_list if name == "history" else pa.types.is_integer if name in _NUMBERS else pa.types.is_string
        if name not in found or not is_right(found[name]):
            what = "of another type" if name in found else "missing"
            msg = scrubbed(f"{named(output, _name_of(file))} is no file of verdicts: the column {name} is {what}; {AGAIN}")
            raise InputError(msg)


def _check_whole(found: dataset.Dataset, output: str, names: list[str]) -> None:
    """Raise `InputError` if the table has not as many lives with these verdicts as the run counted: then a file is missing."""
    counted = sum(written(output).summary["verdicts"][name] for name in names)
    there = found.count_rows(filter=compute.field("verdict").isin(pa.array(names, pa.string())))
    if there != counted:
        what = f"has {there:,} of {counted:,} lives that summary.json counts: a file is missing or strange"
        msg = scrubbed(f"{named(output, _TABLE)} {what}; {AGAIN}")
        raise InputError(msg)


def _damage(found: dataset.Dataset, output: str, exc: Exception) -> InputError:
    """The error for the file that causes this exception: the first one that cannot be read whole."""
    for file in found.get_fragments():
        try:
            for batch in file.to_batches(schema=found.schema):
                batch.validate(full=True)
        except (pa.ArrowException, OSError) as found_in_file:
            return unreadable(output, _name_of(file), found_in_file)
    return unreadable(output, _TABLE, exc)


def _name_of(file: dataset.FileFragment) -> str:
    return f"{_TABLE}/{file.path.rpartition('/')[2]}"


def _ranked(lives: pa.Table) -> pa.Table:
    """Add the rank of each verdict, and set the time of a life without events to 0."""
    rank = compute.index_in(lives["verdict"], pa.array(WORST_FIRST))
    first_ms = compute.fill_null(lives["first_ms"], 0)
    return lives.set_column(lives.schema.get_field_index("first_ms"), "first_ms", first_ms).append_column(_RANK, rank)
