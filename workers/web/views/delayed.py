"""Delayed: the delayed messages by due time. A button promotes, reschedules or cancels one; an operation cancels many."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from redelivery.middleware.ports import Answer

from ...brokers.broker import broker_of
from ...operations.delayed import changes
from ...operations.queues import require_queue
from ...operations.runs.audit import Act, Acted, acted, record
from ...operations.runs.operation import is_kept
from ...operations.words.numbers import seconds
from ..screen import Redirect, Screen
from ..shared.looks import leaves_marks

if TYPE_CHECKING:
    from ...ports import Delayed, Glance
    from ..screen import Visit

#: The maximum number of messages on the screen, and parts of the picture of due times.
LIMIT, PARTS = 200, 60
#: The actions, in the order of the buttons.
ACTS = (Act.PROMOTE, Act.RESCHEDULE, Act.CANCEL)
#: The spans that the picture may show, in seconds; without one it shows all due times.
SPANS = {"hour": 3_600, "day": 86_400, "week": 604_800}


def delayed(visit: Visit) -> Screen:
    """Show the delayed messages."""
    store, queue = broker_of(visit.transport).delayed, visit.first("queue")
    within = visit.first("within")
    seen = store.glance(LIMIT, PARTS, queue or None, SPANS[within] * 1000 if within in SPANS else None)
    if queue and queue not in seen.totals:
        require_queue(visit.runtime, queue)
    given = visit.first("id")
    waiting = _of_task(visit, given) if given else seen.soonest
    return Screen(
        "delayed.html",
        {
            "queue": queue,
            "given": given,
            "totals": seen.totals,
            "total": sum(seen.totals.values()),
            "of": seen.totals.get(queue, 0) if queue else sum(seen.totals.values()),
            "rows": [_row(visit, each) for each in waiting],
            "seen": seen,
            "within": within if within in SPANS else "",
            "spans": _spans(within, seen, visit.services.source.now_ms()),
            "notice": NOTICES.get(visit.first("notice"), ""),
            "is_marked": leaves_marks(visit.transport),
            "may_cancel": visit.may(str(Act.CANCEL), queue) and is_kept(visit.transport),
        },
    )


NOTICES = {
    "cancel": "Cancelled: the message has left the delay store, and its result is REVOKED.",
    "promote": "Promoted: the message is due now.",
    "reschedule": "Rescheduled.",
    "gone": "The message had become due before: nothing was changed.",
}


def _spans(within: str, seen: Glance, now_ms: int) -> list[str]:
    """Return the spans to offer: only those after which a message is due."""
    most = SPANS.get(within, 0)
    if not most:
        return [name for name, seconds in SPANS.items() if now_ms + seconds * 1000 < seen.until_ms]
    return [name for name, seconds in SPANS.items() if seconds <= most or seen.later]


def _row(visit: Visit, each: Delayed) -> dict[str, Any]:
    may = [str(act) for act in ACTS if visit.may(str(act), each.queue)]
    return {**each.to_row(), "digest": _digest(each), "may": may}


def _digest(each: Delayed) -> str:
    """Return a name of this message for an address, because a task may have several delayed messages."""
    return hashlib.sha256(each.ident.encode("utf-8", "replace")).hexdigest()[:16]


def _of_task(visit: Visit, given: str) -> list[Delayed]:
    return changes.of_task(broker_of(visit.transport).delayed, given, where="the screen Task")


def change(act: Act, visit: Visit) -> Redirect:
    """Cancel, promote or reschedule one message."""
    found = [each for each in _of_task(visit, visit.first("id")) if visit.first("message") in ("", _digest(each))]
    if not found:
        return Redirect("/delayed", {"notice": "gone"})
    each = found[0]
    visit.require(str(act), each.queue)
    if act is Act.CANCEL:
        answer = changes.cancel(visit.runtime, each, actor=visit.acting())
    else:
        due_ms = None if act is Act.PROMOTE else visit.transport.now_ms() + round(seconds(visit.first("after")) * 1000)
        answer = changes.reschedule(visit.runtime, each, due_ms=due_ms, actor=visit.acting())
    if answer is not Answer.DONE:
        return Redirect("/delayed", {"notice": "gone"})
    tasks = [each.contents.task_id]
    record(visit.transport, acted(act, Acted.DONE, each.queue, actor=visit.user.name, tasks=tasks, result={"moved": 1}))
    return Redirect("/delayed", {"queue": visit.first("queue"), "notice": str(act)})
