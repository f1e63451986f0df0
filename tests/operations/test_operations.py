"""Operations stored on the broker: their states, how they are stored and read, and their preview."""

from __future__ import annotations

import json
from typing import Any

import pytest

from redelivery.errors import InputError
from redelivery.workers.operations.letters.filter import Filter
from redelivery.workers.operations.runs import audit, operation
from redelivery.workers.operations.runs.operation import ALLOWED, ENDED, Kind, Operation, Options, State
from redelivery.workers.operations.runs.preview import preview
from redelivery.workers.ports import StoredOperation
from tests.support.desk import LETTERS, Desk

ABOUT = {"kind": "redrive", "queue": LETTERS, "filter": {}, "options": {}, "actor": "ana", "why": "mended"}


def begun(desk: Desk, kind: Kind = Kind.REDRIVE, chosen: Filter | None = None, **options: Any) -> Operation:
    """A new operation on the desk's dead letters."""
    return operation.begin(desk.install, kind, LETTERS, chosen or Filter(), Options(**options), actor="ana", why="mended")


# what is stored, and how it is read


def test_an_operation_is_kept_with_all_that_was_asked(desk: Desk) -> None:
    """`found` reads what `begin` stored, by the id and by its beginning."""
    chosen = Filter(tasks=("shop.*",), reasons=frozenset({"exhausted"}), died_before_ms=7)
    made = begun(desk, chosen=chosen, rate=200.0, canary=10, limit=500)
    assert (made.state, made.actor, made.why, made.filter) == (State.WAITING, "ana", "mended", chosen)
    assert made.options == Options(rate=200.0, canary=10, limit=500)
    assert operation.found(desk.install, made.id[:8]) == operation.found(desk.install, made.id) == made
    assert operation.listed(desk.install) == operation.listed(desk.install, is_open=True) == [made]
    assert json.loads(json.dumps(made.to_dict()))["filter"] == chosen.to_dict()


@pytest.mark.parametrize(
    "about",
    [
        "",
        "{",
        "[" * 100_000,
        "[]",
        json.dumps({**ABOUT, "kind": "explode"}),
        json.dumps({**ABOUT, "kind": ["purge"]}),
        json.dumps({**ABOUT, "filter": {"task_id": ["a"]}}),
        json.dumps({**ABOUT, "filter": {"tasks": "a"}}),
        json.dumps({**ABOUT, "filter": {"tasks": []}}),
        json.dumps({**ABOUT, "filter": None}),
        json.dumps({**ABOUT, "options": {"rate": -1}}),
        json.dumps({**ABOUT, "options": {"rate": float("nan")}}),
        json.dumps({**ABOUT, "options": {"rate": "200"}}),
        json.dumps({**ABOUT, "options": {"rate": 1e-300}}),  # one letter in this world's time
        json.dumps({**ABOUT, "options": {"limit": True}}),
        json.dumps({**ABOUT, "options": {"faster": 1}}),
        json.dumps({key: value for key, value in ABOUT.items() if key != "filter"}),
    ],
)
def test_what_cannot_be_read_is_failed(about: str) -> None:
    """An operation whose filter cannot be read must never run without a filter."""
    read = Operation.of(StoredOperation(operation_id="a", about=about, state="running"))
    assert read.state is State.FAILED
    assert "cannot be read" in read.message


@pytest.mark.parametrize(
    "progress", ["{", "[]", '{"left": [], "deaths": {}, "total": -1, "matched": true, "gone": "1"}', "[" * 100_000]
)
def test_a_progress_that_cannot_be_read_counts_as_none(progress: str) -> None:
    """The operation itself is unchanged."""
    read = Operation.of(StoredOperation(operation_id="a", about=json.dumps(ABOUT), state="running", progress=progress, moved=3))
    assert (read.state, read.moved, read.total, read.matched, read.gone, dict(read.left)) == (State.RUNNING, 3, 0, 0, 0, {})


@pytest.mark.parametrize(
    "chosen",
    [
        Filter(),
        Filter(task_ids=frozenset({"b", "a"}), exceptions=("KeyError",), fingerprints=("ab",), died_after_ms=0),
        Filter(tasks=("*",)),
    ],
)
def test_a_filter_is_its_words(chosen: Filter) -> None:
    """It survives the conversion to JSON and back."""
    assert Filter.from_dict(json.loads(json.dumps(chosen.to_dict()))) == chosen


# what may follow what


