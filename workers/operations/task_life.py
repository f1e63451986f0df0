"""A task's life: what the outcome log tells of it, and where it is now.

A task is named by its id or by the beginning of it. The delay store has an index by task. The log, the queues and what is held
have none: they are read in pages, from the newest on, up to a bound, and where that is reached, it is said. The queues are the
app's, those of its dead letters, and those that the task's own events name: a redrive may have made one that the app does not
know.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from redelivery.errors import EnvelopeError, InputError
from redelivery.middleware.messages.events import Event
from redelivery.middleware.ports import Capability

from ..brokers.broker import broker_of, needed
from ..brokers.redis.pages import list_pages
from ..brokers.redis.transport import redis_of
from ..brokers.redis.unacked import held_pages
from ..letters import Contents, Letter, may_be
from ..ports import Place, TaskLife
from .letters import dead_letters
from .redaction import seen
from .short_ids import MAX_CANDIDATES, begins, is_whole, meant

if TYPE_CHECKING:
    from collections.abc import Iterator

    from redelivery.middleware.brokers.rabbitmq.transport import AmqpTransport
    from redelivery.middleware.runtime import Runtime

ENTRIES = 2000


def life_of(runtime: Runtime, given: str, *, most: int, outcomes: str | None = None) -> TaskLife:
    """Everything about one task; looks at `most` events and `most` messages of each list at the most.

    `outcomes` is where exported events are (a path or a URI), of which `most` are looked at as well; without it, the place that the
    settings name, where it can be read.

    Raises `InputError` where several tasks' ids begin so, and whatever redis-py raises.
    """
    life = TaskLife(given)
    _read_log(runtime, life, most)
    # After the log: an export may move events from the one to the other meanwhile.
    if outcomes is not None:
        _read_exported(life, outcomes, most)
    elif (place := runtime.settings.exported_outcomes) is not None:
        try:
            _read_exported(life, place, most)
        except (InputError, ImportError) as exc:
            life.unread.append(f"exported events were not read: {exc}")
    _look(runtime, life, most)
    task_id = meant(given, [event.task_id for event in life.events] + [place.contents.task_id for place in life.places])
    if task_id is not None:
        life.task_id = task_id
        life.events = [event for event in life.events if event.task_id == task_id]
        life.places = [place for place in life.places if place.contents.task_id == task_id]
    return life


def _look(runtime: Runtime, life: TaskLife, most: int) -> None:
    """Add every place where a task is whose id begins so."""
    letter_queues = dead_letters.known(runtime)
    queues = sorted(
        {*runtime.app.amqp.queues, *letter_queues.values(), *(event.queue for event in life.events)} - {"", *letter_queues}
    )
    if _is_rabbitmq(runtime):
        from ..brokers.rabbitmq.task_life import read_places  # noqa: PLC0415 - only where the broker is RabbitMQ

        read_places(cast("AmqpTransport", runtime.transport), queues, life)
        store = needed(broker_of(runtime.transport).letters)
        for name in letter_queues:
            for letter in store.found(name, {life.task_id}):
                if begins(letter.task_id, life.task_id):
                    life.places.append(Place("dead_letter", name, letter, seen(runtime, letter).to_row()))
        return
    delayed = needed(broker_of(runtime.transport).delayed)
    ids = [life.task_id] if is_whole(life.task_id) else delayed.ids_like(life.task_id, MAX_CANDIDATES + 1)
    for each in (each for task_id in ids for each in delayed.of_task(task_id)):
        life.places.append(Place("delayed", each.queue, each.contents, {"due_ms": each.due_ms}))
    for queue in queues:
        for name in redis_of(runtime).keys.list_names(queue):
            life.places += [Place("queue", queue, contents) for contents in _matching(runtime, life, name, most)]
    _read_held(runtime, life, most)
    for name in letter_queues:
        for contents in _matching(runtime, life, name, most):
            life.places.append(Place("dead_letter", name, contents, seen(runtime, Letter.of(contents.raw)).to_row()))
    life.places = list({(place.place, place.name, place.contents.raw): place for place in life.places}.values())


def _is_rabbitmq(runtime: Runtime) -> bool:
    return Capability.BROWSE_LETTERS_UNMARKED not in runtime.transport.capabilities


def _read_exported(life: TaskLife, uri: str, most: int) -> None:
    """Add the exported events; what is in the log as well is one event."""
    from ..export.history import exported  # noqa: PLC0415 - pyarrow is an optional dependency

    found = exported(uri, life.task_id, most)
    by_id = {event.event_id: event for event in (*found.events, *life.events)}
    life.events = sorted(by_id.values(), key=lambda event: event.at_ms)
    if found.left:
        life.cut.append(f"exported events: only the newest {found.looked_at} were looked at, and {found.left} files were not")


def _matching(runtime: Runtime, life: TaskLife, name: str, most: int) -> Iterator[Contents]:
    """The task's messages in a list."""
    client, key, looked = redis_of(runtime).client, redis_of(runtime).keys.list(name), 0
    for _, page in list_pages(client, key):
        for raw in page:
            if (contents := _of_task(raw, life.task_id)) is not None:
                yield contents
        looked += len(page)
        if looked >= most and looked < int(client.llen(key)):
            life.cut.append(f"{name}: only the newest {looked} messages were looked at")
            return


def _read_held(runtime: Runtime, life: TaskLife, most: int) -> None:
    """The task's messages that workers hold."""
    looked = 0
    for _, page in held_pages(runtime):
        for held in page:
            if (contents := _of_task(held.raw, life.task_id)) is not None:
                life.places.append(Place("unacked", held.queue, contents, {"owner": held.owner}))
        looked += len(page)
        if looked >= most:
            life.cut.append(f"unacked: only {looked} messages were looked at")
            return


def _of_task(raw: bytes, task_id: str) -> Contents | None:
    if not may_be(raw, {task_id}):
        return None
    contents = Contents.of(raw)
    return contents if begins(contents.task_id, task_id) else None


def _read_log(runtime: Runtime, life: TaskLife, most: int) -> None:
    """The task's events, the oldest first, from a log that is read from its newest entry back."""
    if _is_rabbitmq(runtime):
        from ..brokers.rabbitmq.task_life import read_events  # noqa: PLC0415 - only where the broker is RabbitMQ

        read_events(cast("AmqpTransport", runtime.transport), life, most)
        return
    client, stream = redis_of(runtime).client, redis_of(runtime).keys.outcomes
    sought, end, looked = life.task_id.encode("utf-8", "replace"), "+", 0
    while looked < most:
        entries: Any = client.xrevrange(stream, end, "-", count=min(ENTRIES, most - looked))
        if not entries:
            break
        for entry_id, values in entries:
            if values.get(b"t", b"").startswith(sought):
                try:
                    life.events.append(Event.from_entry(entry_id, values))
                except (EnvelopeError, ValueError):
                    continue
        looked += len(entries)
        end = f"({entries[-1][0].decode()}"
    life.events.reverse()
    length: Any = client.xlen(stream)
    if looked < length and looked >= most:
        life.cut.append(f"outcome log: only the newest {looked} of {length} events were looked at")
