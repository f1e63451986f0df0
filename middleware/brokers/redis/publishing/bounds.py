"""The bounds of a queue, and the eviction of messages because of them.

A queue with a `max_length` never holds more messages than that, all priorities together. When one of our producers publishes to a
full queue, the oldest message of the least urgent priority dies in the same step (`max_length`), or the publication is refused with
`QueueFull`, and nothing is stored or recorded (`overflow`). `workers.duties.queue_bounds` evicts the surplus of plain producers,
and messages that have waited longer than the queue's own time to live.

For an eviction, the broker first names the oldest message. The dead letter is made here, and the script uses it only if that
message is still the oldest. So a message that a worker has taken meanwhile is not evicted.

Limits: messages in the delay store, or held by a worker, do not count; the queue may be longer for a moment when they come back. If
a message must be kept, and its dead-letter queue is missing, it stays: the queue grows, and a log line reports it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from redelivery.errors import BrokerError, QueueFull

from ....logs import log
from ....messages.countdown import from_now, with_gaps
from ....messages.envelope import ANNOUNCED, HEADER, Envelope, Failed, eligible_of
from ....messages.events import Outcome, Reason
from ....messages.recording import about, opened_or_wrapped, raw_id
from ....messages.steps import sealed
from ....messages.ttl import PUBLISHED, is_dated
from ....policy.decision import ending
from ....transitions.death import Death
from ....transitions.notify import store_end
from ..scripts import Script, encoded

if TYPE_CHECKING:
    from redis import Redis

    from ....messages.events import Event
    from ....policy.resolver import Bounds
    from ....runtime import Runtime
    from ..keys import Keys

#: How often a publication is tried while the oldest message changes (many producers at a full queue).
MAX_TRIES = 1000
MISSING = "auto_create_dead_letter_resources is off: declare the queue; until then no message is removed"


@dataclass(frozen=True, slots=True)
class Eviction:
    """The eviction of a message. `letter` is empty if it is discarded; `death` is None if an operator purges it."""

    letter: bytes
    death: Death | None
    events: tuple[Event, ...]

    @property
    def target(self) -> str:
        """The dead-letter queue; empty if the message is not kept."""
        return "" if self.death is None else self.death.target or ""

    def to_args(self, queue: str) -> list[Any]:
        """The scripts' arguments: origin queue, whether the target must exist, dead letter, target, the events' values."""
        events = [value for event in self.events for value in encoded(event)]
        must_exist = self.death is not None and self.target and self.death.must_exist
        return [queue, int(bool(must_exist)), self.letter, self.target, *events]


def evicted(runtime: Runtime, raw: bytes, queue: str, reason: Reason, *, now_ms: int, detail: str) -> Eviction:
    """How this message dies in its queue, even if it cannot be decoded. A dead letter gets no event: its death is recorded."""
    message = opened_or_wrapped(raw)
    headers = message["headers"]
    if not isinstance(headers.get("id"), str):
        headers["id"] = raw_id(raw)
    failed = Failed(type=f"redelivery.{reason}", message=detail, fingerprint=str(reason))
    decided = ending(runtime.policies.policy_for(queue, str(headers.get("task"))), reason, detail, eligible=eligible_of(headers))
    said: dict[str, Any] = {"cause": reason, "detail": detail, "failed": failed, "fingerprint": ""}
    death = Death.of(runtime, queue, raw, message, decided, worker=runtime.worker, **said)
    events = [] if Envelope.of(headers).is_letter else [death.event]
    if events and ANNOUNCED not in headers and HEADER not in headers:
        events.append(about(headers, queue, raw, Outcome.RECEIVED, reason="unannounced", worker=runtime.worker))
    letter = b"" if death.target is None else sealed(death.letter(now_ms=now_ms, seen_ms=now_ms))
    return Eviction(letter, death, tuple(events))


def text_and_gaps(message: dict[str, Any], bounds: Bounds | None) -> tuple[bytes, str]:
    """The message's bytes and its gaps for times (`with_gaps`), with the time of its publication if bounds or headers need it."""
    times = from_now(message["headers"])
    if (bounds is not None and bounds.is_dated) or is_dated(message["headers"]):
        times[PUBLISHED] = 0
    return with_gaps(message, times)


