"""The figures of one run: the tables `metrics` and `causes`, and the few numbers of them that the report shows.

Enters: judged lives, and the folder that the outputs are written to. Leaves: both tables, written, and `Figures`. Nothing of the
lives is collected: what comes to the driver is as long as the report, by `MOST`, whatever the number of lives, queues and tasks.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as F  # noqa: N812 - Spark's own custom
from pyspark.sql.window import Window

from redelivery.middleware.outcomes import Outcome
from redelivery.workers.reconciliation.deaths import causes_of, deaths_of, totals
from redelivery.workers.reconciliation.metrics import TIMES, cells_of, metrics_by, sums
from redelivery.workers.reconciliation.verdicts import DISCREPANCIES
from redelivery.workers.reconciliation.writing import write_table

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import Column, DataFrame, SparkSession

__all__ = ["MOST", "Figures", "Row", "faults_of", "figures_of"]

Row = dict[str, Any]

#: How many rows of each part come to the driver: the slowest queues, the latest hours, the most frequent causes.
MOST: Final = {"total": 1, "flow": 500, "attempts": 200, "queues": 12, "hours": 5_000, "causes": 10}

#: How many queues and tasks are named for each verdict.
MOST_OF_A_VERDICT: Final = 4


@dataclass(frozen=True, slots=True)
class Figures:
    """What the report shows besides the summary; times are in ms.

    `total` are the sums of `metrics.py` over everything. `flow` says how many lives went from an opening (`opened`) by a number of
    attempts (`way`: none, first, more) to an `ending`; `attempts` how many attempts successes and deaths took; `queues` are the
    slowest; `hours` the dead letters of each hour and reason; `causes` the most frequent; `faults` what does not balance, by
    verdict, queue and task, with an example.
    """

    total: Row = field(default_factory=dict)
    flow: list[Row] = field(default_factory=list)
    attempts: list[Row] = field(default_factory=list)
    queues: list[Row] = field(default_factory=list)
    hours: list[Row] = field(default_factory=list)
    causes: list[Row] = field(default_factory=list)
    faults: list[Row] = field(default_factory=list)

    def __or__(self, others: Figures) -> Figures:
        """These, and what the others tell besides."""
        return Figures(**{name: getattr(self, name) or getattr(others, name) for name in Figures.__dataclass_fields__})


def figures_of(
    judged: DataFrame, plain: DataFrame | None, folder: str, keep: Callable[[DataFrame], DataFrame]
) -> list[Callable[[], Figures]]:
    """What writes the tables `metrics` and `causes` to the folder, and tells the figures of each.

    `plain` are the cells of lives that are not among the judged; `keep` keeps a table that is asked for more than once.
    """

    def of_cells() -> Figures:
        cells = cells_of(judged)
        cells = keep(cells if plain is None else cells.unionByName(plain.select(*cells.columns)))
        write_table(metrics_by(cells), folder, "metrics")
        return _collected(_of_cells(cells))

    def of_deaths() -> Figures:
        deaths = keep(deaths_of(judged))
        write_table(causes_of(deaths), folder, "causes")
        return _collected(_of_deaths(deaths))

    return [of_cells, of_deaths]


def faults_of(spark: SparkSession, folder: str) -> Figures:
    """What does not balance; the table `verdicts` must be there already."""
    return _collected(_of_faults(spark.read.parquet(f"{folder}/verdicts").where(F.col("verdict").isin(*DISCREPANCIES))))


def _of_cells(cells: DataFrame) -> DataFrame:
    way = F.when(F.col("attempts") > 1, "more").when((F.col("attempts") > 0) | F.col("time_class").isNotNull(), "first")
    number = F.when((F.col("attempts") > 0) | (F.col(Outcome.SUCCEEDED) > 0), F.greatest("attempts", F.lit(1)))
    parts: dict[str, list[Any]] = {
        "total": [],
        "flow": ["opened", F.coalesce(way, F.lit("none")).alias("way"), "ending"],
        "attempts": [number.alias("number")],
        "queues": ["queue"],
    }
    return _grouped(cells, parts, sums(), F.coalesce(F.col(TIMES)[1], F.lit(0)))


def _of_deaths(deaths: DataFrame) -> DataFrame:
    parts: dict[str, list[Any]] = {"hours": ["hour", "reason"], "causes": ["reason", "fingerprint", "exception", "queue"]}
    return _grouped(deaths, parts, totals(), F.when(F.col("part") == "hours", F.col("last_ms")).otherwise(F.col("letters")))


def _of_faults(faults: DataFrame) -> DataFrame:
    """What does not balance, by verdict, queue and task; the example is the one that was heard of first."""
    first = F.min(F.struct("first_ms", "task_id", "cause", "advice")).alias("first")
    found = _grouped(faults, {"faults": ["verdict", "queue", "task"]}, [F.count("*").alias("lives"), first], F.col("lives"))
    return found.withColumn("part", F.concat(F.lit("faults."), F.get_json_object("key", "$.verdict")))


def _grouped(table: DataFrame, parts: dict[str, list[Any]], counts: list[Column], weight: Column) -> DataFrame:
    """The table grouped in several ways in one go: `part`, `key` and `row` (as JSON), and `weight`: the heaviest matter."""
    ways = F.array(
        *(
            F.struct(F.lit(name).alias("part"), F.to_json(F.struct(*keys)).alias("key")) if keys else _whole(name)
            for name, keys in parts.items()
        )
    )
    counted = table.withColumn("as", F.explode(ways)).groupBy("as.part", "as.key").agg(*counts)
    names = [name for name in counted.columns if name not in {"part", "key"}]
    return counted.select("part", "key", F.to_json(F.struct(*names)).alias("row"), weight.cast("double").alias("weight"))


def _whole(name: str) -> Column:
    return F.struct(F.lit(name).alias("part"), F.lit("{}").alias("key"))


def _collected(parts: DataFrame) -> Figures:
    """The rows of each part that matter most, in one action."""
    place = F.row_number().over(Window.partitionBy("part").orderBy(F.desc("weight"), "key"))
    known = F.element_at(F.create_map(*(F.lit(word) for pair in MOST.items() for word in pair)), F.col("part"))
    most = F.coalesce(known, F.lit(MOST_OF_A_VERDICT))
    found: dict[str, list[Row]] = {name: [] for name in (*MOST, "faults")}
    rows = parts.withColumn("place", place).where(F.col("place") <= most).collect()
    for row in sorted(rows, key=lambda each: (each["part"], each["place"])):
        found[row["part"].partition(".")[0]].append(json.loads(row["key"]) | json.loads(row["row"]))
    total = found.pop("total")
    return Figures(total=total[0] if total else {}, **found)
