"""The audit on RabbitMQ: a stream of what commands did; reading does not change it, and work goes on without the right to it."""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING, Any, cast

import amqp
import pytest
from structlog.testing import capture_logs
from webhooks.rabbit_node import USER

from redelivery.middleware.brokers.rabbitmq.delays import waiting
from redelivery.middleware.brokers.rabbitmq.messages import message_of
from redelivery.middleware.brokers.rabbitmq.names import AUDIT, OUTCOMES
from redelivery.middleware.brokers.rabbitmq.topology import AUDIT_BYTES, declare_audit, declare_delays
from redelivery.middleware.messages.steps import sealed
from redelivery.workers.brokers.broker import broker_of
from redelivery.workers.brokers.rabbitmq import audit, delay_store
from redelivery.workers.export.tables import read_lines
from redelivery.workers.operations.runs.audit import Act, Acted, acted
from redelivery.workers.operations.runs.audit_export import export_audit
from tests.conformance.brokers import Place, letter
from tests.support.desk import LETTERS, QUEUE, task_message

if TYPE_CHECKING:
    from pathlib import Path

    from redelivery.workers.ports import AuditStore
    from tests.support.desk import Desk
    from tests.support.rabbit import Rabbit


@pytest.fixture
def place(rabbit: Rabbit, folder: Path) -> Place:
    """A virtual host with three dead letters."""
    made = Place("rabbit-classic", rabbit, folder)
    made.put(*(letter(task_message(f"task-{number}")) for number in range(3)))
    return made


@pytest.fixture
def desk(place: Place) -> Desk:
    """An operator's desk there."""
    return place.desk()


@pytest.fixture
def store(desk: Desk) -> AuditStore:
    """Its audit."""
    return broker_of(desk.transport).audit


def said(why: str) -> str:
    """A record."""
    return acted(Act.PURGE, Acted.DONE, LETTERS, actor="ana", why=why)


def publish(rabbit: Rabbit, *bodies: str, **headers: Any) -> None:
    """Publish records into the stream one by one, as a recorder does: records published together share one segment file."""
    with rabbit.connection() as connection:
        assert declare_audit(connection.connection, AUDIT)
        channel = connection.connection.channel()
        for body in bodies:
            channel.basic_publish_confirm(amqp.Message(body, application_headers=headers), routing_key=AUDIT)


def lines(out: Path) -> list[dict[str, Any]]:
    """The exported lines, in the order of the stream."""
    rows = [json.loads(line) for file in out.glob("_audit/*/*.jsonl") for line in file.read_text().splitlines()]
    return sorted(rows, key=lambda row: int(row["record_id"].partition("-")[2]))


def whys(desk: Desk, *words: str) -> list[str]:
    """The reasons that `audit` tells, the newest first."""
    return [each["why"] for each in desk.json("audit", *words)]


def test_what_commands_do_is_recorded_with_why_filter_and_result(desk: Desk, rabbit: Rabbit) -> None:
    """Begin, end or failure of a command is recorded; a look changes nothing."""
    desk.json("dlq", "redrive", LETTERS, "--id", "task-0", "--as", "ana", "--why", "mended")
    desk.json("dlq", "purge", LETTERS, "--id", "task-1", "--yes", "--as", "ben", "--why", "not ours")
    desk.run("dlq", "purge", LETTERS, "--all", "--yes", "--archive", "/dev/null/below", "--as", "cat")
    desk.json("dlq", "purge", LETTERS, "--all", "--dry-run")
    records = desk.json("audit")
    assert records == desk.json("audit")
    assert [(each["actor"], each["act"], each["acted"]) for each in records[::-1]] == [
        ("ana", "redrive", "begun"),
        ("ana", "redrive", "done"),
        ("ben", "purge", "begun"),
        ("ben", "purge", "done"),
        ("cat", "purge", "begun"),
        ("cat", "purge", "failed"),
    ]
    assert (records[-1]["why"], records[-1]["filter"], records[-2]["result"]["moved"]) == ("mended", {"task_ids": ["task-0"]}, 1)
    assert len({each["record_id"] for each in records}) == 6
    assert [each["acted"] for each in desk.json("audit", "--by", "ben")] == ["done", "begun"]
    assert [each["acted"] for each in desk.json("audit", "--limit", "1")] == ["failed"]
    assert {each["actor"] for each in desk.json("audit", "--letters")} == {"ana", "ben"}
    assert rabbit.leftovers() == {"orders": 1}


