"""The faults: what is done to a fleet besides the orders, each a method, drawn from a shuffled deck until the deck is empty.

It counts how often each was done, and says until when the broker cannot be asked.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING

from redis.exceptions import RedisError

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.faults.chaos.processes.fleet import Fleet, Process

__all__ = ["FAULTS", "LEASE", "Faults"]

#: Of all workers of a run, in seconds.
LEASE = 2.0
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


class Faults:
    """Does one of the faults at intervals, and undoes it in time."""

    def __init__(self, fleet: Fleet, seed: int, names: tuple[str, ...], every: float) -> None:
        self.done: Counter[str] = Counter()
        self._fleet, self._names, self._every = fleet, names, every
        self._chance = random.Random(f"faults-{seed}")  # noqa: S311 - a scenario, no secret
        self._next = time.monotonic() + 3.0
        self._later: list[tuple[float, Callable[[], bool], Callable[[], None]]] = []
        self._silent_until = 0.0
        self._deck: list[str] = []

    @property
    def is_through(self) -> bool:
        """Whether every kind of fault was done at least once."""
        return set(self._names) <= self.done.keys()

    @property
    def is_silent(self) -> bool:
        """Whether nothing passes between the fleet and its broker."""
        return time.monotonic() < self._silent_until

    def turn(self, *, calm: bool = False) -> None:
        """Undo the faults whose time is over, and do the next one, unless the run is `calm`."""
        now = time.monotonic()
        for each in [each for each in self._later if each[0] <= now or each[1]()]:
            self._later.remove(each)
            each[2]()
        if self._names and not calm and now >= self._next:
            self._next = now + self._chance.uniform(0.5, 1.5) * self._every
            self._do_next()

    def may(self, name: str) -> bool:  # noqa: ARG002 - another broker's may not always
        """Whether this fault is possible now; if not, it goes to the end of the deck."""
        return True

    def _do_next(self) -> None:
        if not self._deck:
            self._deck = list(self._names)
            self._chance.shuffle(self._deck)
        name = next((each for each in reversed(self._deck) if self.may(each)), None)
        if name is None:
            return
        while (drawn := self._deck.pop()) != name:
            self._deck.insert(0, drawn)
        self.done[name] += 1
        getattr(self, f"_{name}")()

    def end(self) -> None:
        """Undo everything."""
        for _, _, what in self._later:
            what()
        self._later.clear()
        self._silent_until = 0.0

    def fill(self, seconds: float, is_over: Callable[[], bool] = lambda: False) -> None:
        """Set `maxmemory` below what is used, for so long or until `is_over`."""
        with suppress(RedisError):
            used = int(self._fleet.client.info("memory")["used_memory"])
            self._fleet.client.config_set("maxmemory", max(used - 1, 1))
        self._after(seconds, self._empty, is_over)

    def _empty(self) -> None:
        with suppress(RedisError):
            self._fleet.client.config_set("maxmemory", 0)

    def _after(self, seconds: float, what: Callable[[], None], is_over: Callable[[], bool] = lambda: False) -> None:
        self._later.append((time.monotonic() + seconds, is_over, what))

    def _some_worker(self) -> Process | None:
        alive = self._fleet.workers()
        return self._chance.choice(alive) if alive else None

    # each by its name

    def _kill(self) -> None:
        if (worker := self._some_worker()) is not None:
            self._fleet.slay(worker, "at_random", group=False)

    def _kill_group(self) -> None:
        if (worker := self._some_worker()) is not None:
            self._fleet.slay(worker, "at_random")

    def _kill_child(self) -> None:
        worker = self._some_worker()
        children = worker.children() if worker is not None else []
        if children:
            self._fleet.kills["child:at_random"] += 1
            with suppress(ProcessLookupError):
                os.kill(self._chance.choice(children), signal.SIGKILL)

    def _kill_dispatcher(self) -> None:
        if (dispatcher := self._fleet.alive("dispatcher")) is not None:
            self._fleet.slay(dispatcher, "at_random")

    def _stall(self) -> None:
        if (worker := self._some_worker()) is not None:
            worker.signal(signal.SIGSTOP)
            self._after(LEASE * 2, lambda: worker.signal(signal.SIGCONT))

    def _cut(self) -> None:
        self._fleet.proxy.cut()

    def _swallow(self) -> None:
        self._fleet.proxy.swallow_reply(self._fleet.NEEDLE)

    def _delay(self) -> None:
        self._fleet.proxy.delay(0.05)
        self._after(1.0, lambda: self._fleet.proxy.delay(0))

    def _silence(self) -> None:
        self._silent_for(0.7)

    def _outage(self) -> None:
        self._silent_for(LEASE * 1.7)

    def _silent_for(self, seconds: float) -> None:
        self._fleet.proxy.black_hole()
        self._silent_until = time.monotonic() + seconds
        self._after(seconds, self._fleet.proxy.let_through)

    def _full(self) -> None:
        self.fill(1.0)

    def _restart(self) -> None:
        self._fleet.restart()
