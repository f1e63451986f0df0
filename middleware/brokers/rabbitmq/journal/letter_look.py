"""The look for dead letters whose worker died before their event was recorded (`journal`).

It is given the digests of some dead letters, and finds which of them a dead-letter queue holds. It takes the letters and gives them
back, as an operator's look does (`peek`). Two looks at once would hide letters from each other, so each holds an exclusive queue
while it lasts; an operator's command begins when no worker looks.

Limits: it does not look into a queue that has a consumer, because the letters may have gone, nor into one that is longer than
`MAX_LETTERS`. It does not find a letter that an operator's command holds.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from amqp.exceptions import AccessRefused, ResourceLocked

from ....logs import log
from ..peek import Look, counts_of
from .entries import digest_of

if TYPE_CHECKING:
    from collections.abc import Iterator

#: The exclusive queue of a worker that looks.
LOOKING = "redelivery.looking"
#: Dead letters that are looked at, at the most.
MAX_LETTERS = 10_000
#: Seconds that a look waits for another one to end, and between two tries.
TIMEOUT, STEP = 15.0, 0.1


@dataclass(frozen=True, slots=True)
class Looked:
    """What a look has found; `is_consumed`: somebody consumes the queue, so that nothing was looked at.

    `is_done`: the queue was looked at, or is not there.
    """

    found: frozenset[bytes] = frozenset()
    is_consumed: bool = False
    is_done: bool = False


NOT_LOOKED = Looked()


def look_for(kombu: Any, queue: str, wanted: set[bytes]) -> Looked:
    """Which of these digests are of letters that lie in this queue. Raises what the connection raises."""
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
    """Wait until no worker looks, `TIMEOUT` seconds at the most; not at all where this user may not declare what tells."""
    with contextlib.suppress(AccessRefused), _alone(kombu):
        pass


@contextlib.contextmanager
def _alone(kombu: Any) -> Iterator[bool]:
    """Whether nobody else looks, while this lasts."""
    until = time.monotonic() + TIMEOUT
    while not (is_alone := _locked(kombu)) and time.monotonic() < until:
        time.sleep(STEP)  # the broker tells nobody when a queue goes
    try:
        yield is_alone
    finally:
        if is_alone:
            with kombu.connection.channel() as channel:
                channel.queue_delete(LOOKING)


def _locked(kombu: Any) -> bool:
    with kombu.connection.channel() as channel:
        try:
            channel.queue_declare(LOOKING, exclusive=True)
        except ResourceLocked:
            return False
    return True
