"""The Redis broker, for code that works only on Redis. Its callers have checked the capability that it needs."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from redelivery.middleware.brokers.redis.broker import RedisBroker
    from redelivery.middleware.brokers.redis.transport import RedisTransport
    from redelivery.middleware.runtime import Runtime


class OnRedis:
    """A feature of the broker Redis."""

    def __init__(self, transport: RedisTransport) -> None:
        self._transport, self._client, self._keys = transport, transport.client, transport.keys


def redis_of(runtime: Runtime) -> RedisBroker:
    """Return this app's transport as a `RedisBroker`."""
    return cast("RedisBroker", runtime.transport)
