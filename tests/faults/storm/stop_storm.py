"""A storm of stops: `python -m tests.faults.storm.stop_storm --rounds 100 --signal quit --broker redis --pool prefork`.

In each round a worker among tasks is told to stop, at a moment that the seed draws, and has its tasks' time and five seconds for
it. A few rounds run side by side, beside processes that do nothing but work. The table counts the rounds, says how long the slowest
one took, how many tasks began more than once, and what the broker still holds for a worker that is gone. Of a round that takes
longer the stacks are in the worker's log, whose end is printed, and the worker is killed. Exit 1 where a round failed.
"""

from __future__ import annotations

import argparse
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from tests.support.rabbit import Node
from tests.support.running import Shop
from tests.support.servers import Server, binaries

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tests.support.running import Worker

__all__ = ["Storm"]

#: What a worker is told, and in which order.
SIGNALS = {
    "quit": (signal.SIGQUIT,),
    "int": (signal.SIGINT, signal.SIGINT),
    "soft": (signal.SIGQUIT,),
    "term-quit": (signal.SIGTERM, signal.SIGQUIT),
}
#: Seconds of a soft shutdown, of a long task, and for a stop beyond its tasks' time.
SOFT, NAP, SPARE = 1.0, 0.5, 5.0
#: Seconds after which a stop is taken for one that never ends.
NEVER = 30.0
#: Messages that wait when a worker starts, and the latest moments of the signals (seconds).
WAITING, LATEST, BETWEEN = 16, 1.0, 0.3
POLICY: dict[str, Any] = {"redelivery_delay": 0, "max_delivery_attempts": -1}
BUSY = [sys.executable, "-c", "while True: pass"]


@dataclass
class Storm:
    """The rounds of one kind; `took` are their seconds, `failed` the ends of the logs of those that took too long."""

    broker: Any
    sent: str
    pool: str
    size: int
    seed: int
    took: list[float] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    errors: Counter[str] = field(default_factory=Counter)
    runs: Counter[str] = field(default_factory=Counter)

    @property
    def allowed(self) -> float:
        """The tasks' time, and the spare."""
        return SPARE + (SOFT if self.sent == "soft" else 0) + (NAP if self.pool == "threads" else 0)

    def lane(self, number: int, rounds: int, until: float) -> None:
        """So many rounds, one after the other, on a queue of their own; none begins after `until`."""
        conf: dict[str, Any] = {"worker_soft_shutdown_timeout": SOFT} if self.sent == "soft" else {}
        chance = random.Random(f"{self.seed}:{number}")  # noqa: S311 - moments are no secrets
        with tempfile.TemporaryDirectory(prefix="rd-", ignore_cleanup_errors=True) as name:
            here = Shop(cast("Any", self.broker), Path(name), settings={"queues": {"#": POLICY}}, conf=conf)
            try:
                for _ in range(rounds):
                    if time.monotonic() > until:
                        break
                    self.round(here, f"lane{number}", chance)
            finally:
                here.stop()
            self.runs.update(run["id"] for run in here.runs() if run.get("event") != "end")

    def round(self, here: Shop, queue: str, chance: random.Random) -> None:
        """One worker, from its start to its end."""
        for at in range(WAITING):
            here.send(*(("naps", NAP) if at % 6 == 0 else ("ok", "x" * self.size)), queue=queue)
        worker = here.start("-Q", queue, "-n", f"{queue}@shop", pool=self.pool)
        time.sleep(chance.uniform(0, LATEST))
        for at, number in enumerate(SIGNALS[self.sent]):
            if at:
                time.sleep(chance.uniform(0, BETWEEN))
            worker.process.send_signal(number)
        began = time.monotonic()
        try:
            worker.process.wait(NEVER)
        except subprocess.TimeoutExpired:
            worker.process.send_signal(signal.SIGUSR1)
            time.sleep(1)
        self._note(worker, time.monotonic() - began)
        worker.kill()
        here.workers.clear()

    def _note(self, worker: Worker, seconds: float) -> None:
        self.took.append(seconds)
        text = worker.text
        if seconds > self.allowed:
            self.failed.append(f"--- {seconds:.1f} s\n{text[-6000:]}")
        lines = [line for line in text.splitlines() if "ERROR" in line or "CRITICAL" in line or "Traceback" in line]
        self.errors.update(line.split("] ", 1)[-1][:110] for line in lines)

    def table(self, given: argparse.Namespace) -> str:
        """One row."""
        took, twice = sorted(self.took) or [0.0], sum(1 for count in self.runs.values() if count > 1)
        cells = [given.broker, self.pool, self.sent, self.size, len(self.took), len(self.failed)]
        cells += [f"{took[len(took) // 2]:.1f}", f"{took[-1]:.1f}", twice, len(self.runs)]
        return "| " + " | ".join(map(str, cells)) + " |"


@contextmanager
def broker_of(kind: str, folder: Path) -> Iterator[Any]:
    """A private broker."""
    if kind == "rabbitmq":
        node = Node(folder)
        node.start()
        try:
            yield node.vhost()
        finally:
            node.stop()
    else:
        server = Server(folder, binaries()["redis" if kind == "redis" else "valkey"]).start()
        try:
            yield server
        finally:
            server.stop(9)


@contextmanager
def load(count: int) -> Iterator[None]:
    """Processes that do nothing but work."""
    busy = [subprocess.Popen(BUSY) for _ in range(count)]
    try:
        yield
    finally:
        for each in busy:
            each.kill()
            each.wait()


def main(words: Sequence[str] | None = None) -> None:
    """Run it; exit 1 where a stop took too long."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.storm.stop_storm", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--signal", choices=SIGNALS, default="quit")
    parser.add_argument("--broker", choices=["redis", "valkey", "rabbitmq"], default="redis")
    parser.add_argument("--pool", choices=["prefork", "threads"], default="prefork")
    parser.add_argument("--size", type=int, default=1000, help="bytes of a task's argument")
    parser.add_argument("--lanes", type=int, default=3, help="rounds that run side by side")
    parser.add_argument("--load", type=int, default=2, help="processes that do nothing but work")
    parser.add_argument("--minutes", type=float, default=8, help="no round begins later")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args(words)
    folder = tempfile.TemporaryDirectory(prefix="rd-", ignore_cleanup_errors=True)
    with folder as name, broker_of(given.broker, Path(name)) as broker, load(given.load):
        storm, until = Storm(broker, given.signal, given.pool, given.size, given.seed), time.monotonic() + given.minutes * 60
        shares = [given.rounds // given.lanes + (each < given.rounds % given.lanes) for each in range(given.lanes)]
        lanes = [threading.Thread(target=storm.lane, args=(at, share, until)) for at, share in enumerate(shares)]
        for lane in lanes:
            lane.start()
        for lane in lanes:
            lane.join()
        held = broker.leftovers()
    lines = [*storm.failed, "| broker | pool | signal | bytes | rounds | too long | median s | slowest s | began twice | tasks |"]
    lines += ["|---" * 10 + "|", storm.table(given), f"left on the broker: {held}"]
    lines += [f"{count} times: {line}" for line, count in storm.errors.most_common(8)]
    sys.stdout.write("\n".join(lines) + "\n")
    sys.exit(1 if storm.failed else 0)


if __name__ == "__main__":
    main()
