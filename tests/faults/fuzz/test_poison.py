"""Poison: a task that kills its worker is counted before it runs again, and dies; innocent tasks beside it do not."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from redelivery.middleware.messages.envelope import Envelope
from redelivery.workers.duties.recoverer import Recoverer
from tests.support.lanes import first_quick
from tests.support.running import Shop, until
from tests.support.servers import Server, binaries

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ATTEMPTS = 3
PREFETCH, CRASHES = 32, 20
SETTINGS = {"lease": 2, "queues": {"#": {"redelivery_delay": 0.05, "max_delivery_attempts": ATTEMPTS}}}


@pytest.fixture(scope="module")
def here() -> Iterator[Shop]:
    """One worker, whose children may be killed."""
    with tempfile.TemporaryDirectory(prefix="rd-", ignore_cleanup_errors=True) as name:
        server = Server(Path(name), binaries()["valkey"]).start()
        made = Shop(server, Path(name), settings=SETTINGS, module="tests.support.hostile.poisons")
        made.start()
        yield made
        made.stop()
        server.stop(9)


def fence_the_dead(here: Shop) -> None:
    """Fence the dead workers, as another worker would do when their leases have ended; the test knows at once which are dead."""
    transport = here.app.redelivery.transport
    dead = {worker.process.pid for worker in here.workers if worker.process.poll() is not None}
    for token, about in transport.client.hgetall(transport.keys.owners).items():
        counter = transport.client.hget(transport.keys.leases, token)
        if counter is not None and json.loads(about)["pid"] in dead:
            assert transport.leases.fence(token.decode(), counter)


def keep_alive(here: Shop, task_ids: list[str], *, pool: str) -> None:
    """Start a worker whenever none runs, until these tasks have ended."""

    def ended() -> bool:
        if not here.workers or here.workers[-1].process.poll() is not None:
            fence_the_dead(here)
            here.start(pool=pool, concurrency=1, wait=False)
        over = {event.task_id for event in here.events if event.outcome in {"succeeded", "dead_lettered"}}
        return over.issuperset(task_ids)

    until(ended, 200, "all to end")


def is_poison(here: Shop, task_id: str, *, runs: set[int], attempts: int = ATTEMPTS) -> None:
    """It has died as `worker_lost`, after the allowed number of starts."""
    end = here.ended(task_id, "dead_lettered")
    assert end.reason == "worker_lost"
    assert len(here.runs(task_id)) in runs
    (letter,) = [each for each in here.letters() if each["headers"]["id"] == task_id]
    (death,) = Envelope.of(letter["headers"]).deaths
    assert (death["queue"], death["reason"], death["count"]) == ("celery", "worker_lost", 1)
    assert Envelope.of(letter["headers"]).attempt == end.attempt == attempts
    assert here.outcomes_of(task_id).count("dead_lettered") == 1


@pytest.mark.xdist_group("poison")
@pytest.mark.parametrize("how", ["exit", "kill", "segfault", "memory"])
def test_a_task_that_kills_its_child_has_no_start_too_many(here: Shop, how: str) -> None:
    """The worker knows the task of each dead child: exactly as many starts as attempts, and the tasks beside it run once."""
    beside = [here.send("innocent") for _ in range(10)]
    task_id = here.send("ends", how)
    behind = [here.send("innocent") for _ in range(10)]
    is_poison(here, task_id, runs={ATTEMPTS})
    for innocent in beside + behind:
        here.ended(innocent, "succeeded")
        assert len(here.runs(innocent)) == 1
    until(lambda: here.leftovers() == {}, what="nothing to be held")
    assert here.workers[0].process.poll() is None


@pytest.mark.full
@pytest.mark.parametrize(("pool", "task"), first_quick([("prefork", "ends_worker"), ("threads", "ends"), ("solo", "ends")]))
def test_a_task_that_kills_its_whole_worker_has_one_start_too_many_at_most(shop: Callable[..., Shop], pool: str, task: str) -> None:
    """No process can report what had started: the first crash makes it a suspect, and later starts are recorded before they run."""
    here = shop(settings=SETTINGS, module="tests.support.hostile.poisons")
    task_id = here.send(task, *(["exit"] if task == "ends" else []))
    innocents = [here.send("innocent") for _ in range(5)]
    keep_alive(here, [task_id, *innocents], pool=pool)
    is_poison(here, task_id, runs={ATTEMPTS, ATTEMPTS + 1})
    assert {here.outcomes_of(each)[-1] for each in innocents} == {"succeeded"}
    until(lambda: here.leftovers() == {}, what="nothing to be held")


@pytest.mark.full
@pytest.mark.slow
def test_innocents_prefetched_beside_twenty_crashes_never_die(shop: Callable[..., Shop]) -> None:
    """A worker holds 32 messages with one attempt each, and is killed twenty times: only running tasks are counted.

    It is not known what the first worker ran, so the first poison kills a second one; from then on all are suspects.
    """
    settings = {"lease": 2, "queues": {"#": {"max_delivery_attempts": 1}}}
    here = shop(settings=settings, module="tests.support.hostile.poisons", conf={"worker_prefetch_multiplier": PREFETCH})
    poisons = [here.send("ends", "kill") for _ in range(CRASHES - 1)]
    innocents = [here.send("innocent") for _ in range(PREFETCH)]
    recoverer = Recoverer(here.app.redelivery)
    for _ in range(CRASHES):
        here.start(pool="solo", concurrency=1, wait=False).process.wait(120)
        assert here.server.client.hlen("unacked") == PREFETCH, here.workers[-1].text[-2000:]
        fence_the_dead(here)
        recoverer.step()
    assert {each["headers"]["id"] for each in here.letters()} == set(poisons)
    for task_id in poisons:
        is_poison(here, task_id, runs={2} if task_id == poisons[0] else {1}, attempts=1)
    assert [here.runs(task_id) for task_id in innocents] == [[]] * len(innocents)
    here.start(pool="solo", concurrency=1)
    for task_id in innocents:
        assert here.ended(task_id, "succeeded").attempt == 1
        assert len(here.runs(task_id)) == 1
    until(lambda: here.leftovers() == {}, what="nothing to be held")
