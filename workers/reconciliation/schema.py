"""The inputs of the books: the schemas of the outcome events and of the inventory.

Schemas are not inferred from files: a day without due times must not change a column's type, and a file of another kind must be
refused. `EVENTS_REQUIRED` and `INVENTORY_REQUIRED` name the columns that a file must have. Other columns may be missing, and are
then null or their default.

Celery is not imported, so the job also runs under `spark-submit` on machines without it.
"""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Final

from pyspark.sql.types import DataType, LongType, StringType, StructField, StructType

from redelivery.middleware.messages.events import Event

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: Where the broker can hold a message.
PLACES: Final = ("queue", "unacked", "delayed", "dead_letter")

_TEXT, _NUMBER, _TIME = StringType(), LongType(), LongType()


def _struct(**columns: DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in columns.items()])


def empty(spark: SparkSession, schema: StructType) -> DataFrame:
    """A table without rows. Spark knows that it is empty, and leaves it out of plans."""
    nothing = (f"CAST(NULL AS {each.dataType.simpleString()}) AS `{each.name}`" for each in schema)
    return spark.range(1).selectExpr(*nothing).where("false")


#: The outcome events: a column for each field of `Event`. Times (since the epoch) and delays are in milliseconds.
EVENTS: Final = _struct(**{each.name: _NUMBER if "int" in str(each.type) else _TEXT for each in fields(Event)})

#: Columns of an event that the books do not use.
ASIDE: Final = ("root_id", "parent_id", "schema_version", "started_ms", "waited_ms", "actor")

#: The inventory: one row for each message in the broker. `owner` is the token of the worker that holds an `unacked` message, empty
#: if that worker is gone. `due_ms` is the due time of a `delayed` message. `message` is the message of a dead letter's exception.
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

#: The values for null. Other columns stay null.
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
    """A column with its default (`DEFAULTS`) for null, in SQL."""
    return f"coalesce({name}, {DEFAULTS[name]!r})" if name in DEFAULTS else name
