"""How messages are received, moved and ended, for each kind of broker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery import Celery

    from ..ports import Transport

Kind = Literal["redis", "amqp", "generic"]


def kind_of(app: Celery) -> Kind:
    """The kind of this app's broker, from its address. Raises `KeyError` for a transport that kombu does not know."""
    driver = getattr(app.connection_for_write().transport, "driver_type", "")
    if driver == "redis":
        return "redis"
    return "amqp" if driver == "amqp" else "generic"


def transport_of(app: Celery) -> Transport:
    """The transitions on this app's broker. Raises `BrokerUnavailable`, `BrokerError`, `ConfigurationError`."""
    from .broker_url import check_broker_url  # noqa: PLC0415 - a transport is imported only if its broker is used

    check_broker_url(app)
    own: Callable[[Celery], Transport] | None = getattr(app.connection_for_write().get_transport_cls(), "transitions_of", None)
    if own is not None:  # a kombu transport with its own transitions
        return own(app)
    kind = kind_of(app)
    if kind == "redis":
        from .redis.broker import RedisBroker  # noqa: PLC0415

        return RedisBroker.of(app)
    if kind == "amqp":
        from .rabbitmq.transport import AmqpTransport  # noqa: PLC0415

        return AmqpTransport.of(app)
    from .kombu.generic import GenericTransport  # noqa: PLC0415

    return GenericTransport.of(app)
