"""Changes by the page: only by forms, as a browser without scripts sends them."""

from __future__ import annotations

import base64
import json
import re
from typing import TYPE_CHECKING

import pytest

from redelivery.middleware.messages.events import Outcome
from redelivery.workers.brokers.broker import broker_of
from redelivery.workers.operations.letters.filter import Filter
from redelivery.workers.operations.runs.audit import entries
from redelivery.workers.operations.runs.operation import Kind, State, begin, found, listed, turn
from tests.support.desk import LETTERS, QUEUE, body_of, task_message
from tests.support.running import until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.desk import Desk
    from tests.support.page.web_page import Answer, Visitor, WebPage


@pytest.fixture
def operator(open_page: Callable[..., WebPage]) -> Visitor:
    """An operator with all rights."""
    return open_page("--allow", "all", "--as", "ada").operator()


@pytest.fixture
def _led_elsewhere(desk: Desk) -> None:
    """Another process leads the operations and does nothing, so that new operations wait."""
    desk.client.set(desk.keys.operator, "another")


def letter_of(operator: Visitor, task_id: str) -> Answer:
    """The screen of a dead letter."""
    return operator.get(f"/letter?queue={LETTERS}&id={task_id}")


def test_a_form_does_not_send_back_another_death(desk: Desk, operator: Visitor) -> None:
    """Two tabs show one dead letter. One sends it back, and its task dies again: the other tab has not shown this death."""
    task_id = desk.die()
    [seen, *_], [late, *_] = [letter_of(operator, task_id).forms("/letter/redrive") for _ in range(2)]
    assert operator.post("/letter/redrive", seen).status == 303
    desk.die(task_message(task_id), said="the account is closed")
    refused = operator.post("/letter/redrive", late)
    assert (refused.status, "has died again since you opened this dead letter" in refused.read) == (400, True), refused.read
    assert len(desk.ids()) == 1
    [now, *_] = letter_of(operator, task_id).forms("/letter/redrive")
    assert operator.post("/letter/redrive", now).status == 303


def test_a_letter_goes_back_by_its_button(desk: Desk, operator: Visitor) -> None:
    """It is in its queue, in its next generation. The audit has the user's name."""
    task_id = desk.die()
    [form, *_] = letter_of(operator, task_id).forms("/letter/redrive")
    answer = operator.post("/letter/redrive", {**form, "why": "the bug is mended"})
    assert "redriven" in operator.follow(answer).read
    [message] = desk.messages()
    assert (message["headers"]["id"], message["headers"]["redelivery"]["generation"]) == (task_id, 1)
    [entry] = entries(desk.transport, 10)
    assert (entry.actor, entry.act, entry.queue, list(entry.tasks), entry.why) == (
        "ada",
        "redrive",
        LETTERS,
        [task_id],
        "the bug is mended",
    )


def test_a_letter_that_has_left_meanwhile_is_not_sent_again(desk: Desk, operator: Visitor) -> None:
    """A second click is told that it has left."""
    task_id = desk.die()
    [form, *_] = letter_of(operator, task_id).forms("/letter/redrive")
    operator.post("/letter/redrive", form)
    answer = operator.post("/letter/redrive", form)
    assert (answer.status, "holds no dead letter of task" in answer.read, len(desk.ids())) == (400, True, 1)


def test_a_letter_is_changed_before_it_goes(desk: Desk, operator: Visitor) -> None:
    """The form takes its arguments as JSON. Other input changes nothing."""
    task_id = desk.die(task_message(body=body_of("blu", "</textarea><script>alert(1)</script>")))
    _, form = letter_of(operator, task_id).forms("/letter/redrive")
    assert json.loads(form["changes"])["args"] == ["blu", "</textarea><script>alert(1)</script>"]
    refused = operator.post("/letter/redrive", {**form, "changes": "{"})
    assert (refused.status, desk.ids()) == (400, [])
    operator.post("/letter/redrive", {**form, "changes": json.dumps({"args": ["blue", 2]})})
    [message] = desk.messages()
    assert json.loads(base64.b64decode(message["body"]))[0] == ["blue", 2]
    [entry] = entries(desk.transport, 10)
    assert entry.options == {"edited": ["args"]}
    assert "edited args" in operator.get("/operations").read


