"""Canvas: chains, groups, chords, links, error callbacks, `replace` and `add_to_chord`, on a plain worker and on ours.

Each workflow is published on both; the runs of its tasks, which carry its key, and its result must be equal.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

import pytest
from celery import chain, chord, group
from celery.exceptions import ChordError, NotRegistered

from redelivery.errors import QueueFull
from tests.support.running import until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.running import Shop
    from tests.support.trials.trial import Side, Trial

    Workflow = Callable[["Parts"], Any]


class Parts:
    """The signatures that a workflow is made of, on one side, under one key."""

    def __init__(self, side: Side) -> None:
        self.side, self.key = side, uuid.uuid4().hex

    def part(self, task: str, *args: Any, queue: str = "celery", **kwargs: Any) -> Any:
        """One task's signature."""
        return self.side.app.signature(
            f"tests.support.trials.celery_app.{task}", args=args, kwargs={**kwargs, "key": self.key}, queue=queue
        )

    def add(self, *args: Any, **options: Any) -> Any:
        """A task that adds."""
        return self.part("add", *args, **options)

    def ran(self) -> list[str]:
        """The tasks that ran under this key, in no order."""
        return sorted(f"{line['task']} {line['args']} {line.get('group', '')}" for line in self.side.keyed(self.key))

    def ids(self, task: str) -> list[str]:
        """The ids of this task's runs under this key."""
        return [line["id"] for line in self.side.keyed(self.key) if line["task"] == task]


FINE: dict[str, tuple[Workflow, Any]] = {
    "chain": (lambda p: chain(p.add(1, 2), p.add(3), p.add(4)), 10),
    "chain-retried": (lambda p: chain(p.add(1, 2), p.add(3, retries=2), p.add(4)), 10),
    "group": (lambda p: group(p.add(1, 1), p.add(2, 2, retries=1), p.add(3, 3)), [2, 4, 6]),
    "chain-group": (lambda p: chain(p.add(1, 2), group(p.add(10), p.add(20)), p.part("total")), 36),
    "chord": (lambda p: chord([p.add(n, n) for n in range(5)], p.part("total")), 20),
    "chord-retried": (lambda p: chord([p.add(1, 1), p.add(2, 2, retries=2)], p.part("total")), 6),
    "chord-chained": (lambda p: chain(chord([p.add(1, 1), p.add(2, 2)], p.part("total")), p.add(100)), 106),
    "nested": (lambda p: chord([chain(p.add(1, 1), p.add(5)), group(p.add(2, 2), p.add(3, 3))], p.part("total")), 17),
    "replaced-task": (lambda p: chain(p.add(0, 1), p.part("replaced", by="task"), p.add(5)), 16),
    "replaced-chain": (lambda p: chain(p.add(0, 1), p.part("replaced", by="chain"), p.add(5)), 116),
    "replaced-group": (lambda p: chain(p.add(0, 1), p.part("replaced", by="group"), p.part("total")), 32),
    "replaced-in-chord": (lambda p: chord([p.part("replaced", 1, by="chain"), p.add(1, 1)], p.part("total")), 113),
    "added": (lambda p: chord([p.part("adding", 1), p.add(2, 2)], p.part("total")), 1006),
}


def publish(trial: Trial, workflow: Callable[[Parts], Any], **options: Any) -> list[tuple[Parts, Any]]:
    """Publish a workflow on both sides; returns its parts and its result."""
    published = []
    for side in trial.sides:
        parts = Parts(side)
        whole = workflow(parts)
        whole._app = side.app  # Celery 5.6 does not find the app in tasks around a nested chord
        published.append((parts, whole.apply_async(**options)))
    return published


def matched(published: list[tuple[Parts, Any]], *, at_least: int = 1) -> list[str]:
    """Wait until ours has run as many tasks as plain Celery, and check that they are the same."""
    (plain, _), (ours, _) = published
    until(lambda: len(plain.ran()) >= at_least, what=f"{at_least} runs on plain Celery: {plain.ran()}")
    until(lambda: len(ours.ran()) >= len(plain.ran()), what=f"{plain.ran()}, not {ours.ran()}")
    assert ours.ran() == plain.ran()
    return ours.ran()


def test_workflows_give_the_same_results_by_the_same_runs(stored: Trial) -> None:
    """All are published before the first is waited for."""
    all_published = {name: publish(stored, workflow) for name, (workflow, _) in FINE.items()}
    for name, published in all_published.items():
        for _, result in published:
            assert result.get(timeout=100) == FINE[name][1], name
        matched(published)
    for published in all_published.values():
        parts, _ = published[1]
        for task_id in {*parts.ids("add"), *parts.ids("total")}:
            stored.ours.ended(task_id, "succeeded")


