"""Publishing in batches: the messages of a group, or of a `publishing()` block, go to the broker together.

Celery's canvas publishes a group, chunks and a chord's header through one producer, which it gets from the app
(`producer_or_acquire`). Here it gets a producer that collects messages. This producer publishes at the end of the group, when a
batch is full, or when a message comes and the oldest has waited for `MAX_WAIT`. A `publishing()` block does the same for all
messages that its code publishes through the app in the block's thread. The broker's transport sets the size of a batch
(`publishes_together`).

Each message is serialized when it is collected; Celery's two signals are sent then. A batch is retried by the policy of its
messages (`retry`, `retry_policy`); messages with another policy go in another batch. If the process dies, collected messages are
neither published nor recorded.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
import time
from collections import deque
from contextlib import ExitStack, nullcontext
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Self

from celery.app import amqp as celery_amqp
from kombu import Producer

from ..logs import log
from ..messages.publication import Batch, Publication

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from types import FrameType, TracebackType

    from celery import Celery
    from kombu import Connection

#: The limits of a batch: messages in a block; bytes (a single message may have more); and the age of the oldest message, in
#: seconds, at which the next message sends the batch.
MAX_MESSAGES, MAX_BYTES, MAX_WAIT = 500, 1024 * 1024, 1.0
#: The most ids of unpublished tasks in a log line, and the most that a block keeps.
MAX_NAMED, MAX_KEPT = 20, 10_000


def install_batches(app: Celery) -> None:
    """Make this app's groups and `publishing()` blocks publish in batches."""
    acquire = app.producer_or_acquire

    @functools.wraps(acquire)
    def producer_or_acquire(producer: Any = None) -> Any:
        if producer is None:
            block = _block_of(app)
            if block is not None:
                return _Lent(block.producer, block.producer.collecting.let_go)  # a connection is held only during the call
        if isinstance(producer, BatchProducer):
            return nullcontext(producer)
        if _is_group(sys._getframe(1)):  # noqa: SLF001 - only the frame shows it
            connection = _template(app) if producer is None else producer.connection
            size = _batch_size(app, connection)
            if size:
                collecting = Collecting(functools.partial(acquire, producer), size, size, ahead=True)
                return _Lent(BatchProducer(collecting, connection), collecting.end)
        return acquire(producer)

    producer_or_acquire.unbatched = acquire  # type: ignore[attr-defined]
    app.producer_or_acquire = producer_or_acquire


def _is_group(frame: FrameType) -> bool:
    """Whether the caller is Celery's canvas, which publishes all messages of a group."""
    return frame.f_code.co_name == "_apply_tasks" and frame.f_globals.get("__name__") == "celery.canvas"


def _batch_size(app: Celery, connection: Any) -> int:
    """The size of a batch; 0 without batches. A worker's callbacks are not batched: Celery publishes them with its own policy."""
    if not app.redelivery.settings.fast_publish or _publishes_callbacks.get():
        return 0
    return int(getattr(connection.get_transport_cls(), "publishes_together", 0))


_publishes_callbacks: ContextVar[bool] = getattr(
    celery_amqp, "_callback_publish_retry", ContextVar("publishes_callbacks", default=False)
)


