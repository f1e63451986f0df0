"""For a worker (`-I tests.support.stops.without_parts`): each private part of Celery and redis-py that we use is missing.

Celery and redis-py themselves keep these parts: they are only removed from the objects that our own functions are given.
"""

from __future__ import annotations

from typing import Any

from celery.worker.request import Request

from redelivery.middleware.brokers.redis import broker as redis_broker
from redelivery.middleware.brokers.redis import pipeline as underway
from redelivery.middleware.brokers.redis.receiving.channel import Receiving
from redelivery.middleware.worker import bootstep as ingress
from redelivery.workers.duties import remote_control


class Without:
    """Something of a library's, but for these parts."""

    def __init__(self, inner: Any, *parts: str) -> None:
        vars(self).update(_without_inner=inner, _without_parts=parts)

    def __getattr__(self, name: str) -> Any:
        if name in self._without_parts:
            raise AttributeError(name)
        return getattr(self._without_inner, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._without_inner, name, value)


class Pool(Without):
    """A pool of connections, whose connections do not show their sockets."""

    def get_connection(self) -> Any:
        """One of them."""
        return Without(self._without_inner.get_connection(), "_sock")

    def release(self, connection: Any) -> None:
        """Give it back."""
        self._without_inner.release(connection._without_inner)


class UnderWay(underway.UnderWay):
    """As ours, on such connections."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._pool: Any = Pool(self._pool)


class Revoked(Request):
    """Celery's request, without its way to tell of a revoked task."""

    _announce_revoked = property()


def _without(module: Any, name: str, *parts: str) -> None:
    """Have this function of the module's be given its first argument without these parts."""
    function = getattr(module, name)
    setattr(module, name, lambda thing, *others: function(Without(thing, *parts), *others))


for each in ("read_reports_first", "mend"):
    _without(ingress, each, "_pool")
vars(redis_broker)["UnderWay"] = UnderWay
vars(remote_control)["Request"] = Revoked
on_connect = Receiving._on_receive_connect
Receiving._on_receive_connect = lambda self, connection: on_connect(self, Without(connection, "_parser"))  # type: ignore[method-assign]
