"""Finds a task's life: its events in the outcome log, and where the task is now.

Places without an index by task are read up to a bound; if the bound is reached, the result says so. The searched queues are the
app's queues, its dead-letter queues and their origins, and the queues in the task's events: a redrive may have sent it to a queue
that the app does not know. An event may come from a forged header, so names that no queue can have are left out.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from redelivery.errors import InputError
from redelivery.middleware.transitions.homes import objection

from ...brokers.broker import broker_of
from ...letters import Letter
from ...ports import TaskLife
from ..letters import dead_letters
from ..words.redaction import seen
from ..words.short_ids import meant

if TYPE_CHECKING:
    from redelivery.middleware.runtime import Runtime


def life_of(runtime: Runtime, given: str, *, most: int, outcomes: str | None = None) -> TaskLife:
    """Return everything about the task with this id, or beginning of an id. Reads at most `most` events and messages of each list.

    `outcomes` is the place of exported events (a path or a URI), of which at most `most` are read, too. The default is the place in
    the settings, if it can be read.

    Raises `InputError` if several tasks match, and the errors of the broker's driver.
    """
    life = TaskLife(given)
    broker_of(runtime.transport).tasks.read_log(life, most)
    # Read the log before the files: an export may move events from the log to the files meanwhile.
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
    """Add every place of the task. Dead letters are redacted as the settings say."""
    letter_queues = dead_letters.known(runtime)
    named = {event.queue for event in life.events if event.queue and objection(runtime.transport, event.queue) is None}
    known = {*runtime.app.amqp.queues, *letter_queues.values(), *named}
    broker_of(runtime.transport).tasks.find(life, sorted(known - {*letter_queues}), letter_queues, most)
    life.places = [
        replace(each, detail=seen(runtime, each.contents).to_row()) if isinstance(each.contents, Letter) else each
        for each in life.places
    ]


def _read_exported(life: TaskLife, uri: str, most: int) -> None:
    """Add the exported events that the log did not have."""
    from ...export.history import exported  # noqa: PLC0415 - pyarrow is an optional dependency

    found = exported(uri, life.task_id, most)
    by_id = {event.event_id: event for event in (*found.events, *life.events)}
    life.events = sorted(by_id.values(), key=lambda event: event.at_ms)
    if found.left:
        life.cut.append(f"exported events: only the newest {found.looked_at} were looked at, and {found.left} files were not")
