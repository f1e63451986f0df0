"""The connections of an app with `Redelivery`: kombu's, with our transport for Redis, RabbitMQ and the filesystem.

They are a subclass, because kombu forgets a transport setting when it copies a connection for a pool, or fails over to another
address. Connections of other apps in the process are not changed, and never share a pool with ours.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from kombu.connection import ConnectionPool, PooledConnection
from kombu.transport import pyamqp
from kombu.transport import redis as kombu_redis
from kombu.utils.collections import HashedSeq

from ..messages.creation import install_creation
from .rabbitmq.channel import RabbitTlsTransport, RabbitTransport
from .redis.receiving.channel import ReceivingTransport, SentinelReceivingTransport

if TYPE_CHECKING:
    from celery import Celery
    from kombu import Connection

    from ..runtime import Runtime

OURS = {
    kombu_redis.Transport: ReceivingTransport,
    kombu_redis.SentinelTransport: SentinelReceivingTransport,
    pyamqp.Transport: RabbitTransport,
    pyamqp.SSLTransport: RabbitTlsTransport,
}


def install_connections(app: Celery) -> None:
    """From now on, the connections that this app makes use our transport."""
    connect = app._connection  # noqa: SLF001 - all its connections are made there

    @functools.wraps(connect)
    def _connection(*args: Any, **kwargs: Any) -> Connection:
        app.amqp.Connection = _ours(app.amqp.Connection)
        install_creation(app.amqp)
        app.redelivery.watch_publications(app.amqp)
        connection: Any = connect(*args, **kwargs)
        connection.redelivery = app.redelivery
        return connection  # type: ignore[no-any-return]

    app._connection = _connection  # noqa: SLF001 - see above


class _Knowing:
    """Mixin for a connection class: gives the connections, and the pools that they make, our transport and our settings."""

    redelivery: Runtime | None = None

    def get_transport_cls(self: Any) -> Any:
        found = super().get_transport_cls()  # type: ignore[misc]
        if found.__module__ == "kombu.transport.filesystem":
            from .kombu.filesystem import FilesystemTransport  # noqa: PLC0415 - few apps use it

            return FilesystemTransport
        return OURS.get(found, found)

    def Pool(self: Any, limit: int | None = None, **kwargs: Any) -> ConnectionPool:  # noqa: N802 - kombu's name
        make: Any = _Pool
        pool: ConnectionPool = make(self, limit, **kwargs)
        return pool

    def __eqhash__(self: Any) -> HashedSeq:
        return HashedSeq("redelivery", id(self.redelivery), *super().__eqhash__())  # type: ignore[misc]


class _Pooled(_Knowing, PooledConnection):
    """A pooled connection with our transport."""


class _Pool(ConnectionPool):
    def new(self) -> PooledConnection:
        make: Any = _Pooled
        pooled: Any = make(self, **dict(self.connection._info(resolve=False)))  # noqa: SLF001 - as kombu's
        pooled.redelivery = self.connection.redelivery
        return pooled  # type: ignore[no-any-return]


@functools.cache
def _ours(base: type[Connection]) -> type[Connection]:
    return base if issubclass(base, _Knowing) else type("RedeliveryConnection", (_Knowing, base), {})
