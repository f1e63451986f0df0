"""kombu's RabbitMQ channels, for an app with `Redelivery`: they record publications, and know the queue of a delivery.

A task that is published directly to a queue (through the default exchange, as for Celery's direct queues) is recorded as
`published`. The event is sent just before the task: if the publication fails, the books correctly show the task as `lost`. A
message that goes to another exchange may reach several queues, or none: its life begins when a worker first sees it.

A task's `expiration` is moved to a header that the broker does not read. Otherwise the broker would drop the message, and no worker
could record that it expired.

A worker's channel acknowledges many deliveries at once (`acks`), and can ask for more than Celery's prefetch window (`window`).
"""

from __future__ import annotations

import time
import uuid
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import amqp
from amqp.exceptions import MessageNacked
from kombu.transport import pyamqp

from redelivery.display import safe
from redelivery.errors import InputError

from ...logs import log
from ...messages.envelope import ANNOUNCED, EXPIRATION
from ...messages.events import Numbering
from ...messages.recording import published
from ...messages.ttl import PUBLISHED, is_dated
from .batch import Together
from .consuming.acks import Settled, frames
from .consuming.reading import ReadingAhead
from .consuming.window import Windowed
from .events import log_refused, packed
from .messages import PERSISTENT
from .names import AmqpNames
from .properties import frame_handler
from .topology import declare_outcomes, max_log_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ...messages.events import Event
    from ...messages.publication import Batch

#: The numbers of this process's events, for each broker (address and virtual host): the numbers in a log must have no gaps.
NUMBERS: defaultdict[tuple[str, str], Numbering] = defaultdict(Numbering)
NAMES = AmqpNames()
#: The most messages in one write of a producer.
MAX_TOGETHER = 500
#: The most bytes of a task id, which Celery publishes as the message's `correlation_id` (AMQP: a short string).
MAX_ID = 255
#: How many questions `await_acknowledged` asks; RabbitMQ answers each after the acknowledgements before it. One is not enough: a
#: channel sends a quorum queue at most 32 commands, and the rest as one command when those are answered, perhaps just after the
#: first answer.
BARRIERS = 3
#: A part of RabbitMQ's error for a delivery that was held for longer than its `consumer_timeout`.
TIMED_OUT = "delivery acknowledgement"
TIMED_OUT_WHY = "a task ran, or waited here, longer than RabbitMQ's consumer_timeout: it is delivered again; raise the timeout"


class Message(pyamqp.Message):
    """A kombu message that knows its queue, and py-amqp's message."""

    held: Any = None
    queue: str | None = None
    received: Any = None


class Long(int):
    """A number that py-amqp always writes with 64 bits."""

    def __gt__(self, _: object) -> bool:
        return True


