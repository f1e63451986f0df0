"""The harness: a fleet that is killed and cut by a plan; at the end the books must balance.

1. Producers publish, workers work, a dispatcher dispatches, commands redrive, move, purge, cancel, archive, export and leave.
2. Each process is started with an order where to die (`plan.py`), and dies there with a message in hand (`boundary.py`); or of a
   fault (`faults.py`).
3. When enough has died, everything is started once more without orders, and has to come to rest: no message in a queue, in the
   delay store, or in anybody's hands.
4. The log and the inventory are exported by the product's own commands, and judged (`verdict.py`).
"""

from __future__ import annotations

import json
import random
import signal
import time
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, ClassVar

from celery import Celery
from kombu.exceptions import OperationalError
from redis.exceptions import RedisError

from redelivery.middleware.messages.events import entries
from tests.faults.chaos.processes.fleet import Fleet
from tests.faults.chaos.processes.lines import read_lines
from tests.faults.chaos.run.commands import Commands
from tests.faults.chaos.run.faults import FAULTS, LEASE, Faults
from tests.faults.chaos.run.leaving import Leaving
from tests.faults.chaos.run.turns import Turns
from tests.faults.chaos.verdict import Verdict, archived_in, judge

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from tests.faults.chaos.boundary import Order
    from tests.faults.chaos.plans.plan import Plan
    from tests.faults.chaos.processes.fleet import Process

__all__ = ["Run"]

SETTINGS: dict[str, Any] = {
    "lease": LEASE,
    "dispatcher": False,
    "eta_threshold": 0.2,
    "queues": {
        "#": {"redelivery_delay": 0.1, "redelivery_delay_multiplier": 1, "max_delivery_attempts": 4},
        "counted": {
            "persist_delivery_count": "always",
            "auto_delete_dead_letter_resources": True,
            "redeliveries_per_second": 50,
        },
        "capped": {"max_length": 5, "max_dead_letters": 3},
    },
}
#: Steps of a process that is asked to stop, and the text in its log after which it can be asked.
ASKED_TO_STOP = {"release": b" ready.", "resign": b"dispatcher.leads"}


