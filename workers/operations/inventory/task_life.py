"""A task's life: its events in the outcome log, and where the task is now.

A task is named by its id or by the beginning of it. Places without an index by task are read up to a bound; if the bound is
reached, the result says so. The queues that are searched are the app's, its dead-letter queues and their origins, and those that
the task's own events name: a redrive may have made a queue that the app does not know. An event's queue may also come from a forged
header, so a name that no queue can have is left out.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from redelivery.errors import InputError
from redelivery.middleware.transitions.homes import objection

from ...brokers.broker import broker_of, needed
from ...letters import Letter
from ...ports import TaskLife
from ..letters import dead_letters
from ..words.redaction import seen
from ..words.short_ids import meant

if TYPE_CHECKING:
    from redelivery.middleware.runtime import Runtime


def life_of(runtime: Runtime, given: str, *, most: int, outcomes: str | None = None) -> TaskLife:
    """Everything about one task. At most `most` events, and `most` messages of each list, are looked at.

    `outcomes` is where exported events are (a path or a URI), of which `most` are looked at as well. By default it is the place
    that the settings name, if it can be read.

    Raises `InputError` if several tasks' ids begin so, and what the broker's driver raises.
    """
    life = TaskLife(given)
    needed(broker_of(runtime.transport).tasks).read_log(life, most)
    # The log is read first: an export may move events from the log to the files meanwhile.
    if outcomes is not None:
        _read_exported(life, outcomes, most)
    elif (place := runtime.settings.exported_outcomes) is not None:
        try:
            _read_exported(life, place, most)
        except (InputError, ImportError) as exc:
            life.unread.append(f"exported events were not read: {exc}")
    _look(runtime, life, most)
    task_id = meant(given, [event.task_id for event in life.events] + [place.contents.task_id for place in life.places])
    life.task_id = given if task_id is None else task_id
    life.events = [event for event in life.events if event.task_id == life.task_id]
    life.places = [place for place in life.places if place.contents.task_id == life.task_id]
    return life


def _look(runtime: Runtime, life: TaskLife, most: int) -> None:
    """Add every place with a task whose id begins so; dead letters are redacted as the settings say."""
    letter_queues = dead_letters.known(runtime)
    named = {event.queue for event in life.events if event.queue and objection(runtime.transport, event.queue) is None}
    known = {*runtime.app.amqp.queues, *letter_queues.values(), *named}
    needed(broker_of(runtime.transport).tasks).find(life, sorted(known - {*letter_queues}), letter_queues, most)
    life.places = [
        replace(each, detail=seen(runtime, each.contents).to_row()) if isinstance(each.contents, Letter) else each
        for each in life.places
    ]


def _read_exported(life: TaskLife, uri: str, most: int) -> None:
    """Add the exported events; an event that is in the log as well is added once."""
    from ...export.history import exported  # noqa: PLC0415 - pyarrow is an optional dependency

    found = exported(uri, life.task_id, most)
    by_id = {event.event_id: event for event in (*found.events, *life.events)}
    life.events = sorted(by_id.values(), key=lambda event: event.at_ms)
    if found.left:
        life.cut.append(f"exported events: only the newest {found.looked_at} were looked at, and {found.left} files were not")
