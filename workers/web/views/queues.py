"""Queues: how many messages wait, are held, delayed or dead; and the policy of one queue, with its sources and next delays."""

from __future__ import annotations

from typing import TYPE_CHECKING

from redelivery.errors import InputError
from redelivery.settings import FIELDS
from redelivery.settings.values import suggestion

from ...operations.fleet.holders import holders
from ...operations.letters import dead_letters
from ...operations.words.policies import delays_of, shown, sources_of
from ..screen import Screen
from ..shared.looks import leaves_marks
from .workers import LOOKED_AT

if TYPE_CHECKING:
    from ..screen import Visit


def queues(visit: Visit) -> Screen:
    """Show every queue that the app names, or in which messages wait."""
    figures = visit.services.sampler.figures()
    waiting, delayed = figures.by("queue_messages", "queue"), figures.by("delayed_messages", "queue")
    consumers, overdue = figures.by("queue_consumers", "queue"), figures.by("overdue_seconds", "queue")
    letters = {each.origin: each for each in dead_letters.summaries(visit.runtime)}
    held = None if leaves_marks(visit.transport) else holders(visit.runtime, most=LOOKED_AT, named=0)
    in_flight = None if held is None else held.by_queue
    named = {*visit.runtime.app.amqp.queues, *waiting, *(each for each in delayed if each), *(in_flight or ())}
    names = sorted(named - {each.name for each in letters.values()})
    rows = [
        {
            "name": name,
            "waiting": waiting.get(name, 0),
            "delayed": delayed.get(name),
            "overdue": overdue.get(name, 0),
            "consumers": consumers.get(name),
            "in_flight": None if in_flight is None else in_flight[name],
            "letters": letters.get(name),
            "policy": visit.runtime.policies.policy_for(name),
        }
        for name in names
    ]
    return Screen(
        "queues.html", {"rows": rows, "figures": figures, "held_of": held.looked_at if held is not None and held.is_cut else None}
    )


def queue(visit: Visit) -> Screen:
    """Show the policy of one queue, or of a task in it."""
    runtime, name, task = visit.runtime, visit.first("name"), visit.first("task")
    known = {*runtime.app.amqp.queues, *dead_letters.known(runtime).values()}
    if name not in known:
        msg = f"the app has no queue {name!r}{suggestion(name, known)}"
        raise InputError(msg)
    resolved = sources_of(runtime, name, task or None)
    target = resolved.policy.dead_letter_queue_for(name)
    values = [{"name": each, "value": shown(resolved.policy, each, target), "source": resolved.sources[each]} for each in FIELDS]
    tasks = sorted(each for each in runtime.app.tasks if not each.startswith("celery."))
    delays = delays_of(resolved.policy)
    return Screen(
        "queue.html",
        {
            "name": name,
            "task": task,
            "tasks": tasks,
            "values": values,
            "target": target,
            "delays": [each for each in delays if each[3]],
            "longest": max((each[2] for each in delays if each[3]), default=0) or 1,
            "limit": resolved.policy.max_delivery_attempts,
        },
    )
