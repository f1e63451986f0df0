"""Operations in execution: by whichever process leads, whatever dies, and exactly once for each dead letter."""

from __future__ import annotations

import functools
import json
import os
import re
import subprocess
import sys
import threading
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from structlog.testing import capture_logs

from redelivery.errors import InputError
from redelivery.middleware.ports import Answer
from redelivery.workers.duties.operation_runner import OperationRunner, carried_out
from redelivery.workers.operations.letters.filter import Filter
from redelivery.workers.operations.runs import audit, operation
from redelivery.workers.operations.runs.execution import Execution
from redelivery.workers.operations.runs.operation import Kind, State, store_of
from redelivery.workers.ports import Halted
from tests.support.lanes import first_quick
from tests.support.operators.dead_shop import LETTERS, begun, found, killed, reached, runtime_of
from tests.support.running import Shop, until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.support.servers import Server

#: A worker of this queue does not consume the queue of redriven messages.
ELSEWHERE = ("-Q", "elsewhere")


@pytest.fixture
def shop(any_server: Server, folder: Path) -> Iterator[Shop]:
    """The shop on each kind of Redis."""
    settings = {"queues": {"#": {"max_delivery_attempts": 1}}, "dead_letter_archive": str(folder)}
    shop = Shop(any_server, folder, settings)
    yield shop
    shop.stop()


@pytest.fixture
def run(shop: Shop) -> Iterator[Callable[[], OperationRunner]]:
    """Starts a runner in this process; it is stopped after the test."""
    runners: list[OperationRunner] = []

    def begin() -> OperationRunner:
        runners.append(OperationRunner(runtime_of(shop)))
        runners[-1].start()
        return runners[-1]

    yield begin
    for each in runners:
        each.stop()


def gone_back(shop: Shop) -> Counter[str]:
    """The tasks that are in the queue again, each with its number of messages."""
    raws: Any = shop.server.client.lrange("celery", 0, -1)
    return Counter(json.loads(raw)["headers"]["id"] for raw in raws)


def execution(shop: Shop, begun: operation.Operation) -> Execution:
    """The object with which a leader carries out an operation."""
    runtime = runtime_of(shop)
    return Execution(runtime, store_of(runtime.transport), begun.id, lambda: False)


def _has_moved(shop: Shop, begun: operation.Operation, least: int) -> bool:
    return found(shop, begun).moved >= least


# exactly once, whatever dies


def test_each_letter_moves_once_though_the_leader_is_killed_in_the_middle(shop: Shop) -> None:
    """Another worker goes on, with the right counts; then the second leader is killed as well."""
    ids = killed(shop, 900)
    workers = {worker.process.pid: worker for worker in [shop.start(*ELSEWHERE) for _ in range(2)]}
    made = begun(shop, rate=150.0)
    for least in (100, 400):
        until(functools.partial(_has_moved, shop, made, least), 60, f"{least} letters to have moved")
        leader = next(each for each in workers.values() if "operation.taken" in each.text and each.process.poll() is None)
        leader.kill()
        assert found(shop, made).state is State.RUNNING
        fresh = shop.start(*ELSEWHERE)
        workers[fresh.process.pid] = fresh
    done = reached(shop, made, State.DONE)
    assert (done.total, done.moved, done.matched, done.gone, dict(done.left)) == (900, 900, 900, 0, {})
    assert dict(done.by_target) == {"celery": 900}
    assert gone_back(shop) == Counter(ids)
    redriven = [event for event in shop.events if event.outcome == "redriven"]
    assert Counter(event.task_id for event in redriven) == Counter(ids)
    assert {event.actor for event in redriven} == {"ana"}
    assert [each.acted for each in audit.entries(runtime_of(shop).transport, 10)] == ["done", "begun"]


