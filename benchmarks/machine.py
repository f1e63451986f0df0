"""The machine and the versions of a measurement, and the load of the machine."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.support.servers import binaries

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["MAX_WAIT", "load", "machine", "versions", "wait_for_calm"]

PACKAGES = ("redelivery", "celery", "kombu", "redis", "dramatiq", "rq", "pyspark")
#: The maximum wait for a calm machine, and the time between two checks, in seconds.
MAX_WAIT, LOOK = 300.0, 2.0


def load() -> float:
    """The load average of the last minute."""
    return os.getloadavg()[0]


def wait_for_calm(below: float, say: Callable[[str], None]) -> bool:
    """Wait until the load is below a value, at most `MAX_WAIT` seconds. Returns whether it is."""
    deadline = time.monotonic() + MAX_WAIT
    if load() >= below:
        say(f"waiting for a load below {below}: it is {load():.2f}")
    while load() >= below:
        if time.monotonic() > deadline:
            say(f"the load is still {load():.2f}: measuring anyway, and noting it")
            return False
        time.sleep(LOOK)
    return True


def machine() -> dict[str, Any]:
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9),
        "system": f"{platform.system()} {platform.release().partition('-')[0]} {platform.machine()}",
    }


def versions(broker: str = "valkey") -> dict[str, str]:
    """The versions of Python, the broker (`valkey` or `rabbitmq`), and installed packages of the sides."""
    found = {"python": platform.python_version(), broker: _rabbitmq() if broker == "rabbitmq" else _valkey()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _rabbitmq() -> str:
    """The version in the name of Debian's folder. To ask RabbitMQ takes a second."""
    return next((path.name.rpartition("-")[2] for path in Path("/usr/lib/rabbitmq/lib").glob("rabbitmq_server-*")), "unknown")


def _valkey() -> str:
    said = subprocess.run([binaries()["valkey"], "--version"], capture_output=True, text=True, check=True).stdout
    return next((word.removeprefix("v=") for word in said.split() if word.startswith("v=")), said.strip())
