"""The figures of one run: the tables `metrics` and `causes`, and the numbers in them that the report shows.

One query over the dead lives finds the causes of death, an example of each, and the times of death. The driver gets at most `LIMIT`
rows of each part, whatever the number of lives, queues and tasks.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from ..outputs.writing import write_table
from ..rules import DISCREPANCIES
from ..spark.files import literal
from ..spark.sql import grouped, named, one_of
from .attempts import RUN_TIMES, RUNS, failures_by, run_times_by
from .deadlines import IN_TIME
from .metrics import PERCENTILES, SUMS, TIMES, cells_of, metrics_by

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

    from ..spark.few_rows import Execution

HOUR_MS: Final = 3_600_000

_CAUSE: Final = ("queue", "task", "day", "reason", "fingerprint", "exception")

#: The sums of any group of deaths, as aggregates.
TOTALS: Final = {
    "letters": "sum(letters)",
    "redriven": "sum(redriven)",
    "held": "sum(held)",
    "first_ms": "min(first_ms)",
    "last_ms": "max(last_ms)",
    "example": "min(example).task_id",
    "message": "min(example).message",
}


def deaths_of(judged: DataFrame) -> DataFrame:
    """Dead letters by cause and hour of death (`hour`: hours since the epoch).

    The example is the first letter that is still in a dead-letter queue, where an operator can look at it, or else the first
    letter.
    """
    facts = {
        "day": "to_date(timestamp_millis(first_ms))",
        "reason": "coalesce(death_reason, '')",
        "fingerprint": "coalesce(death_fingerprint, '')",
        "exception": "coalesce(death_exception, '')",
        "hour": f"CAST(floor(ended_ms / {HOUR_MS}) AS BIGINT)",
        "redriven": "CAST(was_redriven AS BIGINT)",
        "held": "CAST(in_dead_letters > 0 AS BIGINT)",
    }
    died = judged.where("dead_lettered > 0").selectExpr("queue", "task", "task_id", "ended_ms", "message", *named(facts))
    counts = {
        "letters": "count(*)",
        "redriven": "sum(redriven)",
        "held": "sum(held)",
        "first_ms": "min(ended_ms)",
        "last_ms": "max(ended_ms)",
        "example": "min(struct(held = 0 AS is_gone, ended_ms, task_id, message))",
    }
    return grouped(died, (*_CAUSE, "hour"), counts)


def causes_of(deaths: DataFrame) -> DataFrame:
    """For each cause: the number of its dead letters, of those redriven, of those still in a queue (`held`), and an example."""
    return grouped(deaths, _CAUSE, TOTALS)


Row = dict[str, Any]

#: The maximum number of rows of each part that the driver collects: the slowest queues, the latest hours, the most frequent causes,
#: the tasks that ran longest and the most expensive failures.
LIMIT: Final = {
    "total": 1,
    "flow": 500,
    "attempts": 200,
    "queues": 12,
    "hours": 5_000,
    "causes": 10,
    "all_runs": 1,
    "run_times": 12,
    "costs": 10,
    "all_in_time": 1,
    "in_time": 12,
}

#: The maximum number of queues and tasks that are named for a verdict.
MAX_OF_A_VERDICT: Final = 4


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of the report besides the summary; times are in ms.

    - `total`: the sums of `metrics.py` over all lives.
    - `flow`: the number of lives by opening (`opened`), number of attempts (`way`: none, first, more) and `ending`.
    - `attempts`: the successes and deaths by their number of attempts.
    - `queues`: the slowest queues. `hours`: the dead letters by hour and reason. `causes`: the most frequent causes.
    - `faults`: the lives that do not balance, by verdict, queue and task, with an example.
    - `all_runs`: one row with the sums of `attempts.py`. `run_times`: the tasks that ran longest. `costs`: the failures with the
      most run time.
    - `all_in_time`: at most one row, the lives with a deadline and those that missed it. `in_time`: the tasks that missed it most.
    """

    total: Row = field(default_factory=dict)
    flow: list[Row] = field(default_factory=list)
    attempts: list[Row] = field(default_factory=list)
    queues: list[Row] = field(default_factory=list)
    hours: list[Row] = field(default_factory=list)
    causes: list[Row] = field(default_factory=list)
    faults: list[Row] = field(default_factory=list)
    all_runs: list[Row] = field(default_factory=list)
    run_times: list[Row] = field(default_factory=list)
    costs: list[Row] = field(default_factory=list)
    all_in_time: list[Row] = field(default_factory=list)
    in_time: list[Row] = field(default_factory=list)

    @property
    def run_times_in_all(self) -> dict[str, int | None]:
        """The run times of all attempts together, for `summary.json`. The times are null if no attempt has a run time."""
        if not self.all_runs:
            return {}
        [row] = self.all_runs
        counts = {name: int(row[name]) for name in ("attempts", "timed", "failed_attempts", "failed_timed")}
        sums = {name: int(row[name]) if row["timed"] else None for name in ("run_ms", "failed_run_ms")}
        times = row.get(RUN_TIMES) or [None] * len(PERCENTILES)
        percents = {f"run_p{each}_ms": None if ms is None else round(ms) for each, ms in zip(PERCENTILES, times, strict=True)}
        return counts | sums | percents

    def __or__(self, others: Figures) -> Figures:
        """These figures; empty ones are taken from `others`."""
        return Figures(**{name: getattr(self, name) or getattr(others, name) for name in Figures.__dataclass_fields__})


