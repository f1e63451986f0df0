"""Limits of a task or a worker: expiry, rates, windows, children that are replaced; and calls that need no worker."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest
from celery import Celery

from redelivery import Redelivery
from tests.support.control.control import ControlShop, control_shop, waiting_ids
from tests.support.control.pooled import POOLS, places
from tests.support.lanes import first_quick
from tests.support.running import until
from tests.support.trials.trial import missing

if TYPE_CHECKING:
    from collections.abc import Iterator

SLOW = {"queues": {"#": {"redelivery_delay": 2, "redelivery_collision_avoidance_factor": 0, "max_delivery_attempts": 3}}}


@pytest.fixture(scope="module")
def here() -> Iterator[ControlShop]:
    """A worker whose clock is an hour ahead of the server's, and, on its own queue, one whose children are soon replaced."""
    with control_shop(settings=SLOW, variables={"CONTROL_FAST_CLOCK": "1"}) as made:
        made.start("-Q", "celery")
        made.start("-Q", "children", "--max-tasks-per-child", "2", "--max-memory-per-child", "300000")
        yield made


LIMITS = pytest.mark.xdist_group("celery-bounds")


@LIMITS
def test_expiry_is_judged_by_the_servers_clock(here: ControlShop) -> None:
    """A message with a time to live of one minute runs on a worker whose clock is an hour ahead; Celery would drop it."""
    task_id = here.send("ok", expires=60)
    here.ended(task_id, "succeeded")


@LIMITS
def test_a_message_that_expires_before_its_redelivery_is_a_death(here: ControlShop) -> None:
    """The first attempt runs; the time to live ends before the next one."""
    task_id = here.send("fails", expires=1)
    end = here.ended(task_id, "dead_lettered")
    assert here.outcomes_of(task_id) == ["published", "redelivery_scheduled", "dead_lettered"]
    assert (end.reason, len(here.noted(task_id))) == ("expired", 1)
    assert [letter["headers"]["id"] for letter in here.letters()][:1] == [task_id]


@LIMITS
def test_a_message_that_expires_while_it_waits_in_the_worker_does_not_run(here: ControlShop) -> None:
    """Its expiry is checked again just before it would run."""
    running = here.filled(2, "expiry")
    task_id = here.send("ok", expires=1)
    here.ended(here.send("ok", countdown=1.5), "deferred")  # it was received behind the other
    later = here.server.client
    began = int(later.time()[0])
    until(lambda: int(later.time()[0]) >= began + 2, what="the server's clock to pass the expiry")
    here.open("expiry")
    assert here.ended(task_id, "dead_lettered").reason == "expired"
    assert here.noted(task_id) == []
    here.all_ended(running)


@LIMITS
def test_a_rate_can_be_changed_while_messages_wait(here: ControlShop) -> None:
    """A message that must wait for an hour is held and not lost; a new rate applies to later messages."""
    first, second = here.send("hourly"), here.send("hourly")
    here.ended(first, "succeeded")
    until(lambda: here.server.client.hlen("unacked") == 1, what="the second to wait in the worker")
    assert here.noted(second) == []
    assert here.tell("rate_limit", "tests.support.control.control_app.hourly", "1000/s", worker=0) == {
        "ok": "new rate limit set successfully"
    }
    third = here.send("hourly")
    here.ended(third, "succeeded")
    assert here.outcomes_of(second) == ["published"]


@LIMITS
def test_children_that_are_replaced_lose_nothing(here: ControlShop) -> None:
    """A child ends after two tasks, or when it is too large, and a new one continues: every task runs once."""
    ids = [here.send("ok", queue="children") for _ in range(20)]
    here.all_ended(ids)
    pids = [here.noted(task_id)[0]["pid"] for task_id in ids]
    assert max(pids.count(pid) for pid in pids) <= 2
    here.ran_once(ids)
    large = here.send("grows", 400, queue="children")
    here.ended(large, "succeeded")
    after = [here.send("ok", queue="children") for _ in range(4)]
    here.all_ended(after)
    assert here.noted(large)[0]["pid"] not in [here.noted(task_id)[0]["pid"] for task_id in after]
    here.ran_once([large, *after])


@LIMITS
def test_what_waits_for_its_rate_goes_back_when_the_worker_stops(here: ControlShop) -> None:
    """It is in its queue again, unchanged, neither lost nor run."""
    here.tell("rate_limit", "tests.support.control.control_app.hourly", "1/h", worker=0)
    before = here.server.client.hlen("unacked")
    first, second = here.send("hourly"), here.send("hourly")
    here.ended(first, "succeeded")
    until(lambda: here.server.client.hlen("unacked") == before + 1, what="the second to wait in the worker")
    assert here.workers[0].stop(seconds=60) == 0
    assert here.leftovers() == {"celery": before + 1}
    assert here.outcomes_of(second) == ["published"]


