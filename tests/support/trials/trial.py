"""Trials: play one story on a plain Celery worker and on a worker with redelivery, and compare the notes of both.

The workers of one kind (a pool, with or without a result backend) are started once for all modules that use them. A test uses its
own task ids, and leaves the workers running.
"""

from __future__ import annotations

import itertools
import json
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.lanes import FULL
from tests.support.running import Shop, until
from tests.support.servers import Server, binaries

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["KINDS", "QUEUES", "Side", "Story", "Trial", "answer", "kind", "missing", "opened", "step"]

#: The queues of a trial: `celery` has ten attempts, `thrice` three, `once` one, and `unkept` one without dead letters.
QUEUES = ("celery", "once", "thrice", "unkept", "other")
POLICIES: dict[str, dict[str, Any]] = {
    "#": {"redelivery_delay": 0.1, "redelivery_delay_multiplier": 1, "redelivery_collision_avoidance_factor": 0},
    "once": {"max_delivery_attempts": 1},
    "thrice": {"max_delivery_attempts": 3},
    "unkept": {"max_delivery_attempts": 1, "dead_letter_queue": None},
}


def step(verb: str, **options: Any) -> list[Any]:
    """One step of a task of `tests.support.trials.celery_app`."""
    return [verb, options]


def answer(side: Side, command: str, arguments: dict[str, Any]) -> Any:
    """The answer of the side's worker to a remote-control command."""
    replies = side.app.control.broadcast(command, arguments=arguments, reply=True, timeout=60, destination=["w0@shop"])
    assert replies, f"no answer to {command}"
    return replies[0]["w0@shop"]


@dataclass
class Side(Shop):
    """One broker with one worker, with redelivery or plain."""

    module: str = "tests.support.trials.celery_app"

    def sig(self, task: str, *steps: Any, **options: Any) -> Any:
        return self.app.signature(f"{self.module}.{task}", args=steps, kwargs=options.pop("kwargs", None), **options)

    def play(self, *steps: Any, task: str = "play", queue: str = "celery", **options: Any) -> str:
        return self.send(task, *steps, queue=queue, **options)

    def runs(self, task_id: str | None = None) -> list[dict[str, Any]]:
        """The notes, without an incomplete last line."""
        path = self.folder / "runs"
        text = path.read_text("utf-8").rpartition("\n")[0] if path.exists() else ""
        lines = [json.loads(line) for line in text.splitlines() if task_id is None or task_id in line]
        return [line for line in lines if task_id is None or line["id"] == task_id]

    def notes(self, task_id: str, *what: str) -> list[dict[str, Any]]:
        """The notes of a task, without variable fields."""
        return [
            {key: value for key, value in line.items() if key not in {"id", "at", "pid"}}
            for line in self.runs(task_id)
            if not what or line["what"] in what
        ]

    def counts(self, task_id: str) -> dict[str, int]:
        """The numbers of a task's notes, by kind."""
        found: dict[str, int] = {}
        for line in self.runs(task_id):
            found[line["what"]] = found.get(line["what"], 0) + 1
        return found

    def noted(self, task_id: str, what: str, times: int = 1) -> list[dict[str, Any]]:
        """Wait until a task has `times` notes of this kind."""
        noted: list[dict[str, Any]] = until(
            lambda: found if len(found := self.notes(task_id, what)) >= times else None,
            what=f"{what} of {task_id}",
        )
        return noted

    def keyed(self, key: str) -> list[dict[str, Any]]:
        return [line for line in self.runs() if line.get("key") == key]

    def result(self, task_id: str) -> Any:
        return self.app.AsyncResult(task_id)

    def state(self, task_id: str, *states: str) -> str:
        return str(until(lambda: found if (found := self.result(task_id).state) in states else None, what=f"{states} of {task_id}"))


@dataclass
class Trial:
    """The two sides of a comparison: with redelivery (`ours`) and plain."""

    ours: Side
    plain: Side
    backend: bool
    pool: str

    @property
    def sides(self) -> tuple[Side, Side]:
        """Both sides, plain Celery first."""
        return self.plain, self.ours

    def tell(self, *steps: Any, **options: Any) -> Story:
        return Story(self, tuple(side.play(*steps, **options) for side in self.sides), steps, options)


@dataclass
class Story:
    """One task on both sides."""

    trial: Trial
    ids: tuple[str, ...]
    steps: tuple[Any, ...]
    options: dict[str, Any]

    @property
    def id(self) -> str:
        """The task's id on the side with redelivery."""
        return self.ids[1]

    def matches(
        self,
        runs: int | None = None,
        *,
        what: str = "task_postrun",
        ready: bool = True,
        but: tuple[str, ...] = (),
    ) -> list[dict[str, Any]]:
        """Wait for the end on both sides, and assert that their notes are the same. Returns them in plain Celery's order.

        At the end `what` was noted `runs` times (by default once for each step), and with a result backend and `ready` there is a
        result. Kinds of notes in `but` are not compared.
        """
        times = len(self.steps) if runs is None else runs
        if self.trial.backend and ready:
            self._play_again_while_overtaken(what, times)
        seen, results = [], []
        for side, task_id in zip(self.trial.sides, self.ids, strict=True):
            side.noted(task_id, what, times)
            seen.append([_without_redelivered(line) for line in side.notes(task_id) if line["what"] not in but])
            if self.trial.backend and ready:
                result = side.result(task_id)
                until(result.ready, what=f"the result of {task_id} on {side}")  # polled, so that no notification can be missed
                results.append((repr(result.get(timeout=60, propagate=False)).replace(task_id, "ID"), result.state))
        plain, ours = json.loads(json.dumps(seen).replace(self.ids[0], "ID").replace(self.ids[1], "ID"))
        # The next run may begin before the last hooks of a run have ended, so the order is not compared.
        assert sorted(map(str, ours)) == sorted(map(str, plain)), _difference(ours, plain)
        assert results[1:] == results[:1], f"ours, plain: {results[::-1]}"
        return list(plain)

    def _play_again_while_overtaken(self, what: str, times: int) -> None:
        """Play the plain side again if a late RETRY has overwritten its end.

        Celery publishes a retry before it writes RETRY into the result. If the next run fails for good before that, RETRY
        overwrites its FAILURE, and the result is never ready. The side with redelivery does not have this race.
        """
        plain, ours = self.trial.plain, self.ids[1]
        for _ in range(5):
            plain.noted(self.ids[0], what, times)
            with suppress(AssertionError):
                until(plain.result(self.ids[0]).ready, 5)
            if plain.result(self.ids[0]).state != "RETRY":
                return
            self.ids = plain.play(*self.steps, **self.options), ours


