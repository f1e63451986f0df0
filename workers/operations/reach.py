"""Connects to the broker for a command. It tries only twice, where kombu would try without end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kombu.exceptions import OperationalError

from redelivery.errors import BrokerError, ConfigurationError
from redelivery.middleware.brokers import kind_of
from redelivery.middleware.brokers.broker_url import check_broker_url, unanswered

if TYPE_CHECKING:
    from celery import Celery
    from kombu import Connection

    from redelivery.middleware.ports import Transport
    from redelivery.middleware.runtime import Runtime

#: The maximum seconds until the broker accepts a connection, and until its first answer.
TIMEOUT = 5.0


def reached(runtime: Runtime) -> Transport:
    """Return the transitions on the app's broker. Raises `BrokerError`, or `ConfigurationError` for its settings."""
    runtime.settings  # noqa: B018 - report errors in the settings before the broker is tried
    _reach(runtime.app)
    if kind_of(runtime.app) == "generic":
        where = runtime.app.connection_for_write().as_uri()
        msg = (
            f"broker {where} is neither Redis nor RabbitMQ, and nothing on it can be listed: dead letters are in ordinary "
            "queues (a dead_letter_handler decides about them), and outcomes are in the workers' logs (outcome.recorded)"
        )
        raise BrokerError(msg)
    return runtime.transport


def _reach(app: Celery) -> None:
    """Connect to Redis. Other brokers are tried later, by their transport."""
    check_broker_url(app)
    with app.connection_for_write() as connection:
        if getattr(connection.transport, "driver_type", None) != "redis":
            return
        limits = {"socket_connect_timeout": TIMEOUT, "socket_timeout": TIMEOUT}
        connection.transport_options = {**limits, **(connection.transport_options or {})}
        try:
            connection.ensure_connection(max_retries=1, interval_start=0.1, timeout=TIMEOUT)
        except OperationalError as exc:
            raise _refusal(connection, exc) from exc
        except (ValueError, TypeError) as exc:  # for example, a Sentinel URL without the master's name
            msg = f"broker {connection.as_uri()} cannot be used: {exc}; correct broker_url or broker_transport_options"
            raise ConfigurationError(msg) from exc


def _refusal(connection: Connection, exc: OperationalError) -> BrokerError:
    where = connection.as_uri()
    if any(word in str(exc) for word in ("uthentication", "NOAUTH", "WRONGPASS", "NOPERM", "username-password")):
        return BrokerError(f"broker {where} refused the connection: {exc}; check the user and the password in broker_url")
    return unanswered(where, exc)