def test_the_audit_names_only_what_a_change_changed(desk: Desk, operator: Visitor) -> None:
    """The form has all fields of a dead letter. The audit does not name unchanged fields."""
    task_id = desk.die(task_message(body=body_of("blu")))
    _, form = letter_of(operator, task_id).forms("/letter/redrive")
    operator.post("/letter/redrive", {**form, "changes": json.dumps(json.loads(form["changes"]) | {"kwargs": {"size": 2}})})
    [entry] = entries(desk.transport, 10)
    assert entry.options == {"edited": ["kwargs"]}


@pytest.mark.usefixtures("_led_elsewhere")
def test_letters_are_counted_then_redriven_as_an_operation(desk: Desk, operator: Visitor) -> None:
    """The dry run changes nothing. The operation has the filter, the options and the user."""
    for _ in range(3):
        desk.die(fingerprint="f-one")
    desk.die(fingerprint="f-two")
    dry = operator.get(f"/operations/preview?kind=redrive&queue={LETTERS}&fingerprint=f-one&canary=1&rate=50/s")
    assert "3 dead letters of 4 would go. Nothing was changed." in dry.read
    assert (len(desk.ids(LETTERS)), listed(desk.install)) == (4, [])
    [form] = dry.forms("/operations/begin")
    shown = operator.follow(operator.post("/operations/begin", {**form, "why": "mended"}))
    [begun] = listed(desk.install)
    assert (begun.actor, begun.why, begun.queue, begun.filter.fingerprints) == ("ada", "mended", LETTERS, ("f-one",))
    assert (begun.options.canary, begun.options.rate, begun.state) == (1, 50.0, State.WAITING)
    assert "Redrive of DLQ.orders waiting" in shown.read


@pytest.mark.usefixtures("_led_elsewhere")
def test_an_operation_is_paused_resumed_and_aborted(desk: Desk, operator: Visitor) -> None:
    """By its button. The audit has each of them."""
    desk.die()
    [form] = operator.get(f"/operations/preview?kind=purge&queue={LETTERS}").forms("/operations/begin")
    shown = operator.follow(operator.post("/operations/begin", form))
    [begun] = listed(desk.install)
    for name, state in (("pause", State.PAUSED), ("resume", State.WAITING), ("abort", State.ABORTED)):
        [turn] = shown.forms(f"/operation/{name}")
        shown = operator.follow(operator.post(f"/operation/{name}", turn))
        assert found(desk.install, begun.id).state is state
    assert shown.forms("/operation/abort") == []
    assert [each.acted for each in entries(desk.transport, 10)] == ["aborted", "resumed", "paused", "begun"]
    assert len(desk.ids(LETTERS)) == 1


@pytest.mark.usefixtures("_led_elsewhere")
def test_an_option_and_a_filter_have_one_name_on_each_screen(desk: Desk, operator: Visitor) -> None:
    """In the form, the dry run, the operation, and the list of operations."""
    desk.die(task_message(task="desk.pack"))
    names = {
        "canary": "1",
        "canary_wait": "90s",
        "rate": "50/s",
        "abort_after": "3",
        "abort_share": "5%",
        "limit": "7",
        "to": QUEUE,
        "create": "1",
    }
    said = "&".join(f"{name}={value.replace('%', '%25')}" for name, value in names.items())
    form = operator.get(f"/letters?queue={LETTERS}")
    dry = operator.get(f"/operations/preview?kind=redrive&queue={LETTERS}&task=desk.*&{said}")
    [begin] = dry.forms("/operations/begin")
    shown = operator.follow(operator.post("/operations/begin", begin))
    for name, value in names.items():
        pattern = rf'<label>([a-z ]+) <input name="{name}"' if name != "create" else r'name="create" value="1"> ([a-z ]+)</label>'
        [label] = re.findall(pattern, form.text)
        assert f"{label} {'yes' if name == 'create' else value}" in dry.read, (label, dry.read)
        assert f"<dt>{label}</dt>" in shown.text, (label, shown.read)
    for answer in (dry, shown, operator.get("/operations")):
        assert "--task 'desk.*'" in answer.read, answer.read
    assert "redrive begun DLQ.orders tasks desk.*" in shown.read, "the audit has the filter, too"