def _without_redelivered(line: dict[str, Any]) -> dict[str, Any]:
    """Leave out `redelivered`: redelivery sets it for each redelivery, Celery only for messages that returned to their queue."""
    headers = {key: value for key, value in line.get("headers", {}).items() if key != "redelivered"}
    return {key: headers if key == "headers" else value for key, value in line.items() if key != "redelivered"}


def _difference(ours: list[Any], plain: list[Any]) -> str:
    """The notes that only one side has, for an assertion: pytest does not explain assertions outside of test modules."""
    lines = [f"ours:  {line}" for line in ours if line not in plain] + [f"plain: {line}" for line in plain if line not in ours]
    return "\n".join([f"{len(ours)} notes by ours, {len(plain)} by plain Celery", *lines])


def opened(folder: Path, *, backend: bool, pool: str, plain: bool) -> Side:
    """Start the broker and the worker of one side in a new folder."""
    folder.mkdir()
    server = Server(folder, binaries()["valkey"]).start()
    side = Side(
        server,
        folder,
        settings={"queues": POLICIES},
        conf={"result_extended": True},
        backend=backend,
        plain=plain,
    )
    try:
        side.start("-Q", ",".join(QUEUES), pool=pool)
        # On greenlets the mailbox opens later than `worker_ready`.
        until(lambda: side.app.control.ping(destination=["w0@shop"], timeout=1), what="the worker to answer")
    except BaseException:
        side.stop()
        server.stop(9)
        raise
    return side


def missing(pool: str) -> str:
    """The reason why this pool is not available; empty if it is."""
    return f"{pool} is not installed" if pool in {"gevent", "eventlet"} and find_spec(pool) is None else ""


def kind(*, backend: bool, pool: str) -> Any:
    """A fixture parameter whose tests all run in one process, and share its workers."""
    name = f"{'backend' if backend else 'no-backend'}-{pool}"
    marks = [
        pytest.mark.xdist_group(f"trial-{name}"),
        pytest.mark.skipif(bool(missing(pool)), reason=missing(pool) or "available"),
    ]
    if not (backend and pool == "prefork"):
        marks.append(FULL)
    return pytest.param((backend, pool), id=name, marks=marks)


PREFORK, THREADS = kind(backend=True, pool="prefork"), kind(backend=True, pool="threads")
#: Each pool, with and without a result backend.
KINDS = (
    PREFORK,
    kind(backend=False, pool="prefork"),
    THREADS,
    kind(backend=False, pool="threads"),
    kind(backend=True, pool="gevent"),
    kind(backend=False, pool="gevent"),
    kind(backend=True, pool="solo"),
    kind(backend=False, pool="solo"),
    kind(backend=True, pool="eventlet"),
    kind(backend=False, pool="eventlet"),
)
STORED = tuple(each for each in KINDS if each.values[0][0])


class Trials:
    """The trials of one process of the test run, each opened at its first use."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.open: dict[tuple[bool, str], Trial] = {}
        self._numbers = itertools.count()

    def of(self, *, backend: bool, pool: str) -> Trial:
        """The trial of this kind, with two running workers."""
        key = backend, pool
        if key not in self.open:
            plain, ours = (
                opened(self.folder / str(next(self._numbers)), backend=backend, pool=pool, plain=is_plain)
                for is_plain in (True, False)
            )
            self.open[key] = Trial(ours, plain, backend, pool)
        trial = self.open[key]
        for side in trial.sides:
            assert side.workers[-1].process.poll() is None, f"a test ended the shared worker: {side.workers[-1].text[-3000:]}"
        return trial

    def close(self) -> None:
        for trial in self.open.values():
            for side in trial.sides:
                side.stop()
                side.server.stop(9)


@pytest.fixture(scope="session")
def trials() -> Iterator[Trials]:
    with tempfile.TemporaryDirectory(prefix="rd-", ignore_cleanup_errors=True) as name:
        trials = Trials(Path(name))
        yield trials
        trials.close()


@pytest.fixture(params=KINDS)
def trial(request: pytest.FixtureRequest, trials: Trials) -> Trial:
    backend, pool = request.param
    return trials.of(backend=backend, pool=pool)


@pytest.fixture(params=STORED)
def stored(request: pytest.FixtureRequest, trials: Trials) -> Trial:
    """Both workers, with a result backend, on each pool."""
    backend, pool = request.param
    return trials.of(backend=backend, pool=pool)


@pytest.fixture(params=[PREFORK])
def forked(request: pytest.FixtureRequest, trials: Trials) -> Trial:
    """Both workers on prefork, with a result backend, for tests that do not depend on the pool."""
    backend, pool = request.param
    return trials.of(backend=backend, pool=pool)
