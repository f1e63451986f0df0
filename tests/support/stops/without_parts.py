"""For a worker (`-I tests.support.stops.without_parts`): the private parts of Celery and redis-py that redelivery uses are missing.

The parts are hidden only in the objects that redelivery's functions get, not in Celery and redis-py themselves.
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
    """An object of a library, without these attributes."""

    def __init__(self, inner: Any, *parts: str) -> None:
        vars(self).update(_without_inner=inner, _without_parts=parts)

    def __getattr__(self, name: str) -> Any:
        if name in self._without_parts:
            raise AttributeError(name)
        return getattr(self._without_inner, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._without_inner, name, value)


class Pool(Without):
    """A pool whose connections do not show their sockets."""

    def get_connection(self) -> Any:
        return Without(self._without_inner.get_connection(), "_sock")

    def release(self, connection: Any) -> None:
        self._without_inner.release(connection._without_inner)


class UnderWay(underway.UnderWay):
    """The product's `UnderWay`, with such connections."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._pool: Any = Pool(self._pool)


class Revoked(Request):
    """Celery's request, without `_announce_revoked`."""

    _announce_revoked = property()


def _without(module: Any, name: str, *parts: str) -> None:
    """Hide these attributes of the first argument of a function."""
    function = getattr(module, name)
    setattr(module, name, lambda thing, *others: function(Without(thing, *parts), *others))


for each in ("read_reports_first", "correct_children"):
    _without(ingress, each, "_pool")
vars(redis_broker)["UnderWay"] = UnderWay
vars(remote_control)["Request"] = Revoked
on_connect = Receiving._on_receive_connect
Receiving._on_receive_connect = lambda self, connection: on_connect(self, Without(connection, "_parser"))  # type: ignore[method-assign]