class Collecting:
    """The collected messages of one thread.

    `acquire` returns the producer that publishes them. They are published in batches of `batch` messages, as soon as there are
    `limit` of them. With `ahead`, `add` sends a batch without waiting for the broker's answer: the next batch, or the end, waits.
    """

    def __init__(
        self, acquire: Callable[[], AbstractContextManager[Producer]], limit: int, batch: int, *, ahead: bool = False
    ) -> None:
        self._acquire, self._limit, self._batch, self._ahead = acquire, limit, max(batch, 1), ahead
        #: The batch that was sent and has no answer yet, with the policy of its messages.
        self._sent: tuple[Batch, dict[str, Any] | None] | None = None
        self._collected: list[Publication] = []
        self._bytes, self._since = 0, 0.0
        self._policy: dict[str, Any] | None = None
        self._held = ExitStack()
        self._producer: Producer | None = None
        #: Whether a batch is being published. A signal handler that publishes meanwhile must not use the same channel.
        self.is_busy = False
        #: The ids of the last tasks that are not known to be published.
        self.not_published: deque[str] = deque(maxlen=MAX_KEPT)

    def add(self, publication: Publication, policy: dict[str, Any] | None) -> None:
        """Collect a message. `policy` is its retry policy; None: it is not retried. Raises what `flush` raises."""
        if self._collected and (policy != self._policy or self._bytes + publication.size > MAX_BYTES or publication.is_alone):
            self.flush(publication, ahead=self._ahead)
        now = time.monotonic()
        if not self._collected:
            self._since, self._policy = now, policy
        self._collected.append(publication)
        self._bytes += publication.size
        is_full = len(self._collected) >= self._limit or self._bytes >= MAX_BYTES
        if is_full or now - self._since >= MAX_WAIT or publication.is_alone:
            self.flush(ahead=self._ahead)

    def producer(self) -> Producer:
        """A real producer, with a channel. It is held until `let_go`."""
        if self._producer is None:
            self._producer = self._held.enter_context(self._acquire())
        return self._producer

    def flush(self, *following: Publication, ahead: bool = False) -> None:
        """Publish the collected messages. Raises what publishing raises; unpublished messages are then dropped, and logged.

        `following` is a message that is not collected yet. It is not published here; if this fails, it counts as unpublished, too.
        With `ahead`, the answer to the last batch is not awaited.
        """
        collected, self._collected, self._bytes = self._collected, [], 0
        try:
            self.is_busy = True
            for at in range(0, len(collected), self._batch):
                self._await_sent()
                batch = Batch(collected[at : at + self._batch])
                _publish(self.producer(), batch, self._policy, ahead=True)
                self._sent = batch, self._policy
            if not ahead:
                self._await_sent()
        except BaseException as exc:
            sent, self._sent = self._sent, None
            before = [] if sent is None else sent[0].publications
            self._report(list(dict.fromkeys([*before, *collected, *following])), exc)
            self.let_go(exc)
            raise
        finally:
            self.is_busy = False
        if self._sent is None or not self._sent[0].is_bound:
            self.let_go(None)

    def _await_sent(self) -> None:
        if self._sent is not None:
            batch, policy = self._sent
            if batch.left:
                _publish(self.producer(), batch, policy)
            self._sent = None

    def let_go(self, exc: BaseException | None) -> None:
        """Give the producer back, if it is held. After an error its connection is replaced."""
        if self._producer is not None:
            self._producer = None
            self._held.__exit__(type(exc) if exc is not None else None, exc, exc.__traceback__ if exc is not None else None)

    def end(self, exc: BaseException | None) -> None:
        """Publish the rest, after `exc` or no error. An error of publishing replaces `exc`, unless `exc` is an interrupt."""
        try:
            self.flush()
        except Exception:
            if exc is None or isinstance(exc, Exception):
                raise

    def _report(self, publications: list[Publication], exc: BaseException) -> None:
        left = [each.task_id for each in publications if not each.is_published]
        if not left:
            return
        self.not_published.extend(left)
        count, named = len(publications), left[:MAX_NAMED]
        exc.add_note(f"{len(left)} of {count} messages that went together are not known to be published: {', '.join(named)}")
        log.error("publish.failed", messages=count, not_published=len(left), task_ids=named, error=f"{type(exc).__name__}: {exc}")


def _publish(producer: Producer, batch: Batch, policy: dict[str, Any] | None, *, ahead: bool = False) -> None:
    """Publish a batch, with the retries of its policy. A retry leaves out messages that are known to be published.

    With `ahead`, the batch is only sent, if the channel can do that: a second call then waits until it is published.
    """
    connection: Any = producer.connection

    def send() -> None:
        for entity in batch.entities:
            producer.maybe_declare(entity)
        channel: Any = producer.channel
        publish = getattr(channel, "send_together", None) if ahead else None
        (publish or channel.publish_together)(batch)

    with connection._reraise_as_library_errors():  # noqa: SLF001 - as Celery does around each publication
        if policy is None:
            send()
        else:
            connection.transport_options.update(policy)  # as kombu does
            connection.ensure(producer, send, **policy)()


class BatchProducer(Producer):
    """A kombu producer that collects tasks, and publishes other messages at once."""

    def __init__(self, collecting: Collecting, connection: Connection) -> None:
        super().__init__(None, auto_declare=False)
        self.collecting, self._template = collecting, connection
        self._policy: dict[str, Any] | None = None
        self._how: dict[str, Any] = {}

    @property
    def connection(self) -> Connection:
        """The app's connection. It may be closed: kombu only reads its error classes."""
        return self._template

    def _get_channel(self) -> Any:
        return self.collecting.producer().channel

    channel = property(_get_channel, Producer._set_channel)  # noqa: SLF001 - as kombu's

    def publish(self, body: Any, *args: Any, **options: Any) -> Any:
        headers = options.get("headers") or {}
        if not isinstance(headers.get("id"), str) or "task" not in headers:
            return self.collecting.producer().publish(body, *args, **options)
        policy = options.pop("retry_policy", None)
        self._policy = dict(policy or {}) if options.pop("retry", False) else None
        self._how = {name: options.pop(name, None) for name in ("timeout", "confirm_timeout")}
        return super().publish(body, *args, **options)

    def _publish(  # noqa: PLR0917 - kombu gives them in this order
        self,
        body: Any,
        priority: Any,
        content_type: Any,
        content_encoding: Any,
        headers: Any,
        properties: Any,
        routing_key: Any,
        mandatory: Any,
        immediate: Any,
        exchange: Any,
        declare: Any,
        *_: Any,
    ) -> None:
        how = {"exchange": exchange, "routing_key": routing_key, "mandatory": mandatory, "immediate": immediate, **self._how}
        made = (body, priority, content_type, content_encoding, headers, properties)
        self.collecting.add(Publication(*made, how, tuple(declare or ())), self._policy)


