"""The export: every event reaches the files, whatever crashes, and events lost before the export are reported."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from pyarrow import dataset
from redis import Redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoScriptError
from structlog.testing import capture_logs

from redelivery.errors import BrokerError, InputError
from redelivery.middleware.brokers.redis import scripts
from redelivery.middleware.brokers.redis.scripts import Script
from redelivery.middleware.messages.events import Outcome
from redelivery.workers.brokers.redis.outcome_log import bound
from redelivery.workers.export.export import export_outcomes
from redelivery.workers.export.tables import EVENTS, read_lines
from tests.support.books.recorded import KEYS, record, text

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.servers import Server


def exported(folder: Path, form: str = "parquet") -> list[dict[str, Any]]:
    """The rows of all files, in the order of their ids, for a reader that skips names with `_` and `.`."""
    kind = {"parquet": "parquet", "jsonl": "json"}[form]
    table = dataset.dataset(str(folder), schema=EVENTS, format=kind).to_table()
    return sorted(table.to_pylist(), key=lambda row: [int(part) for part in row["event_id"].split("-")])


def ids(folder: Path) -> list[str]:
    """The event ids, each as often as it was exported."""
    return [row["event_id"] for row in exported(folder)]


@pytest.mark.parametrize("form", ["parquet", "jsonl"])
def test_every_field_of_an_event_reaches_the_file(any_server: Server, folder: Path, form: Any) -> None:
    """In both formats, a row has exactly what was recorded."""
    [entry_id] = record(
        any_server.client,
        1,
        outcome=Outcome.DEAD_LETTERED,
        reason="exhausted",
        generation=2,
        attempt=3,
        delivery=4,
        delay_ms=0,
        due_ms=1_700_000_000_123,
        worker="w@h",
        exception="ValueError: ü",
        fingerprint="f",
        root_id="root",
        parent_id="parent",
        nesting=1,
        started_ms=1_700_000_000_000,
        run_ms=0,
        waited_ms=40,
        release="shop-7",
        actor="ann@desk",
    )
    result = export_outcomes(any_server.client, KEYS, str(folder / "out"), format=form)
    [row] = exported(folder / "out", form)
    assert result.events == 1
    assert row == {
        "task_id": "task-0",
        "outcome": "dead_lettered",
        "event_id": entry_id,
        "generation": 2,
        "task": "shop.charge",
        "queue": "orders",
        "reason": "exhausted",
        "attempt": 3,
        "delivery": 4,
        "delay_ms": 0,
        "due_ms": 1_700_000_000_123,
        "at_ms": int(entry_id.split("-")[0]),
        "clock": "broker",
        "worker": "w@h",
        "exception": "ValueError: ü",
        "fingerprint": "f",
        "root_id": "root",
        "parent_id": "parent",
        "nesting": 1,
        "schema_version": 1,
        "started_ms": 1_700_000_000_000,
        "run_ms": 0,
        "waited_ms": 40,
        "release": "shop-7",
        "actor": "ann@desk",
    }


def test_files_lie_by_date_and_hour_of_the_event(server: Server, folder: Path) -> None:
    """In UTC, the last millisecond of an hour in that hour, and named by first and last id."""
    client = server.client
    for ms in (1_700_002_799_998, 1_700_002_799_999, 1_700_002_800_000):
        record(client, 1, entry_id=f"{ms}-0")
    result = export_outcomes(client, KEYS, str(folder / "out"))
    assert result.files == [
        "date=2023-11-14/hour=22/outcomes-1700002799998-0-1700002799999-0.parquet",
        "date=2023-11-14/hour=23/outcomes-1700002800000-0-1700002800000-0.parquet",
    ]
    assert all((folder / "out" / file).is_file() for file in result.files)


@pytest.mark.parametrize("count", [1999, 2000, 2001])
def test_batches_join_without_loss_or_repeat(any_server: Server, folder: Path, count: int) -> None:
    """One less, as many and one more than two full batches, each of two pages."""
    recorded = record(any_server.client, count)
    result = export_outcomes(any_server.client, KEYS, str(folder / "out"), batch=1000)
    assert result.events == count
    assert ids(folder / "out") == recorded
    assert any_server.client.xlen(KEYS.outcomes) == 0


def test_a_batch_of_several_pages_is_one_file(server: Server, folder: Path) -> None:
    """A page is one answer of the broker, a batch the content of one file."""
    recorded = record(server.client, 2500)
    result = export_outcomes(server.client, KEYS, str(folder / "out"), batch=3000)
    assert len(result.files) <= 2, "two where the hour turned meanwhile"
    assert ids(folder / "out") == recorded


def test_the_next_export_goes_on_where_the_last_one_ended(any_server: Server, folder: Path) -> None:
    """Nothing is exported twice, nothing is reported as gone, and an export with nothing to do writes nothing."""
    client, out = any_server.client, folder / "out"
    assert export_outcomes(client, KEYS, str(out)).files == []
    assert not out.exists()
    first = record(client, 10)
    export_outcomes(client, KEYS, str(out))
    assert export_outcomes(client, KEYS, str(out)).files == []
    second = record(client, 10)
    result = export_outcomes(client, KEYS, str(out))
    assert (result.events, result.gaps) == (10, [])
    assert ids(out) == first + second


def test_a_client_that_decodes_answers_serves_as_well(server: Server, folder: Path) -> None:
    """An application may pass its own client."""
    recorded = record(server.client, 3)
    client = Redis(unix_socket_path=server.socket, decode_responses=True)
    assert export_outcomes(client, KEYS, str(folder / "out")).events == 3
    record(server.client, 1)
    assert export_outcomes(client, KEYS, str(folder / "out")).gaps == []
    assert ids(folder / "out")[:3] == recorded


def test_entries_that_are_not_ours_stop_nothing_and_are_kept(server: Server, folder: Path) -> None:
    """No known outcome, no number where one belongs, numbers that no column holds: counted, logged, kept in a file of their own."""
    client, out = server.client, str(folder / "out")
    record(client, 1)
    foreign: list[dict[Any, Any]] = [
        {"hello": b"w\xff"},
        {"t": "a", "o": "unheard of"},
        {"t": "b", "o": "succeeded", "g": "x"},
        {"t": "c", "o": "succeeded", "a": str(2**40)},
        {"t": "d", "o": "succeeded", "u": str(2**70)},
        {"t": "e", "o": "succeeded", "u": "9" * 5000},
    ]
    refused = [text(client.xadd(KEYS.outcomes, values)) for values in foreign]
    record(client, 1)
    with capture_logs() as logs:
        result = export_outcomes(client, KEYS, out)
    assert (result.events, result.refused) == (2, 6)
    assert [(line["event"], line["count"]) for line in logs] == [("outcome_log.entries_refused", 6)]
    kept = read_lines(f"{out}/_refused", f"refused-{refused[0]}-{refused[-1]}.jsonl")
    assert [row["entry_id"] for row in kept] == refused
    assert '"hello"' in kept[0]["values"]
    assert len(ids(folder / "out")) == 2
    assert client.xlen(KEYS.outcomes) == 0


def test_an_entry_beyond_the_calendar_is_refused(server: Server, folder: Path) -> None:
    """An id contains a time, and any client may have written any id."""
    client = server.client
    record(client, 1, entry_id="253402300799999-0")
    record(client, 1, entry_id="253402300800000-0")
    result = export_outcomes(client, KEYS, str(folder / "out"))
    assert (result.events, result.refused) == (1, 1)
    assert result.files[-1].startswith("date=9999-12-31/hour=23/")


@pytest.mark.parametrize("before", [0, 5])
def test_events_that_passed_the_cap_are_a_gap(any_server: Server, folder: Path, before: int) -> None:
    """The gap says how many, between which entries, and why; also before the very first export."""
    client, out = any_server.client, str(folder / "out")
    old = record(client, before)
    export_outcomes(client, KEYS, out)
    record(client, 5000)
    removed = bound(client, KEYS, 300_000).removed
    with capture_logs() as logs:
        result = export_outcomes(client, KEYS, out)
    [gap] = result.gaps
    assert (gap.lost, gap.why) == (removed, "cap")
    assert gap.after == (old[-1] if old else "0-0")
    assert gap.before == ids(folder / "out")[before]
    assert result.events == 5000 - removed
    assert read_lines(out, "_gaps.jsonl")[0]["lost"] == removed
    assert logs[0]["event"] == "outcome_log.gap_found"
    assert client.exists(KEYS.trimmed) == 0, "what is reported is not reported again"
    record(client, 1)
    assert export_outcomes(client, KEYS, out).gaps == []


@pytest.mark.parametrize("place", [slice(3), slice(3, 6), slice(7, 10), slice(10)], ids=["oldest", "middle", "newest", "all"])
def test_events_that_somebody_deletes_are_a_gap(server: Server, folder: Path, place: slice) -> None:
    """At any position: the stream counts all entries that were ever added."""
    client, out = server.client, str(folder / "out")
    gone = record(client, 10)[place]
    client.xdel(KEYS.outcomes, *gone)
    gaps = export_outcomes(client, KEYS, out).gaps
    assert [(gap.lost, gap.why) for gap in gaps] == [(len(gone), "removed")]
    record(client, 1)
    assert export_outcomes(client, KEYS, out).gaps == []
    assert len(read_lines(out, "_gaps.jsonl")) == 1


def test_a_stream_that_was_replaced_is_a_gap_of_unknown_size(server: Server, folder: Path) -> None:
    """A deleted log starts to count again."""
    client, out = server.client, str(folder / "out")
    record(client, 10)
    export_outcomes(client, KEYS, out)
    client.delete(KEYS.outcomes)
    assert export_outcomes(client, KEYS, out).gaps == [], "there may be no event yet"
    record(client, 2)
    result = export_outcomes(client, KEYS, out)
    assert [(gap.lost, gap.why) for gap in result.gaps] == [(None, "replaced")]
    assert result.events == 2


def test_later_gaps_are_added_to_earlier_ones(server: Server, folder: Path) -> None:
    """One file lists them all."""
    client, out = server.client, str(folder / "out")
    for count in (1, 2):
        doomed = record(client, 3)[:count]
        client.xdel(KEYS.outcomes, *doomed)
        export_outcomes(client, KEYS, out)
    assert [row["lost"] for row in read_lines(out, "_gaps.jsonl")] == [1, 2]


class AtLastStep(Redis):
    """A client that runs a function before its last step, the script that moves the cursor."""

    act: Callable[[Callable[[], Any]], Any]


@pytest.fixture(autouse=True)
def acting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the function of such a client."""
    answers, last = scripts._answers, Script("exported").sha.encode()

    def acting(client: Redis, commands: list[bytes]) -> Any:
        call = partial(answers, client, commands)
        if isinstance(client, BetweenPages):
            return client.page(call)
        return client.act(call) if isinstance(client, AtLastStep) and last in commands[0] else call()

    monkeypatch.setattr(scripts, "_answers", acting)