@pytest.fixture(
    scope="module", params=first_quick(pytest.param(pool, marks=pytest.mark.xdist_group(f"bounds-{pool}")) for pool in POOLS)
)
def frugal(request: pytest.FixtureRequest) -> Iterator[tuple[str, ControlShop]]:
    """A worker of each pool, with room for two (one on solo): it holds no more than it can run, and ten with an ETA."""
    if missing(request.param):
        (pytest.fail if os.environ.get("CI") else pytest.skip)(missing(request.param))
    conf = {"worker_disable_prefetch": True, "worker_eta_task_limit": 10}
    settings = {"eta_threshold": 7200, "queues": {"#": {"max_delivery_attempts": 3}}}
    with control_shop(settings=settings, conf=conf) as made:
        made.start(pool=request.param)
        yield request.param, made


def holds(here: ControlShop, count: int) -> None:
    """Wait until the worker holds so many, and check that this is still so after a turn of its loop."""
    client = here.server.client
    until(lambda: client.hlen("unacked") == count, what=f"{count} to be held: {here.leftovers()}")
    here.ask("ping")
    here.ask("stats")
    assert client.hlen("unacked") == client.zcard("unacked_index") == count


def test_a_worker_that_does_not_prefetch_holds_what_it_runs(frugal: tuple[str, ControlShop]) -> None:
    """`worker_disable_prefetch`: messages for which there is no room stay in their queue, for other workers."""
    pool, here = frugal
    ids = here.filled(places(pool), "window")
    ids += [here.send("holds", "window") for _ in range(6)]
    if pool == "solo":
        assert here.leftovers() == {"celery": 6, "unacked": 1, "unacked_index": 1}
    else:
        holds(here, 2)
        assert here.server.client.llen("celery") == 6
    here.open("window")
    here.all_ended(ids)
    here.ran_once(ids)


def test_a_worker_takes_no_more_tasks_with_an_eta_than_it_may(frugal: tuple[str, ControlShop]) -> None:
    """`worker_eta_task_limit` applies to messages that wait in the worker, not in the delay store; they go back when it stops."""
    _, here = frugal
    ids = [here.send("ok", countdown=1800) for _ in range(16)]
    holds(here, 10)
    assert here.server.client.llen("celery") == 6
    assert here.workers[-1].stop(seconds=60) == 0
    assert waiting_ids(here, "celery") == ids


def test_a_message_that_waits_for_its_rate_takes_a_place_where_prefetching_is_off() -> None:
    """With `worker_disable_prefetch`, a worker with room for two that holds two rate-limited messages takes no third."""
    with control_shop(conf={"worker_disable_prefetch": True}) as here:
        here.start(pool="threads")
        first = here.send("hourly")
        here.ended(first, "succeeded")
        waiting = [here.send("hourly") for _ in range(4)]
        holds(here, 2)
        assert here.server.client.llen("celery") == 2
        assert [here.outcomes_of(task_id) for task_id in waiting] == [["published"]] * 4


# tasks that need no worker


@pytest.fixture
def local() -> Iterator[Celery]:
    """An app whose broker does not exist: any request to it fails."""
    app = Celery("local", broker="redis+socket:///nowhere/s", backend="cache+memory://", set_as_current=False)
    Redelivery(app)
    yield app
    app.close()


def test_a_direct_call_is_a_call(local: Celery) -> None:
    """The function runs, returns and raises like a plain function."""

    @local.task(name="half")
    def half(value: int) -> float:
        return 1 / value

    assert half(2) == 0.5
    with pytest.raises(ZeroDivisionError):
        half(0)


@pytest.mark.parametrize("always", [False, True], ids=["apply", "task_always_eager"])
def test_an_eager_task_keeps_celerys_meaning(local: Celery, always: bool) -> None:
    """It runs here and now, with its own retries, and touches no broker."""
    runs = []

    @local.task(bind=True, name="tries", max_retries=2, default_retry_delay=0)
    def tries(self: Any, times: int) -> str:
        runs.append(self.request.retries)
        if self.request.retries < times:
            raise self.retry(exc=ValueError("not yet"))
        return "done"

    local.conf.task_always_eager = always
    run = tries.delay if always else lambda *args: tries.apply(args=args)
    assert run(2).get() == "done"
    assert runs == [0, 1, 2]
    failed = run(9)
    assert failed.state == "FAILURE"
    with pytest.raises(ValueError, match="not yet"):
        failed.get()
