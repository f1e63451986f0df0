"""The skeleton in the conformance suite: its file, with the interface that tests of any broker use."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kombu import Connection

from redelivery.middleware.messages.events import Event
from tests.support.files import Files
from tests.support.skeleton_broker.channel import Transport
from tests.support.skeleton_broker.tables import Tables

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

__all__ = ["SkeletonFile"]


@dataclass
class SkeletonFile(Files):
    """The broker of one file. Events and messages are read from its tables."""

    url: str = "skeleton://"

    @property
    def conf(self) -> dict[str, Any]:
        options = {"file": str(self.folder / "broker.sqlite"), "polling_interval": 0.05}
        return {
            "broker_transport": "tests.support.skeleton_broker.channel:Transport",
            "broker_transport_options": options,
            "worker_lost_wait": 1.0,
        }

    def connection(self) -> Connection:
        return Connection(transport=Transport, transport_options=self.conf["broker_transport_options"])

    def messages(self, queue: str) -> list[dict[str, Any]]:
        """The messages of a queue, the next to be received first."""
        question = "SELECT raw FROM messages WHERE queue = ? AND NOT held ORDER BY id"
        return [json.loads(raw) for (raw,) in self._rows(question, queue)]

    def events(self, prefix: str = "") -> list[Event]:  # noqa: ARG002 - a file has no prefix
        """All recorded events, in their order."""
        return [Event(**json.loads(event)) for (event,) in self._rows("SELECT event FROM events ORDER BY id")]

    def leftovers(self) -> dict[str, int]:
        """The numbers of waiting messages, without dead letters and remote control."""
        names = [name for (name,) in self._rows("SELECT queue FROM messages")]
        return dict(Counter(name for name in names if not name.startswith("DLQ.") and "pidbox" not in name))

    def _rows(self, question: str, *arguments: str) -> list[tuple[Any, ...]]:
        tables = Tables(self.conf["broker_transport_options"]["file"])
        opened: AbstractContextManager[Any] = tables.transaction()
        try:
            with opened as rows:
                return list(rows.execute(question, arguments))
        finally:
            tables.close()
