"""The transitions on Redis, for code that works only on Redis; its callers have checked the capability that it needs."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from redelivery.middleware.brokers.redis.broker import RedisBroker
    from redelivery.middleware.runtime import Runtime


def redis_of(runtime: Runtime) -> RedisBroker:
    """This app's transitions, as Redis has them."""
    return cast("RedisBroker", runtime.transport)
