"""Delayed: the messages that wait for their time, the next due first; each can be promoted, rescheduled and cancelled.

A button acts on one message. An operation cancels many of them, after a dry run.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from redelivery.errors import InputError
from redelivery.middleware.ports import Answer

from ...brokers.broker import broker_of, needed
from ...operations.delayed import changes
from ...operations.queues import require_queue
from ...operations.runs.audit import Act, Acted, acted, record
from ...operations.runs.operation import is_kept
from ...operations.words.numbers import seconds
from ...operations.words.short_ids import MAX_CANDIDATES, is_whole, meant
from ..asked import Go, Shown
from ..shared.looks import leaves_marks

if TYPE_CHECKING:
    from ...ports import Delayed
    from ..asked import Asked

#: Messages of one screen, and parts of the picture of what is due.
MOST, PARTS = 200, 60
#: What can be done, in the order of the buttons.
ACTS = (Act.PROMOTE, Act.RESCHEDULE, Act.CANCEL)


def delayed(asked: Asked) -> Shown:
    """What waits."""
    store, queue = needed(broker_of(asked.transport).delayed), asked.first("queue")
    totals = store.totals()
    if queue and queue not in totals:
        require_queue(asked.runtime, queue)
    given = asked.first("id")
    waiting = _of_task(asked, given) if given else store.soonest(MOST, queue or None)
    now_ms = asked.transport.now_ms()
    return Shown(
        "delayed.html",
        {
            "queue": queue,
            "given": given,
            "totals": totals,
            "total": sum(totals.values()),
            "rows": [_row(asked, each) for each in waiting],
            "course": _course(waiting, now_ms),
            "until_ms": waiting[-1].due_ms if waiting else None,
            "notice": NOTICES.get(asked.first("notice"), ""),
            "is_marked": leaves_marks(asked.transport),
            "may_cancel": asked.may(str(Act.CANCEL), queue) and is_kept(asked.transport),
        },
    )


NOTICES = {
    "cancel": "Cancelled: the message has left the delay store, and its result is REVOKED.",
    "promote": "Promoted: the message is due now.",
    "reschedule": "Rescheduled.",
    "gone": "The message had become due before: nothing was changed.",
}


def _row(asked: Asked, each: Delayed) -> dict[str, Any]:
    may = [str(act) for act in ACTS if asked.may(str(act), each.queue)]
    return {**each.to_row(), "digest": _digest(each), "may": may}


def _digest(each: Delayed) -> str:
    """What names this message in an address: a task may have several that wait."""
    return hashlib.sha256(each.ident.encode("utf-8", "replace")).hexdigest()[:16]


def _course(waiting: list[Delayed], now_ms: int) -> list[int]:
    """How many of these are due in each part of the time until the last of them."""
    counts = [0] * PARTS
    if waiting:
        until = max(waiting[-1].due_ms - now_ms, 1)
        for each in waiting:
            counts[min(max(each.due_ms - now_ms, 0) * PARTS // until, PARTS - 1)] += 1
    return counts


def _of_task(asked: Asked, given: str) -> list[Delayed]:
    """What waits of the task with this id, or whose id begins so. Raises `InputError`."""
    store = needed(broker_of(asked.transport).delayed)
    task_id = given if is_whole(given) else meant(given, store.ids_like(given, MAX_CANDIDATES + 1))
    found = [] if task_id is None else store.of_task(task_id)
    if not found:
        msg = f"task {given} is not delayed: the screen Task says where it is"
        raise InputError(msg)
    return found


def change(act: Act, asked: Asked) -> Go:
    """Cancel, promote or reschedule one message."""
    found = [each for each in _of_task(asked, asked.first("id")) if asked.first("message") in ("", _digest(each))]
    if not found:
        return Go("/delayed", {"notice": "gone"})
    each = found[0]
    asked.require(str(act), each.queue)
    if act is Act.CANCEL:
        answer = changes.cancel(asked.runtime, each, actor=asked.acting())
    else:
        due_ms = None if act is Act.PROMOTE else asked.transport.now_ms() + round(seconds(asked.first("after")) * 1000)
        answer = changes.reschedule(asked.runtime, each, due_ms=due_ms, actor=asked.acting())
    if answer is not Answer.DONE:
        return Go("/delayed", {"notice": "gone"})
    tasks = [each.contents.task_id]
    record(asked.transport, acted(act, Acted.DONE, each.queue, actor=asked.user.name, tasks=tasks, result={"moved": 1}))
    return Go("/delayed", {"queue": asked.first("queue"), "notice": str(act)})