def test_it_is_paused_resumed_and_aborted_and_each_is_recorded(desk: Desk) -> None:
    """With the actor and the reason; an operation that has ended stays so."""
    made = begun(desk)
    assert operation.turn(desk.install, made.id, "pause", "ben", "lunch").state is State.PAUSED
    assert operation.found(desk.install, made.id).message == "paused by ben: lunch"
    assert operation.turn(desk.install, made.id, "resume", "cat").state is State.WAITING
    assert operation.turn(desk.install, made.id, "abort", "ana").has_ended
    assert operation.listed(desk.install, is_open=True) == []
    for act in operation.TURNS:
        with pytest.raises(InputError, match="is aborted, and cannot be"):
            operation.turn(desk.install, made.id, act, "ben")
    records = [(each.actor, each.act, each.acted, each.why) for each in audit.entries(desk.transport, 10)]
    assert records == [
        ("ana", "redrive", "aborted", ""),
        ("cat", "redrive", "resumed", ""),
        ("ben", "redrive", "paused", "lunch"),
        ("ana", "redrive", "begun", "mended"),
    ]


def test_nothing_follows_an_end() -> None:
    """An operator cannot change the state of an operation that has ended."""
    assert not any(ENDED & states for states in ALLOWED.values())


@pytest.mark.parametrize("given", ["", "abc", "nothing-like-it"])
def test_an_operation_that_is_not_there_is_said_so(desk: Desk, given: str) -> None:
    """The error says where to look."""
    begun(desk)
    with pytest.raises(InputError, match="redelivery ops list"):
        operation.found(desk.install, given)


@pytest.mark.parametrize(
    ("kind", "options", "why"),
    [
        (Kind.REDRIVE, {"to": "nowhere"}, "there is no queue"),
        (Kind.REDRIVE, {"to": LETTERS}, "is a dead-letter queue"),
        (Kind.REDRIVE, {"abort_after": 3}, "need a rate"),
        (Kind.REDRIVE, {"abort_share": 0.05}, "need a rate"),
        (Kind.REDRIVE, {"abort_share": 1.5, "rate": 1.0}, "cannot be 1.5"),
        (Kind.REDRIVE, {"archive": "letters"}, "takes no 'archive'"),
        (Kind.REDRIVE, {"canary_wait": 3.0}, "needs canary"),
        (Kind.REDRIVE, {"limit": 0}, "cannot be 0"),
        (Kind.MOVE, {}, "where to"),
        (Kind.MOVE, {"to": "DLQ.other"}, "no dead-letter queue"),
        (Kind.PURGE, {"canary": 1}, "takes no 'canary'"),
    ],
)
def test_what_cannot_be_carried_out_is_refused_at_once(desk: Desk, kind: Kind, options: dict[str, Any], why: str) -> None:
    """The error comes at once, not an hour later in a worker's log."""
    with pytest.raises(InputError, match=why):
        begun(desk, kind, **options)
    assert operation.listed(desk.install) == []


def test_the_oldest_that_ended_are_forgotten(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Operations that have not ended are kept, however old they are."""
    monkeypatch.setattr("redelivery.workers.brokers.redis.operations.MAX_OPERATIONS", 3)
    first = begun(desk)
    others = [operation.turn(desk.install, begun(desk).id, "abort", "ana").id for _ in range(4)]
    last = begun(desk)
    assert {each.id for each in operation.listed(desk.install)} == {first.id, *others[-2:], last.id}


def test_operations_are_in_the_order_in_which_they_were_begun(desk: Desk) -> None:
    """The broker's clock is put back, and several are begun within one millisecond."""
    first = begun(desk)
    desk.client.zadd(desk.keys.operations, {first.id: first.created_ms + 3_600_000})
    others = [begun(desk) for _ in range(20)]
    assert [each.id for each in operation.listed(desk.install)] == [each.id for each in (*others[::-1], first)]


# the preview


def test_a_preview_counts_by_task_cause_and_target_and_changes_nothing(desk: Desk) -> None:
    """It also shows ten examples."""
    for number in range(12):
        desk.die(reason="exhausted" if number % 3 else "rejected")
    before = desk.client.lrange(desk.keys.list(LETTERS), 0, -1)
    found = preview(desk.install, Kind.REDRIVE, LETTERS, Filter())
    assert (found.total, found.matched, found.moved, len(found.examples)) == (12, 12, 12, 10)
    assert sum(found.by_task.values()) == sum(each.count for each in found.causes) == sum(found.by_target.values()) == 12
    chosen = preview(desk.install, Kind.PURGE, LETTERS, Filter(reasons=frozenset({"rejected"})))
    assert (chosen.total, chosen.matched) == (12, 4)
    assert desk.client.lrange(desk.keys.list(LETTERS), 0, -1) == before
