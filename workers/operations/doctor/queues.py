"""Checks of waiting messages: queues without consumers, and delayed messages without a dispatcher."""

from __future__ import annotations

from typing import TYPE_CHECKING

from redelivery.display import safe, word

from ...ports import NotKnown
from ..words.numbers import counted
from .finding import Finding, named

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .seen import Seen

#: The maximum seconds that a message may be overdue; the alarm in `docs/metrics.md` uses the same value.
OVERDUE = 60.0


def check_taken(seen: Seen) -> Iterator[Finding]:
    """Find queues without a length on Redis: something else uses the key."""
    if seen.queues is None or seen.queues.consumers is not None or seen.letters is None:
        return
    measured = {*seen.queues.waiting, *(each.name for each in seen.letters)}
    for name in sorted(set(seen.runtime.app.amqp.queues) - measured):
        what = f"something else uses the key of queue {safe(name)}"
        why = "no message enters it, and no worker that consumes it stays"
        yield Finding("queue.taken", "danger", what, why, "rename or delete the key, or give the queue another name")


def check_consumers(seen: Seen) -> Iterator[Finding | NotKnown]:
    """Find messages in a queue that no worker consumes."""
    queues, fleet = seen.queues, seen.fleet
    if queues is None:
        return
    waiting = {name: count for name, count in queues.waiting.items() if count}
    if queues.consumers is not None:
        alone = {name: count for name, count in waiting.items() if not queues.consumers.get(name)}
    elif fleet is None:
        return
    else:
        alone = {name: count for name, count in waiting.items() if not fleet.consumers_of(name)}
        if alone and seen.silent:
            silent = counted(seen.silent, "worker renews its lease and does", "workers renew their leases and do")
            why = f"{silent} not answer remote control (a busy solo worker, or it is disabled)"
            yield NotKnown(
                f"whether a worker consumes {named(sorted(alone))}", why, "run doctor again; worker_enable_remote_control = True"
            )
            return
    for name, count in sorted(alone.items()):
        fix = f"celery -A {seen.app} worker -Q {word(name)}"
        what = f"{counted(count, 'message waits', 'messages wait')} in {safe(name)}, and no worker consumes it"
        yield Finding("queue.unconsumed", "danger", what, "these tasks do not run", fix)


def check_dispatcher(seen: Seen) -> Iterator[Finding]:
    """Find a missing dispatcher, and overdue messages that the dispatcher does not move."""
    queues = seen.queues
    if queues is None or queues.dispatchers is None:
        return
    has_workers = seen.fleet is not None and bool(seen.fleet.ours)
    if not queues.dispatchers and (queues.delayed or has_workers):
        what = f"no dispatcher is alive, and {counted(queues.delayed, 'delayed message waits', 'delayed messages wait')}"
        why = "messages that become due stay in the delay store: no retry, no ETA (dispatcher = true lets the workers do it)"
        fix = f"redelivery -A {seen.app} dispatcher"
        yield Finding("dispatcher.none", "danger", what, why, fix)
    elif queues.overdue > OVERDUE:
        what = f"a delayed message is overdue by {round(queues.overdue)} s"
        why = "the dispatcher cannot move it: its queue refuses messages (delayed.refused in the log)"
        fix = f"redelivery -A {seen.app} delayed list"
        yield Finding("delays.overdue", "danger", what, why, fix)
