"""Causes: dead letters grouped by cause, each with a link to all dead letters of that cause."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from ...operations.letters import dead_letters
from ...operations.letters.reading.causes import Causes
from ..screen import Screen
from ..shared.looks import LIMIT, leaves_marks
from .letters import MOST_QUEUES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ...operations.letters.reading.causes import Cause
    from ..screen import Visit

#: The maximum number of causes; the last minutes whose deaths are drawn, in so many parts.
MOST_CAUSES, MINUTES, PARTS = 100, 24 * 60, 48


def causes(visit: Visit) -> Screen:
    """Show the most frequent causes of one queue, or of all."""
    queues = dead_letters.summaries(visit.runtime)
    name = visit.first("queue")
    if name:
        dead_letters.required(visit.runtime, name)
    chosen = {each.name: each.letters for each in queues if each.letters and name in ("", each.name)}
    now_ms, is_marked = visit.transport.now_ms(), leaves_marks(visit.transport)
    visit.head_first()
    unseen: list[str] = []
    newest: Mapping[tuple[str, str], int] = {}
    if is_marked:
        found, total, at_ms, is_whole = Causes(redact=visit.runtime.settings.redact), sum(chosen.values()), None, True
        for each in chosen:
            last = visit.services.looks.last(each)
            if last is None:
                unseen.append(each)
                continue
            at_ms = last.at_ms if at_ms is None else min(at_ms, last.at_ms)
            for _, letter in last.seen.letters:
                found.add(letter, each)
    else:
        counted = visit.services.survey.of(name, chosen)
        newest = dict(counted.newest)
        found, total, at_ms, is_whole = counted.causes, counted.total, counted.at_ms, counted.ended is not None
    ranked = found.ranked()
    return Screen(
        "causes.html",
        {
            "name": name,
            "queues": queues,
            "rows": [_row(visit, found, each, now_ms, newest) for each in ranked[:MOST_CAUSES]],
            "causes": len(ranked),
            "looked_at": found.looked_at,
            "total": total,
            "at_ms": at_ms,
            "is_whole": is_whole,
            "is_marked": is_marked,
            "unseen": unseen,
            "most": LIMIT,
        },
    )


def _row(visit: Visit, found: Causes, cause: Cause, now_ms: int, newest: Mapping[tuple[str, str], int]) -> dict[str, Any]:
    def href(*queues: str) -> str:
        starts: list[int | None] = [_before(cause, each, newest) for each in queues]
        choice = {"fingerprint": cause.fingerprint} if cause.fingerprint else {"reason": cause.reason}
        return visit.href("/letters", queue=queues, **choice, before=() if None in starts else starts)

    counts = _most(cause.dead_letter_queues)
    queues = [queue for queue, _ in counts]
    places = [{"queue": queue, "count": count, "href": href(queue)} for queue, count in counts]
    course = found.course(cause, now_ms, MINUTES, PARTS)
    return {
        "cause": cause,
        "places": places,
        "href": href(*queues[:MOST_QUEUES]),
        "example": visit.href("/letter", queue=cause.queue, id=cause.task_id, at=cause.place),
        "course": course,
        "recent": sum(course),
        "tasks": _most(cause.tasks, 3),
    }


def _most(counts: Counter[str], many: int | None = None) -> list[tuple[str, int]]:
    """Return the most frequent ones, from a copy: the survey continues to count in its own thread."""
    return Counter(counts).most_common(many)


def _before(cause: Cause, queue: str, newest: Mapping[tuple[str, str], int]) -> int | None:
    """Return the place after the newest dead letter of a cause; None if it is unknown."""
    place = newest.get((queue, cause.fingerprint or cause.reason))
    return None if place is None else place + 1
