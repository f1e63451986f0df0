"""The transitions on Redis, for whatever works on Redis alone; its callers have asked for the capability that it needs."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from redelivery.middleware.brokers.redis.broker import RedisBroker
    from redelivery.middleware.runtime import Runtime


def redis_of(runtime: Runtime) -> RedisBroker:
    """This app's transitions, as Redis has them."""
    return cast("RedisBroker", runtime.transport)
