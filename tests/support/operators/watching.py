"""A monitor of workers."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.support.running import Shop

__all__ = ["Watcher"]


class Watcher:
    """Keeps every event that the workers send."""

    def __init__(self, here: Shop) -> None:
        self.events: list[dict[str, Any]] = []
        self._connection = here.app.connection_for_read()
        self._receiver = here.app.events.Receiver(self._connection, handlers={"*": self.events.append})
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with contextlib.suppress(OSError, ConnectionError, AttributeError):
            self._receiver.capture(limit=None, timeout=None, wakeup=True)

    def types(self, task_id: str) -> list[str]:
        return [event["type"] for event in self.events if event.get("uuid") == task_id]

    def close(self) -> None:
        self._receiver.should_stop = True
        self._thread.join(30)
        self._connection.release()
