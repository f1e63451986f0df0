"""`redelivery delayed`: waiting messages are shown, cancelled, promoted and rescheduled, each in one step with its event."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
from celery.result import AsyncResult

from redelivery.middleware.messages.events import Outcome
from redelivery.middleware.messages.steps import dead, undelivered
from redelivery.middleware.ports import Answer
from redelivery.workers.brokers.redis.delay_store import RedisDelayStore
from redelivery.workers.operations.delayed import changes as delayed_changes
from tests.support.desk import QUEUE, Desk, body_of, each_desk, task_message

if TYPE_CHECKING:
    from tests.support.servers import Server

__all__ = ["each_desk"]

HOUR = 3_600_000


def waiting(desk: Desk) -> list[tuple[str, int]]:
    """Messages that wait: task id, and in how many ms each is due."""
    now = desk.transport.now_ms()
    return [(each.contents.task_id, each.due_ms - now) for each in RedisDelayStore(desk.transport).soonest(100)]


def test_show_gives_the_whole_message(desk: Desk) -> None:
    """Arguments and due time are shown; `redact` hides the arguments, and hostile text is escaped."""
    desk.delay(task_message("a", body=body_of(42, "\x1b[2Jblue")), HOUR)
    done = desk.run("delayed", "show", "a")
    assert done.exit_code == 0
    for part in ("task id", "desk.pack", QUEUE, '[42, "\\u001b[2Jblue"]', "in 59m 59s"):
        assert part in done.stdout.replace("in 1h", "in 59m 59s")
    [row] = desk.json("delayed", "show", "a")
    assert (row["task_id"], row["body"][0][0], row["queue"]) == ("a", 42, QUEUE)
    assert row["due_ms"] > desk.transport.now_ms()


@pytest.mark.parametrize("words", [("show",), ("cancel",), ("promote",), ("reschedule", "--in", "5m")])
def test_a_task_that_does_not_wait_is_an_error(desk: Desk, words: tuple[str, ...]) -> None:
    """One line names the task."""
    done = desk.run("delayed", *words, "nope")
    assert (done.exit_code, done.stdout) == (2, "")
    assert "task nope is not delayed" in done.stderr


@pytest.mark.filterwarnings("ignore:Call to deprecated setex")  # Celery's own key, in its result backend
def test_cancel_takes_it_out_for_good(desk: Desk) -> None:
    """It is recorded as cancelled by an operator, nothing of it is left in the store, and the other message stays."""
    desk.app.conf.result_backend = desk.server.url
    desk.delay(task_message("a"), HOUR)
    desk.delay(task_message("b"), 2 * HOUR)
    done = desk.run("delayed", "cancel", "a")
    assert (done.exit_code, done.stdout) == (0, "1 message cancelled.\n")
    assert [task_id for task_id, _ in waiting(desk)] == ["b"]
    event = desk.events[-1]
    assert (event.task_id, event.outcome, event.reason, event.generation) == ("a", "cancelled", "operator", 0)
    index: Any = desk.client.zrange(desk.keys.delayed_tasks, 0, -1)
    assert [member[:2] for member in index] == [b"b\x06"]
    assert AsyncResult("a", app=desk.app).state == "REVOKED"
    assert desk.run("delayed", "cancel", "b").exit_code == 0
    left: Any = desk.client.keys("redelivery:delayed*")
    assert left == []


def test_promote_makes_it_due_now(desk: Desk) -> None:
    """The dispatcher's next look moves it to its queue; its other headers are unchanged."""
    desk.delay(task_message("a", custom="kept"), HOUR)
    assert desk.run("delayed", "promote", "a").stdout == "1 message promoted.\n"
    [(_, left)] = waiting(desk)
    assert left <= 0
    event = desk.events[-1]
    assert (event.outcome, event.reason, event.delay_ms) == ("deferred", "operator", 0)
    assert desk.transport.stores.promote(10)[0] == 1
    [message] = desk.messages()
    assert (message["headers"]["id"], message["headers"]["custom"]) == ("a", "kept")
    assert message["headers"]["eta"] == message["headers"]["redelivery"]["served_eta"]


