"""Announced lives: those of which earlier runs know nothing but that they were published.

Nearly every life that is open when a run ends is one: its message waits, or is being worked on, and it ends the next day as it
should. So that it need not go the whole way then, its publication is told to the first look at that day's events (`plain.py`) in
numbers; where the task turns out to be plain, its life is closed, and `carrying.py` does not meet it. A task of which more is
known, or of which there are several lives, goes the whole way.

Enters: the lives that a state holds. Leaves: what they say of their tasks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F  # noqa: N812 - Spark's own custom
from pyspark.sql.types import BooleanType, LongType, StringType, StructField, StructType

from redelivery.middleware.messages.events import Outcome

from .hashes import ID
from .steps import STEPS
from .texts import named

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

#: The columns of an earlier run's lives that say whether one was but announced: by one event, its publication.
ANNOUNCED: Final = StructType(
    [
        *(StructField(name, StringType()) for name in ("task_id", "queue", "task")),
        *(StructField(name, LongType()) for name in ("nesting", "generation", "events", str(Outcome.PUBLISHED), "last")),
        *(StructField(name, LongType()) for name in ("first_ms", "attempts")),
        StructField("settled", BooleanType()),
    ]
)
_IS_ANNOUNCED: Final = (
    f"NOT settled AND events = 1 AND {Outcome.PUBLISHED} = 1 AND last = {STEPS.index(Outcome.PUBLISHED)}"
    " AND generation = 0 AND nesting = 0 AND queue != ''"
)
#: What is said of a task that is not plain whatever its events say, in SQL.
NOTHING_TOLD: Final = (
    "task_id",
    "'' AS queue",
    "'' AS task",
    "CAST(NULL AS BIGINT) AS told_ms",
    "CAST(NULL AS BIGINT) AS told_attempts",
)


def announced(lives: DataFrame) -> DataFrame:
    """What the lives that earlier runs left say of their tasks: when one was published (`told_ms`), where nothing else is known."""
    told = {"told_ms": f"CASE WHEN {_IS_ANNOUNCED} THEN first_ms END", "told_attempts": "attempts"}
    return lives.selectExpr("task_id", "queue", "task", *named(told))


def still_open(lives: DataFrame, closed: DataFrame) -> DataFrame:
    """The lives of earlier runs without those of tasks that are `closed`."""
    return lives.join(closed, F.expr(f"{ID} = id"), "left_anti")
