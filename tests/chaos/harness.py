"""The harness: a fleet on a private broker behind a proxy, killed and cut by a plan; at the end the books must balance.

1. Producers publish, workers work, a dispatcher dispatches, commands redrive, move, purge, cancel and export.
2. Each process is started with an order where to die (`plan.py`), and dies there with a message in hand (`boundary.py`); or of a
   fault: SIGKILL at a random moment, SIGSTOP past the lease, a cut, a slow, a swallowing or a silent connection, a full broker, a
   broker that is killed and started again.
3. When enough has died, everything is started once more without orders, and has to come to rest: no message in a queue, in the
   delay store, or in anybody's hands.
4. The log and the inventory are exported by the product's own commands, and judged (`verdict.py`).
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from celery import Celery
from kombu.exceptions import OperationalError
from redis.exceptions import RedisError

from redelivery.middleware.keys import SEPARATOR
from redelivery.middleware.outcomes import entries
from tests.chaos.plan import BOUNDARIES, Plan
from tests.chaos.proxy import Proxy
from tests.chaos.verdict import Verdict, judge, read_lines
from tests.running import ROOT, until
from tests.servers import Server, binaries

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.chaos.boundary import Order

__all__ = ["FAULTS", "Run"]

LEASE = 2.0
SETTINGS: dict[str, Any] = {
    "lease": LEASE,
    "dispatcher": False,
    "eta_threshold": 0.2,
    "queues": {
        "#": {"redelivery_delay": 0.1, "redelivery_delay_multiplier": 1, "max_delivery_attempts": 4},
        "counted": {"persist_delivery_count": "always"},
        "capped": {"max_length": 5},
    },
}
FAULTS = (
    "kill",
    "kill_group",
    "kill_child",
    "kill_dispatcher",
    "stall",
    "cut",
    "swallow",
    "delay",
    "silence",
    "outage",
    "full",
    "restart",
)
COMMANDS = ("redrive", "purge", "move", "cancel", "reschedule", "exporter")
#: Seconds that a process may take to come to where it is to die; then it is killed where it is.
PATIENCE = 20.0
#: Messages that wait or are held, above which nothing more is published.
BACKLOG = 60


@dataclass
class Process:
    """One process of a run, forked by the nursery."""

    role: str
    order: Order | None
    log: Path
    since: float = field(default_factory=time.monotonic)
    pid: int = 0
    ended: int | None = None
    is_asked_to_stop: bool = False

    @property
    def is_alive(self) -> bool:
        """Whether it is there, or about to be."""
        return self.ended is None

    @property
    def age(self) -> float:
        """Seconds since it was asked for."""
        return time.monotonic() - self.since

    def signal(self, number: int, *, group: bool = True) -> None:
        """Send it to the process, or to it and its children."""
        if self.pid and self.ended is None:
            with suppress(ProcessLookupError):
                (os.killpg if group else os.kill)(self.pid, number)

    def children(self) -> list[int]:
        """The processes of its pool."""
        try:
            with open(f"/proc/{self.pid}/task/{self.pid}/children", encoding="ascii") as file:  # noqa: PTH123 - no path of a disk
                return [int(word) for word in file.read().split()]
        except OSError:
            return []


class Run:
    """One run. `build` names a deliberately broken build; `faults` what is done beside the orders."""

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
        self.folder, self.seed, self.plan, self.build, self.mix, self.say = folder, seed, plan, build, mix, say
        self.faults, self.fault_every, self.pools, self.settings = faults, fault_every, pools, settings
        self.chance = random.Random(f"faults-{seed}")  # noqa: S311 - a scenario, no secret
        self.kills: Counter[str] = Counter()
        self.done: Counter[str] = Counter()
        self.publishing = True
        self._want = workers
        self._fleet: dict[str, Process | None] = {}
        self._later: list[tuple[float, Callable[[], None]]] = []
        self._processes: dict[int, Process] = {}
        self._read = 0
        self._produced = 0
        self._next_fault = time.monotonic() + 3.0
        self._busy_until = 0.0
        self._calm = False

    # the parts

    def open(self) -> None:
        """Start the broker, the proxy and the nursery."""
        options = {"appendonly": "yes", "appendfsync": "always"}
        self.server = Server(self.folder, binaries()["valkey"], options).start()
        self.proxy = Proxy(self.server.socket).start()
        self._client = self.server.client
        self._plain = Celery("plain", broker=self.server.url, set_as_current=False)
        environment = {key: value for key, value in os.environ.items() if not key.startswith(("SHOP_", "REDELIVERY_", "CHAOS_"))}
        environment.update(
            SHOP_BROKER=self.proxy.url,
            SHOP_SETTINGS=json.dumps(self.settings),
            SHOP_CONF=json.dumps({"worker_hijack_root_logger": True, "broker_connection_retry_on_startup": True}),
            SHOP_RUNS=str(self.folder / "runs"),
            SHOP_READY=str(self.folder / "ready"),
            CHAOS_KILLS=str(self.folder / "kills"),
            CHAOS_BUILD=self.build,
            PYTHONPATH=str(ROOT),
            PYTHONDONTWRITEBYTECODE="1",
        )
        with (self.folder / "nursery.log").open("wb") as log:
            self._nursery = subprocess.Popen(
                [sys.executable, "-m", "tests.chaos.nursery"],
                env=environment,
                cwd=self.folder,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
            )
        self._ready = threading.Event()
        self._listener = threading.Thread(target=self._listen, name="chaos-nursery", daemon=True)
        self._listener.start()
        until(lambda: self._ready.is_set() or self._nursery.poll() is not None, 120, "the nursery")
        assert self._nursery.poll() is None, (self.folder / "nursery.log").read_text()

    def close(self) -> None:
        """End everything."""
        for process in self._processes.values():
            process.signal(signal.SIGKILL)
        assert self._nursery.stdin is not None
        self._nursery.stdin.close()
        self._nursery.wait(60)
        self._listener.join(60)
        self._plain.close()
        self.proxy.stop()
        self.server.stop(9)

    def _listen(self) -> None:
        assert self._nursery.stdout is not None
        with self._nursery.stdout as lines:
            for line in lines:
                said = json.loads(line)
                if "ready" in said:
                    self._ready.set()
                elif "pid" in said:
                    self._processes[said["number"]].pid = said["pid"]
                else:
                    process = self._processes[said["number"]]
                    if process.pid:
                        with suppress(ProcessLookupError, PermissionError):
                            os.killpg(process.pid, signal.SIGKILL)  # what is left of its pool
                    process.ended = said["ended"]

    def start(self, role: str, argv: list[str], order: Order | None, children: str = "") -> Process:
        """Start a process, with its order."""
        number = len(self._processes)
        process = Process(role, order, self.folder / f"{role}-{number}.log")
        self._processes[number] = process
        environment = {"CHAOS_ORDER": str(order or ""), "CHAOS_ROLE": role, "CHAOS_CHILDREN": children}
        line = json.dumps({"number": number, "argv": argv, "env": environment, "log": str(process.log)}) + "\n"
        assert self._nursery.stdin is not None
        self._nursery.stdin.write(line.encode())
        self._nursery.stdin.flush()
        return process

    # the turns of a run

    def go(self, *, seconds: float, kills: int = 0, until_hit: bool = True) -> None:
        """Work until so many have been killed and every boundary was hit as often as planned, at most so many seconds."""
        deadline, told = time.monotonic() + seconds, time.monotonic()
        while time.monotonic() < deadline:
            self.turn()
            if sum(self.kills.values()) >= kills and not (until_hit and self.plan.missing):
                break
            if time.monotonic() - told > 10:
                told = time.monotonic()
                self.say(
                    f"{sum(self.kills.values())} kills, {sum(self.done.values())} faults, {len(self.plan.missing)} boundaries to go"
                )
            time.sleep(0.02)  # the processes go on meanwhile

    def turn(self) -> None:
        """Look once: at who has died, and at what is to be done."""
        self._count()
        now = time.monotonic()
        for at, what in [each for each in self._later if each[0] <= now]:
            self._later.remove((at, what))
            what()
        for number in range(self._want):
            self._keep(f"worker-{number}", "worker", self._worker)
        self._keep("dispatcher", "dispatcher", lambda order: self.start("dispatcher", ["redelivery", "dispatcher"], order))
        if now >= self._busy_until:
            self._publish()
            if not self._calm:
                self._command()
        if not self._calm and self.faults and now >= self._next_fault:
            self._next_fault = now + self.chance.uniform(0.5, 1.5) * self.fault_every
            name = self.chance.choice(self.faults)
            self.done[name] += 1
            getattr(self, f"_{name}")()

    def _count(self) -> None:
        lines = read_lines(self.folder / "kills")
        for line in lines[self._read :]:
            self.kills[f"{line['role']}:{line['boundary']}"] += 1
            self.plan.hit(line["role"], line["boundary"])
        self._read = len(lines)

    def _keep(self, slot: str, role: str, make: Callable[[Order | None], Process]) -> None:
        process = self._fleet.get(slot)
        if process is None or not process.is_alive:
            order = None if self._calm else self.plan.next(role, only_missing=True)
            self._fleet[slot] = make(order)
            return
        if process.order is None or self._calm:
            return
        if process.order.boundary.startswith("release") and not process.is_asked_to_stop and self._is_loaded(process):
            process.is_asked_to_stop = True
            process.signal(signal.SIGTERM, group=False)  # a warm shutdown gives back what it holds
        if process.age > PATIENCE:
            self._slay(process, "at_random")

    def _is_loaded(self, process: Process) -> bool:
        """Whether this worker probably holds more than it runs; an old one counts as loaded, so that it does not stay for ever."""
        try:
            return process.age > 10 or (process.age > 1 and self._client.hlen("unacked") > 4 * len(self.workers()))
        except RedisError:
            return False

    def _slay(self, process: Process, why: str, *, group: bool = True) -> None:
        if process.is_alive and process.pid:
            self.kills[f"{process.role}:{why}"] += 1
            process.signal(signal.SIGKILL, group=group)

    def _worker(self, order: Order | None) -> Process:
        pool = self.chance.choice(self.pools)
        names = [each for each in BOUNDARIES["child"] if f"child:{each}" in self.plan.wanted] if not self._calm else []
        missing = [each for each in names if f"child:{each}" in self.plan.missing]
        children = f"{self.chance.random()}:12:{','.join(missing)}" if missing else ""
        queues = "celery,counted" + (",capped" if self._calm or self.chance.random() < 0.3 else "")
        name = f"w{len(self._processes)}@chaos"
        argv = ["worker", "-P", pool, "-c", "2", "-n", name, "-Q", queues, "-l", "INFO", "--without-gossip", "--without-mingle"]
        return self.start("worker", argv, order, children if pool == "prefork" else "")

    def _publish(self) -> None:
        producer = self._fleet.get("producer")
        if not self.publishing or (producer is not None and producer.is_alive) or self.waiting() > BACKLOG:
            return
        order = None if self._calm else self.plan.next("producer", only_missing=True)
        self._produced += 1
        if any(name.startswith("worker:evict") for name in self.plan.missing):
            self._overfill()
        words = ["produce", f"{self.seed}-{self._produced}", "40", str(self.folder / "ledger"), self.mix]
        self._fleet["producer"] = self.start("producer", words, order)

    def _overfill(self) -> None:
        """As a plain producer does, which knows of no bound: the workers' queue keepers have to see to it."""
        with suppress(OperationalError, RedisError):
            for _ in range(10):
                self._plain.send_task("tests.shop.ok", queue="capped", retry=False)

    def _command(self) -> None:
        """One command of an operator at a time, the one whose boundaries are missing most."""
        running = self._fleet.get("command")
        if running is not None and running.is_alive:
            if running.age > PATIENCE:
                self._slay(running, "at_random")
            return
        missing = [role for role in COMMANDS if any(name.startswith(f"{role}:") for name in self.plan.missing)]
        if not missing:
            return
        role = self.chance.choice(missing)
        words = self._words(role)
        if words is not None:
            self._fleet["command"] = self.start(role, ["redelivery", *words], self.plan.next(role, only_missing=True))

    def _words(self, role: str) -> list[str] | None:
        """The command, or None where it would find nothing to do."""
        try:
            if role in {"cancel", "reschedule"}:
                ids = self._client.zrange("redelivery:delayed:tasks", 0, 0)
                later = ["--in", "1s"] if role == "reschedule" else []
                return ["delayed", role, ids[0].decode().split(SEPARATOR)[0], *later] if ids else None
            if role == "exporter":
                return ["outcomes", "export", "--to", str(self.folder / "outcomes"), "--format", "jsonl"]
            if not self._client.llen("DLQ.celery"):
                return None
        except RedisError:
            return None
        more = {"redrive": ["--limit", "10"], "purge": ["--limit", "2"], "move": ["--limit", "2", "--to", "DLQ.spare", "--create"]}[
            role
        ]
        return ["dlq", role, "DLQ.celery", "--all", "--yes", *more]

    # faults

    def _some_worker(self) -> Process | None:
        alive = self.workers()
        return self.chance.choice(alive) if alive else None

    def _kill(self) -> None:
        if (worker := self._some_worker()) is not None:
            self._slay(worker, "at_random", group=False)

    def _kill_group(self) -> None:
        if (worker := self._some_worker()) is not None:
            self._slay(worker, "at_random")

    def _kill_child(self) -> None:
        worker = self._some_worker()
        children = worker.children() if worker is not None else []
        if children:
            self.kills["child:at_random"] += 1
            with suppress(ProcessLookupError):
                os.kill(self.chance.choice(children), signal.SIGKILL)

    def _kill_dispatcher(self) -> None:
        if (dispatcher := self._fleet.get("dispatcher")) is not None:
            self._slay(dispatcher, "at_random")

    def _stall(self) -> None:
        if (worker := self._some_worker()) is not None:
            worker.signal(signal.SIGSTOP)
            self._after(LEASE * 2, lambda: worker.signal(signal.SIGCONT))

    def _cut(self) -> None:
        self.proxy.cut()

    def _swallow(self) -> None:
        self.proxy.swallow_reply(b"EVALSHA")

    def _delay(self) -> None:
        self.proxy.delay(0.05)
        self._after(1.0, lambda: self.proxy.delay(0))

    def _silence(self) -> None:
        self._silent_for(0.7)

    def _outage(self) -> None:
        self._silent_for(LEASE * 1.7)

    def _silent_for(self, seconds: float) -> None:
        self.proxy.black_hole()
        self._busy_until = time.monotonic() + seconds
        self._after(seconds, self.proxy.let_through)

    def _full(self) -> None:
        used = int(self._client.info("memory")["used_memory"])
        self._client.config_set("maxmemory", max(used - 1, 1))
        self._after(1.0, lambda: self._client.config_set("maxmemory", 0))

    def _restart(self) -> None:
        self.server.kill()
        self.server.start()

    def _after(self, seconds: float, what: Callable[[], None]) -> None:
        self._later.append((time.monotonic() + seconds, what))

    # the end

    def notes(self) -> list[dict[str, Any]]:
        """What the tasks noted."""
        return read_lines(self.folder / "runs")

    def ran_in(self, process: Process) -> int:
        """How many notes are this process's."""
        return sum(line["pid"] == process.pid for line in self.notes())

    def ended(self) -> set[str]:
        """The tasks that have succeeded, by the log on the broker."""
        return {event.task_id for event in entries(self._client.xrange("redelivery:outcomes")) if event.outcome == "succeeded"}

    def workers(self) -> list[Process]:
        """The workers that are alive."""
        return [each for slot, each in self._fleet.items() if slot.startswith("worker") and each is not None and each.is_alive]

    def waiting(self) -> int:
        """How many messages wait in a queue or in the delay store, or are held."""
        try:
            with self._client.pipeline(transaction=False) as pipe:
                for queue in ("celery", "counted", "capped"):
                    for step in ("", *(f"{SEPARATOR}{step}" for step in (3, 6, 9))):
                        pipe.llen(f"{queue}{step}")
                        pipe.zcard(f"redelivery:delayed:due:{queue}{step}")
                pipe.hlen("unacked")
                return sum(map(int, pipe.execute()))
        except RedisError:
            return BACKLOG + 1

    def settle(self, seconds: float = 120) -> None:
        """No more orders, faults and publications: everything is to come to rest. Raises `AssertionError` where it does not."""
        for _, what in self._later:
            what()
        self._later.clear()
        self._calm, self.publishing = True, False
        for slot, process in self._fleet.items():
            if process is not None and process.is_alive and (process.order is not None or slot.startswith("worker")):
                process.signal(signal.SIGKILL)

        def is_at_rest() -> bool:
            self.turn()
            busy = any(self._fleet.get(slot) is not None and self._fleet[slot].is_alive for slot in ("command", "producer"))  # type: ignore[union-attr]
            return not busy and self.waiting() == 0

        until(is_at_rest, seconds, f"the run of seed {self.seed} to come to rest; {self.waiting()} messages are left")

    def judge(self, *, export: bool = True) -> Verdict:
        """Export by the product's own commands, and judge; without them the log is read as it stands on the broker."""
        if export:
            self.ask("inventory", "export", "--to", str(self.folder / "inventory"), "--format", "jsonl")
            self.ask("outcomes", "export", "--to", str(self.folder / "outcomes"), "--format", "jsonl")
            files = sorted(path for path in (self.folder / "outcomes").rglob("*.jsonl") if not path.name.startswith("_"))
            events = [line for path in files for line in read_lines(path)]
        else:
            events = [asdict(event) for event in entries(self._client.xrange("redelivery:outcomes"))]
        letters = {json.loads(raw)["headers"]["id"] for queue in self.letter_queues() for raw in self._client.lrange(queue, 0, -1)}
        verdict = judge(events, letters, read_lines(self.folder / "runs"), read_lines(self.folder / "ledger"))
        if (self.folder / "outcomes" / "_gaps.jsonl").exists():
            verdict.other.append(f"a gap in the log: {(self.folder / 'outcomes' / '_gaps.jsonl').read_text()}")
        return verdict

    def letter_queues(self) -> list[str]:
        """The dead-letter queues."""
        return [name.decode() for name in self._client.hkeys("redelivery:dead_letter_queues")]

    def ask(self, *words: str) -> Process:
        """Run one command to its end. Raises `AssertionError` where it fails."""
        process = self.start("asked", ["redelivery", *words], None)
        until(lambda: not process.is_alive, 120, " ".join(words))
        assert process.ended == 0, process.log.read_text()
        return process

    def reconcile(self) -> dict[str, Any]:
        """The product's own books; its summary."""
        paths = ["--outcomes", str(self.folder / "outcomes"), "--inventory", str(self.folder / "inventory")]
        command = [
            sys.executable,
            "-m",
            "redelivery",
            "reconcile",
            *paths,
            "--output",
            str(self.folder / "books"),
            "--grace",
            "0",
            "--json",
        ]
        done = subprocess.run(command, cwd=ROOT, text=True, capture_output=True, timeout=600, check=False)
        assert done.returncode in {0, 1}, done.stderr
        summary: dict[str, Any] = json.loads((self.folder / "books" / "summary.json").read_text("utf-8"))
        return summary
