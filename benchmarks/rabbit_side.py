"""Celery's sides on RabbitMQ: plain Celery with late acknowledgement, and redelivery, each on a fresh private node.

The number of waiting messages is read over AMQP, which costs the node little. The number of held messages costs more, so it is read
only when no message waits. Tasks that finally fail append to a file, because a message between two levels of a delay is in no
queue.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from amqp.exceptions import NotFound
from webhooks.rabbit_node import USER

from benchmarks.celery_side import QUEUE, CelerySide
from benchmarks.processor import below, used
from redelivery.middleware.brokers.rabbitmq.names import JOURNAL
from tests.support.rabbit import Node, installed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.support.rabbit import Rabbit

__all__ = ["INSTALL", "RabbitSide", "node"]

INSTALL = "there is no RabbitMQ on this machine: apt-get install --no-install-recommends rabbitmq-server"


@contextmanager
def node(folder: Path) -> Iterator[Rabbit]:
    """A virtual host on a new node. Raises `RuntimeError` if the machine has no RabbitMQ."""
    if not installed():
        raise RuntimeError(INSTALL)
    server = Node(folder / "node")
    try:
        server.start()
        host = server.vhost()
        with host.connection() as connection:
            connection.default_channel.queue_delete("tests.tap")  # only the tests need it
        yield host
    finally:
        server.stop()


@dataclass
class RabbitSide(CelerySide):
    """Plain Celery or redelivery, by its name. `queue_type`: `classic` or `quorum`. `journal="no"`: workers may not declare it."""

    queue_type: str = "classic"
    journal: str = "yes"
    _failing: int = 0
    _connection: Any = field(default=None, init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.journal == "no":
            self.host.ctl("set_permissions", USER, f"^(?!{JOURNAL})", ".*", ".*")

    @property
    def addresses(self) -> dict[str, str]:
        """The address of the node, and the app's other settings."""
        return {"BENCH_BROKER": self.server.url, "BENCH_QUEUE_TYPE": self.queue_type, "BENCH_FAILED": str(self.folder / "failed")}

    def sender(self, task: str) -> Callable[..., Any]:
        """The task's `delay`. Failing tasks are counted."""
        send = super().sender(task)
        return partial(self._send_failing, send) if task == "failing" else send

    def _send_failing(self, send: Callable[..., Any], *args: Any) -> None:
        self._failing += 1
        send(*args)

    def waiting(self) -> int:
        """The number of failing tasks that have not finally failed; otherwise of queued messages; otherwise of held ones."""
        failed = self.folder / "failed"
        left = self._failing - (failed.stat().st_size if failed.exists() else 0)
        if left:
            return left
        return self._ready() or sum(sum(each) for name, each in self.host.depths().items() if name == QUEUE)

    @property
    def host(self) -> Rabbit:
        server: Any = self.server
        return server  # type: ignore[no-any-return]

    def _ready(self) -> int:
        if self._connection is None:
            self._connection = self.host.connection()
        try:
            return int(self._connection.default_channel.queue_declare(QUEUE, passive=True).message_count)
        except NotFound:
            return 0

    def broker_seconds(self) -> float:
        process = self.host.node.process
        assert process is not None  # noqa: S101 - the node runs as long as this side
        return sum(used(pid) for pid in (process.pid, *below(process.pid)))
