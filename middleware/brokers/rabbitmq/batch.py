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
        self._channel.events["basic_return"].add(self._on_return)
        #: The error of a message that the broker has returned.
        self._returned: Exception | None = None
        self._numbers = _NUMBERS[connection.client.host, connection.client.virtual_host]
        self._written = _Written()
        self._write_frame = frame_writer(connection, self._written)

    @property
    def is_open(self) -> bool:
        """False if the broker has closed the channel after an error."""
        return self._channel.connection is not None and self._channel.closed_by is None

    def send(self, batch: Batch, producer: Any) -> Callable[[], bool]:
        """Send the rest. The returned function waits for the confirmations.

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
        at_log = self._confirms.published() if events else 0
        sent = {self._confirms.published(): each for each in left}
        with self._dropped_if_broken():
            self._send()

        def are_published() -> bool:
            with self._dropped_if_broken():
                refused = self._await(sent, at_log)
            if at_log in refused:
                refused.remove(at_log)
                log_refused(events, self._names.outcomes)
            if refused:
                msg = f"the broker refused {len(refused)} of {len(left)} messages"
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
        for each, (_, event) in zip(left, made, strict=True):  # after all were made: a number that is not sent would be a gap
            if event is not None and not each.event_id:
                each.event_id = self._numbers.next_id()
        events = [(each.event_id, event) for each, (_, event) in zip(left, made, strict=True) if event is not None]
        if events:
            event_message = amqp.Message(packed(events), content_type="application/json", delivery_mode=PERSISTENT)
            self._add(event_message, {"exchange": self._names.outcomes_exchange, "routing_key": self._names.outcomes})
        for each, (message, _) in zip(left, made, strict=True):
            self._add(message, each.how)
        return len(events)

    def _await(self, sent: Mapping[int, Publication], at_log: int) -> set[int]:
        """Wait for the confirmations of these messages, and set which are published. Returns the numbers that were refused."""
        confirms, own = self._confirms, {*sent, at_log}
        limits = (each.how["confirm_timeout"] or each.how["timeout"] or TIMEOUT for each in sent.values())
        returned = None
        try:
            self._confirmed(own, min(limits, default=TIMEOUT))
            returned, self._returned = self._returned, None  # it was sent alone
            if returned is not None:
                raise returned
        finally:
            for number, each in sent.items():
                each.is_published = number not in confirms.open and number not in confirms.nacked and returned is None
            refused = confirms.nacked & own
            confirms.open, confirms.nacked = confirms.open - own, confirms.nacked - own
        return refused

    def _on_return(self, exc: Exception, *_: Any) -> None:
        self._returned = exc

    def _made(self, publication: Publication, producer: Any) -> tuple[Any, Event | None]:
        message = publication.message(producer)
        return message, producer.prepared(message, publication.how["exchange"], publication.how["routing_key"])

    def _add(self, message: Any, how: Mapping[str, Any]) -> None:
        flags = bool(how.get("mandatory")), bool(how.get("immediate"))
        args = dumps("Bssbb", (0, how["exchange"], how["routing_key"], *flags))
        self._write_frame(1, self._channel.channel_id, spec.Basic.Publish, args, message)

    def _send(self) -> None:
        whole = self._written.taken()
        self._connection.transport.write(whole)
        self._connection.bytes_sent += 1  # py-amqp counts what it writes, to know when a heartbeat is due

    def _confirmed(self, own: set[int], seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not own.isdisjoint(self._confirms.open):
            if self._channel.closed_by is not None:  # another call on this connection may have got the error
                raise self._channel.closed_by
            left = deadline - time.monotonic()
            if left <= 0:
                self._connection.collect()  # a blocked broker does not answer a close, either
                count = len(self._confirms.open & own)
                msg = f"RabbitMQ has not confirmed {count} messages within {seconds:g} s; is it blocked by an alarm?"
                raise OperationalError(msg)
            try:
                self._connection.drain_events(timeout=left)
            except TimeoutError:
                continue
