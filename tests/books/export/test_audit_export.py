"""The export of the audit: each record reaches the files once, whatever crashes, and records lost before the export are counted."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from structlog.testing import capture_logs

from redelivery.errors import InputError
from redelivery.middleware.brokers.redis.scripts import Script
from redelivery.workers.brokers.broker import broker_of
from redelivery.workers.brokers.redis.audit import RedisAudit
from redelivery.workers.brokers.redis.outcome_log import RedisOutcomeLog
from redelivery.workers.duties.exporter import Exporter
from redelivery.workers.export.records import read_records
from redelivery.workers.export.tables import read_lines
from redelivery.workers.operations.runs.audit import Act, Acted, acted
from redelivery.workers.operations.runs.audit_export import export_audit
from tests.support.books.recorded import record, text
from tests.support.desk import LETTERS, Desk, each_desk
from tests.support.running import Shop, until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.servers import Server

__all__ = ["each_desk"]

#: An exporter that exports in a loop until it is killed.
EXPORTER = """
import sys
from types import SimpleNamespace
from redis import Redis
from redelivery.middleware.brokers.redis.keys import Keys
from redelivery.workers.brokers.redis.audit import RedisAudit
from redelivery.workers.operations.runs.audit_export import export_audit
store = RedisAudit(SimpleNamespace(client=Redis(unix_socket_path=sys.argv[1]), keys=Keys()))
while True:
    export_audit(store, sys.argv[2])
"""


def recorded(desk: Desk, *whys: str, entry_id: str = "*") -> list[str]:
    """The ids of new records, one for each reason."""
    said = [acted(Act.PURGE, Acted.DONE, LETTERS, actor="ana", why=each, result={"moved": 2}) for each in whys]
    return [text(desk.client.xadd(desk.keys.audit, {"record": each}, id=entry_id)) for each in said]


def lines(out: Path) -> list[dict[str, Any]]:
    """The lines of all files by their ids, as often as they are there."""
    rows = [json.loads(line) for file in out.glob("_audit/*/*.jsonl") for line in file.read_text().splitlines()]
    return sorted(rows, key=lambda row: [int(part) for part in row["record_id"].split("-")])


def ids(out: Path) -> list[str]:
    """Their ids."""
    return [row["record_id"] for row in lines(out)]


def read(out: Path) -> list[str]:
    """The ids as a reader gets them, the oldest first."""
    return [row["record_id"] for rows in read_records(str(out), []) for row in rows][::-1]


def export(desk: Desk, out: Path) -> Any:
    """One export, of a new store."""
    return export_audit(RedisAudit(desk.transport), str(out))


def gaps(out: Path) -> list[tuple[int | None, str]]:
    """The gaps that the export has noted."""
    return [(row.get("lost"), row["why"]) for row in read_lines(str(out / "_audit"), "_gaps.jsonl")]


def test_each_record_is_a_line_with_all_that_was_recorded(desk: Desk, folder: Path) -> None:
    """As `audit --json` prints it, with unknown later fields; the broker keeps it. Readers of events skip the folder."""
    task_id = desk.die()
    desk.json("dlq", "purge", LETTERS, "--id", task_id, "--yes", "--as", "ana", "--why", "not ours")
    desk.client.xadd(desk.keys.audit, {"record": '{"actor": "b", "act": "redrive", "acted": "done", "queue": "q", "new": 1}'})
    done = desk.json("outcomes", "export", "--to", str(folder / "out"))
    records = desk.json("audit")
    assert (done["audit"]["records"], done["audit"]["gaps"], len(done["audit"]["files"])) == (3, [], 1)
    assert done["audit"]["files"][0].startswith("_audit/")
    assert lines(folder / "out") == [
        {**each, "log": "redelivery:audit", **({"new": 1} if each["actor"] == "b" else {})} for each in records[::-1]
    ]
    assert (records[-1]["acted"], records[-1]["why"], records[1]["result"]["moved"]) == ("begun", "not ours", 1)
    assert desk.run("outcomes", "export", "--to", str(folder / "out")).stdout.startswith("0 events")
    assert ids(folder / "out") == [each["record_id"] for each in records[::-1]]


def test_the_next_export_goes_on_and_days_have_folders_of_their_own(desk: Desk, folder: Path) -> None:
    """Folders go by the record's time, in UTC; also for more than a page of records."""
    evening, morning = recorded(desk, "a", entry_id="1769903999999-0"), recorded(desk, "b", "c", entry_id="1769904000000-*")
    assert export(desk, folder / "out").files == [
        "_audit/2026-01-31/records-1769903999999-0-1769903999999-0-1.jsonl",
        "_audit/2026-02-01/records-1769904000000-0-1769904000000-1-2.jsonl",
    ]
    assert export(desk, folder / "out").files == []
    later = recorded(desk, *map(str, range(2_001)))
    assert export(desk, folder / "out").records == 2_001
    assert ids(folder / "out") == read(folder / "out") == [*evening, *morning, *later]
    assert not gaps(folder / "out")