class Channel(Windowed):
    """The channel of an app's connections."""

    Message = Message

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._settled = Settled()
        #: Queues that were deleted under their consumers: only this worker has the delivered messages.
        self.deleted: set[str] = set()
        #: The error with which the broker has closed the channel.
        self.closed_by: Exception | None = None
        super().__init__(*args, **kwargs)
        #: Bodies stay bytes, because some codecs cannot encode the decoded text to the same bytes again.
        self.auto_decode = False

    def _on_basic_cancel(self, consumer_tag: str) -> None:
        """As py-amqp's, which raises; first remembers the queue as deleted."""
        if consumer_tag in self.queue_of_tag:
            self.deleted.add(self.queue_of_tag[consumer_tag])
        super()._on_basic_cancel(consumer_tag)

    def message_to_python(self, raw_message: Any) -> Any:
        message = self.Message(raw_message, channel=self)
        info = raw_message.delivery_info or {}
        consumer = info.get("consumer_tag", "")
        message.received, message.queue = raw_message, self.queue_of_tag.get(consumer)
        unanswered: Any = self.no_ack_consumers
        if consumer in unanswered:
            self._settled.note(int(info["delivery_tag"]))
        return message

    def basic_ack(self, delivery_tag: int, multiple: bool = False, *args: Any, **kwargs: Any) -> Any:
        self._settled.note(int(delivery_tag), multiple=multiple)
        return super().basic_ack(delivery_tag, multiple, *args, **kwargs)

    def basic_reject(self, delivery_tag: int, *args: Any, **kwargs: Any) -> Any:
        self._settled.note(int(delivery_tag))
        return super().basic_reject(delivery_tag, *args, **kwargs)

    def acknowledge(self, tags: Iterable[int]) -> None:
        """Acknowledge these deliveries, in few frames and one write. Raises what the connection raises."""
        connection = self.connection
        if connection is None:
            msg = "the channel is closed"
            raise amqp.RecoverableConnectionError(msg)
        acknowledgements = self._settled.together(tags)
        if acknowledgements:
            connection.transport.write(frames(self.channel_id, acknowledgements))
            connection.bytes_sent += 1  # py-amqp counts what it writes, to know when a heartbeat is due

    def await_acknowledged(self, queue: str) -> None:
        """Wait until a quorum queue has logged this channel's acknowledgements: RabbitMQ forgets the others when it is closed.

        The question is a consumer that may receive nothing (RabbitMQ's `x-credit`): the answer comes through the queue's log.
        """
        for _ in range(BARRIERS):
            tag = f"redelivery-{uuid.uuid4().hex[:12]}"
            super().basic_consume(queue, tag, arguments={"x-credit": {"credit": Long(0), "drain": False}})
            super().basic_cancel(tag)

    def _on_close(self, reply_code: int, reply_text: str, class_id: int, method_id: int) -> None:
        """As py-amqp's. A delivery that RabbitMQ has timed out must not end the whole worker: it makes Celery connect again."""
        try:
            super()._on_close(reply_code, reply_text, class_id, method_id)
        except amqp.AMQPError as exc:
            self.closed_by = exc
            if not isinstance(exc, amqp.PreconditionFailed) or TIMED_OUT not in reply_text:
                raise
            log.error("delivery.timed_out", error=reply_text, why=TIMED_OUT_WHY)
            raise amqp.RecoverableConnectionError(reply_text) from exc

    def basic_publish(self, msg: Any, exchange: str = "", routing_key: str = "", **kwargs: Any) -> Any:
        self._announce(msg, exchange, routing_key, super().basic_publish)
        return super().basic_publish(msg, exchange, routing_key, **kwargs)

    def basic_publish_confirm(self, msg: Any, exchange: str = "", routing_key: str = "", **kwargs: Any) -> Any:
        """As py-amqp's (with `confirm_publish`); a task's event is sent first, and confirmed, too."""
        self._announce(msg, exchange, routing_key, super().basic_publish_confirm)
        return super().basic_publish_confirm(msg, exchange, routing_key, **kwargs)

    def publish_together(self, batch: Batch) -> None:
        """Publish and record the rest of a batch (`batch`)."""
        if batch.are_published is None:
            self.send_together(batch)
        are_published, batch.are_published = batch.are_published, None
        if are_published is not None:
            are_published()

    def send_together(self, batch: Batch) -> None:
        """Send the rest of a batch; `publish_together` then waits for the confirmations. Raises the same errors."""
        self._declare_once()
        together = getattr(self.connection, "together", None)
        if together is None or not together.is_open:
            together = self.connection.together = Together(self.connection, NAMES)
        batch.are_published, batch.is_bound = together.send(batch, self), True

    def _announce(self, msg: Any, exchange: str, routing_key: str, publish: Any) -> None:
        event = self.prepared(msg, exchange, routing_key)
        if event is None:
            return
        self._declare_once()
        client = self.connection.client
        numbers = NUMBERS[client.host, client.virtual_host]
        body = packed([(numbers.next_id(), event)])
        message = amqp.Message(body, content_type="application/json", delivery_mode=PERSISTENT)
        try:
            publish(message, NAMES.outcomes_exchange, NAMES.outcomes)
        except MessageNacked:  # the caller would publish the task again
            numbers.begin_anew()
            log_refused(1, NAMES.outcomes)
        except BaseException:
            numbers.begin_anew()
            raise

    def prepared(self, msg: Any, exchange: str, routing_key: str) -> Event | None:
        """Complete a task's headers; return the event to record first, or None. Raises `InputError` if the id is too long."""
        headers = msg.properties.get("application_headers") or {}
        event = published({"headers": headers}, routing_key)
        if event is None:
            return None
        if (size := len(str(msg.properties.get("correlation_id") or "").encode("utf-8", "replace"))) > MAX_ID:
            text = f"the task id {safe(event.task_id)[:40]!r}... has {size} bytes: RabbitMQ takes {MAX_ID} at most"
            raise InputError(text)
        headers = dict(headers)
        expiration = msg.properties.pop("expiration", None)
        if expiration is not None:
            headers[EXPIRATION] = expiration
        if PUBLISHED not in headers and (expiration is not None or is_dated(headers) or self._is_bounded(exchange, event)):
            headers[PUBLISHED] = time.time_ns() // 1_000_000
        # copies go to queues that are not known here
        is_announced = not exchange and not {"CC", "BCC"} & headers.keys()
        if is_announced:
            headers[ANNOUNCED] = 1
        msg.properties["application_headers"] = headers
        return event if is_announced else None

    def _is_bounded(self, exchange: str, event: Event) -> bool:
        """Whether a policy gives the message a time to live, which begins now. An exchange may lead to any queue of the app."""
        runtime = getattr(self.connection.client, "redelivery", None)
        if runtime is None:
            return False
        queues = [event.queue] if not exchange else runtime.app.amqp.queues
        return any(runtime.policies.bounds_of(queue, event.task) is not None for queue in queues)

    def _declare_once(self) -> None:
        if not getattr(self.connection, "has_outcomes", False):
            declare_outcomes(self.connection, NAMES, max_log_bytes(self.connection.client))
            self.connection.has_outcomes = True


class Connection(ReadingAhead):
    """A py-amqp connection with our channels, which no unreadable message can end."""

    Channel = Channel

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{"frame_handler": frame_handler, **kwargs})


class RabbitTransport(pyamqp.Transport):
    """kombu's transport for RabbitMQ, with our channels."""

    Connection = Connection
    #: How many messages its channels publish in one batch (`publish_together`).
    publishes_together = MAX_TOGETHER

    def register_with_event_loop(self, connection: Any, loop: Any) -> None:
        super().register_with_event_loop(connection, loop)
        runtime = getattr(connection.client, "redelivery", None)
        if runtime is None or runtime.settings.fast_receive:
            connection.read_ahead(loop)

    def on_readable(self, connection: Any, loop: Any) -> None:
        """As kombu's, which repeats itself until nothing is left to read; a connection that reads ahead reads all at once."""
        if not connection.reads_ahead:
            super().on_readable(connection, loop)
        elif not connection.connected:
            msg = "Socket was disconnected"
            raise amqp.RecoverableConnectionError(msg)
        else:
            connection.on_readable()


class RabbitTlsTransport(pyamqp.SSLTransport):
    """kombu's transport for RabbitMQ over TLS, with our channels."""

    Connection = Connection
    publishes_together = MAX_TOGETHER