class _Lent:
    """The context manager that gives a group, or a call in a block, its producer; `at_end` gets the error, if there is one."""

    def __init__(self, producer: BatchProducer, at_end: Callable[[BaseException | None], None]) -> None:
        self._producer, self._at_end = producer, at_end

    def __enter__(self) -> BatchProducer:
        return self._producer

    def __exit__(self, _: type[BaseException] | None, exc: BaseException | None, __: TracebackType | None) -> None:
        self._at_end(exc)


def _template(app: Celery) -> Connection:
    """The connection that the app's producer pool copies; it is not open."""
    connection: Connection = app.producer_pool.connections.connection
    return connection


class PublishingBlock:
    """The block of `app.redelivery.publishing()`: messages that its code publishes with this app go to the broker in batches.

    A batch is sent at the end of the block, at 500 messages, at a mebibyte, when a message comes a second after the oldest, or by
    `flush()`. The call that fills a batch raises what publishing raises; so does the end of the block. `not_published` then has the
    ids of the tasks that were not published.

    The block belongs to its thread or coroutine, and to coroutines that begin in it, while it is open. Other threads and forked
    children publish at once; a child does not publish messages that its parent has collected. At its end, an inner block publishes
    everything that it and the outer block have collected.
    """

    def __init__(self, app: Celery) -> None:
        self._app = app
        self._pid, self._thread, self._outer = 0, 0, _BLOCK.get()
        self._is_open = False
        self._collecting: Collecting
        #: The producer for the app's calls; None if each message is published at once.
        self._producer: BatchProducer | None = None

    def __enter__(self) -> Self:
        if self._pid:
            msg = "a publishing() block is entered once: call publishing() again"
            raise RuntimeError(msg)
        self._pid, self._thread, self._outer = os.getpid(), threading.get_ident(), _BLOCK.get()
        outer, connection = _block_of(self._app), _template(self._app)
        if outer is not None:
            self._collecting, self._producer = outer._collecting, outer._producer  # noqa: SLF001 - one of its kind
        else:
            acquire: Any = self._app.producer_or_acquire
            batch = _batch_size(self._app, connection)
            self._collecting = Collecting(getattr(acquire, "unbatched", acquire), MAX_MESSAGES, batch)
            self._producer = BatchProducer(self._collecting, connection) if batch else None
        self._is_open = True
        _BLOCK.set(self)
        return self

    def __exit__(self, _: type[BaseException] | None, exc: BaseException | None, __: TracebackType | None) -> None:
        self._is_open = False
        if _BLOCK.get() is self:
            _BLOCK.set(self._outer)
        if os.getpid() == self._pid:
            self._collecting.end(exc)

    def flush(self) -> None:
        """Publish the collected messages now. Raises what publishing raises, and `RuntimeError` in another thread."""
        if os.getpid() != self._pid:
            return
        if threading.get_ident() != self._thread:
            msg = "a publishing() block belongs to its own thread: flush it there"
            raise RuntimeError(msg)
        self._collecting.flush()

    @property
    def not_published(self) -> tuple[str, ...]:
        """The ids of the last ten thousand tasks that could not be published."""
        return tuple(self._collecting.not_published)

    @property
    def producer(self) -> BatchProducer:
        """The collecting producer. Raises `LookupError` if each message is published at once."""
        if self._producer is None:
            msg = "this block collects nothing"
            raise LookupError(msg)
        return self._producer

    def collects_for(self, app: Celery) -> bool:
        """Whether this block collects messages that this app publishes now, in this thread."""
        is_here = self._is_open and self._pid == os.getpid() and self._thread == threading.get_ident()
        return is_here and self._app is app and self._producer is not None and not self._collecting.is_busy

    @property
    def outer(self) -> PublishingBlock | None:
        return self._outer


_BLOCK: ContextVar[PublishingBlock | None] = ContextVar("redelivery_publishing", default=None)


def _block_of(app: Celery) -> PublishingBlock | None:
    """The innermost block that collects messages that this app publishes now, in this thread."""
    block = _BLOCK.get()
    while block is not None and not block.collects_for(app):
        block = block.outer
    return block
