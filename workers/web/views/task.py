"""Task: the life of one task over all generations, with exported events, and where it is now."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from redelivery.display import word
from redelivery.errors import InputError

from ...operations.inventory.task_life import life_of
from ..screen import Screen
from ..shared.looks import leaves_marks

if TYPE_CHECKING:
    from redelivery.middleware.messages.events import Event

    from ...ports import Place, TaskLife
    from ..screen import Visit

#: The maximum number of events, and of messages of each list, that are read.
LOOKED_AT = 20_000


def task(visit: Visit) -> Screen:
    """Show the life of the task with this id, or beginning of an id; without an id, a form."""
    given = visit.first("id")
    if not given:
        return Screen("task_form.html", {})
    if leaves_marks(visit.transport):
        msg = (
            "on RabbitMQ a search for a task has to take the outcome log and the dead letters, which marks them: "
            f"`redelivery task show {word(given)}` does that"
        )
        raise InputError(msg)
    visit.head_first(is_reached=False)
    with visit.search():
        life = life_of(visit.runtime, given, most=LOOKED_AT)
    return Screen(
        "task.html",
        {
            "given": given,
            "life": life,
            "generations": _generations(life),
            "places": [_place(visit, each) for each in life.places],
            "policy": visit.runtime.policies.policy_for(life.queue, life.task or None) if life.queue else None,
        },
    )


def _generations(life: TaskLife) -> list[dict[str, Any]]:
    """Return the events by generation, each with the time since the event before."""
    found: dict[int, list[dict[str, Any]]] = {}
    before: Event | None = None
    for each in life.events:
        gap_ms = None if before is None else max(each.at_ms - before.at_ms, 0)
        found.setdefault(each.generation, []).append({"event": each, "gap_ms": gap_ms})
        before = each
    return [{"number": number, "events": events} for number, events in sorted(found.items())]


def _place(visit: Visit, place: Place) -> dict[str, Any]:
    detail = place.detail
    href = visit.href("/letter", queue=place.name, id=place.contents.task_id, at=place.at) if place.place == "dead_letter" else ""
    return {"place": place.place, "name": place.name, "detail": detail, "href": href}