@pytest.mark.parametrize("kind", first_quick([Kind.MOVE, Kind.PURGE, Kind.CANCEL]))
def test_whatever_an_operation_does_is_done_once_though_the_leader_is_killed(shop: Shop, kind: Kind) -> None:
    """A move, a purge and a cancel, too: the next worker goes on, with one event for each message and the right counts."""
    outcome = {Kind.MOVE: "redriven", Kind.PURGE: "purged", Kind.CANCEL: "cancelled"}[kind]
    if kind is Kind.CANCEL:
        receiver = shop.start()
        ids = [shop.send("ok", countdown=3600) for _ in range(400)]
        until(lambda: shop.server.client.zcard("redelivery:delayed:due:celery") == 400, 60, "all to wait")
        receiver.stop()
    else:
        ids = killed(shop, 400)
    leader = shop.start(*ELSEWHERE)
    more: dict[str, Any] = {"to": "DLQ.kept", "create": True} if kind is Kind.MOVE else {}
    made = begun(shop, kind, queue="celery" if kind is Kind.CANCEL else LETTERS, rate=150.0, **more)
    until(functools.partial(_has_moved, shop, made, 100), 60, "100 to have gone")
    leader.kill()
    assert found(shop, made).state is State.RUNNING
    shop.start(*ELSEWHERE)
    done = reached(shop, made, State.DONE)
    assert (done.total, done.moved, done.matched, done.gone, dict(done.left)) == (400, 400, 400, 0, {})
    gone = [event for event in shop.events if event.outcome == outcome]
    assert Counter(event.task_id for event in gone) == Counter(ids)
    assert max(Counter(event.at_ms // 1000 for event in gone).values()) <= 2 * 150, "the rate holds for whoever carries it on"
    assert {event.actor for event in shop.events if event.outcome == outcome} == {"ana"}
    client = shop.server.client
    assert client.llen("DLQ.kept") == (400 if kind is Kind.MOVE else 0)
    assert (client.llen(LETTERS), client.zcard("redelivery:delayed:due:celery")) == (0, 0)
    assert [each.acted for each in audit.entries(runtime_of(shop).transport, 10)] == ["done", "begun"]


def test_a_worker_that_stops_hands_its_operation_on(shop: Shop) -> None:
    """The stopping worker releases its lead: the operation waits, and the next worker takes it at once."""
    ids = killed(shop, 400)
    first = shop.start(*ELSEWHERE)
    made = begun(shop, rate=100.0)
    until(lambda: found(shop, made).moved >= 50)
    first.stop()
    assert found(shop, made).state is State.WAITING
    shop.start(*ELSEWHERE)
    assert reached(shop, made, State.DONE).moved == 400
    assert gone_back(shop) == Counter(ids)


def test_the_dispatcher_carries_operations_out_too(shop: Shop) -> None:
    """This is for fleets whose workers must not do such work."""
    killed(shop, 20)
    command = [sys.executable, "-m", "redelivery", "-A", shop.module, "dispatcher"]
    process = subprocess.Popen(command, env=shop.environment, cwd=shop.folder, stderr=subprocess.DEVNULL)
    try:
        assert reached(shop, begun(shop), State.DONE).moved == 20
    finally:
        process.terminate()
        assert process.wait(30) == 0


@pytest.mark.full
def test_whoever_carries_operations_out_beside_something_else_ends_with_it(shop: Shop) -> None:
    """The server of the page does so; if no broker answers, its other work goes on."""
    killed(shop, 20)
    with carried_out(runtime_of(shop)):
        assert reached(shop, begun(shop), State.DONE).moved == 20
    assert not shop.server.client.exists("redelivery:operator")
    gone = Shop(shop.server, shop.folder, broker="redis://127.0.0.1:1/0")
    with carried_out(runtime_of(gone)):
        pass


def test_a_former_leader_moves_nothing_more(shop: Shop) -> None:
    """Two processes believe that they lead: the second claims the operation, and the broker refuses what the first sends then."""
    killed(shop, 300)
    made = begun(shop, rate=200.0)
    first, second = execution(shop, made), execution(shop, made)
    assert first._take()
    moved: list[int] = []
    beat = first._beat

    def overtaken() -> None:
        """The second process claims it when some dead letters have gone."""
        if not moved and found(shop, made).moved >= 40:
            assert second._take()
            moved.append(found(shop, made).moved)
        beat()

    first._beat = overtaken  # type: ignore[method-assign]
    with pytest.raises(Halted):
        first._walk()
    assert found(shop, made).moved == moved[0] == len(gone_back(shop))
    assert second._walk() == (State.DONE, "")
    assert found(shop, made).moved == 300
    assert set(gone_back(shop).values()) == {1}


def test_the_lead_is_handed_on_when_nothing_is_left(
    shop: Shop, run: Callable[[], OperationRunner], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody must wait until the lead expires."""
    monkeypatch.setattr("redelivery.workers.duties.operation_runner.LEAD", 600.0)
    killed(shop, 3)
    run()
    reached(shop, begun(shop), State.DONE)
    until(lambda: not shop.server.client.exists("redelivery:operator"), what="the lead to be handed on")


# pause, resume, abort


def test_what_is_paused_moves_nothing_until_it_is_resumed(shop: Shop, run: Callable[[], OperationRunner]) -> None:
    """This holds once `pause` has returned; later it goes on where it was."""
    ids = killed(shop, 400)
    run()
    made = begun(shop, rate=150.0)
    until(lambda: found(shop, made).moved >= 30)
    paused = operation.turn(runtime_of(shop), made.id, "pause", "ben")
    assert paused.state is State.PAUSED
    until(_has_halted)
    run()  # one more that looks for work, and does not touch this one
    assert found(shop, made).moved == paused.moved == len(gone_back(shop)) < 400
    operation.turn(runtime_of(shop), made.id, "resume", "ben")
    assert reached(shop, made, State.DONE).moved == 400
    assert gone_back(shop) == Counter(ids)


def _has_halted() -> bool:
    """Whether this process carries out nothing any more."""
    return not any(each.name.startswith("redelivery-operation-") for each in threading.enumerate())


def test_what_is_aborted_moves_nothing_more(shop: Shop, run: Callable[[], OperationRunner]) -> None:
    """The others stay complete in the dead-letter queue, and the operation cannot be resumed."""
    killed(shop, 400)
    run()
    made = begun(shop, rate=150.0)
    until(lambda: found(shop, made).moved >= 30)
    aborted = operation.turn(runtime_of(shop), made.id, "abort", "ben", "wrong queue")
    until(_has_halted)
    assert found(shop, made) == aborted
    assert shop.server.client.llen(LETTERS) == 400 - aborted.moved == 400 - len(gone_back(shop))
    with pytest.raises(InputError, match="is aborted, and cannot be resumed"):
        operation.turn(runtime_of(shop), made.id, "resume", "ben")


# guards


def test_a_canary_that_dies_again_stops_it(shop: Shop, run: Callable[[], OperationRunner]) -> None:
    """Nothing follows, and the deaths are reported."""
    killed(shop, 100, "fails")
    shop.start()
    run()
    done = reached(shop, begun(shop, canary=5, canary_wait=30.0), State.STOPPED)
    assert done.moved == 5
    until(lambda: shop.server.client.llen(LETTERS) == 100)  # the others of the canary die a little later
    assert "the canary died again" in done.message
    assert done.died_again >= 1
    assert done.deaths[0]["exception"].endswith("Exception") or done.deaths[0]["reason"] == "exhausted"
    assert audit.entries(runtime_of(shop).transport, 1)[0].acted == "stopped"


def test_the_others_follow_a_canary_that_ended_well_and_what_dies_again_is_not_taken_twice(shop: Shop) -> None:
    """Dead letters of a task that always fails go back once, however often the queue is walked."""
    good, bad = killed(shop, 60, "ok", begin="good"), killed(shop, 60, "fails", begin="bad")
    shop.start()
    done = reached(shop, begun(shop, canary=10, canary_wait=30.0), State.DONE)
    assert done.moved == 120
    until(lambda: shop.server.client.llen(LETTERS) == 60)
    redriven = Counter(event.task_id for event in shop.events if event.outcome == "redriven")
    assert redriven == Counter([*good, *bad])


def test_the_guard_goes_on_with_what_another_process_has_seen(shop: Shop, run: Callable[[], OperationRunner]) -> None:
    """The leader dies while its canary runs: the next one waits for the same canary, and sends no other."""
    killed(shop, 50)
    made = begun(shop, canary=5, canary_wait=60.0)
    first = execution(shop, made)
    assert first._take()
    sent: list[int] = []
    beat = first._beat

    def dies() -> None:
        """Stop as if it was killed while it waits."""
        if found(shop, made).moved == 5:
            sent.append(5)
            raise SystemExit
        beat()

    first._beat = dies  # type: ignore[method-assign]
    with first._guarded(), pytest.raises(SystemExit):
        first._walk()
    assert len(store_of(runtime_of(shop).transport).followed(made.id)) == 5
    run()
    until(lambda: "canary: 0 of 5 ended" in found(shop, made).message, 30, "the second one to wait for the canary")
    assert found(shop, made).moved == 5
    shop.start()
    assert reached(shop, made, State.DONE).moved == 50
    assert store_of(runtime_of(shop).transport).followed(made.id) == []


def test_a_canary_that_ended_while_no_process_listened_is_heard_of(
    shop: Shop, run: Callable[[], OperationRunner], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next process reads the events since the last report of the former, and not since its own start."""
    monkeypatch.setattr("redelivery.workers.operations.runs.execution.MARGIN_MS", 0)
    killed(shop, 50)
    made = begun(shop, canary=5, canary_wait=30.0)
    first = execution(shop, made)
    assert first._take()
    beat = first._beat

    def dies() -> None:
        """Stop as if it was killed while it waits."""
        beat()
        if found(shop, made).moved == 5:
            raise SystemExit

    first._beat = dies  # type: ignore[method-assign]
    with first._guarded(), pytest.raises(SystemExit):
        first._walk()
    shop.start()
    # The worker may go on with the operation before this test has seen that the five have ended.
    until(lambda: sum(event.outcome == "succeeded" for event in shop.events) >= 5)
    run()
    assert reached(shop, made, State.DONE).moved == 50


def test_it_stops_when_so_many_died_again_those_of_a_former_leader_too(shop: Shop, run: Callable[[], OperationRunner]) -> None:
    """The count is stored with the operation."""
    killed(shop, 400, "fails")
    shop.start()
    made = begun(shop, rate=40.0, abort_after=60)
    first = run()
    until(lambda: 10 <= found(shop, made).died_again < 60, 60, "some to have died again")
    first.stop()
    before = found(shop, made).died_again
    run()
    done = reached(shop, made, State.STOPPED)
    assert before < 60 <= done.died_again < done.moved + 1 <= 400
    assert "died again" in done.message
    assert len(done.deaths) <= 20


def test_it_stops_when_so_great_a_part_died_again(shop: Shop, run: Callable[[], OperationRunner]) -> None:
    """Dead letters of a repaired task go, and those of a broken one stop it; the share is of those that have ended."""
    killed(shop, 40, "ok", begin="good")
    killed(shop, 360, "fails", begin="bad")
    shop.start()
    run()
    done = reached(shop, begun(shop, rate=40.0, abort_share=0.25), State.STOPPED)
    assert 40 < done.moved < 400, "neither before a dead letter of the second task went, nor at the end"
    said = re.match(r"(\d+) dead letters of this redrive of (\d+) that ended died again", done.message)
    assert said, done.message
    assert 0.25 <= int(said[1]) / int(said[2]) < 0.5, "as soon as so many are dead"
    assert 10 <= int(said[1]) <= done.died_again <= done.moved - 40
    assert [each.acted for each in audit.entries(runtime_of(shop).transport, 2)] == ["stopped", "begun"]


# faults of the broker, and of the stored data


def test_a_full_server_takes_operations_in_and_carries_them_out(shop: Shop, run: Callable[[], OperationRunner]) -> None:
    """Begun, paused, resumed, carried out and recorded: a purge must be possible, because it frees memory."""
    killed(shop, 50)
    client = shop.server.client
    client.config_set("maxmemory", 1)
    made = begun(shop, Kind.PURGE)
    operation.turn(runtime_of(shop), made.id, "pause", "ben")
    operation.turn(runtime_of(shop), made.id, "resume", "ben")
    run()
    assert reached(shop, made, State.DONE).moved == 50
    assert client.llen(LETTERS) == 0
    assert audit.entries(runtime_of(shop).transport, 1)[0].result["moved"] == 50


def test_it_goes_on_when_the_server_is_back(shop: Shop, run: Callable[[], OperationRunner]) -> None:
    """The server was killed and keeps its data; the operation waits, and goes on by itself."""
    shop.server.stop()
    shop.server.options["appendonly"] = "yes"
    shop.server.start().keep_everything()
    ids = killed(shop, 300)
    run()
    made = begun(shop, rate=100.0)
    until(lambda: found(shop, made).moved >= 30)
    with capture_logs() as lines:
        shop.server.kill()
        until(lambda: any(line["event"] == "operations.waiting" and line.get("operation") == made.id for line in lines))
        shop.server.start()
        assert reached(shop, made, State.DONE).moved == 300
    assert gone_back(shop) == Counter(ids)
    assert "operations.failed" not in {line["event"] for line in lines}  # which the documents call a bug


def test_a_count_that_no_number_holds_loses_no_message(shop: Shop, run: Callable[[], OperationRunner]) -> None:
    """A stranger has stored a count of twenty digits: waiting messages keep waiting."""
    worker = shop.start()
    shop.send("ok", countdown=3600)
    client = shop.server.client
    until(lambda: client.zcard("redelivery:delayed:due:celery") == 1)
    worker.stop()
    hostile = begun(shop, Kind.CANCEL, queue="celery")
    client.hset(f"redelivery:operation:{hostile.id}", "moved", "9" * 20)
    run()
    assert "not a number" in reached(shop, hostile, State.FAILED).message
    assert client.hlen("redelivery:delayed:messages:celery") == client.zcard("redelivery:delayed:due:celery") == 1


@pytest.mark.parametrize(
    "fields",
    [
        {"about": "{}"},
        {"about": json.dumps({"kind": "purge", "queue": LETTERS, "options": {}, "actor": "", "why": ""})},
        {"state": "done, waiting"},
        {"state": ""},
        {"moved": "many"},
        {"to:celery": "many"},
    ],
)
def test_what_strangers_wrote_moves_nothing_and_stops_nobody(
    shop: Shop, run: Callable[[], OperationRunner], fields: dict[str, str]
) -> None:
    """Such an operation fails with a reason, and the next one is carried out."""
    killed(shop, 10)
    hostile = begun(shop)
    shop.server.client.hset(f"redelivery:operation:{hostile.id}", mapping=fields)
    shop.server.client.sadd("redelivery:operations:open", "nothing", b"\xff\x00")
    run()
    assert reached(shop, hostile, State.FAILED).moved == 0
    until(lambda: not store_of(runtime_of(shop).transport).has_unended(), 20, "it to be closed")
    assert shop.server.client.llen(LETTERS) == 10
    assert reached(shop, begun(shop), State.DONE).moved == 10


def test_a_key_that_is_no_operation_stops_nobody(shop: Shop, run: Callable[[], OperationRunner]) -> None:
    """A list is stored in its place."""
    killed(shop, 3)
    hostile = begun(shop)
    shop.server.client.delete(f"redelivery:operation:{hostile.id}")
    shop.server.client.lpush(f"redelivery:operation:{hostile.id}", "x")
    run()
    assert reached(shop, begun(shop), State.DONE).moved == 3
    assert [each.state for each in operation.listed(runtime_of(shop))] == [State.DONE]


def test_an_operation_that_cannot_be_carried_out_says_why(shop: Shop, run: Callable[[], OperationRunner]) -> None:
    """If the archive cannot be written, for instance, no dead letter leaves."""
    killed(shop, 3)
    target = shop.folder / "file"
    target.write_text("")
    run()
    done = reached(shop, begun(shop, Kind.PURGE, archive=str(target / "below")), State.FAILED)
    assert done.message
    assert shop.server.client.llen(LETTERS) == 3


def test_a_stored_operation_that_names_another_place_writes_nothing(
    shop: Shop, run: Callable[[], OperationRunner], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Every client that may write to the broker may store one: the process that carries it out checks it again."""
    killed(shop, 3)
    place = tmp_path / "elsewhere"
    with monkeypatch.context() as forged:
        forged.setattr(operation, "require_place", lambda *_: None)
        stored = begun(shop, Kind.PURGE, archive=str(place))
    run()
    done = reached(shop, stored, State.FAILED)
    assert "dead_letter_archive" in done.message
    assert not place.exists()
    assert shop.server.client.llen(LETTERS) == 3


@pytest.mark.parametrize("kind", [Kind.REDRIVE, Kind.MOVE, Kind.PURGE])
def test_a_stored_operation_that_names_a_queue_of_tasks_takes_none(
    shop: Shop, run: Callable[[], OperationRunner], monkeypatch: pytest.MonkeyPatch, kind: Kind
) -> None:
    """The messages of that queue are not dead, whatever a stranger has stored."""
    ids = [shop.send("ok") for _ in range(3)]
    with monkeypatch.context() as forged:
        forged.setattr(operation, "check", lambda *_: None)
        options: dict[str, Any] = {"to": "DLQ.kept", "create": True} if kind is Kind.MOVE else {}
        stored = begun(shop, kind, queue="celery", **options)
    run()
    done = reached(shop, stored, State.FAILED)
    assert "its messages are not dead" in done.message
    assert shop.server.client.llen("celery") == 3
    assert [shop.outcomes_of(each) for each in ids] == [["published"]] * 3


# the other kinds, and bounds


def test_letters_are_moved_and_purged_by_a_filter_and_a_limit(shop: Shop, run: Callable[[], OperationRunner]) -> None:
    """Each with its events, its actor, and its target."""
    killed(shop, 30, "ok", begin="a")
    killed(shop, 30, "fails", begin="b")
    run()
    moved = reached(shop, begun(shop, Kind.MOVE, Filter(tasks=("*.fails",)), to="DLQ.kept", create=True), State.DONE)
    assert (moved.matched, moved.moved, dict(moved.by_target)) == (30, 30, {"DLQ.kept": 30})
    purged = reached(shop, begun(shop, Kind.PURGE, Filter(tasks=("*.ok",)), limit=12), State.DONE)
    assert (purged.moved, shop.server.client.llen(LETTERS)) == (12, 18)
    actors = {(event.outcome, event.actor) for event in shop.events}
    assert actors == {("redriven", "ana"), ("dead_lettered", "ana"), ("purged", "ana")}


def test_what_waits_is_cancelled_by_task(shop: Shop, run: Callable[[], OperationRunner]) -> None:
    """A thousand of them, of one of two tasks."""
    worker = shop.start()
    for number in range(40):
        shop.send("ok" if number % 2 else "fails", countdown=3600)
    store = store_of(runtime_of(shop).transport)
    client = shop.server.client
    until(lambda: client.zcard("redelivery:delayed:due:celery") == 40)
    worker.stop()
    run()
    done = reached(shop, begun(shop, Kind.CANCEL, Filter(tasks=("*.ok",)), queue="celery"), State.DONE)
    assert (done.matched, done.moved, dict(done.by_target)) == (20, 20, {"celery": 20})
    assert client.zcard("redelivery:delayed:due:celery") == 20
    assert not store.has_unended()


def test_letters_that_cannot_go_back_are_counted_by_reason(shop: Shop, run: Callable[[], OperationRunner]) -> None:
    """Each is counted once, however often the queue is walked."""
    killed(shop, 10)
    shop.server.client.lpush(LETTERS, *[b"nothing %d" % number for number in range(5)])
    run()
    done = reached(shop, begun(shop), State.DONE)
    assert (done.total, done.looked_at, done.matched, done.moved) == (15, 15, 15, 10)
    assert dict(done.left) == {"its bytes were never a message": 5}


def test_operations_of_one_queue_go_one_after_another(shop: Shop, run: Callable[[], OperationRunner]) -> None:
    """The second waits until the first has ended."""
    killed(shop, 100)
    run()
    first = begun(shop, rate=60.0)
    until(lambda: found(shop, first).moved > 5)  # two that begin in the same millisecond may run in any order
    second = begun(shop, Kind.PURGE)
    until(lambda: found(shop, first).moved > 20)
    assert found(shop, second).state is State.WAITING
    assert reached(shop, first, State.DONE).moved == 100
    assert reached(shop, second, State.DONE).moved == 0


def test_nobody_leads_while_there_is_nothing_to_do(shop: Shop, run: Callable[[], OperationRunner]) -> None:
    """Each process asks an idle broker one question every two seconds."""
    runner = run()
    assert not runner.leads()
    assert not shop.server.client.exists("redelivery:operator")
    store = store_of(runtime_of(shop).transport)
    killed(shop, 1)
    begun(shop)
    assert runner.leads() or store.lead("another", 1) is False
    assert os.getpid()
    assert store.turn("nothing", State.RUNNING, states={State.WAITING}) is Answer.MISSING
