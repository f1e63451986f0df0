"""Redis and Valkey for a worker: transitions, receiving, held messages, and the pipeline."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

from redis.exceptions import RedisError

from ...known import is_known, known_of, version_of, warn_unless_known
from ...logs import log
from ...ports import TaskResult
from .pipeline import UnderWay
from .receiving.channel import Receiving
from .receiving.owner import Owner
from .receiving.receiver import Receiver
from .scripts import text_of
from .transport import RedisTransport

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from celery import Celery
    from celery.worker.consumer import Consumer

    from ...ports import Deliveries, FastPath, Held, Pipeline, Registry

#: The beginnings of a Celery result backend's address on a single Redis or Valkey.
REDIS_ADDRESSES = ("redis://", "rediss://", "socket://", "redis+socket://")
#: What follows if the broker refuses to store a result.
APART = "each result is stored by its task's process before the message is acknowledged, as Celery does it"
NO_EVICTION = "noeviction"
#: What follows from any other policy on a server with a memory limit.
EVICTS = "a full server deletes messages without a record: set maxmemory-policy noeviction"


class RedisBroker(RedisTransport):
    """The broker of an app (`Transport`)."""

    session: None = None
    redeliveries: None = None

    @property
    def fast_path(self) -> FastPath:
        return self

    @property
    def registry(self) -> Registry:
        return self

    def claim_for(self, worker: str) -> Owner:
        if not is_known("kombu"):
            why = f"{known_of('kombu')}; messages are received by kombu's own receive"
            log.warning("kombu.unknown", version=version_of("kombu"), why=why)
        warn_unless_known("redis", "queues are polled, and each transition waits for its answer")
        return Owner(self, worker)

    def receive(
        self, consumer: Consumer, owner: Deliveries, limit: Callable[[], int], on_garbage: Callable[[Held, Exception], None]
    ) -> bool:
        channel, pool = consumer.task_consumer.channel, consumer.pool
        if not (isinstance(channel, Receiving) and isinstance(owner, Owner) and is_known("kombu")):
            return False
        self.receiver = Receiver(owner, limit, lambda: _processes(pool), on_garbage)
        channel.arm(self.receiver)
        return True

    def pipeline(self, hub: Any, wait_for: Callable[..., None]) -> Pipeline | None:
        """A pipeline on its own connection; None with an unknown redis-py, or with `wait_replicas`: then each call waits."""
        if getattr(self.client, "replicas", None) is not None or not is_known("redis"):
            return None
        return UnderWay(self, hub, wait_for)

    def stores_results(self, app: Celery) -> bool:
        """Whether the result backend is Celery's own for Redis, on this server, and this user may write its keys."""
        address = app.conf.result_backend
        if not (isinstance(address, str) and address.startswith(REDIS_ADDRESSES)):
            return False
        from celery.backends.redis import RedisBackend  # noqa: PLC0415 - only apps with this backend import it

        backend, ours = app.backend, self.client.connection_pool.connection_kwargs
        if type(backend) is not RedisBackend or backend.serializer != "json" or (backend.expires or 0) < 0:
            return False
        if getattr(backend, "compression", None):  # the script cannot read a compressed result
            return False
        if any(backend.connparams.get(name) != ours.get(name) for name in ("host", "port", "path")):
            return False
        key, database = backend.get_key_for_task(f"redelivery-{uuid.uuid4()}"), backend.connparams["db"]
        try:
            self.try_result(TaskResult(key, b"", 1, database))
        except RedisError as exc:
            log.info("results.apart", error=f"{type(exc).__name__}: {exc}", why=APART)
            return False
        return True

    def is_driver_error(self, exc: BaseException) -> bool:
        return isinstance(exc, RedisError | ConnectionError)

    def has_queue(self, name: str) -> bool:
        """Whether this queue has messages, or has been declared."""
        return bool(self.client.exists(self.keys.list(name), self.keys.bindings(name)))

    def objection_to(self, queue: str) -> str | None:
        """Why a queue cannot have this name: kombu uses the key for itself, or the key has another type. None if it can."""
        if queue in {self.keys.unacked_name, self.keys.unacked_index_name, self.keys.unacked_mutex_name}:
            return "is a name that kombu uses itself"
        held = text_of(self.client.type(self.keys.list(queue)))
        return None if held in {"none", "list"} else f"is the key of a {held} on this server, and no queue"

    def origin_of(self, dead_letter_queue: str) -> str | None:
        used = self.client.hget(self.keys.dead_letter_queues, dead_letter_queue)
        return None if used is None else text_of(used)

    def warn(self, queues: Sequence[str], letters: Iterable[str], management_url: str | None) -> None:  # noqa: ARG002 - the port's
        """Log a warning if a full server deletes messages: these are the only deaths on Redis without a record."""
        eviction = eviction_of(self.client.info("memory"))
        if eviction is not None:
            policy, maxmemory = eviction
            log.warning("broker.evicts", maxmemory_policy=policy, maxmemory=maxmemory, why=EVICTS)


def _processes(pool: Any) -> int:
    """How many tasks a Celery pool runs at once; 0 if a stopped prefork pool cannot tell."""
    try:
        return int(pool.num_processes)
    except AttributeError:
        return 0


def eviction_of(memory: Any) -> tuple[str, int] | None:
    """A server's eviction policy and `maxmemory`, from `INFO memory`; None if a full server deletes nothing."""
    policy, maxmemory = str(memory.get("maxmemory_policy", NO_EVICTION)), int(memory.get("maxmemory") or 0)
    return (policy, maxmemory) if maxmemory and policy != NO_EVICTION else None