@pytest.mark.parametrize(("words", "expected"), [(("--in", "15m"), 900_000), (("--in", "3h"), 3 * HOUR), (("--in", "0"), 0)])
def test_reschedule_gives_it_another_time(desk: Desk, words: tuple[str, ...], expected: int) -> None:
    """Earlier or later, by the broker's clock. Body, properties and headers stay; the ETA becomes the new time."""
    message = task_message("a", priority=6, custom="kept")
    desk.delay(message, HOUR)
    desk.delay(task_message("b"), 2 * HOUR)
    before = RedisDelayStore(desk.transport).of_task("a")[0].contents.message
    assert desk.run("delayed", "reschedule", "a", *words).exit_code == 0
    left = dict(waiting(desk))
    assert expected - 60_000 <= left["a"] <= expected
    [after] = RedisDelayStore(desk.transport).of_task("a")
    assert before is not None
    assert after.contents.message is not None
    assert (after.contents.message["body"], after.contents.message["properties"]) == (before["body"], before["properties"])
    assert after.contents.headers["custom"] == "kept"
    assert datetime.fromisoformat(after.contents.headers["eta"]).timestamp() * 1000 == pytest.approx(after.due_ms, abs=1)
    first: Any = desk.client.zrange(desk.keys.destinations, 0, 0, withscores=True)
    assert first[0][1] == min(each.due_ms for each in RedisDelayStore(desk.transport).soonest(10))
    event = desk.events[-1]
    assert (event.outcome, event.due_ms, event.reason) == ("deferred", after.due_ms, "operator")


def test_reschedule_to_a_time_of_day(desk: Desk) -> None:
    """With a time zone, or in UTC."""
    desk.delay(task_message("a"), HOUR)
    for text in ("2100-01-01T09:00:00+01:00", "2100-01-01T08:00:00"):
        assert "2100-01-01 08:00:00Z" in desk.run("delayed", "reschedule", "a", "--at", text).stdout
        [found] = RedisDelayStore(desk.transport).of_task("a")
        assert found.due_ms == datetime(2100, 1, 1, 8, tzinfo=UTC).timestamp() * 1000


@pytest.mark.parametrize(
    "words",
    [(), ("--in", "5m", "--at", "2100-01-01T00:00:00Z"), ("--at", "soon"), ("--in", "soon"), ("--at", "0026-07-01T08:00:00Z")],
)
def test_a_time_that_cannot_be_read_is_an_error(desk: Desk, words: tuple[str, ...]) -> None:
    """Nothing is changed."""
    desk.delay(task_message("a"), HOUR)
    before = RedisDelayStore(desk.transport).of_task("a")
    assert desk.run("delayed", "reschedule", "a", *words).exit_code == 2
    assert RedisDelayStore(desk.transport).of_task("a") == before


@pytest.mark.parametrize("words", [("cancel",), ("promote",), ("reschedule", "--in", "5m")])
def test_a_dry_run_changes_nothing(desk: Desk, words: tuple[str, ...]) -> None:
    """The command prints what it would do."""
    desk.delay(task_message("a"), HOUR)
    before, events = RedisDelayStore(desk.transport).of_task("a"), len(desk.events)
    done = desk.run("delayed", *words, "a", "--dry-run")
    assert (done.exit_code, done.stdout.startswith("1 message would be")) == (0, True)
    [row] = json.loads(desk.run("delayed", *words, "a", "--dry-run", "--json").stdout)
    assert (row["task_id"], row["dry_run"]) == ("a", True)
    assert (RedisDelayStore(desk.transport).of_task("a"), len(desk.events)) == (before, events)