def test_an_edit_is_named_and_its_values_are_not(desk: Desk, folder: Path) -> None:
    """As on Redis."""
    whole = json.loads(desk.run("dlq", "export", LETTERS, "--id", "task-0").stdout)
    (folder / "changed.json").write_text(json.dumps({**whole, "args": ["a secret"]}))
    desk.json("dlq", "redrive", LETTERS, "--id", "task-0", "--with", str(folder / "changed.json"), "--yes")
    done, begun = desk.json("audit")
    assert (done["acted"], begun["options"]["edited"]) == ("done", ["args"])
    assert "secret" not in json.dumps([done, begun])


def test_what_is_confirmed_is_read_at_once(store: AuditStore) -> None:
    """A reader sees every confirmed record, in order, even while others record."""

    def record_others() -> None:
        for _ in range(20):
            store.record(said("other"))

    others = [threading.Thread(target=record_others) for _ in range(2)]
    for each in others:
        each.start()
    for number in range(20):
        store.record(said(str(number)))
        mine = [json.loads(each.said)["why"] for each in store.records(1_000)]
        assert [why for why in mine if why != "other"] == [str(each) for each in range(number, -1, -1)]
    for each in others:
        each.join()
    assert len(store.records(1_000)) == 60
    assert store.records(5) == store.records(1_000)[:5]


def test_records_are_exported_once_and_told_where_the_stream_is_gone(
    desk: Desk, store: AuditStore, folder: Path, rabbit: Rabbit
) -> None:
    """Records deleted with the stream are a gap of unknown size; later ones are exported, although offsets start again."""
    out, uri = folder / "out", str(folder / "out")
    for count in (3, 2):
        publish(rabbit, *(said(f"{count}.{number}") for number in range(count)), at_ms=1_769_904_000_000)
        done = desk.json("outcomes", "export", "--to", uri)["audit"]
        assert (done["records"], done["gaps"]) == (count, [])
    assert desk.json("outcomes", "export", "--to", uri)["audit"]["records"] == 0
    assert [(row["record_id"], row["why"], row["log"]) for row in lines(out)] == [
        (f"1769904000000-{place}", why, "redelivery.audit") for place, why in enumerate(("3.0", "3.1", "3.2", "2.0", "2.1"))
    ]
    for count in (2, 9):
        with rabbit.connection() as connection:
            connection.default_channel.queue_delete(AUDIT)
        assert whys(desk) == []
        assert whys(desk, "--outcomes", uri)[-5:] == ["2.1", "2.0", "3.2", "3.1", "3.0"]
        publish(rabbit, *(said(f"anew {count}") for _ in range(count)), at_ms=1_769_904_001_000 + count)
        [gap] = export_audit(store, uri).gaps
        assert (gap.lost, gap.why) == (None, "replaced")
        assert not export_audit(store, uri).gaps
    assert len(lines(out)) == 16
    assert whys(desk, "--outcomes", uri) == ["anew 9"] * 9 + ["anew 2"] * 2 + ["2.1", "2.0", "3.2", "3.1", "3.0"]


