"""A task's life on Redis: its events in the log, and its places: delayed, in a queue, held, or a dead letter.

Only the delay store has an index by task. The log, the queues and `unacked` are read in pages, the newest first, up to a bound. If
the bound is reached, the answer says so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from redelivery.middleware.brokers.redis.scripts import Script, text_of
from redelivery.middleware.messages.events import Event

from ...export.batch import decoded
from ...letters import Contents, Letter, may_be
from ...ports import Place
from .delay_store import RedisDelayStore
from .pages import list_pages
from .transport import OnRedis
from .unacked import held_pages

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from ...ports import TaskLife

#: Log entries in one script, which blocks the broker for about 3 ms; the maximum number of delayed tasks that are returned.
ENTRIES, MAX_TASKS = 250, 11

_FIND_EVENTS = Script("find_events")


class RedisTasks(OnRedis):
    """Implements `TaskSource` on Redis."""

    def find(self, life: TaskLife, queues: Collection[str], letter_queues: Collection[str], most: int) -> None:
        store = RedisDelayStore(self._transport)
        for each in (each for task_id in store.ids_like(life.task_id, MAX_TASKS) for each in store.of_task(task_id)):
            life.places.append(Place("delayed", each.queue, each.contents, {"due_ms": each.due_ms}))
        for queue in queues:
            for name in self._keys.list_names(queue):
                life.places += [Place("queue", queue, Contents.of(raw)) for _, raw in self._matching(life, name, most)]
        self._read_held(life, most)
        for name in letter_queues:
            life.places += self._letters(life, name, most)
        life.places = list({(place.place, place.name, place.contents.raw): place for place in life.places}.values())

    def _letters(self, life: TaskLife, name: str, most: int) -> list[Place]:
        found = list(self._matching(life, name, most))
        length = int(self._client.llen(self._keys.list(name))) if found else 0
        return [Place("dead_letter", name, Letter.of(raw), at=max(length - 1 - newer, 0)) for newer, raw in found]

    def _matching(self, life: TaskLife, name: str, most: int) -> Iterator[tuple[int, bytes]]:
        """Yield the task's messages in a list, each with the number of newer ones (not exact if messages move meanwhile)."""
        key, looked, newer = self._keys.list(name), 0, 0
        for _, page in list_pages(self._client, key):
            yield from ((newer + at, raw) for at, raw in enumerate(page) if _is_of(raw, life.task_id))
            looked, newer = looked + len(page), newer + len(page) - 1  # the next page begins with the last of this one
            if looked >= most and looked < int(self._client.llen(key)):
                life.cut.append(f"{name}: only the newest {looked} messages were looked at")
                return

    def _read_held(self, life: TaskLife, most: int) -> None:
        looked = 0
        for _, page in held_pages(self._transport):
            for held in page:
                if _is_of(held.raw, life.task_id):
                    life.places.append(Place("unacked", held.queue, Contents.of(held.raw), {"owner": held.owner}))
            looked += len(page)
            if looked >= most:
                life.cut.append(f"unacked: only {looked} messages were looked at")
                return

    def read_log(self, life: TaskLife, most: int) -> None:
        """Read the log from its newest entry back, by a script in the broker."""
        stream, sought, end, looked = self._keys.outcomes, life.task_id.encode("utf-8", "replace"), "+", 0
        while looked < most:
            count, oldest, *found = _FIND_EVENTS(self._client, [stream], [end, min(ENTRIES, most - looked), sought])
            if not count:
                break
            own = decoded((entry_id, dict(zip(values[::2], values[1::2], strict=True))) for entry_id, values in found)
            life.events += [each for each in own if isinstance(each, Event)]
            looked += count
            end = f"({text_of(oldest)}"
        life.events.reverse()
        length: Any = self._client.xlen(stream)
        if looked < length and looked >= most:
            life.cut.append(f"outcome log: only the newest {looked} of {length} events were looked at")


def _is_of(raw: bytes, task_id: str) -> bool:
    return may_be(raw, {task_id}) and Contents.of(raw).task_id.startswith(task_id)
