"""Every key that redelivery uses in Redis, its own or kombu's. No other module builds keys.

The lists, `unacked` and `unacked_index` are kombu's own, so that plain Celery workers and producers can share them. All other names
begin with `redelivery:`. All names have kombu's `global_keyprefix`.
"""

from __future__ import annotations

import json
from bisect import bisect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from kombu.transport.redis import Channel

#: Separates the parts of our names. It is kombu's own separator: no task id and no queue name contains it.
SEPARATOR = "\x06\x16"


class Own:
    """An attribute of `Keys`: one of our own keys, with the prefix."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, keys: Keys, _: type[Keys]) -> str:
        return f"{keys.prefix}redelivery:{self._name}"


@dataclass(frozen=True)
class Keys:
    """The keys under one prefix. `separator` and `priority_steps` are kombu's transport options `sep` and `priority_steps`."""

    prefix: str = ""
    separator: str = SEPARATOR
    priority_steps: tuple[int, ...] = (0, 3, 6, 9)
    unacked_name: str = "unacked"
    unacked_index_name: str = "unacked_index"
    unacked_mutex_name: str = "unacked_mutex"

    @classmethod
    def of(cls, channel: Channel) -> Self:
        """The keys that this kombu channel uses."""
        return cls(
            prefix=channel.global_keyprefix,
            separator=channel.sep,
            priority_steps=tuple(channel.priority_steps),
            unacked_name=channel.unacked_key,
            unacked_index_name=channel.unacked_index_key,
            unacked_mutex_name=channel.unacked_mutex_key,
        )

    # kombu's

    @property
    def unacked(self) -> str:
        """Hash: tag → `[raw, "", queue]`, the messages that workers hold."""
        return self.prefix + self.unacked_name

    @property
    def unacked_index(self) -> str:
        """Zset: tag → when plain workers may restore the message (seconds)."""
        return self.prefix + self.unacked_index_name

    def list_name(self, queue: str, priority: int = 0) -> str:
        """The name, without prefix, of the queue's list for messages of this priority."""
        step = self.priority_steps[max(bisect(self.priority_steps, priority) - 1, 0)]
        return f"{queue}{self.separator}{step}" if step else queue

    def list_names(self, queue: str) -> list[str]:
        """The names, without prefix, of all lists of a queue, the most urgent first."""
        return [self.list_name(queue, step) for step in self.priority_steps]

    def queue_of(self, list_name: str) -> str:
        return list_name.rsplit(self.separator, 1)[0]

    def list(self, list_name: str) -> str:
        return self.prefix + list_name

    def bindings(self, exchange: str) -> str:
        """Set: kombu's binding table of an exchange."""
        return f"{self.prefix}_kombu.binding.{exchange}"

    # ours

    #: Hash: owner token → counter that the owner raises once a second. A token that is missing is fenced.
    leases = Own("leases")
    #: Hash: owner token → JSON (worker's name, process id, since).
    owners = Own("owners")
    #: Strings with a time to live: the tokens of the two workers that watch all leases.
    lease_watcher = Own("lease_watcher")
    second_lease_watcher = Own("lease_watcher:second")
    #: Hash: fenced token → when it was fenced, while its messages are being given back.
    recovering = Own("recovering")
    #: Hash: tag → when the message was started (milliseconds), for suspects; or `accepted`, if acknowledged early.
    starts = Own("starts")
    #: Zset: list name → when its next delayed message is due (milliseconds).
    destinations = Own("delayed")
    #: Zset, all scores 0: `task id, unique part, list name`. A prefix finds a task's delayed messages.
    delayed_tasks = Own("delayed:tasks")
    #: String with a time to live: the token of the leading dispatcher.
    dispatcher = Own("dispatcher")
    #: String with a time to live: the token of the worker that keeps the dead letters within their bounds.
    letter_keeper = Own("letter_keeper")
    #: String with a time to live: the token of the worker that reports unread dead-letter queues.
    letter_watcher = Own("letter_watcher")
    #: String with a time to live: the token of the exporter that exports the outcome log.
    exporter = Own("exporter")
    #: String with a time to live: the token of the process that carries operations out.
    operator = Own("operator")
    #: Zset: operation id → when the operation was begun (milliseconds); only the newest operations, in any state.
    operations = Own("operations")
    #: Set: ids of operations that have not ended.
    open_operations = Own("operations:open")
    #: Stream: what operators did, the newest records.
    audit = Own("audit")
    #: Channel: a message was stored that is due before the dispatcher's next message.
    wake = Own("wake")
    #: Hash: name of a dead-letter queue → the origin queue that used it last.
    dead_letter_queues = Own("dead_letter_queues")
    #: Stream: the outcome log.
    outcomes = Own("outcomes")
    #: Hash: how far the outcome log has been exported.
    exported = Own("outcomes:exported")
    #: Hash: how many entries left the outcome log before they were exported, and when.
    trimmed = Own("outcomes:trimmed")

    def received(self, token: str) -> str:
        """Hash: an owner's last received batch: its number, its first tag, and the next batch's first tag."""
        return self._own(f"received:{token}")

    def published(self, token: str) -> str:
        """String with a time to live: the number of the last batch that was published under a producer's token."""
        return self._own(f"published:{token}")

    def watch(self, queue: str) -> str:
        """Hash with a time to live: the owner that the server wakes for a queue (`watcher`), until when (ms), and the `deputy`."""
        return self._own(f"watch:{queue}")

    def idle(self, queue: str) -> str:
        """Zset with a time to live: owners that may watch next, by when they began to wait; busy owners last."""
        return self._own(f"idle:{queue}")

    def woken(self, token: str) -> str:
        """Empty string: a write to it wakes this owner, because the owner's connection tracks the key."""
        return self._own(f"woken:{token}")

    def due(self, list_name: str) -> str:
        """Zset: delayed message's id → when it is due (milliseconds)."""
        return self._own(f"delayed:due:{list_name}")

    def waiting(self, list_name: str) -> str:
        """Hash: delayed message's id → the message."""
        return self._own(f"delayed:messages:{list_name}")

    def slots(self, queue: str, per_second: float) -> str:
        """Zset: start of a run of taken slots → its end (milliseconds). Each retry budget of a queue has one."""
        return self._own(f"slots:{per_second!r}:{queue}")

    def clocks(self, day: int) -> str:
        """Hash: host of a producer whose clock was wrong on this day → JSON (how wrong, and when). `day` counts from the epoch."""
        return self._own(f"clocks:{day}")

    def operation(self, operation_id: str) -> str:
        """Hash: one operation: what it does, its state, its process's token, its progress."""
        return self._own(f"operation:{operation_id}")

    def followed(self, operation_id: str) -> str:
        """Set: lives that a guarded redrive has begun and that have not ended."""
        return self._own(f"operation:followed:{operation_id}")

    def _own(self, name: str) -> str:
        return f"{self.prefix}redelivery:{name}"


def unacked_suffix(queue: str) -> str:
    """The text after the raw message in a value of `unacked`. It makes kombu restore the message to this queue only."""
    return f',"",{json.dumps(queue)}]'


def split_unacked(value: bytes) -> tuple[bytes, str]:
    """The raw message and its queue, from a value of `unacked` that redelivery wrote."""
    raw, _, queue = value[1:-1].rpartition(b',"",')
    return raw, json.loads(queue)
