"""What the books read: the schemas of the outcome events and of the inventory.

Both are written out, never inferred: a day without a single due time must not change a column's type, and a file of somebody
else's must be refused rather than read as nothing. `REQUIRED` names the columns without which a row says nothing; every other
column may be missing, and is then null or its default.

Imports pyspark alone, so that the job runs under `spark-submit` where Celery is not installed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql.types import DataType, LongType, StringType, StructField, StructType

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: Where the broker can hold a message.
PLACES: Final = ("queue", "unacked", "delayed", "dead_letter")

_TEXT, _NUMBER, _TIME = StringType(), LongType(), LongType()


def _struct(**columns: DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in columns.items()])


def empty(spark: SparkSession, schema: StructType) -> DataFrame:
    """A table of these columns without a row, which Spark knows to be empty, and leaves out of its plans."""
    nothing = (f"CAST(NULL AS {each.dataType.simpleString()}) AS `{each.name}`" for each in schema)
    return spark.range(1).selectExpr(*nothing).where("false")


#: The outcome events, in the order of `redelivery.middleware.messages.events.Event`. Times and delays are milliseconds, times since
#: the epoch.
EVENTS: Final = _struct(
    task_id=_TEXT,
    outcome=_TEXT,
    event_id=_TEXT,
    generation=_NUMBER,
    task=_TEXT,
    queue=_TEXT,
    reason=_TEXT,
    attempt=_NUMBER,
    delivery=_NUMBER,
    delay_ms=_TIME,
    due_ms=_TIME,
    at_ms=_TIME,
    clock=_TEXT,
    worker=_TEXT,
    exception=_TEXT,
    fingerprint=_TEXT,
    root_id=_TEXT,
    parent_id=_TEXT,
    nesting=_NUMBER,
    schema_version=_NUMBER,
    started_ms=_TIME,
    run_ms=_TIME,
    waited_ms=_TIME,
    release=_TEXT,
    actor=_TEXT,
)

#: Columns of an event that nothing in the books asks for.
ASIDE: Final = ("root_id", "parent_id", "schema_version", "started_ms", "run_ms", "waited_ms", "release", "actor")

#: The inventory: one row for each message that the broker held. `owner` is the owner token of the worker that holds an `unacked`
#: message, and empty where that worker is gone; `due_ms` is when a `delayed` one is due; `message` is what the exception of
#: a dead letter said.
INVENTORY: Final = _struct(
    task_id=_TEXT,
    generation=_NUMBER,
    task=_TEXT,
    queue=_TEXT,
    place=_TEXT,
    due_ms=_TIME,
    owner=_TEXT,
    seen_ms=_TIME,
    nesting=_NUMBER,
    message=_TEXT,
)

EVENTS_REQUIRED: Final = ("event_id", "task_id", "outcome", "queue", "at_ms")
INVENTORY_REQUIRED: Final = ("task_id", "queue", "place", "seen_ms")

#: What a missing value means; a column that is not named here stays null.
DEFAULTS: Final[dict[str, str | int]] = {
    "generation": 0,
    "task": "",
    "queue": "",
    "reason": "",
    "attempt": 0,
    "delivery": 0,
    "clock": "broker",
    "worker": "",
    "exception": "",
    "fingerprint": "",
    "owner": "",
    "nesting": 0,
}


def or_default(name: str) -> str:
    """A column, in SQL, in which a missing value is what it means."""
    return f"coalesce({name}, {DEFAULTS[name]!r})" if name in DEFAULTS else name
