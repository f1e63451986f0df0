"""Shops whose producers, workers and commands send telemetry to a test's collector, each with its own SDK."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tests.support.collector import Collector, Told
from tests.support.running import Shop, until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["SETTINGS", "Traced", "shown", "traced"]

SETTINGS: dict[str, Any] = {
    "queues": {"#": {"redelivery_delay": 0.1, "redelivery_delay_multiplier": 1, "max_delivery_attempts": 4}},
    "opentelemetry": True,
    "release": "shop-7",
}
#: Publishes one task: its name, its arguments and its options, as JSON; prints its id.
PUBLISH = """
import json, sys
from tests.support.apps.traced_shop import app
name, args, options = json.loads(sys.argv[1])
print(app.send_task(name, args, **options).id)
"""


@dataclass
class Traced(Shop):
    """A shop, and the data that its collector has received."""

    collector: Collector = field(default_factory=Collector)
    variables: dict[str, str] = field(default_factory=dict)

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables: the address of the collector, and those of the test."""
        return {**super().environment, "SHOP_OTLP": self.collector.address, **self.variables}

    def does(self, *words: str) -> str:
        """Run a Python program, which must succeed; returns its output."""
        done = subprocess.run(
            [sys.executable, *words],
            env=self.environment,
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.strip()

    def publish(self, task: str, *args: Any, **options: Any) -> str:
        """Publish a task in a process with its own SDK; returns its id."""
        name = task if "." in task else f"{self.module}.{task}"
        return self.does("-c", PUBLISH, json.dumps([name, args, options])).splitlines()[-1]

    def told(self, task_id: str, count: int) -> list[Told]:
        """Wait for this number of spans of a task, and check that later exports bring no more."""
        until(lambda: len(self.collector.of_task(task_id)) >= count, 60, f"{count} spans, not {self.shown(task_id)}")
        for worker in self.workers:
            worker.stop()
        return self.collector.of_task(task_id)

    def shown(self, task_id: str) -> list[str]:
        """The spans of a task, as text for a failing test."""
        return [shown(each) for each in self.collector.of_task(task_id)]


def shown(span: Told) -> str:
    """A span as one line: its name, its counts, its end."""
    said = [span.name]
    if span["redelivery.attempt"] is not None and "redelivery.outcome" not in span.attributes:
        said.append(f"#{span['redelivery.attempt']} of life {span['redelivery.generation']}")
    said += [str(span[f"redelivery.{name}"]) for name in ("outcome", "reason", "actor") if span[f"redelivery.{name}"]]
    if span["error.type"]:
        said.append(f"({span['error.type']})")
    return " ".join(said)


@contextmanager
def traced(server: Any, folder: Path, *, neighbour: bool = False, **options: Any) -> Iterator[Traced]:
    """A shop on this broker, with or without `opentelemetry-instrumentation-celery`."""
    with Collector() as collector:
        options.setdefault("settings", SETTINGS)
        options.setdefault("module", "tests.support.apps.traced_shop")
        variables = {**options.pop("variables", {}), **({"SHOP_NEIGHBOUR": "1"} if neighbour else {})}
        made = Traced(server, folder, collector=collector, variables=variables, **options)
        try:
            yield made
        finally:
            made.stop()