class Run(Turns):
    """One run. `build` names a deliberately broken build; `faults` what is done beside the orders."""

    #: More than a queue may hold, which the workers' queue keepers see to, and the retention to what they evict; letters for the
    #: handler, in a child; publications by a child.
    LACKING: ClassVar[Mapping[tuple[str, ...], tuple[Any, ...]]] = {
        ("worker:evict", "worker:purge", "worker:write", "worker:name"): ("capped", "ok"),
        ("child:write", "child:name"): ("judged", "raises", "dead_letter"),
        ("child:publish_within",): ("celery", "fans", "capped"),
    }

    def __init__(
        self,
        folder: Path,
        seed: int,
        plan: Plan,
        *,
        build: str = "",
        faults: tuple[str, ...] = FAULTS,
        fault_every: float = 3.0,
        mix: str = "all",
        workers: int = 2,
        pools: tuple[str, ...] = ("prefork", "prefork", "threads", "solo"),
        settings: dict[str, Any] = SETTINGS,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        super().__init__(folder, seed, plan, workers, say)
        self.fleet = Fleet(folder, settings, build)
        self.faults = Faults(self.fleet, seed, faults, fault_every)
        self._mix, self._pools = mix, pools
        self._chance = random.Random(f"run-{seed}")  # noqa: S311 - a scenario, no secret
        self._commands = Commands(self.fleet, plan, self._chance)
        self._leaving = Leaving(self.fleet, plan)
        self._ask_again_at = 0.0

    def open(self) -> None:
        """Start the broker, the proxy and the fork server."""
        self.fleet.open()
        self.plain = Celery("plain", broker=self.fleet.server.url, set_as_current=False)

    def close(self) -> None:
        """End everything."""
        self.fleet.close()
        self.plain.close()

    def _keep_going(self) -> None:
        if not self._calm:
            self._leaving.turn()
        if not self._leaving.is_on:
            for number in range(self._want):
                self._keep(f"worker-{number}", "worker", self._start_worker)
        self._keep("dispatcher", "dispatcher", self._start_dispatcher)
        if not self._calm and not self.faults.is_silent:
            self._publish()
            self._commands.turn()

    def _lead_to(self, process: Process, step: str) -> None:
        if step in ASKED_TO_STOP and not process.is_asked_to_stop and process.has_said(ASKED_TO_STOP[step]):
            self._stop(process, step)
        elif step == "cancel" and process.has_said(b" ready."):
            self._revoke(process)

    def _revoke(self, process: Process) -> None:
        """Have only this worker revoke a task that waits in the delay store."""
        if time.monotonic() < self._ask_again_at:
            return
        self._ask_again_at = time.monotonic() + 0.3
        with suppress(OperationalError, RedisError):
            if not process.revoked:
                process.revoked = str(self.plain.send_task("tests.support.shop.ok", queue="celery", countdown=10, retry=False).id)
            elif self.fleet.is_delayed(process.revoked):
                self.plain.control.revoke(process.revoked, destination=[process.name], retry=False)

    def _stop(self, process: Process, step: str) -> None:
        """A warm shutdown gives back what a worker holds and does not run, and a dispatcher's lead."""
        if step == "release" and process.loaded_at is None:
            process.loaded_at = process.age
            self._send("celery", "naps", 0.2)
        try:
            held = int(self.fleet.client.hlen("unacked"))
        except RedisError:
            return
        if process.loaded_at is None or held > 4 * len(self.fleet.workers()) or process.age > process.loaded_at + 5:
            process.is_asked_to_stop = True
            process.signal(signal.SIGTERM, group=False)

    def _start_worker(self, slot: str, order: Order | None) -> Process:
        missing = [name.partition(":")[2] for name in self.plan.missing if name.startswith("child:") and not self._calm]
        children = f"{self._chance.random()}:12:{','.join(missing)}" if missing else ""
        queues = "celery,counted,judged" + "".join(
            f",{name}" for name, part in (("capped", 0.4), ("DLQ.judged", 0.7)) if self._calm or self._chance.random() < part
        )
        process = self.fleet.start_worker(self._chance.choice(self._pools), queues, order, children=children, slot=slot)
        if order is not None and order.boundary.startswith("bind"):  # only on a full broker does it bind its queues by itself
            self.faults.fill(5.0, lambda: not process.is_alive)
        return process

    def _start_dispatcher(self, slot: str, order: Order | None) -> Process:
        return self.fleet.start("dispatcher", ["redelivery", "dispatcher"], order, slot=slot)

    def _mix_of(self, number: int) -> tuple[str, int, bool]:  # noqa: ARG002 - each is as the others
        return ("waits", 10, False) if self._leaving.needs_messages() else (self._mix, 40, True)

    # the end

    def _before_rest(self) -> None:
        self._leaving.end()

    def _is_busy(self) -> bool:
        return self._commands.are_running()

    def ended(self) -> set[str]:
        """The tasks that have succeeded, by the log on the broker."""
        return {event.task_id for event in self._log() if event.outcome == "succeeded"}

    def _log(self) -> list[Any]:
        return entries(self.fleet.client.xrange("redelivery:outcomes"))

    def judge(self, *, export: bool = True) -> Verdict:
        """Export by the product's own commands, and judge; without these commands the log is read from the broker."""
        events = self.export() if export else [asdict(event) for event in self._log()]
        client = self.fleet.client
        letters = {json.loads(raw)["headers"]["id"] for queue in self.fleet.letter_queues() for raw in client.lrange(queue, 0, -1)}
        ledger = read_lines(self.folder / "ledger")
        verdict = judge(events, letters, self.notes(), ledger, archived_in(self.fleet.archive))
        verdict.other += self.gaps()
        return verdict