def test_what_has_become_due_meanwhile_is_left_alone(desk: Desk) -> None:
    """The dispatcher has moved it before the command: nothing is recorded."""
    desk.delay(task_message("a"), HOUR)
    [found] = RedisDelayStore(desk.transport).of_task("a")
    delayed_changes.reschedule(desk.install, found, due_ms=None)
    desk.transport.stores.promote(10)
    events = len(desk.events)
    assert delayed_changes.cancel(desk.install, found) is Answer.ALREADY
    assert delayed_changes.reschedule(desk.install, found, due_ms=None) is Answer.ALREADY
    assert (len(desk.events), desk.ids()) == (events, ["a"])


@pytest.mark.parametrize("is_undelivered", [True, False])
def test_a_dead_letter_that_waits_is_no_delayed_message(desk: Desk, is_undelivered: bool) -> None:
    """It is shown as a dead letter, and a change is refused: it waits for its queue, or for its handler."""
    facts: dict[str, Any] = {"reason": "exhausted", "at_ms": 5, "seen_ms": 1, "attempt": None, "failed": None}
    letter = dead(task_message("a"), QUEUE, dead_letter_queue="DLQ.orders", **facts)
    desk.delay(undelivered(letter, "DLQ.orders") if is_undelivered else letter, HOUR)
    assert "yes: it waits" in desk.run("delayed", "show", "a").stdout
    for words in (("cancel",), ("promote",), ("reschedule", "--in", "5m")):
        done = desk.run("delayed", *words, "a")
        assert (done.exit_code, "is dead, and waits" in done.stderr) == (2, True)


@pytest.mark.parametrize("act", ["cancel", "reschedule"])
def test_a_change_that_the_broker_refuses_changes_nothing(desk: Desk, act: str) -> None:
    """If the log is a key of another type, the message keeps waiting unchanged."""
    desk.delay(task_message("a"), HOUR)
    desk.client.delete(desk.keys.outcomes)
    desk.client.set(desk.keys.outcomes, "x")
    before = RedisDelayStore(desk.transport).of_task("a")
    words = ("cancel", "a") if act == "cancel" else ("reschedule", "a", "--in", "5m")
    assert desk.run("delayed", *words).exit_code == 2
    assert RedisDelayStore(desk.transport).of_task("a") == before


def test_a_full_broker_lets_a_message_be_promoted(desk: Desk) -> None:
    """The script frees memory before it writes."""
    desk.delay(task_message("a"), HOUR)
    desk.client.config_set("maxmemory-policy", "noeviction")
    desk.client.config_set("maxmemory", 1)
    done = desk.run("delayed", "promote", "a")
    desk.client.config_set("maxmemory", 0)
    assert done.exit_code == 0
    assert waiting(desk)[0][1] <= 0


def test_it_works_below_a_key_prefix(any_server: Server) -> None:
    """All keys of the command are below the prefix."""
    desk = Desk(any_server, prefix="shop:")
    desk.delay(task_message("a"), HOUR)
    desk.delay(task_message("b"), HOUR)
    assert desk.run("delayed", "promote", "a").exit_code == 0
    assert desk.run("delayed", "cancel", "b").exit_code == 0
    assert [event.outcome for event in desk.events][-2:] == [Outcome.DEFERRED, Outcome.CANCELLED]
    names: Any = desk.client.keys("*")
    assert all(name.startswith(b"shop:") for name in names)
    desk.transport.close()


def test_a_change_of_many_that_breaks_says_and_records_what_it_had_changed(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker is gone before the second message: the first is promoted, and the error and the audit say so."""
    ids, promote = [desk.delay(task_message(name)) for name in ("a", "b")], delayed_changes.reschedule

    def broken(runtime: Any, found: Any, **options: Any) -> Any:
        if found.contents.task_id == "b":
            raise ConnectionError
        return promote(runtime, found, **options)

    monkeypatch.setattr(delayed_changes, "reschedule", broken)
    done = desk.run("delayed", "promote", *ids)
    assert done.exit_code == 2
    assert "1 message of 2 promoted, then: " in done.stderr
    assert "; run the command again from task b on: `redelivery task show` says whether" in done.stderr
    assert [(each["acted"], each["tasks"]) for each in desk.json("audit")] == [("failed", ["a"])]