def test_workflows_need_no_result_backend_where_celerys_do_not(trial: Trial) -> None:
    """Chains, groups, links and `replace`, with and without one."""
    workflows = {
        3: lambda p: chain(p.add(1, 2), p.add(3), p.add(4)),
        2: lambda p: group(p.add(1, 1), p.add(2, 2)),
        4: lambda p: chain(p.add(0, 1), p.part("replaced", by="task"), p.add(5)),
    }
    for least, published in [(least, publish(trial, workflow)) for least, workflow in workflows.items()]:
        matched(published, at_least=least)
    with_links = []
    for side in trial.sides:
        parts = Parts(side)
        sig = parts.add(1, 2)
        sig.link(parts.part("linked"))
        sig.link(parts.add(5))
        with_links.append((parts, sig.apply_async()))
    matched(with_links, at_least=3)


REDELIVERED: dict[str, tuple[Workflow, Any]] = {
    "chain": (lambda p: chain(p.add(1, 2), p.add(3, fails=2), p.add(4)), 10),
    "group": (lambda p: group(p.add(1, 1), p.add(2, 2, fails=1)), [2, 4]),
    "chord-header": (lambda p: chord([p.add(1, 1), p.add(2, 2, fails=2)], p.part("total")), 6),
    "chord-body": (lambda p: chord([p.add(1, 1), p.add(2, 2)], chain(p.part("total"), p.add(1, fails=1))), 7),
    "replaced": (lambda p: chain(p.part("replaced", 1, by="chain", fails=1), p.add(5, fails=1)), 116),
    "added": (lambda p: chord([p.part("adding", 1, fails=1), p.add(2, 2, fails=1)], p.part("total")), 1006),
}


def test_redelivered_members_complete_their_workflow_once(stored: Trial) -> None:
    """A chord counts each member once, however often it was delivered; callbacks and bodies run once."""
    published = {}
    for name, (workflow, _) in REDELIVERED.items():
        parts = Parts(stored.ours)
        published[name] = parts, workflow(parts).apply_async()
    for name, (parts, result) in published.items():
        assert result.get(timeout=100) == REDELIVERED[name][1], name
        for task_id in {*parts.ids("add"), *parts.ids("total")}:
            stored.ours.ended(task_id, "succeeded")
        assert len(parts.ids("total")) == (1 if "chord" in name or name == "added" else 0), name
    for name, (parts, _) in published.items():
        for task_id in {*parts.ids("add")}:
            lives = [event for event in stored.ours.events_of(task_id) if event.outcome == "succeeded"]
            assert len({(event.nesting, event.event_id) for event in lives}) == len({event.nesting for event in lives}), name


def test_a_chord_is_asked_for_as_often_as_its_members_need(shop: Callable[..., Shop], folder: Path) -> None:
    """Files count no members, so Celery asks again and again: more often than a message of this queue may be delivered."""
    (folder / "results").mkdir()
    made = shop(backend=f"file://{folder / 'results'}", conf={"result_chord_retry_interval": 0.05})
    made.start(pool="threads")

    def sig(task: str, *args: Any) -> Any:
        return made.app.signature(f"{made.module}.{task}", args=args)

    result = chord([sig("waits", str(folder / "gate")), sig("ok", 1)], sig("ok"))()
    polled = ("celery.chord_unlock", "redelivery_scheduled")
    until(lambda: [(event.task, event.outcome) for event in made.events].count(polled) > 3, what="more questions than attempts")
    (folder / "gate").touch()
    assert result.get(timeout=60) == [None, 1]


def failing(p: Parts, dies: str) -> Any:
    """A chord whose header has a member that dies, and whose body and header have error callbacks."""
    body = p.part("total")
    body.link_error(p.side.sig("errback"))
    return chord([p.add(1, 1), p.add(2, 2, dies=dies, queue="once")], body)