def publish_within(
    client: Redis,
    keys: Keys,
    runtime: Runtime,
    bounds: Bounds | None,
    *,
    message: dict[str, Any],
    event: Event,
    queue: str,
    list_name: str,
    expires: Any,
) -> None:
    """Publish to a queue with bounds, or with the publication's time. Raises `QueueFull`, or `BrokerError` after all tries."""
    most = None if bounds is None else bounds.max_length
    text, gaps = text_and_gaps(message, bounds)
    refuses = bounds is not None and bounds.refuses
    head = [text, gaps, expires, "" if most is None else most, int(refuses), *encoded(event)]
    eviction: Eviction | None = None
    victim: list[Any] = []
    for _ in range(MAX_TRIES):
        names = [*_letter_names(keys, queue, eviction), keys.list(list_name), *map(keys.list, keys.list_names(queue))]
        state, *facts = _PUBLISH_WITHIN(client, [keys.outcomes, *names], [*head, *victim])
        if state != b"oldest":
            break
        at, raw, now_ms = facts
        why = f"the queue holds {most} messages (max_length)"
        eviction = evicted(runtime, raw, queue, Reason.MAX_LENGTH, now_ms=int(now_ms), detail=why)
        victim = [at, raw, *eviction.to_args(queue)]
    else:
        msg = f"queue {queue!r} is full, and its oldest message changed {MAX_TRIES} times while room was made: publish again"
        raise BrokerError(msg)
    if state == b"refused":
        msg = f"queue {queue!r} holds {int(facts[0])} messages (max_length {most}, overflow refuse_publish): publish again later"
        raise QueueFull(msg)
    if eviction is not None and state == b"missing":
        alarm(eviction, queue)
    elif eviction is not None:
        announce_eviction(runtime, eviction, Reason.MAX_LENGTH)


def evict_oldest(
    client: Redis,
    keys: Keys,
    queue: str,
    *,
    most: int | None,
    known: tuple[int, bytes] | None = None,
    eviction: Eviction | None = None,
) -> tuple[str, int, bytes]:
    """Do one step of an eviction; return the state, and the next message to evict (the index of its list, and its bytes).

    `known` is the message that `eviction` is for; without them nothing is moved. If `most` is None, the queue's length is ignored.
    """
    at, raw = (0, b"") if known is None else known
    names = [keys.outcomes, *_letter_names(keys, queue, eviction), *map(keys.list, keys.list_names(queue))]
    args = ["" if most is None else most, at, raw, *(["", 0, "", ""] if eviction is None else eviction.to_args(queue))]
    state, *facts = _EVICT(client, names, args)
    return state.decode(), int(facts[0]) if facts else 0, facts[1] if facts else b""


def alarm(eviction: Eviction, queue: str) -> None:
    """Log that a message stays in its queue because its dead-letter queue is missing."""
    task_id = None if eviction.death is None else eviction.death.message["headers"]["id"]
    log.error("dead_letter_queue.missing", dead_letter_queue=eviction.target, queue=queue, task_id=task_id, why=MISSING)


def announce_eviction(runtime: Runtime, eviction: Eviction, reason: Reason) -> None:
    """Log an eviction, and store the task's result. An evicted dead letter had both at its death."""
    death = eviction.death
    if death is None or not eviction.events:
        return
    death.log()
    if "task" in death.message["headers"]:
        store_end(runtime.app, death.message, "expired" if reason is Reason.EXPIRED else QueueFull(death.detail))


def _letter_names(keys: Keys, queue: str, eviction: Eviction | None) -> list[str]:
    target = queue if eviction is None else eviction.target or queue  # without a dead letter, any readable key will do
    return [keys.dead_letter_queues, keys.list(target), keys.bindings(target)]


_PUBLISH_WITHIN = Script("publish_within", answers_last=True)
_EVICT = Script("evict")
