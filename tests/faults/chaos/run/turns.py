"""The turns of a run, on any broker: a dead process is started again, with an order where to die, until all is quiet.

A fleet, a plan and faults together give what was killed and where, and what the tasks and the product's own books say of it.
Brokers differ in what is published, which commands run, and how the run is judged.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar

from kombu.exceptions import OperationalError
from redis.exceptions import RedisError

from tests.faults.chaos.processes.lines import Tail, read_lines
from tests.support.running import ROOT, until

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from celery import Celery

    from tests.faults.chaos.boundary import Order
    from tests.faults.chaos.plans.plan import Plan
    from tests.faults.chaos.processes.fleet import Fleet, Process
    from tests.faults.chaos.run.faults import Faults

__all__ = ["TIMEOUT", "Turns"]

#: Seconds in which a process must reach its boundary; then it is killed wherever it is.
TIMEOUT = 20.0


class Turns(ABC):
    """One run. `want` is how many workers there are at a time."""

    fleet: Fleet
    faults: Faults
    #: A plain producer's app, which records no events and knows no bounds.
    plain: Celery
    #: What else is published while these boundaries need more hits.
    LACKING: ClassVar[Mapping[tuple[str, ...], tuple[Any, ...]]] = {}
    #: Messages that wait or are held, above which nothing more is published.
    BACKLOG: ClassVar[int] = 60

    def __init__(self, folder: Path, seed: int, plan: Plan, want: int, say: Callable[[str], None]) -> None:
        self.folder, self.seed, self.plan = folder, seed, plan
        self._want, self._say = want, say
        self._kills = Tail(folder / "kills")
        self._calm = False
        self._produced = 0

    @property
    def kills(self) -> Counter[str]:
        """All kills so far, by role and boundary, or by role and fault."""
        return self.fleet.kills

    def go(self, *, seconds: float, kills: int = 0) -> None:
        """Work until so many were killed, every boundary was hit as planned, and every fault was done; at most so long."""
        deadline, printed = time.monotonic() + seconds, time.monotonic()
        while time.monotonic() < deadline:
            self.turn()
            count = sum(self.kills.values())
            if count >= kills and not self.plan.missing and self.faults.is_through:
                break
            if time.monotonic() - printed > 10:
                printed = time.monotonic()
                self._say(f"{count} kills, {self.faults.done.total()} faults, {len(self.plan.missing)} boundaries to go")
            time.sleep(0.02)  # the processes go on meanwhile

    def turn(self) -> None:
        """Look once at what has died and what must be done."""
        for line in self._kills.new():
            self.kills[f"{line['role']}:{line['boundary']}"] += 1
            self.plan.hit(line["role"], line["boundary"])
        self.faults.turn(calm=self._calm)
        self._keep_going()

    @abstractmethod
    def _keep_going(self) -> None:
        """Start missing processes, publish, and run operators' commands."""

    def _keep(self, slot: str, role: str, start: Callable[[str, Order | None], Process]) -> None:
        process = self.fleet.alive(slot)
        if process is None:
            start(slot, None if self._calm else self.plan.next(role))
        elif process.order is not None and not self._calm:
            self._see_to(process, process.order)

    def _see_to(self, process: Process, order: Order) -> None:
        """Let a process reach its boundary; one that takes too long dies wherever it is."""
        if process.age > TIMEOUT:
            self.fleet.slay(process, "at_random")
        else:
            self._lead_to(process, order.boundary.partition(".")[0])

    @abstractmethod
    def _lead_to(self, process: Process, step: str) -> None:
        """Make this process reach a step that it would not reach by itself."""

    # what is published

    def _publish(self) -> None:
        """Start a producer if none runs, and not too many messages wait."""
        waiting = self.fleet.waiting()
        if self.fleet.alive("producer") is not None or waiting is None or waiting > self.BACKLOG:
            return
        self._produced += 1
        for boundaries, what in self.LACKING.items():
            if self.plan.lacks(*boundaries):
                self._send(*what)
        mix, count, may_die = self._mix_of(self._produced)
        words = ["produce", f"{self.seed}-{self._produced}", str(count), str(self.folder / "ledger"), mix]
        self.fleet.start("producer", words, self.plan.next("producer") if may_die else None, slot="producer")

    @abstractmethod
    def _mix_of(self, number: int) -> tuple[str, int, bool]:
        """What the producer of this number publishes: which mix, how many, and whether it may get an order to die."""

    def _send(self, queue: str, task: str, *args: Any) -> None:
        """Publish some, as a plain producer does."""
        with suppress(OperationalError, RedisError, OSError):
            for _ in range(12):
                self.plain.send_task(f"tests.support.shop.{task}", args, queue=queue, retry=False)

    # the end

    def settle(self, seconds: float = 120) -> None:
        """No more orders, faults and publications: all must become quiet. Raises `AssertionError` if it does not."""
        self._calm = True
        self._before_rest()
        self.faults.end()
        for slot, process in self.fleet.slots.items():
            if process.is_alive and (process.order is not None or slot.startswith("worker")):
                process.signal(signal.SIGKILL)

        def is_at_rest() -> bool:
            self.turn()
            return not self._is_busy() and self.fleet.alive("producer") is None and self.fleet.waiting() == 0

        until(is_at_rest, seconds, f"the run of seed {self.seed} to come to rest; {self.fleet.waiting()} messages are left")

    def _before_rest(self) -> None:  # noqa: B027 - on most brokers there is nothing
        """End what keeps the fleet from becoming quiet."""

    @abstractmethod
    def _is_busy(self) -> bool:
        """Whether an operator's command runs."""

    def notes(self) -> list[dict[str, Any]]:
        """What the tasks noted."""
        return read_lines(self.folder / "runs")

    def export(self) -> list[dict[str, Any]]:
        """The inventory and the outcome log, by the product's own commands; the events."""
        self.fleet.ask("inventory", "export", "--to", str(self.folder / "inventory"), "--format", "jsonl")
        self.fleet.ask("outcomes", "export", "--to", str(self.folder / "outcomes"), "--format", "jsonl")
        files = sorted((self.folder / "outcomes").rglob("outcomes-*.jsonl"))
        return [line for path in files for line in read_lines(path)]

    def gaps(self) -> list[str]:
        """The gaps that an export has reported, although no event was removed."""
        found = self.folder / "outcomes" / "_gaps.jsonl"
        return [f"a gap in the log: {found.read_text()}"] if found.exists() else []

    def reconcile(self, *words: str) -> dict[str, Any]:
        """The product's own books; its summary."""
        paths = ["--outcomes", str(self.folder / "outcomes"), "--inventory", str(self.folder / "inventory")]
        command = [sys.executable, "-m", "redelivery", "reconcile", *paths, *words]
        command += ["--output", str(self.folder / "books"), "--grace", "0", "--json"]
        done = subprocess.run(command, cwd=ROOT, text=True, capture_output=True, timeout=600, check=False)
        assert done.returncode in {0, 1}, done.stderr
        summary: dict[str, Any] = json.loads((self.folder / "books" / "summary.json").read_text("utf-8"))
        return summary
