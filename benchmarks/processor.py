"""Processor times and memory of processes, from Linux's `/proc`."""

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
    """The processor seconds of the broker, of a worker's main process, and of its children (including ended ones)."""

    broker: float
    main: float
    children: float

    def since(self, before: Spent) -> Spent:
        return Spent(self.broker - before.broker, self.main - before.main, self.children - before.children)


def broker_seconds(client: Redis) -> float:
    """The processor seconds that a Valkey reports."""
    facts = client.info("cpu")
    return float(facts["used_cpu_user"]) + float(facts["used_cpu_sys"])


def children_of(pid: int) -> list[int]:
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        return [int(each) for task in tasks for each in (task / "children").read_text().split()]
    except (FileNotFoundError, ProcessLookupError):
        return []


def below(pid: int) -> list[int]:
    """The running descendants of a process."""
    found = children_of(pid)
    return [*found, *(each for child in found for each in below(child))]


def used(pid: int, *, with_ended: bool = False) -> float:
    """The processor seconds of a process. `with_ended` adds its children that have ended and were waited for."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    return sum(map(int, fields[11 : 15 if with_ended else 13])) / os.sysconf("SC_CLK_TCK")


def ran_ms(pid: int) -> float:
    """The processor milliseconds of a process's main thread, up to its last wait, with a precision of nanoseconds."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e6


def resident_bytes(pid: int) -> int:
    return _bytes_of(pid, "VmRSS:")


def peak_bytes(pid: int) -> int:
    return _bytes_of(pid, "VmHWM:")


def _bytes_of(pid: int, name: str) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1]) * 1024
    return 0