def test_all_letters_are_meant_only_where_that_is_said(desk: Desk, operator: Visitor) -> None:
    """A form without its filter begins nothing."""
    desk.die()
    [form] = operator.get(f"/operations/preview?kind=purge&queue={LETTERS}&task=desk.*").forms("/operations/begin")
    del form["task"]
    answer = operator.post("/operations/begin", form)
    assert (answer.status, listed(desk.install)) == (400, [])


def test_letters_are_moved_to_no_queue_where_they_would_run(desk: Desk, open_page: Callable[..., WebPage]) -> None:
    """A user who may move, but not redrive, must not make them run. The dry run and the form refuse, and name the redrive."""
    desk.die()
    operator = open_page("--allow", "move").operator()
    [form] = operator.get(f"/operations/preview?kind=move&queue={LETTERS}&to=DLQ.kept&create=1").forms("/operations/begin")
    for create in ("1", ""):
        dry = operator.get(f"/operations/preview?kind=move&queue={LETTERS}&to={QUEUE}&create={create}")
        assert (dry.status, dry.forms("/operations/begin"), "redrive" in dry.read) == (400, [], True), dry.read
        begun = operator.post("/operations/begin", {**form, "to": QUEUE, "create": create})
        assert (begun.status, "redrive" in begun.read) == (400, True), begun.read
    assert (listed(desk.install), desk.ids(), len(desk.ids(LETTERS))) == ([], [], 1)
    assert operator.post("/operations/begin", form).status == 303


def test_waiting_messages_are_cancelled_by_their_task_behind_a_dry_run(desk: Desk, operator: Visitor) -> None:
    """The dry run changes nothing. The operation has the tasks, the queue and the user."""
    for number in range(3):
        desk.delay(task_message(f"task-late-{number}", task="shop.remind"))
    other = desk.delay(task_message("task-other"))
    [form] = operator.get(f"/delayed?queue={QUEUE}").forms("/operations/preview")
    assert (form["kind"], form["queue"]) == ("cancel", QUEUE)
    dry = operator.get(f"/operations/preview?kind=cancel&queue={QUEUE}&task=shop.*&rate=50/s")
    assert "3 messages of 4 would be cancelled. Nothing was changed." in dry.read
    assert (listed(desk.install), "4 messages wait" in operator.get("/delayed").read) == ([], True)
    [form] = dry.forms("/operations/begin")
    shown = operator.follow(operator.post("/operations/begin", {**form, "why": "the campaign is over"}))
    assert f"Cancel of {QUEUE} waiting" in shown.read
    [begun] = listed(desk.install)
    assert (begun.kind, begun.queue, begun.filter.tasks, begun.actor, begun.why) == (
        "cancel",
        QUEUE,
        ("shop.*",),
        "ada",
        "the campaign is over",
    )
    until(lambda: found(desk.install, begun.id).state is State.DONE, 60, "the page to carry it out")
    left = [each.contents.task_id for each in broker_of(desk.transport).delayed.soonest(10)]
    assert (left, found(desk.install, begun.id).moved) == ([other], 3)


def test_all_that_waits_is_cancelled_only_where_that_is_said(desk: Desk, operator: Visitor) -> None:
    """A form without a task begins nothing."""
    desk.delay(task_message())
    [form] = operator.get("/operations/preview?kind=cancel&task=desk.*").forms("/operations/begin")
    del form["task"]
    assert (operator.post("/operations/begin", form).status, listed(desk.install)) == (400, [])