def test_a_stream_that_let_go_of_records_before_the_export_says_so(
    desk: Desk, store: AuditStore, folder: Path, rabbit: Rabbit
) -> None:
    """The stream drops whole files above its size limit. The export reports a gap of unknown size; without a drop there is none."""
    large, count = said("x" * 64 * 1024), AUDIT_BYTES // 2**16
    publish(rabbit, said("first"))
    assert export_audit(store, str(folder / "out")).records == 1
    publish(rabbit, *[large] * (count // 2))
    assert export_audit(store, str(folder / "out")).records == count // 2
    publish(rabbit, said("second"))
    assert not export_audit(store, str(folder / "out")).gaps
    publish(rabbit, *[large] * (count * 2), said("last"))
    assert json.loads(store.records(1)[0].said)["why"] == "last"
    assert count // 2 < len(store.records(10 * count)) < count * 2
    done = desk.run("outcomes", "export", "--to", str(folder / "out"))
    [gap] = read_lines(str(folder / "out" / "_audit"), "_gaps.jsonl")
    assert (gap.get("lost"), gap["why"]) == (None, "cap")
    assert "A gap: an unknown number of records of the audit left the broker before they were exported (cap" in done.stderr
    assert lines(folder / "out")[-1]["why"] == "last"


@pytest.mark.full
def test_without_the_right_to_a_stream_the_work_is_done_and_its_events_are_the_audit(
    desk: Desk, rabbit: Rabbit, folder: Path
) -> None:
    """A warning says so, also for an export that may only not read the stream; the events are exported all the same."""
    rabbit.ctl("set_permissions", USER, f"^(?!{AUDIT})", ".*", ".*")
    with capture_logs() as logs:
        desk.json("dlq", "purge", LETTERS, "--id", "task-0", "--yes", "--as", "ana")
    assert [line["log_level"] for line in logs if line["event"] == "audit.missing"] == ["warning"] * 2
    assert desk.run("audit").stdout.startswith("There are no records. `redelivery audit --letters`")
    assert [each["actor"] for each in desk.json("audit", "--letters")] == ["ana"]
    rabbit.ctl("set_permissions", USER, ".*", ".*", f"^(?!{AUDIT})")
    desk.json("dlq", "purge", LETTERS, "--id", "task-1", "--yes", "--as", "ana")
    with capture_logs() as logs:
        done = desk.json("outcomes", "export", "--to", str(folder / "out"))
    assert (done["events"], done["audit"]["records"]) == (2, 0)
    assert "audit.unread" in {line["event"] for line in logs}
    assert rabbit.depth(OUTCOMES) == 0


def test_a_queue_of_this_name_that_is_no_stream_stops_no_export(desk: Desk, rabbit: Rabbit, folder: Path) -> None:
    """A warning says so, and the events are exported."""
    with rabbit.connection() as connection:
        connection.default_channel.queue_declare(AUDIT, durable=True, auto_delete=False)
    desk.json("dlq", "purge", LETTERS, "--id", "task-0", "--yes", "--as", "ana")
    with capture_logs() as logs:
        assert desk.run("audit").stdout.startswith("There are no records.")
        assert desk.json("outcomes", "export", "--to", str(folder / "out"))["events"] == 1
    assert {line["log_level"] for line in logs if line["event"] == "audit.unread"} == {"warning"}


def test_during_an_alarm_nothing_is_begun_that_cannot_be_recorded(
    private_rabbit: Rabbit, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command refuses with one line; existing records can be read and exported, because that publishes nothing."""
    monkeypatch.setattr(audit, "TIMEOUT", 0.5)
    place = Place("rabbit-classic", private_rabbit, folder)
    place.put(letter(task_message("task-0")))
    desk = place.desk()
    publish(private_rabbit, said("before"))
    private_rabbit.node.evaluate("rabbit_alarm:set_alarm({{resource_limit, memory, node()}, []}).")
    done = desk.run("dlq", "purge", LETTERS, "--id", "task-0", "--yes")
    assert done.exit_code != 0
    assert "does not accept the record for redelivery.audit: look at its alarms" in " ".join(done.stderr.split())
    assert whys(desk) == ["before"]
    assert desk.json("outcomes", "export", "--to", str(folder / "out"))["audit"]["records"] == 1
    private_rabbit.node.evaluate("rabbit_alarm:clear_alarm({resource_limit, memory, node()}).")
    assert place.ids(LETTERS) == ["task-0"]


def test_during_an_alarm_no_delayed_message_is_changed(
    private_rabbit: Rabbit, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker would carry out later what is sent to it now, although the message was given back: there would be two."""
    monkeypatch.setattr(delay_store, "TIMEOUT", 0.5)
    monkeypatch.setattr(delay_store, "carry_out", lambda *_: pytest.fail("the message was published"))
    desk = Place("rabbit-classic", private_rabbit, folder).desk()
    transport = cast("Any", desk.transport)
    waits = waiting(transport.keys, QUEUE, sealed(task_message("task-0")), 3_600_000)
    assert waits is not None
    with private_rabbit.connection() as connection:
        declare_delays(connection.connection, transport.keys)
        connection.default_channel.basic_publish(message_of(waits.message, target=waits.target), *waits.target)
    private_rabbit.node.evaluate("rabbit_alarm:set_alarm({{resource_limit, memory, node()}, []}).")
    for change in (("promote",), ("reschedule", "--in", "2h"), ("cancel",)):
        done = desk.run("delayed", *change, "task-0")
        assert done.exit_code != 0
        assert "does it have a memory or disk alarm" in done.stderr
    assert desk.json("delayed", "list")["totals"] == {QUEUE: 1}


def test_what_strangers_write_holds_nothing_up(desk: Desk, store: AuditStore, folder: Path, rabbit: Rabbit) -> None:
    """Foreign messages in the stream are exported unchanged, and not listed."""
    publish(rabbit, "\x00{", at_ms="soon")
    publish(rabbit, "[]", at_ms=-5)
    store.record(said("ours"))
    assert whys(desk) == ["ours"]
    assert export_audit(store, str(folder / "out")).records == 3
    assert [row.get("unreadable", row.get("why")) for row in lines(folder / "out")] == ["\x00{", "[]", "ours"]
