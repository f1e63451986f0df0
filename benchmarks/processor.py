"""The cost of processes: seconds of processor and bytes of memory, as Linux counts them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from redis import Redis

__all__ = ["Spent", "below", "broker_seconds", "children_of", "peak_bytes", "ran_ms", "resident_bytes", "used"]


@dataclass(frozen=True, slots=True)
class Spent:
    """Seconds of processor so far: of the broker, of a worker's main process, and of its children (ended ones included)."""

    broker: float
    main: float
    children: float

    def since(self, before: Spent) -> Spent:
        """What was spent between two readings."""
        return Spent(self.broker - before.broker, self.main - before.main, self.children - before.children)


def broker_seconds(client: Redis) -> float:
    """Seconds of processor that a Valkey has used, as it reports itself."""
    facts = client.info("cpu")
    return float(facts["used_cpu_user"]) + float(facts["used_cpu_sys"])


def children_of(pid: int) -> list[int]:
    """The living children of a process."""
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        return [int(each) for task in tasks for each in (task / "children").read_text().split()]
    except (FileNotFoundError, ProcessLookupError):
        return []


def below(pid: int) -> list[int]:
    """Its living descendants."""
    found = children_of(pid)
    return [*found, *(each for child in found for each in below(child))]


def used(pid: int, *, with_ended: bool = False) -> float:
    """Seconds of processor that a process has used. `with_ended` adds its own children that have ended and were waited for."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    return sum(map(int, fields[11 : 15 if with_ended else 13])) / os.sysconf("SC_CLK_TCK")


def ran_ms(pid: int) -> float:
    """Milliseconds of processor that the main thread of a process has used, to the nanosecond, up to when it last waited."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e6


def resident_bytes(pid: int) -> int:
    """Memory of a process that is in use and in RAM."""
    return _bytes_of(pid, "VmRSS:")


def peak_bytes(pid: int) -> int:
    """The most memory of a process that was ever in RAM at once."""
    return _bytes_of(pid, "VmHWM:")


def _bytes_of(pid: int, name: str) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1]) * 1024
    return 0
