"""Deadlines: how many lives succeeded in time, by the policies that the inventory noted.

A deadline counts from the life's first event, so a redriven task has the whole time again. A life missed its deadline if it
succeeded later, ended without success, or is open after the deadline. Lives that were dropped on purpose (revoked, cancelled,
ignored) and lives with an unknown end (`unobserved`) have no deadline.

Times to success are counted in classes (`metrics.py`), so a success is judged to within 0.5 % of its deadline.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

from redelivery.middleware.messages.events import Outcome

from ..spark.sql import grouped, quoted
from .metrics import time_class

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pyspark.sql import DataFrame

#: Outcomes of lives that have no deadline.
_ON_PURPOSE: Final = (Outcome.REVOKED, Outcome.CANCELLED, Outcome.IGNORED, Outcome.UNOBSERVED)
#: The sums of any group of lives with a deadline.
IN_TIME: Final = {"lives": "sum(lives)", "missed": "sum(missed)"}


class Deadline(NamedTuple):
    """The deadline (ms) for a pattern of queues or tasks; None means no deadline."""

    column: str
    pattern: str
    ms: int | None

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Self:
        """Read a deadline from an inventory's notes. Raises `KeyError`, `TypeError` or `ValueError` if the note is invalid."""
        column = "queue" if "queue" in row else "task"
        seconds = row["seconds"]
        return cls(column, str(row[column]), None if seconds is None else round(float(seconds) * 1000))

    @property
    def expression(self) -> str:
        """The pattern as a regular expression for a dot and a name. It matches word by word, as in the settings."""
        words = {"*": r"\.[^.]*", "#": r"(\.[^.]*)*"}
        return "".join(words.get(word, r"\." + re.escape(word)) for word in self.pattern.split("."))

    @property
    def applies(self) -> str:
        """Whether the deadline applies to a row, in SQL."""
        whole = quoted(r"\A" + self.expression + r"\z")
        return f"concat('.', {self.column}) RLIKE {whole}"


def in_time_of(cells: DataFrame, judged: DataFrame, deadlines: Sequence[Deadline], as_of_ms: int) -> DataFrame:
    """For each queue and task: how many lives have a deadline, and how many of them `missed` it.

    `cells` are the cells of all lives (`metrics.py`). `judged` must have all lives without a success.
    """
    deadline = _deadline_ms(deadlines)
    done = cells.where("time_class IS NOT NULL").selectExpr("queue", "task", "succeeded AS lives", "time_class", deadline)
    done = done.selectExpr("queue", "task", "lives", "ms", f"IF(time_class > {time_class('ms')}, lives, 0L) AS missed")
    dropped = " + ".join(map(str, _ON_PURPOSE))
    others = judged.where(f"{Outcome.SUCCEEDED} = 0 AND events > 0 AND {dropped} = 0")
    is_over = f"ended_ms IS NOT NULL OR {as_of_ms} - first_ms > ms"
    others = others.selectExpr("queue", "task", "ended_ms", "first_ms", deadline)
    others = others.selectExpr("queue", "task", "1L AS lives", "ms", f"IF({is_over}, 1L, 0L) AS missed")
    return grouped(done.unionByName(others).where("ms IS NOT NULL"), ("queue", "task"), IN_TIME)


def _deadline_ms(deadlines: Iterable[Deadline]) -> str:
    """The first deadline that applies to a row, in SQL, as the column `ms`."""
    cases = " ".join(f"WHEN {each.applies} THEN {'NULL' if each.ms is None else f'{each.ms}L'}" for each in deadlines)
    return f"CAST(CASE {cases} END AS BIGINT) AS ms"
