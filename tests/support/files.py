"""kombu's filesystem transport in a temporary folder: a broker without a server.

It has no outcome log: events are read from the workers' logs.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from kombu import Connection

from redelivery.middleware.brokers.kombu.filesystem import FilesystemTransport
from redelivery.middleware.messages.events import Event

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Files"]

FIELD = re.compile(r'(\w+)=("(?:[^"\\]|\\.)*"|\S*)')
NUMBERS = {field.name for field in fields(Event) if "int" in str(field.type)}


@dataclass
class Files:
    """The broker of one folder, with the interface that tests of any broker use."""

    folder: Path
    url: str = "filesystem://"

    @property
    def queues(self) -> Path:
        return self.folder / "queues"

    @property
    def conf(self) -> dict[str, Any]:
        self.queues.mkdir(exist_ok=True)
        options = {"data_folder_in": str(self.queues), "data_folder_out": str(self.queues)}
        options["control_folder"] = str(self.folder / "control")
        return {"broker_transport_options": {**options, "polling_interval": 0.05}, "worker_lost_wait": 1.0}

    def connection(self) -> Connection:
        """A new connection without redelivery. It writes files atomically, because a worker ends at a half-written file."""
        options = self.conf["broker_transport_options"]
        return Connection(transport=FilesystemTransport, transport_options=options)

    def messages(self, queue: str) -> list[dict[str, Any]]:
        """The messages of a queue, the next to be received first."""
        found = []
        for path in sorted(self.queues.iterdir()):
            if path.name.partition(".")[2] == f"{queue}.msg":
                try:
                    found.append(json.loads(path.read_bytes()))
                except FileNotFoundError:
                    continue  # a worker has taken it meanwhile
        return found

    # the interface of all brokers

    def events(self, prefix: str = "") -> list[Event]:  # noqa: ARG002 - a folder has no prefix
        """The recorded events in the workers' logs, in the order of their times."""
        lines = [
            line for log in sorted(self.folder.glob("worker-*.log")) for line in log.read_text("utf-8", "replace").splitlines()
        ]
        found = [_event(line) for line in lines if "event=outcome.recorded" in line and "schema_version=" in line]
        return sorted(found, key=lambda event: event.at_ms)

    def letters(self, queue: str = "DLQ.celery") -> list[dict[str, Any]]:
        """The letters in a dead-letter queue, the newest first."""
        return self.messages(queue)[::-1]

    def leftovers(self) -> dict[str, int]:
        """The numbers of waiting messages, without dead letters and remote control."""
        names = (path.name.partition(".")[2].removesuffix(".msg") for path in self.queues.iterdir())
        return dict(Counter(name for name in names if not name.startswith("DLQ.") and "pidbox" not in name))


def _event(line: str) -> Event:
    said = {name: json.loads(value) if value.startswith('"') else value for name, value in FIELD.findall(line)}
    known = [field.name for field in fields(Event) if field.name in said]
    facts: dict[str, Any] = {name: int(said[name]) if name in NUMBERS else said[name] for name in known}
    return Event(**facts)
