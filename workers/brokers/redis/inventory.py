"""The inventory of Redis: every message that the broker holds, its place, and the worker that holds it.

A message that moves meanwhile must not be missed. Messages flow delay store → queue → unacked → dead-letter queue, and the
inventory is read in that order. So a message that moves on is seen in its old or its new place, or in both; the later sighting
counts. Messages also move back:

- into the delay store, and out of a dead-letter queue: the outcome log has an event of each such move. So the events since the
  beginning are read last. They correct rows, add messages that were not seen, and remove messages that have ended.
- from unacked to the queue, without an event, when a worker gives back messages. So these two are read twice.

Limits: a message is missed if it is given back and received twice, each time just before its place is read. It is also missed if it
moved back without an event: through a plain Celery worker, or because the log was cut meanwhile. Memory: 0.5 kB for each message.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from redelivery.middleware.brokers.redis.scripts import text_of
from redelivery.middleware.messages.events import Event

from ...export.batch import decoded
from ...export.sightings import DEAD_LETTER, DELAYED, QUEUE, UNACKED
from ...letters import Contents, Letter
from .delay_store import RedisDelayStore
from .outcome_log import newest_id
from .pages import hash_pages, list_pages
from .transport import OnRedis
from .unacked import bindings, held_pages

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from redelivery.middleware.brokers.redis.transport import RedisTransport

    from ...ports import Sightings

EVENTS = 1000


class RedisInventory(OnRedis):
    """Implements `InventorySource` on Redis."""

    def walk(
        self,
        inventory: Sightings,
        queues: Collection[str],
        letter_queues: Collection[str],
        *,
        look: bool,  # noqa: ARG002 - reading marks no message
    ) -> dict[str, int]:
        walk = _Walk(self._transport, inventory, queues, letter_queues)
        last = newest_id(self._client, self._keys.outcomes)
        walk.delay_store()
        for _ in range(2):
            walk.queues()
            walk.unacked()
        walk.dead_letter_queues()
        walk.unacked()  # again: a dead-letter handler may have received a dead letter before its queue was read
        for event in self._events_after(last):
            inventory.apply(event)
        return {}

    def _events_after(self, last: str) -> Iterable[Event]:
        """The events after the entry `last` up to now, in order. Compare ids, not times: a clock may be set back."""
        client, stream = self._client, self._keys.outcomes
        newest = newest_id(client, stream)
        while True:
            entries: Any = client.xrange(stream, f"({last}", newest, count=EVENTS)
            yield from (each for each in decoded(entries) if isinstance(each, Event))
            if len(entries) < EVENTS:
                return
            last = text_of(entries[-1][0])


class _Walk:
    """Reads each kind of place once, in pages."""

    def __init__(
        self, transport: RedisTransport, inventory: Sightings, queues: Collection[str], letter_queues: Collection[str]
    ) -> None:
        self._inventory, self._transport = inventory, transport
        self._client, self._keys, self._delayed = transport.client, transport.keys, RedisDelayStore(transport)
        self._letter_queues = sorted(letter_queues)
        names = {*queues, *bindings(transport).values(), *map(self._keys.queue_of, self._delayed.lists())}
        self._queues = sorted(names - {"", *self._letter_queues})

    def delay_store(self) -> None:
        """Read the delayed messages."""
        for list_name in self._delayed.lists():
            queue = self._keys.queue_of(list_name)
            for now, page in hash_pages(self._client, self._keys.waiting(list_name)):
                ids: list[Any] = list(page)
                scores: Any = self._client.zmscore(self._keys.due(list_name), ids)
                for raw, score in zip(page.values(), scores, strict=True):
                    due_ms = None if score is None else round(score)
                    self._inventory.see(Contents.of(raw), queue, DELAYED, now, due_ms=due_ms)

    def queues(self) -> None:
        """Read all messages in the app's queues, and the tasks in other lists."""
        known = {self._keys.list(name): queue for queue in self._queues for name in self._keys.list_names(queue)}
        letters = {self._keys.list(name) for name in self._letter_queues}
        for key, queue in known.items():
            self._read_list(key, queue)
        for key in self._other_lists({*known, *letters}):
            self._read_list(key, self._keys.queue_of(key.removeprefix(self._keys.prefix)), tasks_only=True)

    def _read_list(self, key: str, queue: str, *, tasks_only: bool = False) -> None:
        for now, page in list_pages(self._client, key):
            for raw in page:
                contents = Contents.of(raw)
                if contents.is_task or not tasks_only:
                    self._inventory.see(contents, queue, QUEUE, now)

    def _other_lists(self, known: set[str]) -> Iterator[str]:
        """The lists under the prefix whose newest element is a task: queues that neither this app nor another app names."""
        others = self._longer_prefixes()
        for found in self._scan("*", "list"):
            key = found.decode(errors="replace")
            if key not in known and not key.startswith(others):
                newest: Any = self._client.lindex(found, 0)
                if newest is not None and Contents.of(newest).is_task:
                    yield key

    def _longer_prefixes(self) -> tuple[str, ...]:
        """The prefixes of other apps that begin with this app's prefix; kombu stores its bindings under each prefix."""
        at, name = len(self._keys.prefix), self._keys.bindings("").removeprefix(self._keys.prefix)
        found = (key.decode(errors="replace") for key in self._scan(f"?*{name}*", "set"))
        return tuple({key[: key.index(name, at)] for key in found if not key.startswith(name, at)})

    def _scan(self, pattern: str, kind: str) -> Iterator[bytes]:
        """The keys of this type that match the pattern after the prefix."""
        prefix = "".join(f"\\{char}" if char in "*?[]^\\" else char for char in self._keys.prefix)
        found: Iterator[bytes] = self._client.scan_iter(match=prefix + pattern, count=1000, _type=kind)
        return found

    def unacked(self) -> None:
        """Read the messages that workers hold."""
        for now, page in held_pages(self._transport):
            for held in page:
                self._inventory.see(Contents.of(held.raw), held.queue, UNACKED, now, owner=held.owner)

    def dead_letter_queues(self) -> None:
        """Read the dead letters."""
        for name in self._letter_queues:
            for now, page in list_pages(self._client, self._keys.list(name)):
                for raw in page:
                    letter = Letter.of(raw)
                    self._inventory.see(letter, letter.queue or name, DEAD_LETTER, now)
