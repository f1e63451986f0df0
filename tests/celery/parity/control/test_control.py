"""`inspect` and `control` on a real worker: what it reports, and what it can be told while it works."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.control.control import ControlShop, control_shop
from tests.support.operators.watching import Watcher
from tests.support.running import until

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.xdist_group("celery-control")


@pytest.fixture(scope="module")
def here() -> Iterator[ControlShop]:
    """A prefork worker with room for two; the last test ends it."""
    with control_shop(conf={"worker_pool_restarts": True}) as made:
        made.start()
        yield made


def test_a_worker_answers_what_celerys_workers_answer(here: ControlShop) -> None:
    """Ping, stats, registered tasks, active queues, clock, report: in the forms that tools expect."""
    assert here.ask("ping") == {"ok": "pong"}
    stats = here.ask("stats")
    assert stats["pool"]["max-concurrency"] == 2
    assert stats["prefetch_count"] == 8
    assert stats["broker"]["transport"].startswith("redis")
    registered = here.ask("registered")
    assert "tests.support.control.control_app.ok" in registered
    assert "tests.support.control.control_app.limited [rate_limit=4/s]" in registered
    assert [(queue["name"], queue["routing_key"]) for queue in here.ask("active_queues")] == [("celery", "celery")]
    assert here.ask("clock")["clock"] > 0
    assert "celery" in here.ask("report")["ok"]


def test_the_configuration_is_shown_as_plain_values(here: ControlShop) -> None:
    """A dashboard shows what holds for a task, `True` for late acknowledgement, and a configuration without strange objects."""
    registered = here.ask("registered", "acks_late", "reject_on_worker_lost")
    assert "tests.support.control.control_app.ok [acks_late=True reject_on_worker_lost=True]" in registered
    assert any(line.startswith("tests.support.control.control_app.early [acks_late=False") for line in registered)
    conf = here.ask("conf", with_defaults=True)
    assert isinstance(conf["task_acks_late"], bool)
    assert conf["redelivery"]["queues"]["#"]["max_delivery_attempts"] == 3


def test_what_runs_and_what_waits_is_listed_with_its_arguments(here: ControlShop) -> None:
    """`active`, `reserved`, `query_task`."""
    running = here.filled(2, "listed", headers={"tenant": "t1"})
    waiting = here.send("ok", "waits")
    until(lambda: [entry["id"] for entry in here.ask("reserved")] == [waiting], what="its receipt")
    active = {entry["id"]: entry for entry in here.ask("active")}
    assert set(active) == set(running)
    entry = active[running[0]]
    assert (entry["name"], entry["args"], entry["hostname"]) == ("tests.support.control.control_app.holds", ["listed"], "w0@shop")
    assert entry["acknowledged"] is False
    assert entry["delivery_info"]["routing_key"] == "celery"
    assert here.ask("query_task", waiting)[waiting][0] == "reserved"
    here.open("listed")
    here.all_ended([*running, waiting])
    until(lambda: here.ask("active") == [], what="nothing to be active")


def test_the_pool_grows_and_shrinks_while_it_works(here: ControlShop) -> None:
    """A third task begins at once, and the prefetch window grows; afterwards there are two places again, and nothing is lost."""
    running = here.filled(2, "grown")
    third, rest = here.send("holds", "grown"), [here.send("holds", "grown") for _ in range(20)]
    assert here.tell("pool_grow", 1) == {"ok": "pool will grow"}
    here.begun(third)
    until(lambda: here.server.client.hlen("unacked") == 12, what="the window to grow")
    here.open("grown")
    here.all_ended([*running, third, *rest])
    until(lambda: here.tell("pool_shrink", 1) == {"ok": "pool will shrink"}, what="a place to be free")  # Celery refuses until then
    until(lambda: here.ask("stats")["prefetch_count"] == 8, what="the window to shrink")
    until(lambda: len(here.ask("stats")["pool"]["processes"]) == 2, what="two processes")
    here.ran_once([*running, third, *rest])


def test_the_pool_is_restarted_while_it_works(here: ControlShop) -> None:
    """`pool_restart`: running tasks end, waiting ones run in the new processes, and nothing runs twice."""
    running = here.filled(2, "restarted")
    waiting = [here.send("ok") for _ in range(20)]
    assert here.tell("pool_restart") == {"ok": "reload started"}
    here.open("restarted")
    here.all_ended([*running, *waiting])
    after = [here.send("ok") for _ in range(20)]
    here.all_ended(after)
    here.ran_once([*running, *waiting, *after])
    assert {here.noted(task_id)[0]["pid"] for task_id in running} - {here.noted(task_id)[0]["pid"] for task_id in after}


def test_events_are_sent_while_they_are_enabled(here: ControlShop) -> None:
    """With `disable_events`, tasks run and are recorded, but send no events until `enable_events`."""
    watcher = Watcher(here)
    until(lambda: here.tell("heartbeat") is None and watcher.events, what="the watcher to hear")
    assert here.tell("enable_events") == {"ok": "task events enabled"}
    assert here.tell("disable_events") == {"ok": "task events disabled"}
    unseen = here.send("ok")
    here.ended(unseen, "succeeded")
    assert here.tell("enable_events") == {"ok": "task events enabled"}
    seen = here.send("ok")
    until(lambda: "task-succeeded" in watcher.types(seen), what="its success to be told")
    assert watcher.types(unseen) == []
    assert here.tell("disable_events") == {"ok": "task events disabled"}
    watcher.close()


def test_a_queue_is_added_and_cancelled_under_load(here: ControlShop) -> None:
    """Both queues have messages meanwhile. Messages taken from the cancelled queue run or go back; the others stay there."""
    sent: list[str] = []

    def load(count: int) -> None:
        for _ in range(count):
            sent.extend((here.send("ok"), here.send("ok", queue="extra")))

    load(10)
    assert here.tell("add_consumer", "extra") == {"ok": "add consumer extra"}
    # Celery answers before it acts, and carries out such commands in no order: a cancellation could come first.
    until(lambda: "extra" in {queue["name"] for queue in here.ask("active_queues")}, what="the queue to be consumed")
    load(30)
    assert here.tell("cancel_consumer", "extra") == {"ok": "no longer consuming from extra"}
    load(10)
    until(lambda: [queue["name"] for queue in here.ask("active_queues")] == ["celery"], what="the queue to be let go")
    load(30)
    here.all_ended(sent[::2])
    until(lambda: "unacked" not in here.leftovers(), what="nothing to be held")
    done = {line["id"] for line in here.runs()} & set(sent[1::2])
    left = here.server.client.llen("extra")
    assert left >= 30
    assert len(done) + left == len(sent[1::2])
    assert [queue["name"] for queue in here.ask("active_queues")] == ["celery"]
    here.tell("add_consumer", "extra")
    here.all_ended(sent[1::2])
    here.tell("cancel_consumer", "extra")
    here.ran_once(sent)


def test_time_limits_are_taken_and_hold_where_celery_lets_them(here: ControlShop) -> None:
    """The worker answers, and its tasks go on; Celery 5.7 builds a limit into a task's requests, so it holds from then on."""
    name = "tests.support.control.control_app.holds"
    assert here.tell("time_limit", name, soft=30, hard=60) == {"ok": "time limits set successfully"}
    (fine,) = here.filled(1, "limits")
    here.tell("time_limit", name)
    here.open("limits")
    here.ended(fine, "succeeded")
    over = here.send("holds", "never", time_limit=0.5)
    end = here.ended(over, "dead_lettered")
    assert (end.reason, len(here.noted(over))) == ("time_limit", 3)


def test_a_worker_shuts_down_by_remote_control(here: ControlShop) -> None:
    """Warm, as if it had been sent SIGTERM: what runs is finished, what waits goes back."""
    running = here.filled(2, "remote")
    waiting = [here.send("holds", "remote") for _ in range(12)]
    here.app.control.shutdown(destination=["w0@shop"])
    until(lambda: "Got shutdown from remote" in here.workers[0].text, what="the worker to hear it")
    here.open("remote")
    assert here.workers[0].process.wait(60) == 0
    here.all_ended(running)
    ended = [task_id for task_id in waiting if "succeeded" in here.outcomes_of(task_id)]
    assert here.leftovers() == {"celery": len(waiting) - len(ended)}
    assert len(ended) < len(waiting)


def test_the_pool_follows_the_load() -> None:
    """`--autoscale`: up to four at once while there is work, and other bounds by remote control."""
    with control_shop() as here:
        here.start("--autoscale", "4,1")
        ids = here.filled(4, "scaled")
        assert here.tell("autoscale", 3, 1) == {"ok": "autoscale now max=3 min=1"}
        here.open("scaled")
        here.all_ended(ids)
        here.ran_once(ids)
