"""Channels of RabbitMQ for an app with `Redelivery`: kombu's, which record what they publish, and know where a delivery came from.

A task that is published straight to a queue (the default exchange, as Celery does for its direct queues) is recorded as `published`
just before: the event first, so that a publication that failed is `lost` in the books, as it is in truth, rather than a task
without a beginning. What goes to any other exchange may reach several queues, or none: its life opens at first sight in a worker.

A task's `expiration` is put where the broker does not see it: else it would throw the message away in silence, before any worker
could record that it expired.
"""

from __future__ import annotations

from typing import Any

import amqp
from kombu.transport import pyamqp

from redelivery.middleware.envelope import ANNOUNCED
from redelivery.middleware.lifetime import PUBLISHED, is_dated
from redelivery.middleware.transports.amqp_claim import ChannelClaim
from redelivery.middleware.transports.amqp_events import Numbering, packed
from redelivery.middleware.transports.amqp_messages import EXPIRATION, PERSISTENT
from redelivery.middleware.transports.amqp_names import AmqpNames
from redelivery.middleware.transports.amqp_topology import declare_outcomes
from redelivery.middleware.transports.publishing import published
from redelivery.settings.general import GeneralSettings

__all__ = ["RabbitTlsTransport", "RabbitTransport"]

NUMBERS = Numbering()
NAMES = AmqpNames()
MOST_BYTES = GeneralSettings().outcome_log_max_bytes


class Message(pyamqp.Message):
    """A kombu message that knows its queue, and what py-amqp received."""

    held: Any = None
    queue: str | None = None
    received: Any = None


class Channel(pyamqp.Channel):
    """A channel."""

    Message = Message

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._queue_of_tag: dict[str, str] = {}
        super().__init__(*args, **kwargs)

    # receiving

    def basic_consume(self, queue: str = "", consumer_tag: str = "", *args: Any, **kwargs: Any) -> Any:
        """As py-amqp's; remembers which queue the consumer is of."""
        tag = super().basic_consume(queue, consumer_tag, *args, **kwargs)
        self._queue_of_tag[tag or consumer_tag] = queue
        return tag

    def message_to_python(self, raw_message: Any) -> Any:
        """As kombu's; the message knows where it was taken from."""
        message = self.Message(raw_message, channel=self)
        info = raw_message.delivery_info or {}
        message.received, message.queue = raw_message, self._queue_of_tag.get(info.get("consumer_tag", ""))
        return message

    # publishing

    def basic_publish(self, msg: Any, exchange: str = "", routing_key: str = "", **kwargs: Any) -> Any:
        """As py-amqp's; a task is recorded first."""
        self._announce(msg, exchange, routing_key, super().basic_publish)
        return super().basic_publish(msg, exchange, routing_key, **kwargs)

    def basic_publish_confirm(self, msg: Any, exchange: str = "", routing_key: str = "", **kwargs: Any) -> Any:
        """As py-amqp's, where the app has set `confirm_publish`; then the event is confirmed, too."""
        self._announce(msg, exchange, routing_key, super().basic_publish_confirm)
        return super().basic_publish_confirm(msg, exchange, routing_key, **kwargs)

    def _announce(self, msg: Any, exchange: str, routing_key: str, publish: Any) -> None:
        headers = msg.properties.get("application_headers") or {}
        event = published({"headers": headers}, routing_key)
        if event is None:
            return
        headers = dict(headers)
        expiration = msg.properties.pop("expiration", None)
        if expiration is not None:
            headers[EXPIRATION] = expiration
        if PUBLISHED not in headers and (expiration is not None or is_dated(headers)):
            headers[PUBLISHED] = ChannelClaim.now_ms()
        if not exchange:
            self._declare_once()
            headers[ANNOUNCED] = 1
            publish(
                amqp.Message(packed([(NUMBERS.next_id(), event)]), content_type="application/json", delivery_mode=PERSISTENT),
                NAMES.outcomes_exchange,
                NAMES.outcomes,
            )
        msg.properties["application_headers"] = headers

    def _declare_once(self) -> None:
        """Once for each connection: an exchange that is missing would close the channel."""
        if not getattr(self.connection, "has_outcomes", False):
            install = getattr(self.connection.client, "redelivery", None)
            declare_outcomes(self.connection, NAMES, install.settings.outcome_log_max_bytes if install is not None else MOST_BYTES)
            self.connection.has_outcomes = True


class Connection(pyamqp.Connection):
    """A connection of py-amqp, with our channels."""

    Channel = Channel


class RabbitTransport(pyamqp.Transport):
    """kombu's transport for RabbitMQ, with our channels."""

    Connection = Connection


class RabbitTlsTransport(pyamqp.SSLTransport):
    """The same over TLS."""

    Connection = Connection
