"""A batch on RabbitMQ: its events in one message, then its messages, all in one write. Their confirmations are awaited together.

A batch has its own channel on the producer's connection. This channel always uses confirmations, even if the app does not: when a
group returns, the broker has all its messages. The events go first, as with single publications. If the outcome log refuses the
events, the tasks are still published, and a log line reports it: an error would make the caller publish them again. If the
connection breaks, it is unknown whether the unconfirmed messages arrived. A retry sends them again, with their events under the
same ids. So a task can exist twice, as when Celery retries a publication.
"""

from __future__ import annotations

import time
from collections import defaultdict
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import amqp
from amqp import spec
from amqp.exceptions import ChannelError, MessageNacked
from amqp.method_framing import frame_writer
from amqp.serialization import dumps
from kombu.exceptions import OperationalError

from ...messages.events import Numbering
from ...messages.publication import Batch
from .confirms import Confirms
from .events import log_refused, packed
from .messages import PERSISTENT
from .publisher import UNWRITABLE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from ...messages.events import Event
    from ...messages.publication import Publication
    from .names import AmqpNames

#: Seconds to wait for all confirmations of a batch, unless `confirm_timeout` or `timeout` is given.
TIMEOUT = 30.0

#: The numbers of batches' events: as `channel.NUMBERS`, but counted separately.
_NUMBERS: defaultdict[tuple[str, str], Numbering] = defaultdict(Numbering)


class _Written:
    """The transport for py-amqp's frame writer: it keeps the parts of a batch, to be sent together."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []

    def write(self, part: bytes | memoryview) -> None:
        """Keep a copy, because py-amqp uses the same memory again."""
        self.parts.append(bytes(part))

    def taken(self) -> bytes:
        whole = b"".join(self.parts)
        self.parts.clear()
        return whole


class Together:
    """A connection's channel for batches."""

    def __init__(self, connection: Any, names: AmqpNames) -> None:
        self._connection, self._names = connection, names
        self._channel = connection.channel()
        self._confirms = Confirms(self._channel)
        self._numbers = _NUMBERS[connection.client.host, connection.client.virtual_host]
        self._written = _Written()
        self._write_frame = frame_writer(connection, self._written)

    @property
    def is_open(self) -> bool:
        """False if the broker has closed the channel after an error."""
        return self._channel.connection is not None

    def send(self, batch: Batch, producer: Any) -> Callable[[], bool]:
        """Send the rest. The returned function waits for the confirmations; nothing else is sent here before it was called.

        Both raise what py-amqp raises; the function also `MessageNacked`, and `OperationalError` if confirmations do not come.

        After an interrupt, or a broken connection, the connection is dropped: if only a part of the batch was written, the broker
        would read the next bytes as the rest of it, and might never answer a close.
        """
        left = batch.left
        try:
            events = self._write(left, producer)
        except UNWRITABLE:  # nothing was sent
            self._numbers.begin_anew()
            for each in left:
                each.event_id = ""
            if len(left) == 1:
                raise
            self._publish_each(left, producer)
            return lambda: True
        confirms = self._confirms
        confirms.open, confirms.nacked = set(), set()
        at_log = confirms.published() if events else 0
        sent = {confirms.published(): each for each in left}
        with self._dropped_if_broken():
            self._send()

        def are_published() -> bool:
            with self._dropped_if_broken():
                self._await(sent)
            if at_log in confirms.nacked:
                confirms.nacked.remove(at_log)
                log_refused(events, self._names.outcomes)
            if confirms.nacked:
                msg = f"the broker refused {len(confirms.nacked)} of {len(left)} messages"
                raise MessageNacked(msg)
            return True

        return are_published

    @contextmanager
    def _dropped_if_broken(self) -> Iterator[None]:
        try:
            yield
        except BaseException as exc:
            self._numbers.begin_anew()  # if the last events did not arrive, a gap in the numbers would look like lost events
            if not isinstance(exc, ChannelError):
                self._connection.collect()
            raise

    def _publish_each(self, left: Sequence[Publication], producer: Any) -> None:
        """Publish all messages that can be written; then raise the error of the first that cannot."""
        errors = []
        for each in left:
            try:
                self.send(Batch([each]), producer)()
            except UNWRITABLE as exc:
                errors.append(exc)
        raise errors[0]

    def _write(self, left: Sequence[Publication], producer: Any) -> int:
        """Prepare the write: the events, if there are any, and the messages. Returns how many events."""
        self._written.taken()  # drop what an error has left
        made = [self._made(each, producer) for each in left]
        events = [(each.event_id, event) for each, (_, event) in zip(left, made, strict=True) if event is not None]
        if events:
            event_message = amqp.Message(packed(events), content_type="application/json", delivery_mode=PERSISTENT)
            self._add(event_message, {"exchange": self._names.outcomes_exchange, "routing_key": self._names.outcomes})
        for each, (message, _) in zip(left, made, strict=True):
            self._add(message, each.how)
        return len(events)

    def _await(self, sent: Mapping[int, Publication]) -> None:
        """Wait for the confirmations of these messages, and set which are published."""
        try:
            limits = (each.how["confirm_timeout"] or each.how["timeout"] or TIMEOUT for each in sent.values())
            self._confirmed(min(limits, default=TIMEOUT))
        finally:
            for number, each in sent.items():
                each.is_published = number not in self._confirms.open and number not in self._confirms.nacked

    def _made(self, publication: Publication, producer: Any) -> tuple[Any, Event | None]:
        message = publication.message(producer)
        event = producer.prepared(message, publication.how["exchange"], publication.how["routing_key"])
        if event is not None and not publication.event_id:
            publication.event_id = self._numbers.next_id()
        return message, event

    def _add(self, message: Any, how: Mapping[str, Any]) -> None:
        flags = bool(how.get("mandatory")), bool(how.get("immediate"))
        args = dumps("Bssbb", (0, how["exchange"], how["routing_key"], *flags))
        self._write_frame(1, self._channel.channel_id, spec.Basic.Publish, args, message)

    def _send(self) -> None:
        whole = self._written.taken()
        self._connection.transport.write(whole)
        self._connection.bytes_sent += 1  # py-amqp counts what it writes, to know when a heartbeat is due

    def _confirmed(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while self._confirms.open:
            left = deadline - time.monotonic()
            if left <= 0:
                self._connection.collect()  # a blocked broker does not answer a close, either
                count = len(self._confirms.open)
                msg = f"RabbitMQ has not confirmed {count} messages within {seconds:g} s; is it blocked by an alarm?"
                raise OperationalError(msg)
            try:
                self._connection.drain_events(timeout=left)
            except TimeoutError:
                continue
