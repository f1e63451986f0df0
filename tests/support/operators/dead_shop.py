"""Many dead letters of the shop, and operations on them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from redelivery.middleware.messages.envelope import Failed
from redelivery.middleware.messages.steps import dead, sealed
from redelivery.workers.operations.letters.filter import Filter
from redelivery.workers.operations.runs import operation
from redelivery.workers.operations.runs.operation import Kind, Operation, Options
from tests.support.desk import task_message
from tests.support.running import until

if TYPE_CHECKING:
    from redelivery.middleware.runtime import Runtime
    from tests.support.running import Shop

__all__ = ["LETTERS", "begun", "found", "killed", "reached", "runtime_of"]

QUEUE, LETTERS = "celery", "DLQ.celery"


def runtime_of(shop: Shop) -> Runtime:
    runtime: Runtime = shop.app.redelivery
    return runtime


def killed(shop: Shop, count: int, task: str = "ok", *args: Any, begin: str = "task") -> list[str]:
    """Put `count` dead letters of a task into the dead-letter queue. Returns their ids, the oldest first."""
    from tests.support.desk import body_of  # noqa: PLC0415 - the desk has a body of its own

    message = task_message("first", f"{shop.module}.{task}", body=body_of(*args))
    message["properties"]["delivery_info"]["routing_key"] = QUEUE
    transport = runtime_of(shop).transport
    now = transport.now_ms() - 10_000
    failed = Failed(type="ValueError", message="no", traceback="", fingerprint="f-1")
    letter = dead(
        message, QUEUE, dead_letter_queue=LETTERS, reason="exhausted", at_ms=now, seen_ms=now, attempt=None, failed=failed
    )
    raw = sealed(letter)
    ids = [f"{begin}-{number:06}" for number in range(count)]
    client = shop.server.client
    for at in range(0, count, 5000):
        client.lpush(LETTERS, *[raw.replace(b'"id":"first"', f'"id":"{each}"'.encode()) for each in ids[at : at + 5000]])
    client.hset("redelivery:dead_letter_queues", LETTERS, QUEUE)
    return ids


def begun(shop: Shop, kind: Kind = Kind.REDRIVE, chosen: Filter | None = None, queue: str = LETTERS, **options: Any) -> Operation:
    return operation.begin(runtime_of(shop), kind, queue, chosen or Filter(), Options(**options), actor="ana", why="mended")


def found(shop: Shop, begun: Operation) -> Operation:
    return operation.found(runtime_of(shop), begun.id)


def reached(shop: Shop, begun: Operation, *states: str, seconds: float = 60) -> Operation:
    """Wait until the operation is in one of these states."""
    until(lambda: found(shop, begun).state in states, seconds, f"the operation to be {states}, not {found(shop, begun)}")
    return found(shop, begun)
