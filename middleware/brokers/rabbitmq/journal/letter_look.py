"""Looks for dead letters whose worker died before their event was recorded (`journal`).

A look finds which of some dead letters, given by their digests, are in a dead-letter queue. It takes the dead letters and gives
them back, as an operator's look does (`peek`). Two looks at the same time would hide dead letters from each other, so a look has an
exclusive queue; an operator's command waits until no worker looks. A command that holds the dead letters of one queue has an
exclusive queue for that one, because an inventory would miss what the command holds.

Limits: a queue with a consumer is not looked at, because the consumer may have taken the dead letters; nor is a queue that is
longer than `MAX_LETTERS`. A dead letter that an operator's command holds is not found.
"""

from __future__ import annotations

import contextlib
import hashlib
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from amqp.exceptions import AccessRefused, ResourceLocked

from redelivery.errors import BrokerError

from ....logs import log
from ..peek import Look, counts_of
from .entries import digest_of

if TYPE_CHECKING:
    from collections.abc import Iterator

#: The exclusive queue of a look.
LOOKING = "redelivery.looking"
#: The most dead letters that a look reads.
MAX_LETTERS = 10_000
#: Seconds to wait for another look to end; seconds between two tries.
TIMEOUT, STEP = 15.0, 0.1


@dataclass(frozen=True, slots=True)
class Looked:
    """What a look has found. `is_consumed`: the queue has a consumer, and was not looked at. `is_done`: it was looked at."""

    found: frozenset[bytes] = frozenset()
    is_consumed: bool = False
    is_done: bool = False


NOT_LOOKED = Looked()


def look_for(kombu: Any, queue: str, wanted: set[bytes]) -> Looked:
    """Find which of these digests belong to dead letters in this queue. Raises what the connection raises."""
    depth, consumers = counts_of(kombu, queue) or (0, 0)
    if consumers or depth > MAX_LETTERS:
        return Looked(is_consumed=consumers > 0)
    found: set[bytes] = set()
    with _alone(kombu) as is_alone:
        if not is_alone:
            return NOT_LOOKED
        with Look(kombu, queue, most=MAX_LETTERS) as look:
            for letter in look:
                found |= wanted & {digest_of(letter.raw, queue)}
                if found == wanted:
                    break
    log.info("dead_letters.looked_for", dead_letter_queue=queue, wanted=len(wanted), found=len(found), looked_at=look.held)
    return Looked(frozenset(found), is_done=True)


def await_looks(kombu: Any) -> None:
    """Wait until no worker looks, at most `TIMEOUT` seconds; not at all if this user may not declare the exclusive queue."""
    with contextlib.suppress(AccessRefused), _alone(kombu):
        pass


def mark_held(kombu: Any, queue: str) -> None:
    """Show other processes that this one holds dead letters of the queue, until this connection is closed."""
    with contextlib.suppress(AccessRefused):
        _locked(kombu, _mark_of(queue))


def require_not_held(kombu: Any, queue: str) -> None:
    """Wait until no command holds dead letters of the queue. Raises `BrokerError` if one still does after `TIMEOUT`."""
    with contextlib.suppress(AccessRefused), _alone(kombu, _mark_of(queue)) as is_alone:
        if not is_alone:
            msg = f"another command holds dead letters of {queue!r}, which cannot be listed meanwhile: try again when it has ended"
            raise BrokerError(msg)


def _mark_of(queue: str) -> str:
    return f"{LOOKING}.{hashlib.blake2b(queue.encode(), digest_size=8).hexdigest()}"


@contextlib.contextmanager
def _alone(kombu: Any, lock: str = LOOKING) -> Iterator[bool]:
    """Keep other processes from this exclusive queue; False if another one still has it after `TIMEOUT`."""
    until = time.monotonic() + TIMEOUT
    while not (is_alone := _locked(kombu, lock)) and time.monotonic() < until:
        time.sleep(STEP)  # the broker does not report that a queue is gone
    try:
        yield is_alone
    finally:
        if is_alone:
            with kombu.connection.channel() as channel:
                channel.queue_delete(lock)


def _locked(kombu: Any, lock: str) -> bool:
    with kombu.connection.channel() as channel:
        try:
            channel.queue_declare(lock, exclusive=True)
        except ResourceLocked:
            return False
    return True