def test_none_is_no_limit(desk: Desk, operator: Visitor) -> None:
    """Zero is refused. It does not mean an empty field."""
    desk.die()
    [form] = operator.get(f"/operations/preview?kind=purge&queue={LETTERS}&limit=1").forms("/operations/begin")
    answer = operator.post("/operations/begin", {**form, "limit": "0"})
    assert (answer.status, listed(desk.install)) == (400, [])
    assert operator.get(f"/operations/preview?kind=redrive&queue={LETTERS}&canary=0").status == 400


def test_delayed_messages_are_promoted_rescheduled_and_cancelled(desk: Desk, operator: Visitor) -> None:
    """One at a time. A message that is gone is not touched."""
    one, two = desk.delay(task_message("task-one-1")), desk.delay(task_message("task-two-2"))
    screen = operator.get("/delayed")
    assert "2 messages wait" in screen.read
    form = next(each for each in screen.forms("/delayed/reschedule") if each["id"] == one)
    assert "Rescheduled" in operator.follow(operator.post("/delayed/reschedule", {**form, "after": "2h"})).read
    form = next(each for each in screen.forms("/delayed/cancel") if each["id"] == two)
    assert "Cancelled" in operator.follow(operator.post("/delayed/cancel", form)).read
    assert operator.post("/delayed/cancel", form).status == 400
    form = next(each for each in operator.get("/delayed").forms("/delayed/promote") if each["id"] == one)
    assert "Promoted" in operator.follow(operator.post("/delayed/promote", form)).read
    outcomes = [(each.task_id, each.outcome) for each in desk.events if each.outcome in {Outcome.CANCELLED, Outcome.DEFERRED}]
    assert (two, Outcome.CANCELLED) in outcomes
    assert outcomes.count((one, Outcome.DEFERRED)) == 3
    assert {each.actor for each in entries(desk.transport, 10)} == {"ada"}


def test_task_shows_its_life_over_its_generations(desk: Desk, operator: Visitor) -> None:
    """The beginning of its id is enough."""
    task_id = desk.die()
    [form, *_] = letter_of(operator, task_id).forms("/letter/redrive")
    operator.post("/letter/redrive", form)
    answer = operator.get(f"/task?id={task_id[:8]}")
    for said in (task_id, "Generation 0", "dead lettered", "Generation 1", "redriven", f"In {QUEUE}, waiting to run."):
        assert said in answer.read, said


def test_the_audit_goes_on_where_it_was_exported(desk: Desk, open_page: Callable[..., WebPage], tmp_path: Path) -> None:
    """On the screen of all operations, and on that of a finished one. A part that cannot be read is named there."""
    out = tmp_path / "out"
    page = open_page("--allow", "all", settings=json.dumps({"outcome_archive": str(out)}))
    desk.die()
    begun = begin(desk.install, Kind.PURGE, LETTERS, Filter(), actor="ana", why="exported")
    turn(desk.install, begun.id, "abort", "ben", "no more")
    assert "Exported records were not read: there is nothing at" in page.operator().get("/operations").read
    desk.json("outcomes", "export", "--to", str(out))
    desk.client.delete(desk.keys.audit)
    for path in ("/operations", f"/operation?id={begun.id}"):
        answer = page.operator().get(path)
        assert answer.read.index("ben purge aborted") < answer.read.index("ana purge begun")
        assert "not read" not in answer.read


def test_every_screen_opens(desk: Desk, operator: Visitor) -> None:
    """Each has data, and each link of the navigation works."""
    desk.publish()
    desk.hold()
    desk.delay(task_message())
    desk.die()
    for path in [each for each in operator.get("/").links("/") if not each.startswith("/static")]:
        assert operator.get(path).status == 200, path
    assert "w@desk" in operator.get("/workers").read
    assert "after attempt 1" in operator.get(f"/queue?name={QUEUE}").read
