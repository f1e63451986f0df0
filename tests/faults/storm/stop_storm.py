"""A storm of stops: `python -m tests.faults.storm.stop_storm --rounds 100 --signal quit --broker redis --pool prefork`.

In each round a worker among tasks is told to stop, at a moment that the seed draws from when it received the first of them, and has
its tasks' time and five seconds for it, which are longer where other processes leave it a part of a core alone. What was published
is then counted: each task has ended or waits, and the queue is emptied for the next round. A few rounds run side by side, beside
processes that do nothing but work.

The table counts the rounds, says how long the slowest one took, how often the signal came while a task was half written to a child,
how many tasks began more than once, and how many were lost. Of a round that takes longer the stacks are in the worker's log, whose
end is printed, and the worker is killed. Exit 1 where a round failed, a task was lost, something is left on the broker, or fewer
rounds ran than were asked for.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from redelivery.middleware.messages.events import Outcome
from tests.support import running
from tests.support.rabbit import Node
from tests.support.running import Shop
from tests.support.servers import Server, binaries

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tests.support.running import Worker

__all__ = ["Storm"]

#: The signals that a worker gets, in this order.
SIGNALS = {
    "quit": (signal.SIGQUIT,),
    "int": (signal.SIGINT, signal.SIGINT),
    "soft": (signal.SIGQUIT,),
    "term-quit": (signal.SIGTERM, signal.SIGQUIT),
}
#: Seconds of a soft shutdown, of a long task, and for a stop beyond its tasks' time.
SOFT, NAP, SPARE = 1.0, 0.5, 5.0
#: Seconds after which a stop counts as one that never ends.
NEVER = 30.0
#: Messages that wait when a worker starts; which of them take a while; and the latest moments of the signals (seconds).
WAITING, NAPS, LATEST, BETWEEN = 16, {7, 11, 15}, 0.6, 0.3
#: Seconds of work that measure how busy the machine is.
PACE = 0.2
#: Seconds for a worker to receive its first task.
TIMEOUT = 60.0
#: Seconds in which a broker must put back what a worker held.
PUT_BACK = 20.0
#: The app whose workers note what a signal has interrupted, and how a task ends.
MODULE, ENDS = "tests.support.stops.told_shop", {Outcome.SUCCEEDED, Outcome.DEAD_LETTERED}
HEAD = (
    "| broker | pool | signal | bytes | rounds | half written | failed | median s | slowest s | tasks begun | begun twice | lost |"
)
POLICY: dict[str, Any] = {"redelivery_delay": 0, "max_delivery_attempts": -1}
BUSY = [sys.executable, "-c", "while True: pass"]


@dataclass
class Storm:
    """The rounds of one kind; `took` are their seconds, `failed` says what was wrong with the failed ones."""

    broker: Any
    sent: str
    pool: str
    size: int
    seed: int
    took: list[float] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    errors: Counter[str] = field(default_factory=Counter)
    runs: Counter[str] = field(default_factory=Counter)
    half_written: int = 0
    lost: set[str] = field(default_factory=set)

    def allowed(self, share: float) -> float:
        """Seconds: the tasks' time, and the spare time for a process that gets this share of a core."""
        return SPARE / share + (SOFT if self.sent == "soft" else 0) + (NAP if self.pool == "threads" else 0)

    def rage(self, rounds: int, lanes: int, minutes: float) -> None:
        """So many rounds, a few side by side; none begins later."""
        until = time.monotonic() + minutes * 60
        shares = [rounds // lanes + (each < rounds % lanes) for each in range(lanes)]
        threads = [threading.Thread(target=self.lane, args=(at, share, until)) for at, share in enumerate(shares)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def lane(self, number: int, rounds: int, until: float) -> None:
        """So many rounds, one after the other, on their own queue; none begins after `until`."""
        conf: dict[str, Any] = {"worker_soft_shutdown_timeout": SOFT} if self.sent == "soft" else {}
        chance = random.Random(f"{self.seed}:{number}")  # noqa: S311 - random moments, no secrets
        with tempfile.TemporaryDirectory(prefix="rd-", ignore_cleanup_errors=True) as name:
            settings = {"queues": {"#": POLICY}}
            here = Shop(cast("Any", self.broker), Path(name), settings=settings, conf=conf, module=MODULE)
            try:
                for _ in range(rounds):
                    if time.monotonic() > until:
                        break
                    self.round(here, f"lane{number}", chance)
            except Exception:  # noqa: BLE001 - after any error the lane has failed, and the others go on
                self.failed.append(f"--- lane {number}\n{traceback.format_exc()}")
            finally:
                here.stop()
            runs = here.runs()
            self.runs.update(run["id"] for run in runs if run.get("event") not in {"end", "told"})
            self.half_written += len({run["pid"] for run in runs if run.get("half_written")})

    def round(self, here: Shop, queue: str, chance: random.Random) -> None:
        """One worker, from its start to its end, and the ends of its tasks."""
        tasks = [("naps", NAP) if at in NAPS else ("ok", "x" * self.size) for at in range(WAITING)]
        ids = {str(here.app.send_task(f"tests.support.shop.{name}", (given,), queue=queue).id) for name, given in tasks}
        worker = here.start("-Q", queue, "-n", f"{queue}@shop", pool=self.pool, wait=False)
        running.until(lambda: "] received" in worker.text, TIMEOUT, "the first task to be received")
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
        self.lost |= self._missing(here, queue, ids)

    def _missing(self, here: Shop, queue: str, ids: set[str]) -> set[str]:
        """Tasks that have neither ended nor wait; a broker may need a moment to put back what a closed connection held."""
        missing, deadline = set(ids), time.monotonic() + PUT_BACK
        while missing and time.monotonic() < deadline:
            missing -= {event.task_id for event in here.events if event.outcome in ENDS}
            missing -= set(taken(self.broker, queue))
            time.sleep(0.05)  # the broker cannot notify us
        return missing

    def _note(self, worker: Worker, seconds: float) -> None:
        self.took.append(seconds)
        text = worker.text
        if seconds > self.allowed(ours := share()):
            self.failed.append(f"--- {seconds:.1f} s, with {ours:.0%} of a core\n{text[-6000:]}")
        lines = [line for line in text.splitlines() if "ERROR" in line or "CRITICAL" in line or "Traceback" in line]
        self.errors.update(line.split("] ", 1)[-1][:110] for line in lines)

    def row(self, kind: str) -> str:
        """One row of the table."""
        took, twice = sorted(self.took) or [0.0], sum(1 for count in self.runs.values() if count > 1)
        cells = [kind, self.pool, self.sent, self.size, len(self.took), self.half_written, len(self.failed)]
        cells += [f"{took[len(took) // 2]:.1f}", f"{took[-1]:.1f}", len(self.runs), twice, len(self.lost)]
        return "| " + " | ".join(map(str, cells)) + " |"


def taken(broker: Any, queue: str) -> Iterator[str]:
    """Empty a queue; returns the ids of its messages."""
    with broker.connection() as connection:
        channel = connection.default_channel
        while True:
            try:
                message = channel.basic_get(queue, no_ack=True)
            except connection.channel_errors:  # no queue
                return
            if message is None:
                return
            yield str(message.headers["id"])


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
    """Processes that keep the processor busy."""
    busy = [subprocess.Popen(BUSY) for _ in range(count)]
    try:
        yield
    finally:
        for each in busy:
            each.kill()
            each.wait()


def share() -> float:
    """The share of a core that a busy process gets now: a worker's own part of a stop takes longer by that factor."""
    began, used = time.monotonic(), time.process_time()
    while time.process_time() - used < PACE:
        pass
    return PACE / (time.monotonic() - began)


def main(words: Sequence[str] | None = None) -> None:
    """Run it; exit 1 if something is wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.storm.stop_storm", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--signal", choices=SIGNALS, default="quit")
    parser.add_argument("--broker", choices=["redis", "valkey", "rabbitmq"], default="redis")
    parser.add_argument("--pool", choices=["prefork", "threads"], default="prefork")
    parser.add_argument("--size", type=int, default=1000, help="bytes of a task's argument")
    parser.add_argument("--lanes", type=int, default=3, help="rounds that run side by side")
    parser.add_argument("--load", type=int, default=2, help="processes that do nothing but work")
    parser.add_argument("--minutes", type=float, default=60, help="no round begins later")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args(words)
    folder = tempfile.TemporaryDirectory(prefix="rd-", ignore_cleanup_errors=True)
    with folder as name, broker_of(given.broker, Path(name)) as broker, load(given.load):
        storm = Storm(broker, given.signal, given.pool, given.size, given.seed)
        storm.rage(given.rounds, given.lanes, given.minutes)
        held, ours = broker.leftovers(), share()
    lines = [*storm.failed, HEAD, "|---" * (HEAD.count("|") - 1) + "|", storm.row(given.broker), f"left on the broker: {held}"]
    lines.append(f"a process that only worked had {ours:.0%} of a core; {os.getloadavg()[1]:.0f} ran or waited in five minutes")
    lines += [f"{count} times: {line}" for line, count in storm.errors.most_common(8)]
    if (missing := given.rounds - len(storm.took)) > 0:
        lines.append(f"{missing} of {given.rounds} rounds did not run")
    sys.stdout.write("\n".join(lines) + "\n")
    sys.exit(1 if storm.failed or storm.lost or held or missing else 0)


if __name__ == "__main__":
    main()