def at_last_step(server: Server, act: Callable[[Callable[[], Any]], Any]) -> Redis:
    """A client of that kind."""
    client = AtLastStep(unix_socket_path=server.socket)
    client.script_load(Script("exported").text)  # so that it is called once
    client.act = act
    return client


class BetweenPages(Redis):
    """A client that runs a function before it reads its second page."""

    act: Callable[[], Any]
    pages = 0

    def page(self, call: Callable[[], Any]) -> Any:
        """Act before the second one; a script that is not known yet answers nothing."""
        if self.pages == 1:
            self.act()
        answers = call()
        self.pages += not isinstance(answers[0], NoScriptError)
        return answers


def between_pages(server: Server, act: Callable[[], Any]) -> Redis:
    """A client of that kind."""
    client = BetweenPages(unix_socket_path=server.socket)
    client.act = act
    return client


@pytest.mark.parametrize(("keep", "lost"), [(1501, 0), (1500, 0), (1499, 1), (100, 1400), (0, 1500)])
def test_what_goes_between_two_pages_is_a_gap_unless_it_was_read(server: Server, folder: Path, keep: int, lost: int) -> None:
    """The first page has a thousand of 2,500 events; then the log is cut."""
    recorded = record(server.client, 2500)
    client = between_pages(server, lambda: server.client.xtrim(KEYS.outcomes, maxlen=keep, approximate=False))
    result = export_outcomes(client, KEYS, str(folder / "out"))
    assert [gap.lost for gap in result.gaps] == ([lost] if lost else [])
    assert ids(folder / "out") == recorded[:1000] + recorded[1000 + lost :]
    record(server.client, 1)
    assert export_outcomes(server.client, KEYS, str(folder / "out")).gaps == []


