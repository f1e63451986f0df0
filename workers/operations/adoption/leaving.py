"""Leaving: moves messages from redelivery's delay store back to plain Celery, and counts what is left in the broker.

1. All workers with redelivery must have stopped (otherwise `InputError`): a running one would take the messages back. A lease that
   is not renewed for its whole time belongs to a dead worker: it is fenced, and its messages are given back.
2. Every delayed message goes into its queue as a plain Celery message with its ETA: a plain worker receives it and waits. Its
   history stays in its header. If the app adopts redelivery again, the message's attempts continue from there.
3. What is left is counted: dead letters (their queues are ordinary queues), dead letters in the delay store, held messages, and
   the events of the outcome log.

One script moves each message, so leaving may be interrupted and repeated. Limit: nothing is recorded from then on, so the books
report open lives as open for ever.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

from redelivery.errors import InputError
from redelivery.middleware.messages.envelope import HEADER
from redelivery.middleware.messages.steps import iso, sealed
from redelivery.middleware.messages.ttl import milliseconds
from redelivery.middleware.ports import Answer

from ...brokers.redis.delay_store import RedisDelayStore
from ...brokers.redis.transport import redis_of
from ..fleet.recovery import Recovery, name_of
from ..letters import dead_letters

if TYPE_CHECKING:
    from collections.abc import Callable

    from redelivery.middleware.runtime import Runtime

    from ...ports import Delayed

#: Messages that are read in one round trip, and seconds between two reads of the leases.
PAGE, EVERY = 500, 0.25


@dataclass(slots=True, kw_only=True)
class Leaving:
    """How many messages were handed back (with `dry_run`: would be), by queue, and what is left.

    `recovered` names the dead workers whose messages were given back. `stay` counts the messages in the delay store that are dead
    letters or cannot be read. `held` counts the messages that workers hold, plain workers included. `events` counts the entries of
    the outcome log.
    """

    dry_run: bool
    handed_back: Counter[str] = field(default_factory=Counter)
    recovered: list[str] = field(default_factory=list)
    stay: int = 0
    dead_letters: dict[str, int] = field(default_factory=dict)
    held: int = 0
    events: int = 0

    def to_dict(self) -> dict[str, Any]:
        """The values for JSON."""
        return {each.name: getattr(self, each.name) for each in fields(self)}


def leave(runtime: Runtime, *, dry_run: bool = False, on_progress: Callable[[Leaving], None] = lambda _: None) -> Leaving:
    """Hand the delayed messages back. Raises `InputError` while workers with redelivery run."""
    result = Leaving(dry_run=dry_run)
    dead = _dead_owners(runtime)
    result.recovered = sorted(dead.values())
    if not dry_run:
        _recover(runtime, dead)
    _hand_back(runtime, result, on_progress)
    transport = redis_of(runtime)
    result.dead_letters = {each.name: each.letters for each in dead_letters.summaries(runtime) if each.letters}
    result.held = int(transport.client.hlen(transport.keys.unacked))
    result.events = int(transport.client.xlen(transport.keys.outcomes))
    return result


def _dead_owners(runtime: Runtime) -> dict[str, str]:
    """Watch the leases for the time of a lease, and return their owners, token → worker. Raises `InputError` if one is renewed."""
    transport = redis_of(runtime)
    before = _leases(runtime)
    began = time.monotonic()
    while before and time.monotonic() - began < runtime.settings.lease:
        time.sleep(EVERY)
        moved = [token for token, counter in _leases(runtime).items() if before.get(token) != counter]
        if moved:
            names = ", ".join(sorted(name_of(transport, token) for token in moved))
            msg = f"workers with redelivery still run ({names}): stop them first, or they take the messages back"
            raise InputError(msg)
    return {token: name_of(transport, token) for token in before}


def _leases(runtime: Runtime) -> dict[str, bytes]:
    found: Any = redis_of(runtime).client.hgetall(redis_of(runtime).keys.leases)
    return {token.decode(): counter for token, counter in found.items()}


def _recover(runtime: Runtime, dead: dict[str, str]) -> None:
    transport, counters = redis_of(runtime), _leases(runtime)
    for token in dead:
        if token in counters:
            transport.leases.fence(token, counters[token])
    Recovery(runtime).step()


def _hand_back(runtime: Runtime, result: Leaving, on_progress: Callable[[Leaving], None]) -> None:
    store = RedisDelayStore(redis_of(runtime))
    for name in store.lists():
        staying = 0
        while True:
            count, found = store.page_of(name, staying, PAGE)
            if not count:
                break
            staying += count - sum(_give(runtime, each, result) for each in found)
            on_progress(result)


def _give(runtime: Runtime, each: Delayed, result: Leaving) -> bool:
    """Hand one message back. Returns whether it has left the store."""
    contents, envelope = each.contents, each.contents.envelope
    if contents.message is None or envelope.undelivered is not None or envelope.is_letter:
        result.stay += 1
        return False
    headers = dict(contents.message["headers"])
    # A message that expires before its own ETA is due in the store when it expires. A plain worker checks both times.
    own_ms = milliseconds(headers.get("eta"), runtime.app)
    headers["eta"] = iso(each.due_ms if own_ms is None else max(each.due_ms, own_ms))
    if HEADER in headers:
        headers[HEADER] = replace(envelope, served_eta=None).to_header()
    if result.dry_run:
        result.handed_back[each.queue] += 1
        return False
    answer = redis_of(runtime).stores.hand_back(each.list_name, each.ident, sealed({**contents.message, "headers": headers}))
    if answer is Answer.DONE:
        result.handed_back[each.queue] += 1
    return True