def test_a_kill_before_it_is_noted_writes_the_same_file_again(desk: Desk, folder: Path) -> None:
    """If more was recorded since, the new file overlaps the first, and a reader takes each record once."""
    first = recorded(desk, "a")
    export(desk, folder / "out")
    noted = folder / "out" / "_audit" / "_exported.jsonl"
    before = noted.read_text()
    second = recorded(desk, "b", "c")
    export(desk, folder / "out")
    noted.write_text(before)  # the state after a kill that followed the file
    assert export(desk, folder / "out").records == 2
    assert ids(folder / "out") == [*first, *second]
    noted.write_text(before)
    third = recorded(desk, "d")
    export(desk, folder / "out")
    assert ids(folder / "out") == [*first, second[0], second[0], second[1], second[1], *third]
    assert read(folder / "out") == [*first, *second, *third]
    assert not gaps(folder / "out")


def test_an_exporter_that_is_killed_again_and_again_loses_nothing(server: Server, folder: Path) -> None:
    """SIGKILL as soon as it has written something, five times, while operators work; a reader has each record once."""
    desk, out, there = Desk(server), folder / "out", []

    def has_more(than: int) -> bool:
        there.extend(recorded(desk, "a", "b"))
        return len(list(out.glob("_audit/*/*.jsonl"))) > than

    for _ in range(5):
        before = len(list(out.glob("_audit/*/*.jsonl")))
        process = subprocess.Popen([sys.executable, "-c", EXPORTER, server.socket, str(out)])
        try:
            until(partial(has_more, before))
        finally:
            process.kill()
            process.wait()
    export(desk, out)
    assert read(out) == there
    assert set(ids(out)) == set(there)
    assert not gaps(out)
    desk.transport.close()


@pytest.mark.parametrize("exported", [0, 2])
def test_records_that_left_the_broker_before_are_counted(desk: Desk, folder: Path, exported: int) -> None:
    """Also on the first export to a place; reported by the command, in the log, and beside the files."""
    recorded(desk, *"ab"[:exported])
    assert not exported or export(desk, folder / "out").records == 2
    recorded(desk, *map(str, range(10)))
    desk.client.xtrim(desk.keys.audit, maxlen=3, approximate=False)
    with capture_logs() as logs:
        done = desk.run("outcomes", "export", "--to", str(folder / "out"))
    assert "A gap: 7 records of the audit left the broker before they were exported (cap, noticed 20" in done.stderr
    assert [(line["lost"], line["why"]) for line in logs if line["event"] == "audit.gap_found"] == [(7, "cap")]
    recorded(desk, "later")
    assert not export(desk, folder / "out").gaps
    assert gaps(folder / "out") == [(7, "cap")]
    assert len(ids(folder / "out")) == exported + 4


def test_a_record_that_somebody_takes_out_is_a_gap(desk: Desk, folder: Path) -> None:
    """Also one from the middle; records that were exported before stay in the files."""
    recorded(desk, "a", "b")
    export(desk, folder / "out")
    [_, hidden, _] = recorded(desk, "c", "d", "e")
    desk.client.xdel(desk.keys.audit, hidden)
    assert [(each.lost, each.why) for each in export(desk, folder / "out").gaps] == [(1, "removed")]
    assert len(ids(folder / "out")) == 4


@pytest.mark.parametrize("count", [1, 5])
def test_an_audit_that_was_replaced_is_a_gap_of_unknown_size(desk: Desk, folder: Path, count: int) -> None:
    """After a FLUSHALL, with fewer records than before, and with more; the new ones are exported, and the gap is reported once."""
    old = recorded(desk, "a", "b", "c")
    export(desk, folder / "out")
    desk.client.flushall()
    new = recorded(desk, *map(str, range(count)))
    assert [(each.lost, each.why) for each in export(desk, folder / "out").gaps] == [(None, "replaced")]
    new += recorded(desk, "later")
    assert not export(desk, folder / "out").gaps
    assert ids(folder / "out") == [*old, *new]