def test_an_export_that_is_overtaken_between_two_pages_reports_no_gap(server: Server, folder: Path) -> None:
    """Events that the other export took are not lost."""
    recorded = record(server.client, 2500)
    client = between_pages(server, lambda: export_outcomes(server.client, KEYS, str(folder / "out")))
    with pytest.raises(BrokerError, match="run one export at a time"):
        export_outcomes(client, KEYS, str(folder / "out"))
    assert ids(folder / "out") == recorded
    assert not (folder / "out" / "_gaps.jsonl").exists()


@pytest.mark.parametrize("late", [False, True], ids=["before the cursor moved", "after it moved"])
def test_a_broken_connection_loses_nothing(server: Server, folder: Path, late: bool) -> None:
    """Files written but cursor not moved: they are written again. Cursor moved but answer lost: the next export goes on."""
    recorded = record(server.client, 30)

    def cut(call: Callable[[], Any]) -> Any:
        if late:
            call()
        message = "connection cut"
        raise RedisConnectionError(message)

    with pytest.raises(RedisConnectionError):
        export_outcomes(at_last_step(server, cut), KEYS, str(folder / "out"), batch=10)
    assert server.client.xlen(KEYS.outcomes) == (20 if late else 30)
    recorded += record(server.client, 5)
    result = export_outcomes(server.client, KEYS, str(folder / "out"), batch=10)
    assert result.gaps == []
    assert sorted(set(ids(folder / "out"))) == sorted(recorded)


