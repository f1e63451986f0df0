"""Turns a broker's error into one line that tells the operator what to do."""

from __future__ import annotations


def broker_message(exc: BaseException) -> str | None:
    """Return the line for an error of the broker; None for any other error."""
    from amqp.exceptions import AccessRefused, AMQPError  # noqa: PLC0415 - only when something went wrong
    from kombu.exceptions import OperationalError  # noqa: PLC0415 - only when something went wrong
    from redis import exceptions as redis  # noqa: PLC0415 - only when something went wrong

    from redelivery.middleware.brokers.errors import BROKER_ERRORS  # noqa: PLC0415 - only when something went wrong

    if not isinstance(exc, BROKER_ERRORS):
        return None
    if isinstance(exc, redis.ConnectionError) and str(exc) == "Too many connections":  # redis-py's, of a pool that has no more
        return "the broker answers slowly, and all connections to it are in use: raise max_connections in broker_transport_options"
    texts: dict[tuple[type[BaseException], ...], str] = {
        (redis.ReadOnlyError,): "the broker is read-only, and changed nothing: point broker_url at the master",
        (redis.OutOfMemoryError,): "the broker is full, and changed nothing: raise its maxmemory, or make room",
        (redis.BusyLoadingError,): "the broker is loading its data: try again later",
        (redis.NoPermissionError, AccessRefused): (
            "the broker's user has no right to do that: grant it, or use another user in broker_url"
        ),
        (redis.AuthenticationError,): "the broker refused the user or the password in broker_url",
        (redis.TimeoutError, TimeoutError): "the broker does not answer in time: is it overloaded, or is the network down?",
        (redis.ConnectionError, OperationalError, ConnectionError): "the broker does not answer any more: is it running?",
        (AMQPError,): "the broker refused, or does not answer any more: is it running?",
    }
    text = next((text for kinds, text in texts.items() if isinstance(exc, kinds)), "the broker refused")
    return f"{text} ({exc})"
