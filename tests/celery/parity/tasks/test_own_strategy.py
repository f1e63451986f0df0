"""Tasks whose own `Strategy` runs and acknowledges their messages: no success is recorded, and killing a worker counts."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from celery import Celery, Task

from redelivery import Redelivery
from redelivery.middleware.worker.own_strategy import strategy_of
from redelivery.workers.operations.adoption.adoption import adoption_of
from tests.support.lanes import first_quick
from tests.support.running import Shop, until
from tests.support.servers import Server, binaries

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.rabbit import Rabbit

pytestmark = pytest.mark.xdist_group("own_strategy")

POLICY = {"redelivery_delay": 0.1, "max_delivery_attempts": 3}


@pytest.fixture
def server() -> Iterator[Server]:
    """A broker of its own."""
    with tempfile.TemporaryDirectory(prefix="rd-", ignore_cleanup_errors=True) as name:
        server = Server(Path(name), binaries()["valkey"]).start()
        yield server
        server.stop(9)


@pytest.fixture
def shop(server: Server, tmp_path: Path) -> Iterator[Shop]:
    """The app of `tests.support.apps.batching`, without a worker yet."""
    here = Shop(server, tmp_path, settings={"queues": {"#": POLICY}}, module="tests.support.apps.batching", backend=True)
    yield here
    here.stop()


@pytest.mark.parametrize("pool", first_quick(["prefork", "threads"]))
@pytest.mark.parametrize("task", ["works", "breaks", "breaks_early"])
def test_no_success_is_claimed_of_a_batch(shop: Shop, pool: str, task: str) -> None:
    """However the batch ends, its library acknowledges it without a result. Each message has one end, and none stays held."""
    shop.start(pool=pool)
    ids = [shop.send(task, number) for number in range(4)]
    for task_id in ids:
        assert shop.ended(task_id, "unobserved").attempt == 1
        assert shop.outcomes_of(task_id) == ["published", "unobserved"]
    until(lambda: all(map(shop.runs, ids)), what="all to run: `breaks_early` is acknowledged before it does")
    until(lambda: shop.leftovers() == {}, what="nothing to be held")
    assert [len(shop.runs(each)) for each in ids] == [1] * 4
    assert shop.letters() == []


def test_no_success_is_claimed_of_a_batch_on_rabbitmq(rabbit: Rabbit, tmp_path: Path) -> None:
    """The same on a broker without leases: each message of a failed batch has one end, and runs once."""
    here = Shop(rabbit, tmp_path, settings={"queues": {"#": POLICY}}, module="tests.support.apps.batching")  # type: ignore[arg-type]
    try:
        here.start()
        ids = [here.send("breaks", number) for number in range(4)]
        for task_id in ids:
            assert here.ended(task_id, "unobserved").attempt == 1
            assert here.outcomes_of(task_id) == ["published", "unobserved"]
            assert len(here.runs(task_id)) == 1
        until(lambda: here.leftovers() == {}, what="nothing to be held")
        assert rabbit.depth("DLQ.celery") in {None, 0}
    finally:
        here.stop()


@pytest.mark.full
@pytest.mark.slow
def test_a_batch_that_kills_its_worker_is_an_attempt_that_counts(shop: Shop) -> None:
    """The first crash makes it a suspect. From then on its start is recorded when its strategy gets it, up to its limit."""
    shop.settings["queues"]["#"] = {**POLICY, "max_delivery_attempts": 2}
    shop.start()
    task_id = shop.send("kills")
    for crashes in (1, 2, 3):
        until(lambda: shop.workers[-1].process.poll() is not None, what="the worker to be killed")
        assert len(shop.runs(task_id)) == crashes
        shop.start(wait=crashes == 3)
    end = shop.ended(task_id, "dead_lettered")
    assert (end.reason, end.attempt) == ("worker_lost", 2)
    assert shop.outcomes_of(task_id) == ["published", "redelivery_scheduled", "redelivery_scheduled", "dead_lettered"]


@pytest.mark.slow
def test_what_a_strategy_has_not_run_is_given_back_uncounted(shop: Shop) -> None:
    """A warm shutdown gives back the messages in the strategy's buffer; many deployments do not count against them."""
    shop.settings["queues"]["#"] = {**POLICY, "max_delivery_attempts": 1, "persist_delivery_count": "always"}
    task_id = shop.send("gathers")
    for _ in range(3):
        worker = shop.start()
        until(lambda: shop.leftovers() != {"celery": 1}, what="the message to be held")
        worker.stop()
        until(lambda: shop.leftovers() == {"celery": 1}, what="the message to be back in its queue")
    assert (shop.outcomes_of(task_id), shop.runs(task_id)) == (["published"], [])


@pytest.mark.parametrize("mode", ["observe", "not enabled"])
def test_where_nothing_is_enforced_a_batch_is_unobserved_too(shop: Shop, mode: str) -> None:
    """Without an event for its end, the books would call it lost."""
    shop.settings = {"mode": "observe"} if mode == "observe" else {"queues": {"#": {"enabled": False}}}
    shop.start()
    ids = [shop.send("breaks", number) for number in range(2)]
    for task_id in ids:
        shop.ended(task_id, "unobserved")
        assert shop.outcomes_of(task_id) == ["published", "unobserved"]


def test_a_worker_says_of_which_tasks_it_sees_no_end(shop: Shop) -> None:
    """There is one warning at the start, with the strategy's name."""
    worker = shop.start()
    line = next(line for line in worker.text.splitlines() if "event=tasks.unobserved" in line)
    assert "tests.support.apps.batching.breaks (tests.support.apps.batching.Batches)" in line
    assert "tests.support.shop." not in line


def test_adopt_promises_such_a_task_no_attempts() -> None:
    """It names the strategy, and says that failures are not seen."""
    app = Celery("adopter", broker="redis://localhost", set_as_current=False)
    redelivery = Redelivery(app, {"queues": {"#": POLICY}})

    class Batches(Task):
        abstract = True

        def Strategy(self, *_: Any) -> Any:  # noqa: N802 - Celery's name
            raise NotImplementedError

    def body() -> None:
        pass

    app.task(body, base=Batches, name="gathered", shared=False)
    app.task(body, name="named", Strategy="celery.worker.strategy:default", shared=False)
    app.finalize()
    own = f"{__name__}.{Batches.__qualname__}"
    assert (strategy_of(app.tasks["gathered"]), strategy_of(app.tasks["named"])) == (own, None)
    changes = {change.task: change for change in adoption_of(redelivery).changes}
    assert changes["gathered"].to_json()["strategy"] == own
    assert any("a failure makes no redelivery" in line for line in changes["gathered"].look_at)
    assert changes["named"].strategy is None
    assert not any("Strategy" in line for line in changes["named"].look_at)