def test_a_step_that_is_asked_for_twice_is_done_once(server: Server, folder: Path) -> None:
    """The client may repeat a call whose answer was lost."""

    def repeat(call: Callable[[], Any]) -> Any:
        call()
        return call()

    recorded = record(server.client, 30)
    assert export_outcomes(at_last_step(server, repeat), KEYS, str(folder / "out"), batch=10).events == 30
    assert ids(folder / "out") == recorded


def test_a_second_export_at_the_same_time_is_told_so(server: Server, folder: Path) -> None:
    """The later one ends with a clear line; events that both wrote are there twice, and no gap is reported."""

    def overtake(call: Callable[[], Any]) -> Any:
        export_outcomes(server.client, KEYS, str(folder / "out"))
        return call()

    recorded = record(server.client, 30)
    with pytest.raises(BrokerError, match="run one export at a time"):
        export_outcomes(at_last_step(server, overtake), KEYS, str(folder / "out"), batch=10)
    assert sorted(set(ids(folder / "out"))) == sorted(recorded)
    assert not (folder / "out" / "_gaps.jsonl").exists()


def test_an_export_that_is_killed_loses_nothing(server: Server, folder: Path) -> None:
    """SIGKILL after its first file, in the middle of the rest."""
    out = folder / "out"
    recorded = [each for _ in range(4) for each in record(server.client, 2500)]
    code = (
        "import sys; from redis import Redis; from redelivery.middleware.brokers.redis.keys import Keys;"
        "from redelivery.workers.export.export import export_outcomes;"
        "export_outcomes(Redis(unix_socket_path=sys.argv[1]), Keys(), sys.argv[2], batch=100)"
    )
    process = subprocess.Popen([sys.executable, "-c", code, server.socket, str(out)])
    deadline = time.monotonic() + 60
    while not list(out.rglob("outcomes-*.parquet")):
        assert process.poll() is None, "it ended before it had written anything"
        assert time.monotonic() < deadline
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait(20) == -signal.SIGKILL
    assert server.client.xlen(KEYS.outcomes) > 0
    result = export_outcomes(server.client, KEYS, str(out))
    assert result.gaps == []
    assert sorted(set(ids(out))) == sorted(recorded)


def test_events_stay_in_the_log_where_the_destination_refuses_them(server: Server, folder: Path) -> None:
    """One clear line, and nothing is lost."""
    (folder / "file").write_text("")
    record(server.client, 3)
    with pytest.raises(InputError, match="cannot be written"):
        export_outcomes(server.client, KEYS, str(folder / "file"))
    assert server.client.xlen(KEYS.outcomes) == 3
    assert export_outcomes(server.client, KEYS, str(folder / "out")).events == 3


def test_a_batch_of_nothing_is_refused(server: Server, folder: Path) -> None:
    """A batch size of zero would never end."""
    with pytest.raises(InputError, match="give 1 or more"):
        export_outcomes(server.client, KEYS, str(folder / "out"), batch=0)


def test_recording_goes_on_while_the_log_is_exported(server: Server, folder: Path) -> None:
    """Each event that is recorded meanwhile is in this export or in the next one."""

    def add(call: Callable[[], Any]) -> Any:
        recorded.extend(record(server.client, 15))
        return call()

    recorded = record(server.client, 30)
    first = export_outcomes(at_last_step(server, add), KEYS, str(folder / "out"), batch=10)
    assert 30 <= first.events < len(recorded), "it ends, though more is recorded than it takes"
    second = export_outcomes(server.client, KEYS, str(folder / "out"))
    assert first.gaps + second.gaps == []
    assert ids(folder / "out") == recorded
