"""A shop whose tasks begin and end under the control of a test. The tests of a module share it."""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.support.running import Shop, Worker, until
from tests.support.servers import Server, binaries

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["ControlShop", "control_shop", "waiting_ids"]

#: Three attempts without a long delay.
SETTINGS: dict[str, Any] = {"queues": {"#": {"redelivery_delay": 0.1, "max_delivery_attempts": 3}}}


@dataclass
class ControlShop(Shop):
    """The app `tests.support.control.control_app` on one private broker. `variables` are environment variables of its workers."""

    module: str = "tests.support.control.control_app"
    variables: dict[str, str] = field(default_factory=dict)

    @property
    def environment(self) -> dict[str, str]:
        return {**super().environment, **self.variables}

    def start(self, *words: str, **options: Any) -> Worker:
        """Start a worker, and wait until it answers remote control: on gevent that is later than `worker_ready`."""
        worker = super().start(*words, **options)
        if options.get("wait", True):
            name = f"w{len(self.workers) - 1}@shop"
            until(lambda: self.app.control.ping(destination=[name], timeout=1), what=f"an answer of {name}")
        return worker

    def open(self, gate: str) -> None:
        """Open a gate: the tasks that wait at it go on."""
        (self.folder / f"gate-{gate}").touch()

    def noted(self, task_id: str, event: str = "run") -> list[dict[str, Any]]:
        """The notes of this event of a task."""
        return [line for line in self.runs(task_id) if line["event"] == event]

    def begun(self, *task_ids: str) -> None:
        wanted = set(task_ids)
        until(lambda: wanted <= {line["id"] for line in self.runs() if line["event"] == "run"}, what=f"{task_ids} to begin")

    def all_ended(self, task_ids: list[str], outcome: str = "succeeded") -> None:
        wanted = set(task_ids)
        until(lambda: wanted <= {each.task_id for each in self.events if each.outcome == outcome}, what=f"all to be {outcome}")

    def ran_once(self, task_ids: list[str]) -> None:
        """Check that each of these tasks was published, ran once, and succeeded."""
        runs = Counter(line["id"] for line in self.runs() if line["event"] == "run")
        lives: dict[str, list[str]] = {task_id: [] for task_id in task_ids}
        for event in self.events:
            if event.task_id in lives:
                lives[event.task_id].append(str(event.outcome))
        assert {runs[task_id] for task_id in task_ids} <= {1}
        assert [life for life in lives.values() if life != ["published", "succeeded"]] == []

    def filled(self, count: int, gate: str, **options: Any) -> list[str]:
        """Occupy `count` places of the pool with tasks that wait at this gate. Returns their ids."""
        ids = [self.send("holds", gate, **options) for _ in range(count)]
        self.begun(*ids)
        return ids

    def ask(self, question: str, *args: Any, worker: int = -1, **options: Any) -> Any:
        name = f"w{len(self.workers) - 1 if worker < 0 else worker}@shop"
        answer = getattr(self.app.control.inspect(destination=[name], timeout=60), question)(*args, **options)
        assert answer is not None, f"{name} did not answer {question}"
        return answer[name]

    def tell(self, command: str, *args: Any, worker: int = -1, **options: Any) -> Any:
        name = f"w{len(self.workers) - 1 if worker < 0 else worker}@shop"
        answer = getattr(self.app.control, command)(*args, destination=[name], reply=True, timeout=60, **options)
        assert answer, f"{name} did not answer {command}"
        return answer[0][name]

    def waits_for_nothing(self) -> None:
        until(lambda: not self.leftovers(), what=f"nothing to be left, not {self.leftovers()}")


def waiting_ids(here: ControlShop, queue: str) -> list[str]:
    """The task ids in a queue, the next to be received first."""
    raws: Any = here.server.client.lrange(queue, 0, -1)
    return [json.loads(raw)["headers"]["id"] for raw in reversed(raws)]


@contextmanager
def control_shop(**options: Any) -> Iterator[ControlShop]:
    """A shop on a private broker. At the end both are stopped, with all workers."""
    options.setdefault("settings", SETTINGS)
    with tempfile.TemporaryDirectory(prefix="rd-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        server = Server(folder, binaries()["valkey"]).start()
        made = ControlShop(server, folder, **options)
        try:
            yield made
        finally:
            made.stop()
            server.stop(9)