@pytest.mark.filterwarnings("ignore:Call to deprecated setex")  # Celery's own call, in the producer that lets the oldest die
@pytest.mark.parametrize("how", ["unknown", "evicted"])
def test_who_waits_for_a_member_that_never_ran_hears_of_its_death(shop: Callable[..., Shop], how: str) -> None:
    """No worker knows its task, or its queue was full: its chord has counted a failure, and the rest of its chain has failed."""
    settings = {"queues": {"#": {"max_delivery_attempts": 1}, "short": {"max_length": 1}}}
    made = shop(backend=True, settings=settings)
    made.start(pool="threads")

    def sig(task: str = "tests.support.shop.ok", queue: str = "celery") -> Any:
        return made.app.signature(task, args=(1,), queue=queue)

    def dying() -> Any:
        return sig("no.such.task") if how == "unknown" else sig(queue="short")

    chorded, chained = chord([sig(), dying()], sig())(), chain(dying(), sig())()
    dying().delay()  # a queue of one message lets the one before it die
    for result in (chorded, chained):
        exc = result.get(timeout=30, propagate=False)
        assert isinstance(exc, ChordError if result is chorded else NotRegistered if how == "unknown" else QueueFull), exc
    assert not made.runs(chorded.id) + made.runs(chained.id)


@pytest.mark.parametrize("dies", ["fail", "kill"])
def test_a_chord_with_a_member_that_dies_fails_once(forked: Trial, dies: str) -> None:
    """The body's result is the failure, its error callback is called once, and it does not run; also for a lost process."""
    sides = forked.sides if dies == "fail" else (forked.ours,)  # plain Celery would deliver it for ever
    cause = {"fail": "Expected", "kill": "WorkerLostError"}[dies]
    for parts in map(Parts, sides):
        side = parts.side
        result = failing(parts, dies).apply_async()
        assert type(result.get(timeout=60, propagate=False)).__name__ == "ChordError"
        with pytest.raises(Exception) as caught:  # noqa: PT011 - checked below
            result.get(timeout=60)
        assert type(caught.value).__name__ == cause
        side.noted(result.id, "errback")
        assert parts.ids("total") == []
        member = next(line["id"] for line in side.keyed(parts.key) if line["args"] == [2, 2])
        if side is forked.ours:
            side.ended(member, "dead_lettered")
        assert side.counts(result.id)["errback"] == 1


def test_a_chain_with_a_member_that_dies_ends_there(stored: Trial) -> None:
    """The following tasks never run, and the chain's result is the failure."""
    published = publish(stored, lambda p: chain(p.add(1, 2), p.add(3, dies="fail", queue="once"), p.add(4)))
    for _, result in published:
        found = result.get(timeout=100, propagate=False)
        assert type(found).__name__ == "Expected"
    assert len(matched(published, at_least=2)) == 2


def test_error_callbacks_are_called_once_on_the_final_death(trial: Trial) -> None:
    """Both kinds: called in the worker with the request, and published with the task's id. A redelivery calls neither."""
    ids = []
    for side in trial.sides:
        parts = Parts(side)
        sig = parts.add(1, 2, dies="fail", queue="once")
        sig.link_error(side.sig("errback"))
        sig.link_error(side.sig("old_errback"))
        ids.append(sig.apply_async().id)
    for side, task_id in zip(trial.sides, ids, strict=True):
        side.noted(task_id, "errback")
        side.noted(task_id, "old_errback")
    plain, ours = (side.notes(task_id, "errback", "old_errback") for side, task_id in zip(trial.sides, ids, strict=True))
    assert sorted(map(str, ours)) == sorted(map(str, plain))

    parts = Parts(trial.ours)
    sig = parts.add(1, 2, fails=9, queue="thrice")
    sig.link_error(trial.ours.sig("errback"))
    sig.link_error(trial.ours.sig("old_errback"))
    task_id = sig.apply_async().id
    trial.ours.ended(task_id, "dead_lettered")
    trial.ours.noted(task_id, "old_errback")
    counts = trial.ours.counts(task_id)
    assert (counts["run"], counts["errback"], counts["old_errback"]) == (3, 1, 1)


def test_callbacks_are_called_once_after_a_redelivery(trial: Trial) -> None:
    """They get the value of the attempt that succeeded."""
    parts = Parts(trial.ours)
    sig = parts.add(1, 2, fails=2)
    sig.link(parts.part("linked"))
    sig.link_error(trial.ours.sig("errback"))
    task_id = sig.apply_async().id
    trial.ours.ended(task_id, "succeeded")
    until(lambda: parts.ids("linked"))
    trial.ours.ended(parts.ids("linked")[0], "succeeded")
    assert [line["args"] for line in trial.ours.keyed(parts.key) if line["task"] == "linked"] == [[3]]
    assert "errback" not in trial.ours.counts(task_id)
