"""The content of the screens: figures, texts of the pictures, waits, bytes, exported events, the source of each setting."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from redelivery.middleware.messages.envelope import Attempt, Envelope
from redelivery.workers.operations.letters.filter import Filter
from redelivery.workers.operations.metrics.metrics import Family
from redelivery.workers.operations.runs.operation import Kind, Options, State, begin, found
from redelivery.workers.ports import Condition, Gauge
from redelivery.workers.web.shared.figures import Figures, alarms
from tests.support.desk import LETTERS, QUEUE, body_of, copies, task_message
from tests.support.running import until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.desk import Desk
    from tests.support.page.web_page import WebPage


def test_the_last_hour_is_counted_and_drawn(page: WebPage, desk: Desk) -> None:
    """Each kind, with its sum and its figure for each minute."""
    for _ in range(3):
        desk.die()
    shown = page.operator().get("/")
    for kind, count in (("succeeded", 0), ("retried", 0), ("died", 3)):
        label = f"{kind} in each minute of the last hour: {count} in all, at most"
        assert f'aria-label="{label}' in shown.text, (label, shown.text)
        assert f"{kind} {count} " in shown.read, shown.read


def test_a_cause_has_its_day_drawn_and_when_it_was_first_and_last_seen(page: WebPage, desk: Desk) -> None:
    """Nothing is drawn for deaths of two days ago."""
    desk.die(fingerprint="f-one", ago_ms=2 * 86_400_000)
    desk.die(fingerprint="f-one", ago_ms=3 * 3_600_000)
    desk.die(fingerprint="f-one")
    shown = page.operator().get("/causes")
    assert 'aria-label="2 died in the last day, in half hours"' in shown.text
    assert shown.text.count("<rect ") == 2
    assert ("2d ago" in shown.read, "1 cause of 3 dead letters" in shown.read) == (True, True), shown.read


def test_a_letter_has_each_attempt_with_its_wait_and_its_bytes_when_asked(page: WebPage, desk: Desk) -> None:
    """The first two attempts have waited, the last one has not."""
    now = desk.transport.now_ms()
    attempts = [
        Attempt(at_ms=now - ago, worker="w7@desk", exception="ValueError: no", delay_ms=ms) for ago, ms in ((9, 2_000), (4, 65_000))
    ]
    tried = Envelope(attempt=2, delivery=2, first_seen_ms=now - 10, attempts=tuple(each.to_header() for each in attempts))
    task_id = desk.die(task_message(body=body_of("caf\u00e9"), redelivery=tried.to_header()))
    operator, path = page.operator(), f"/letter?queue={LETTERS}&id={task_id}"
    shown = operator.get(path)
    rows = [row for row in shown.text.split("<tr>") if 'data-label="attempt"' in row]
    assert [row.split('data-label="then waited">')[1].split("<")[0] for row in rows] == ["2s", "1m 5s", "\N{EN DASH}"]
    assert [row.split('data-label="attempt">')[1].split("<")[0] for row in rows] == ["1", "2", "3"]
    assert "<h2>Bytes</h2>" not in shown.text
    [raw] = desk.client.lrange(LETTERS, 0, -1)
    assert json.loads(raw)["body"] in operator.get(f"{path}&raw=1").text


def test_a_task_has_its_exported_events(desk: Desk, open_page: Callable[..., WebPage], tmp_path: Path) -> None:
    """The export has removed them from the log."""
    out = tmp_path / "out"
    page = open_page(settings=json.dumps({"outcome_archive": str(out)}))
    task_id = desk.die()
    desk.json("outcomes", "export", "--to", str(out))
    desk.client.delete(desk.keys.outcomes, LETTERS)
    shown = page.operator().get(f"/task?id={task_id[:8]}").read
    for said in (task_id, "Generation 0", "dead lettered exhausted", "It is in no queue"):
        assert said in shown, (said, shown)


def test_a_queue_has_the_source_of_each_setting_and_its_delays_drawn(open_page: Callable[..., WebPage]) -> None:
    """Each value of the policy has its source. The minimum and maximum of each delay are next to the picture."""
    settings = {"queues": {"#": {"max_delivery_attempts": 3}, QUEUE: {"delivery_delay": 7.0}}}
    shown = open_page(settings=json.dumps(settings)).operator().get(f"/queue?name={QUEUE}")
    rows = {row.split("<code>")[1].split("<")[0]: row for row in shown.text.split("<tr>") if '<th scope="row"><code>' in row}
    for name, source in (("max_delivery_attempts", "#"), ("delivery_delay", QUEUE), ("max_redelivery_delay", "built-in")):
        assert source in rows[name].split('class="faint wrap">')[1], rows[name]
    assert [f'class="nowrap">after attempt {number}<' in shown.text for number in (1, 2, 3)] == [True, True, False]
    assert shown.text.count('class="reach"') == 2


def test_what_is_due_is_drawn(desk: Desk, page: WebPage) -> None:
    """The text of the picture has all due times."""
    desk.delay(task_message(), 60_000)
    desk.delay(task_message(), 3_600_000)
    shown = page.operator().get("/delayed").text
    assert 'aria-label="2 messages by when they are due, from now until the last of them: at most 1' in shown, shown[-3000:]


def test_an_operation_that_has_ended_has_its_figures(desk: Desk, open_page: Callable[..., WebPage]) -> None:
    """How many dead letters there were, were chosen, went back and could not go, and where they went."""
    copies(desk, 5)
    desk.client.lpush(LETTERS, b"nothing")
    page = open_page("--allow", "redrive")
    begun = begin(desk.install, Kind.REDRIVE, LETTERS, Filter(), Options(rate=100.0), actor="ana", why="mended")
    until(lambda: found(desk.install, begun.id).state is State.DONE, 60, "the page to carry it out")
    shown = page.operator().get(f"/operation?id={begun.id}").read
    figures = (
        "there at first 6",
        "looked at 6",
        "chosen 6",
        "sent back 5",
        "cannot go 1",
        "died again 0",
        "rate 100/s",
        f"{QUEUE} 5",
    )
    for said in (*figures, "1 its bytes were never a message", "by ana: mended", "ana redrive done"):
        assert said in shown, (said, shown)


def test_the_overview_says_what_is_late_and_how_old_the_oldest_dead_letter_is(page: WebPage, desk: Desk) -> None:
    """For overdue messages: that nobody moves them, and what to do. Before they are due: that nobody would move them."""
    desk.die(ago_ms=3 * 3_600_000)
    desk.delay(task_message())
    operator = page.operator()
    before = operator.get("/").read
    assert "No dispatcher leads, and messages wait for their time. Start a worker, or redelivery dispatcher" in before, before
    assert "3h oldest dead letter" in before or "oldest dead letter 3h" in before, before
    late_ms = desk.transport.now_ms() - 120_000
    for name in (desk.keys.due(QUEUE), desk.keys.destinations):
        waiting: Any = desk.client.zrange(name, 0, -1)
        desk.client.zadd(name, dict.fromkeys(waiting, late_ms))
    until(lambda: "Delayed messages are overdue by 2m" in operator.get("/").read, 30, "it to be overdue")
    assert "A worker or redelivery dispatcher must run and reach the broker" in operator.get("/").read


@pytest.mark.parametrize(
    ("said", "condition", "alarm"),
    [
        ({"outcome_log_max_bytes": 1000, "outcome_log_bytes": 850}, None, "The outcome log is 85% full."),
        ({"outcome_log_max_bytes": 1000, "outcome_log_bytes": 10}, None, ""),
        ({"outcome_log_lost_events": 1200}, None, "1,200 events left the full outcome log before an export."),
        ({"workers": 0}, None, "No worker renews its lease."),
        ({"workers": 2}, None, ""),
        ({"dispatchers": 1, "delayed_messages": 5}, None, ""),
        ({"oldest_dead_letter_age_seconds": 90_000}, None, "Dead letters wait in DLQ.orders, the oldest for 1d 1h."),
        ({"oldest_dead_letter_age_seconds": 80_000}, None, ""),
        ({}, Condition(memory=(95, 100)), "The broker is nearly full: it uses 95% of its memory."),
        ({}, Condition(memory=(100, 100)), "The broker is full: it uses all of its memory."),
        ({}, Condition(memory=(50, 100)), ""),
    ],
)
def test_an_alarm_follows_from_its_figure_alone(said: dict[str, int], condition: Condition | None, alarm: str) -> None:
    """One alarm at a time. Each says what to do."""
    families = {}
    for name, value in said.items():
        sample = Gauge(name, float(value), {"dead_letter_queue": LETTERS})
        families[f"redelivery_{name}"] = Family(f"redelivery_{name}", "gauge", "", [sample])
    found = alarms(Figures(families, 0, None, condition))
    assert [title for title, _ in found] == ([alarm] if alarm else [])
    assert all(todo for _, todo in found)
