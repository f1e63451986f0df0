"""Checks of the dead-letter queues: queues that cannot take dead letters, and queues without readers."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from redelivery.display import safe, word

from ..words.numbers import counted
from .finding import Finding

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ...ports import DeadLetterQueue
    from .finding import Name
    from .seen import Seen

#: The maximum age of an unread dead letter; the alarm in `docs/metrics.md` uses the same value.
UNREAD = timedelta(days=1)
#: If the newest dead letter is younger than this, more are expected.
RECENT = timedelta(hours=1)


def check_queues(seen: Seen) -> Iterator[Finding]:
    """Dead-letter queues that are missing and may not be created, or whose names are taken: no worker starts with them."""
    for each in seen.letter_faults or ():
        name: Name = "dead_letter_queue.taken" if each.is_taken else "dead_letter_queue.missing"
        what = f"queue {each.queue!r}: dead-letter queue {each.dead_letter_queue!r} {each.why}"
        yield Finding(name, "danger", what, "no worker starts with it; those that run cannot keep dead letters", each.fix)


def check_unread(seen: Seen) -> Iterator[Finding]:
    """Queues without a consumer whose oldest dead letter is a day old, or whose dead letters have no known age."""
    for each in seen.letters or ():
        if not each.letters or seen.letter_readers.get(each.name):
            continue
        if each.oldest_ms is not None and seen.now_ms - each.oldest_ms < UNREAD / timedelta(milliseconds=1):
            continue
        letters = counted(each.letters, "dead letter", "dead letters")
        what = f"{safe(each.name)} has {letters} that nobody takes{_since(each, seen.now_ms)}"
        why = "each is a task that did not happen: redrive them, or purge them" + _growing(each, seen.now_ms)
        fix = f"redelivery -A {seen.app} dlq show {word(each.name)}"
        yield Finding("dead_letter_queue.unread", "warning", what, why, fix)


def _since(each: DeadLetterQueue, now_ms: int) -> str:
    if each.oldest_ms is None:
        return " (it has no consumer)"
    days = (now_ms - each.oldest_ms) // 86_400_000
    return f", the oldest for {days} {'day' if days == 1 else 'days'}"


def _growing(each: DeadLetterQueue, now_ms: int) -> str:
    is_new = each.newest_ms is not None and now_ms - each.newest_ms < RECENT / timedelta(milliseconds=1)
    return ", and more arrive: the newest died within the last hour" if is_new else ""