def figures_of(
    judged: DataFrame,
    plain: DataFrame | None,
    folder: str,
    execution: Execution,
    in_time: Callable[[DataFrame, DataFrame], DataFrame] | None,
) -> list[Callable[[], Figures]]:
    """Functions that write the tables `metrics`, `in_time` and `causes` to the folder, and return their figures.

    `plain` has the cells of the plain lives, which are not in `judged`. `in_time` makes the table `in_time` from cells and judged
    lives; None if no policy has a deadline.
    """

    def of_cells() -> Figures:
        cells = cells_of(judged)
        cells = cells if plain is None else cells.unionByName(plain.select(*cells.columns))
        cells = execution.keep(execution.coalesce(cells))
        found = both(lambda: write_table(metrics_by(cells), folder, "metrics"), _of_cells(cells))
        return found if in_time is None else found | of_deadlines(in_time(cells, judged))

    def of_deadlines(table: DataFrame) -> Figures:
        table = execution.keep(table)
        parts = _grouped(table, {"all_in_time": "", "in_time": "queue, task"}, IN_TIME, "missed")
        return both(lambda: write_table(table, folder, "in_time"), parts)

    def of_deaths() -> Figures:
        deaths = execution.keep(execution.coalesce(deaths_of(judged)))
        return both(lambda: write_table(causes_of(deaths), folder, "causes"), _of_deaths(deaths))

    def both(write: Callable[[], None], parts: DataFrame) -> Figures:
        _, found = execution.run_all([write, lambda: _collected(parts)])
        return found or Figures()

    return [of_cells, of_deaths]


def runs_of(attempts: DataFrame, folder: str, execution: Execution) -> Figures:
    """Write the tables `run_times` and `failures` to the folder; return their figures. `attempts` has cells of `attempts.py`."""
    cells = execution.keep(execution.coalesce(attempts))

    def figures() -> Figures:
        parts = {"all_runs": "", "run_times": "queue, task", "costs": "is_failed, exception, fingerprint"}
        return _collected(_grouped(cells, parts, RUNS, "IF(part = 'costs', failed_run_ms, run_ms)"))

    tables = {"run_times": run_times_by(cells), "failures": failures_by(cells)}
    writers: list[Callable[[], Figures]] = [partial(_written, table, folder, name) for name, table in tables.items()]
    return execution.run_all([figures, *writers])[0]


def _written(table: DataFrame, folder: str, name: str) -> Figures:
    write_table(table, folder, name)
    return Figures()


def faults_of(spark: SparkSession, folder: str) -> Figures:
    """The figures of the lives that do not balance, read from the table `verdicts` in the folder."""
    return _collected(_of_faults(spark.read.parquet(literal(f"{folder}/verdicts")).where(one_of("verdict", DISCREPANCIES))))


def _of_cells(cells: DataFrame) -> DataFrame:
    way = "CASE WHEN attempts > 1 THEN 'more' WHEN attempts > 0 OR time_class IS NOT NULL THEN 'first' ELSE 'none' END"
    number = "CASE WHEN attempts > 0 OR succeeded > 0 THEN greatest(attempts, 1) END"
    parts = {"total": "", "flow": f"opened, {way} AS way, ending", "attempts": f"{number} AS number", "queues": "queue"}
    return _grouped(cells, parts, SUMS, f"coalesce({TIMES}[1], 0)")


def _of_deaths(deaths: DataFrame) -> DataFrame:
    parts = {"hours": "hour, reason", "causes": "reason, fingerprint, exception, queue"}
    return _grouped(deaths, parts, TOTALS, "IF(part = 'hours', last_ms, letters)")


def _of_faults(faults: DataFrame) -> DataFrame:
    """The lives that do not balance, by verdict, queue and task. The example is the life with the earliest first event."""
    counts = {"lives": "count(*)", "first": "min(struct(first_ms, task_id, cause, advice))"}
    found = _grouped(faults, {"faults": "verdict, queue, task"}, counts, "lives")
    return found.selectExpr("concat('faults.', get_json_object(key, '$.verdict')) AS part", "key", "row", "weight")


def _grouped(table: DataFrame, parts: dict[str, str], counts: dict[str, str], weight: str) -> DataFrame:
    """Group the table by the key of each part, in one query: `part`, `key` and `row` (JSON), and the `weight` for `_collected`."""
    keys = {name: f"to_json(struct({key}))" if key else "'{}'" for name, key in parts.items()}
    structs = ", ".join(f"struct('{name}' AS part, {key} AS key)" for name, key in keys.items())
    by = table.selectExpr("*", f"explode(array({structs})) AS by").selectExpr("*", "by.part", "by.key")
    counted, names = grouped(by, ("part", "key"), counts), ", ".join(counts)
    return counted.selectExpr("part", "key", f"to_json(struct({names})) AS row", f"CAST({weight} AS DOUBLE) AS weight")


def _collected(parts: DataFrame) -> Figures:
    """Collect the rows of each part with the highest weight, in one action."""
    known = ", ".join(f"'{name}', {number}" for name, number in LIMIT.items())
    most = f"coalesce(element_at(map({known}), part), {MAX_OF_A_VERDICT})"
    place = "row_number() OVER (PARTITION BY part ORDER BY weight DESC, key) AS place"
    rows = parts.selectExpr("part", "key", "row", place).where(f"place <= {most}").collect()
    found: dict[str, list[Row]] = {name: [] for name in (*LIMIT, "faults")}
    for row in sorted(rows, key=lambda each: (each["part"], each["place"])):
        found[row["part"].partition(".")[0]].append(json.loads(row["key"]) | json.loads(row["row"]))
    total = found.pop("total")
    return Figures(total=total[0] if total else {}, **found)
