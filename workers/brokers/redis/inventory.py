"""The inventory of Redis: every message that the broker holds, its place, and the worker that holds it.

A message that moves while the inventory is read must not be missed. Messages flow delay store → queue → unacked → dead-letter
queue. The inventory is read in that order: so a message that moves on is seen at its old place or at its new one, perhaps at both,
and the later sight counts. Messages also move back:

- into the delay store, and out of a dead-letter queue: the outcome log has an event of each such move. So the events that were
  recorded since the walk began are read last. They correct rows, add messages that were not seen, and remove those that have ended.
- from unacked to the queue, without an event: a worker gives back messages that it has not run. So these two are read twice.

Limits: a message that is given back and received twice, each time just before the walk reads its place, is missed. So is a message
that moved back without an event: moved by a plain Celery worker, or if the log was cut meanwhile. Memory: 0.5 kB for each message.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from redelivery.middleware.brokers.redis.scripts import text_of
from redelivery.middleware.messages.events import Event

from ...export.batch import decoded
from ...export.sightings import DEAD_LETTER, DELAYED, QUEUE, UNACKED
from ...letters import Contents, Letter
from .outcome_log import newest_id
from .pages import hash_pages, list_pages
from .unacked import bindings, held_pages

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from redelivery.middleware.brokers.redis.transport import RedisTransport

    from ...ports import Sightings

EVENTS = 1000


class RedisInventory:
    """See `InventorySource`."""

    def __init__(self, transport: RedisTransport) -> None:
        self._transport = transport

    def walk(
        self,
        inventory: Sightings,
        queues: Collection[str],
        letter_queues: Collection[str],
        *,
        look: bool,  # noqa: ARG002 - reading marks nothing
    ) -> dict[str, int]:
        walk = _Walk(self._transport, inventory, queues, letter_queues)
        last = newest_id(self._transport.client, self._transport.keys.outcomes)
        walk.delay_store()
        for _ in range(2):
            walk.queues()
            walk.unacked()
        walk.dead_letter_queues()
        walk.unacked()  # once more: a dead-letter handler may have taken a dead letter before the walk read it
        for event in self._events_after(last):
            inventory.hear(event)
        return {}

    def _events_after(self, last: str) -> Iterable[Event]:
        """The events that were recorded after this one, up to now, the oldest first. Ids do not go back, but a clock may."""
        client, stream = self._transport.client, self._transport.keys.outcomes
        newest = newest_id(client, stream)
        while True:
            entries: Any = client.xrange(stream, f"({last}", newest, count=EVENTS)
            yield from (each for each in decoded(entries) if isinstance(each, Event))
            if len(entries) < EVENTS:
                return
            last = text_of(entries[-1][0])


class _Walk:
    """One walk; each place is read in pages."""

    def __init__(
        self, transport: RedisTransport, inventory: Sightings, queues: Collection[str], letter_queues: Collection[str]
    ) -> None:
        self._inventory, self._transport = inventory, transport
        self._client, self._keys = transport.client, transport.keys
        self._letter_queues = sorted(letter_queues)
        names = {*queues, *bindings(transport).values(), *map(self._keys.queue_of, self._destinations())}
        self._queues = sorted(names - {"", *self._letter_queues})

    def _destinations(self) -> list[str]:
        names: Any = self._client.zrange(self._keys.destinations, 0, -1)
        return [name.decode() for name in names]

    def delay_store(self) -> None:
        """Read the delayed messages."""
        for list_name in self._destinations():
            queue = self._keys.queue_of(list_name)
            for now, page in hash_pages(self._client, self._keys.waiting(list_name)):
                ids: list[Any] = list(page)
                scores: Any = self._client.zmscore(self._keys.due(list_name), ids)
                for raw, score in zip(page.values(), scores, strict=True):
                    due_ms = None if score is None else round(score)
                    self._inventory.see(Contents.of(raw), queue, DELAYED, now, due_ms=due_ms)

    def queues(self) -> None:
        """Read the messages that wait to be received: all in the app's queues, and the tasks in other lists."""
        known = {self._keys.list(name): queue for queue in self._queues for name in self._keys.list_names(queue)}
        letters = {self._keys.list(name) for name in self._letter_queues}
        for key, queue in known.items():
            self._list(key, queue)
        for key in self._other_lists({*known, *letters}):
            self._list(key, self._keys.queue_of(key.removeprefix(self._keys.prefix)), tasks_only=True)

    def _list(self, key: str, queue: str, *, tasks_only: bool = False) -> None:
        for now, page in list_pages(self._client, key):
            for raw in page:
                contents = Contents.of(raw)
                if contents.is_task or not tasks_only:
                    self._inventory.see(contents, queue, QUEUE, now)

    def _other_lists(self, known: set[str]) -> Iterator[str]:
        """The lists under the prefix whose newest element is a task: queues that this app does not name, and no other app has."""
        others = self._longer_prefixes()
        for found in self._scan("*", "list"):
            key = found.decode(errors="replace")
            if key not in known and not key.startswith(others):
                newest: Any = self._client.lindex(found, 0)
                if newest is not None and Contents.of(newest).is_task:
                    yield key

    def _longer_prefixes(self) -> tuple[str, ...]:
        """The prefixes of other apps that begin with this app's: kombu stores under each which queues are bound."""
        at, name = len(self._keys.prefix), self._keys.bindings("").removeprefix(self._keys.prefix)
        found = (key.decode(errors="replace") for key in self._scan(f"?*{name}*", "set"))
        return tuple({key[: key.index(name, at)] for key in found if not key.startswith(name, at)})

    def _scan(self, pattern: str, kind: str) -> Iterator[bytes]:
        """The keys of this type under the prefix whose rest matches this pattern."""
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
