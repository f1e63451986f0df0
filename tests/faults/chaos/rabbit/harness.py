"""A run on RabbitMQ: a fleet is killed and cut by a plan; at the end nothing is lost, and the books name what ended twice.

As on Redis (`tests.faults.chaos.run.harness`), except the dispatcher and the leases, which RabbitMQ does not need. It is judged by
`tests.faults.chaos.rabbit.account`, and the reconciliation must use the same words.
"""

from __future__ import annotations

import random
import signal
import time
from typing import TYPE_CHECKING, Any, ClassVar

from celery import Celery

from redelivery.middleware.brokers.rabbitmq.events import events_of
from redelivery.middleware.brokers.rabbitmq.names import OUTCOMES
from redelivery.middleware.brokers.rabbitmq.peek import Look
from tests.faults.chaos.processes.lines import read_lines
from tests.faults.chaos.rabbit.account import Account, account
from tests.faults.chaos.rabbit.commands import RabbitCommands
from tests.faults.chaos.rabbit.faults import FAULTS, RabbitFaults
from tests.faults.chaos.rabbit.fleet import DIED, LOOK_EVERY, RabbitFleet, queues
from tests.faults.chaos.run.turns import Turns
from tests.faults.chaos.verdict import archived_in

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from tests.faults.chaos.boundary import Order
    from tests.faults.chaos.plans.plan import Plan
    from tests.faults.chaos.processes.fleet import Process
    from tests.support.rabbit import Node

__all__ = ["RabbitRun"]

SETTINGS: dict[str, Any] = {
    "eta_threshold": 0.2,
    "queues": {
        "#": {"redelivery_delay": 0.1, "redelivery_delay_multiplier": 1, "max_delivery_attempts": 4},
        "counted": {"persist_delivery_count": "always"},
    },
}
#: Steps of a worker that is asked to stop.
STOPPING = {"release", "rest"}


