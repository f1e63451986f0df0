"""Files of the previous version, whose events do not say when their attempt ran, can still be read.

`earlier/` was written by that version's own workers and commands: three tasks that succeeded, one that failed once, one that took
0.2 s, one that died by its exception, and one that killed its child twice. `entries.json` has the same events as stream entries.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyarrow import dataset

from redelivery.middleware.messages.events import ENTRY, Event, Outcome
from redelivery.workers.brokers.redis.audit import RedisAudit
from redelivery.workers.export.tables import EVENTS, write_rows
from redelivery.workers.operations.runs.audit import Act, Acted, acted
from redelivery.workers.operations.runs.audit_export import export_audit
from redelivery.workers.reconciliation.job import Books, reconcile
from tests.support.books.spark_session import spark
from tests.support.desk import Desk
from tests.support.lanes import first_quick

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.support.servers import Server

__all__ = ["spark"]

pytestmark = pytest.mark.xdist_group("spark")

EARLIER = Path(__file__).parent / "earlier"
ENTRIES: list[tuple[str, dict[str, str]]] = json.loads((EARLIER / "entries.json").read_text())
#: Fields that events have had since then: about the attempt, and about the actor.
SINCE = {"started_ms", "run_ms", "waited_ms", "release", "actor"}


def _copied(form: str, folder: Path) -> Books:
    shutil.copytree(EARLIER / form, folder / "outcomes")
    shutil.copytree(EARLIER / "inventory", folder / "inventory")
    return Books(outcomes=str(folder / "outcomes"), inventory=str(folder / "inventory"), output=str(folder / "books"))


@pytest.mark.parametrize("form", first_quick(["parquet", "lines"]))
def test_the_files_of_the_version_before_reconcile(spark: SparkSession, tmp_path: Path, form: str) -> None:
    """Parquet and JSON lines: every life is balanced."""
    summary = reconcile(spark, _copied(form, tmp_path))
    assert (summary.balanced, summary.events, summary.lives) == (True, 17, 7)


@pytest.mark.full
def test_files_of_both_versions_lie_side_by_side(spark: SparkSession, tmp_path: Path) -> None:
    """Newer files have more columns than older ones in the same folder."""
    books = _copied("parquet", tmp_path)
    shutil.rmtree(tmp_path / "outcomes" / "_commits")
    times: dict[str, Any] = {"started_ms": 1_795_516_936_000, "run_ms": 12, "waited_ms": 3, "release": "shop-8"}
    steps = [(Outcome.PUBLISHED, 0, {}), (Outcome.SUCCEEDED, 1, times)]
    events = [
        Event(
            task_id="new",
            outcome=outcome,
            event_id=f"179551693600{at}-0",
            at_ms=1_795_516_936_000 + at,
            queue="celery",
            delivery=at,
            **more,
        )
        for outcome, at, more in steps
    ]
    hour = str(tmp_path / "outcomes" / "date=2026-11-24" / "hour=10")
    write_rows((event.to_dict() for event in events), hour, EVENTS, name="later")
    summary = reconcile(spark, books)
    assert (summary.balanced, summary.events, summary.lives) == (True, 19, 8)


@pytest.mark.full
def test_an_audit_beside_the_events_changes_no_books(spark: SparkSession, server: Server, tmp_path: Path) -> None:
    """Both in a folder whose files are named by commits, and in one without commits."""
    desk, summaries = Desk(server), []
    acts = acted(Act.PURGE, Acted.DONE, "DLQ.celery", actor="ana", why="not ours", tasks=["t"])
    for number in range(2_000):
        desk.client.xadd(desk.keys.audit, {"record": acts}, id=f"{1_795_516_934_000 + number * 86_400}-0")
    for name, has_commits in (("committed", True), ("plain", False)):
        books = _copied("parquet", tmp_path / name)
        if not has_commits:
            shutil.rmtree(tmp_path / name / "outcomes" / "_commits")
        summaries.append(reconcile(spark, books))
        assert export_audit(RedisAudit(desk.transport), books.outcomes).records == 2_000
        assert len({file.parent for file in (tmp_path / name).glob("outcomes/_audit/*/*.jsonl")}) == 3
        summaries.append(reconcile(spark, replace(books, output=str(tmp_path / name / "again"))))
    assert summaries[0] == summaries[1] == summaries[2] == summaries[3]
    assert (summaries[0].balanced, summaries[0].events, summaries[0].lives) == (True, 17, 7)
    desk.transport.close()


def test_entries_of_the_version_before_say_nothing_of_their_attempts() -> None:
    """Read from the stream, and from that version's files."""
    events = [Event.from_entry(entry_id, values).to_dict() for entry_id, values in ENTRIES]
    assert {event[name] for event in events for name in SINCE} == {None}
    rows = dataset.dataset(EARLIER / "parquet", exclude_invalid_files=True).to_table().to_pylist()
    assert [{name: event[name] for name in rows[0]} for event in events] == rows


def test_the_version_before_reads_what_is_written_now() -> None:
    """It reads the field names that it knows, in their order, and they all exist still."""
    known = list(ENTRIES[0][1])
    assert list(ENTRY[: len(known)]) == known
    assert dataset.dataset(EARLIER / "parquet", exclude_invalid_files=True).schema.names == EVENTS.names[: -len(SINCE)]