def test_an_audit_that_was_restored_from_an_older_copy_is_exported_whole(desk: Desk, folder: Path) -> None:
    """Also if its records are older than the last exported one; a reader has each once."""
    [first, second] = recorded(desk, "a", entry_id="1769903999999-0") + recorded(desk, "b")
    export(desk, folder / "out")
    desk.client.delete(desk.keys.audit)
    recorded(desk, "a", entry_id=first)
    between = recorded(desk, "c", entry_id="1769904000000-0")
    assert [(each.lost, each.why) for each in export(desk, folder / "out").gaps] == [(None, "replaced")]
    assert export(desk, folder / "out").records == 0
    assert read(folder / "out") == [first, *between, second]


@pytest.mark.parametrize("said", ["{", '{"actor": 1}', '{"actor": ' + "[" * 500 + "]" * 500 + "}", "\ud800", '{"at_ms": "x"}'])
def test_what_a_stranger_records_holds_nothing_up(desk: Desk, folder: Path, said: str) -> None:
    """It is exported unchanged, and not listed."""
    desk.client.xadd(desk.keys.audit, {"record": said.encode("utf-8", "replace")})
    [ours] = recorded(desk, "a")
    desk.client.xadd(
        desk.keys.audit, {"record": '{"actor": "a", "act": "b", "acted": "c", "queue": "d", "record_id": "x", "log": 1}'}
    )
    export(desk, folder / "out")
    strange, mine, odd = lines(folder / "out")
    assert strange["unreadable"] == said.encode("utf-8", "replace").decode()
    assert (mine["record_id"], odd["log"]) == (ours, "redelivery:audit")
    desk.client.delete(desk.keys.audit)
    assert [each["actor"] for each in desk.json("audit", "--outcomes", str(folder / "out"))] == ["a", "ana"]


def test_two_apps_share_a_destination(server: Server, folder: Path) -> None:
    """Each goes on where it ended; its audit's name tells them apart."""
    desks = [Desk(server), Desk(server, prefix="other:")]
    for _ in range(2):
        for each in desks:
            recorded(each, "a")
            assert export(each, folder / "out").records == 1
    assert sorted(row["log"] for row in lines(folder / "out")) == ["other:redelivery:audit"] * 2 + ["redelivery:audit"] * 2
    assert not gaps(folder / "out")
    said: Any = {"record": '{"actor": "a", "act": "b", "acted": "c", "queue": "d"}'}
    for each in desks:  # in the same millisecond: their records have the same ids
        each.client.xadd(each.keys.audit, said, id="99999999999999-0")
        assert export(each, folder / "out").records == 1
    assert ids(folder / "out").count("99999999999999-0") == 2
    for each in desks:
        each.transport.close()


def test_a_destination_that_cannot_be_written_loses_nothing(desk: Desk, folder: Path) -> None:
    """Not even if it fails between two files: the next export that can write has each record, and a reader gets it once."""
    out = folder / "out"
    there = recorded(desk, "a", entry_id="1769903999999-0") + recorded(desk, "b", entry_id="1769904000000-0")
    (out / "_audit").mkdir(parents=True)
    (out / "_audit" / "2026-02-01").write_text("")
    with pytest.raises(InputError, match="cannot be written"):
        export(desk, out)
    assert ids(out) == there[:1]
    (out / "_audit" / "2026-02-01").unlink()
    assert export(desk, out).records == 2
    assert ids(out) == there


def test_the_duty_exports_the_audit_with_the_events(desk: Desk, folder: Path) -> None:
    """It also logs that."""
    record(desk.client, 1)
    recorded(desk, "a")
    exporter = Exporter(RedisOutcomeLog(desk.transport), str(folder / "out"), audit=broker_of(desk.transport).audit)
    with capture_logs() as logs:
        assert (exporter.step(), exporter.step()) == (1, 0)
    assert [line["event"] for line in logs] == ["outcome_log.exported", "audit.exported"]
    assert len(ids(folder / "out")) == 1


def test_a_worker_exports_the_audit_by_itself(shop: Callable[..., Shop], server: Server, folder: Path) -> None:
    """Where `outcome_export` names the place."""
    out = folder / "out"
    here = shop(settings={"outcome_export": str(out), "outcome_export_every": 1})
    here.start()
    Script("record")(server.client, ["redelivery:audit"], [acted(Act.PURGE, Acted.DONE, LETTERS, actor="ana"), 10_000])
    until(lambda: [row["actor"] for row in lines(out)] == ["ana"])