class RabbitRun(Turns):
    """One run, on a node of its own where none is given."""

    fleet: RabbitFleet
    LACKING: ClassVar[Mapping[tuple[str, ...], tuple[Any, ...]]] = {
        ("child:write", "child:name", "worker:redrive"): ("judged", "raises", "dead_letter"),
        ("child:publish", "child:announce"): ("celery", "fans", "celery"),
        ("worker:rest",): ("counted", "ok"),
        ("redrive:", "move:", "purge:", "archivist:"): ("celery", "raises", "dead_letter"),
    }
    BACKLOG = 150

    def __init__(
        self,
        folder: Path,
        seed: int,
        plan: Plan,
        *,
        node: Node | None = None,
        faults: tuple[str, ...] = FAULTS,
        fault_every: float = 5.0,
        workers: int = 2,
        pools: tuple[str, ...] = ("prefork", "prefork", "threads", "solo"),
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        super().__init__(folder, seed, plan, workers, say)
        self.fleet = RabbitFleet(folder, SETTINGS, node)
        self.faults = RabbitFaults(self.fleet, seed, faults, fault_every)
        self._pools = pools
        self._chance = random.Random(f"run-{seed}")  # noqa: S311 - a scenario, no secret
        self._commands = RabbitCommands(self.fleet, plan, self._chance, self._later)
        self._last_redrive: Process | None = None
        self._redriven_at = 0.0

    def open(self) -> None:
        """Start the broker, the proxy and the fork server."""
        self.fleet.open()
        self.plain = Celery("plain", broker=self.fleet.rabbit.url, set_as_current=False)
        self.plain.conf.task_queues = queues()
        self.plain.conf.broker_transport_options = {"confirm_publish": True}

    def close(self) -> None:
        """End everything."""
        self.plain.close()
        self.fleet.close()

    def _keep_going(self) -> None:
        for number in range(self._want):
            self._keep(f"worker-{number}", "worker", self._start_worker)
        if self._calm and self.fleet.depth(DIED) and self.fleet.alive("importer") is None:
            self.fleet.start("asked", ["redelivery", "dlq", "import", DIED], slot="importer")
        if not self._calm and not self.faults.is_silent:
            self._publish()
            self._commands.turn()

    def _lead_to(self, process: Process, step: str) -> None:
        if step not in STOPPING or process.is_asked_to_stop or not process.has_said(b" ready."):
            return
        if process.loaded_at is None:
            process.loaded_at = process.age
            self._send("celery", "naps", 0.2)
        elif self.fleet.held() > 4 * len(self.fleet.workers()) or process.age > process.loaded_at + 3:
            process.is_asked_to_stop = True
            process.signal(signal.SIGTERM, group=False)

    def _start_worker(self, slot: str, order: Order | None) -> Process:
        missing = [name.partition(":")[2] for name in self.plan.missing if name.startswith("child:") and not self._calm]
        children = f"{self._chance.random()}:12:{','.join(missing)}" if missing else ""
        step = "" if order is None else order.boundary.partition(".")[0]
        sure = {"rest": "counted", "redrive": "DLQ.judged"}.get(step)  # no other process reaches them
        queues = "celery,judged" + "".join(
            f",{name}"
            for name, part in (("counted", 0.6), ("DLQ.judged", 0.7))
            if self._calm or name == sure or self._chance.random() < part
        )
        return self.fleet.start_worker(self._chance.choice(self._pools), queues, order, children=children, slot=slot)

    def _mix_of(self, number: int) -> tuple[str, int, bool]:
        return ("brief", 15, True) if number % 3 == 0 and self.plan.lacks("importer:") else ("rabbitmq", 40, True)

    def _later(self, seconds: float) -> str:
        """Publish a task that waits so long; its id."""
        return str(self.plain.send_task("tests.support.shop.ok", queue="celery", countdown=seconds, retry=False).id)

    # the end

    def _is_busy(self) -> bool:
        is_at_work = self._commands.are_running() or self.fleet.alive("importer") is not None or self.fleet.is_restoring()
        return is_at_work or not self._has_redriven_again()

    def _has_redriven_again(self) -> bool:
        """Whether an operator has run the redrive again, as must be done after one died, and its messages are visible."""
        if self._last_redrive is None and self.fleet.alive("producer") is None and self.fleet.waiting() == 0:
            words = ["redelivery", "dlq", "redrive", "DLQ.celery", "--all", "--yes"]
            self._last_redrive = self.fleet.start("asked", words, slot="last_redrive")
        if self._last_redrive is None or self._last_redrive.is_alive:
            return False
        self._redriven_at = self._redriven_at or time.monotonic()
        return time.monotonic() > self._redriven_at + 2 * LOOK_EVERY

    def judge(self) -> Account:
        """Export by the product's own commands, and give an account."""
        events = self.export()
        died = {line["pid"]: line["boundary"] for line in read_lines(self.folder / "kills")}
        made = account(events, self.fleet.letters(), self.notes(), read_lines(self.folder / "ledger"), died)
        made.faults += self._unexported({event["event_id"] for event in events})
        archived = archived_in(self.fleet.archive)
        purged = {(event["task_id"], event["generation"]) for event in events if event["outcome"] == "purged"}
        made.faults += [f"{each}: purged, and no archive has it" for each in sorted(purged - archived)]
        made.faults += self.gaps()
        return made

    def _unexported(self, exported: set[str]) -> list[str]:
        """Recorded events that are in no export: they came too late and are still in the log, or they are lost."""
        missing = [event for event in self.fleet.rabbit.events() if event.event_id not in exported]
        with self.fleet.rabbit.connection() as connection, Look(connection, OUTCOMES, read=lambda message: message.body) as look:
            late = {event.event_id for found in look for event in events_of(found.raw)}
        return [
            f"{event.task_id}: {event.outcome} was recorded, and "
            + ("is still in the log: it came when the export was over" if event.event_id in late else "no export has it")
            for event in missing
        ]

    def books(self) -> dict[tuple[str, int, int, str], str]:
        """The verdict of the reconciliation on each life that does not balance."""
        from pyarrow import parquet  # noqa: PLC0415 - the oldest promised Celery is tested without it

        rows = parquet.read_table(self.folder / "books" / "verdicts").to_pylist()
        return {(row["task_id"], row["nesting"], row["generation"], row["queue"]): row["verdict"] for row in rows}
