"""The sides by name, each on its own fresh private broker."""

from __future__ import annotations

import importlib
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.support.servers import Server, binaries

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

__all__ = ["NAMES", "side"]

#: The module and class of each side.
NAMES = {
    "plain": "benchmarks.celery_side:CelerySide",
    "redelivery": "benchmarks.celery_side:CelerySide",
    "dramatiq": "benchmarks.peers.dramatiq_side:DramatiqSide",
    "rq": "benchmarks.peers.rq_side:RqSide",
}
#: The module and class of each side on RabbitMQ.
ON_RABBITMQ = {"plain": "benchmarks.rabbit_side:RabbitSide", "redelivery": "benchmarks.rabbit_side:RabbitSide"}


@contextmanager
def side(
    name: str, settings: dict[str, Any] | None = None, *, results: bool = False, broker: str = "valkey", **options: str
) -> Iterator[Any]:
    """One side on its own broker, `valkey` or `rabbitmq`. `options` are those of the side's class.

    Raises `KeyError` for an unknown side, and `RuntimeError` if the machine has no such broker.
    """
    module, _, kind = (ON_RABBITMQ if broker == "rabbitmq" else NAMES)[name].partition(":")
    with tempfile.TemporaryDirectory(prefix="rb-", ignore_cleanup_errors=True) as folder:
        path = Path(folder)
        with _valkey(path) if broker == "valkey" else _rabbitmq(path) as server:
            yield getattr(importlib.import_module(module), kind)(name, server, path, settings or {}, results, **options)


@contextmanager
def _valkey(folder: Path) -> Iterator[Server]:
    server = Server(folder, binaries()["valkey"]).start()
    try:
        yield server
    finally:
        server.stop()


def _rabbitmq(folder: Path) -> AbstractContextManager[Any]:
    from benchmarks.rabbit_side import node  # noqa: PLC0415 - few comparisons need it

    return node(folder)
