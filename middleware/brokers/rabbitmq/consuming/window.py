"""How many messages RabbitMQ delivers to a worker's channel: Celery's prefetch window, and more if tasks are short.

Leaving messages (ended, but their events are not confirmed yet) still take places in the window; with short tasks, they would soon
take all places. There are two kinds of window; Celery asks for one of them:

- a window of the whole channel, for classic queues: it can be changed at any time (`widen`);
- a window of each consumer, which quorum queues demand: RabbitMQ fixes it when the consumer begins. A queue gets a second consumer,
  with its own fixed window, while it needs one (`begin_second`). Its priority is lower: RabbitMQ delivers to it only if no first
  consumer of that queue, of any worker, has room.
"""

from __future__ import annotations

import uuid
from typing import Any

from amqp import spec
from kombu.transport import pyamqp

#: AMQP has 16 bits for a window.
MAX_PREFETCH = 65_535
#: The argument for a consumer's priority (0 by default).
PRIORITY = "x-priority"


class Windowed(pyamqp.Channel):
    """A channel that can receive more than Celery's window; for one thread."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        #: Consumer tag → queue.
        self.queue_of_tag: dict[str, str] = {}
        #: The channel's window, by how much it is widened, and each consumer's window.
        self.window, self.wider, self.for_each = 0, 0, 0
        self._first: dict[str, tuple[str, dict[str, Any]]] = {}
        self._second: dict[str, str] = {}
        super().__init__(*args, **kwargs)

    def basic_qos(self, prefetch_size: int, prefetch_count: int, a_global: bool, *args: Any, **kwargs: Any) -> Any:
        """As py-amqp's; a channel's window stays as widened as before."""
        self.window, self.for_each = (prefetch_count, 0) if a_global else (0, prefetch_count)
        if self.window:
            prefetch_count = min(prefetch_count + self.wider, MAX_PREFETCH)
        return super().basic_qos(prefetch_size, prefetch_count, a_global, *args, **kwargs)

    def widen(self, by: int) -> None:
        """Let the broker deliver `by` messages more than the channel's window, without waiting for its answer."""
        if self.window and by != self.wider:
            self.wider = by
            self.send_method(spec.Basic.Qos, "lBb", (0, min(self.window + by, MAX_PREFETCH), True))

    def basic_consume(self, queue: str = "", consumer_tag: str = "", *args: Any, **kwargs: Any) -> Any:
        answered = super().basic_consume(queue, consumer_tag, *args, **kwargs)
        tag = answered if isinstance(answered, str) else consumer_tag  # py-amqp 5.1 returns something else with `nowait`
        self.queue_of_tag[tag] = queue
        if kwargs.get("callback") is not None:
            self._first[queue] = (tag, kwargs)
        return tag

    def basic_cancel(self, consumer_tag: str, *args: Any, **kwargs: Any) -> Any:
        queue = self.queue_of_tag.get(consumer_tag, "")
        if queue in self._first and self._first[queue][0] == consumer_tag:
            self.end_second(queue)
            del self._first[queue]
        return super().basic_cancel(consumer_tag, *args, **kwargs)

    def begin_second(self, queue: str, window: int) -> bool:
        """Begin the queue's second consumer, without waiting for the broker's answers; return whether the queue has one."""
        if queue in self._second:
            return True
        if queue not in self._first or not self.for_each:
            return False
        first, options = self._first[queue]
        arguments = options.get("arguments") or {}
        arguments = {**arguments, PRIORITY: arguments.get(PRIORITY, 0) - 1}
        tag = f"{first}-{uuid.uuid4().hex[:8]}"
        self._set_for_each(window)
        super().basic_consume(queue, tag, **{**options, "nowait": True, "arguments": arguments})
        self._set_for_each(self.for_each)
        self.queue_of_tag[tag], self._second[queue] = queue, tag
        return True

    def end_second(self, queue: str) -> None:
        """Cancel the queue's second consumer, if there is one. The messages that it has received still run."""
        tag = self._second.pop(queue, None)
        if tag is not None:
            self.send_method(spec.Basic.Cancel, "sb", (tag, False))

    def _set_for_each(self, window: int) -> None:
        self.send_method(spec.Basic.Qos, "lBb", (0, min(window, MAX_PREFETCH), False))

    def _on_basic_cancel_ok(self, consumer_tag: str) -> None:
        super()._on_basic_cancel_ok(consumer_tag)
        self.queue_of_tag.pop(consumer_tag, None)
