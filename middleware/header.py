"""The header: what a message says of its own history, as a record.

Enters: a message's headers, whoever wrote them; leaves: an `Envelope`, and from it the header again. `envelope` says which step
writes which field. Refuses nothing: a header that cannot be read, or a field of it, counts as absent. What a newer version wrote
beside the fields that this one knows is kept as it is.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from redelivery.middleware.outcomes import Reason

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "ANNOUNCED",
    "COPIES",
    "DELIVERED",
    "ELIGIBLE",
    "EXPIRATION",
    "HEADER",
    "MOST_MESSAGE",
    "MOST_TRACEBACK",
    "Attempt",
    "Envelope",
    "Failed",
    "count",
    "eligible_of",
    "mapping",
]

HEADER = "redelivery"
#: Set by our own producers, which record what they publish.
ANNOUNCED = "redelivery-announced"
ELIGIBLE = "redelivery-dead-letter-eligible"
#: What a message carries on RabbitMQ, and nowhere else, where the broker does not see it: kombu's `expiration` (milliseconds, a
#: text of digits); exchange and routing key that it was published to, where it was moved since; the keys of its copies (`CC`).
EXPIRATION, DELIVERED, COPIES = "redelivery-expiration", "redelivery-delivered", "redelivery-cc"
VERSION = 1
#: Every field of the header that this version knows. What a newer version wrote beside them is kept as it is.
KNOWN = frozenset(
    {
        *("version", "attempt", "delivery", "generation", "first_seen", "origin", "attempts", "deaths", "failure", "suspect"),
        *("served_eta", "undelivered", "first_death", "parked", "handled", "since"),
    }
)
#: What is kept of a failure: characters of its traceback, and of its message (and of any other text in the header).
MOST_TRACEBACK = 16 * 1024
MOST_MESSAGE = 1024
#: The reasons of death, what one looks like that a newer version knows, and how long the name of a queue may be.
_REASONS = frozenset(Reason)
_WORD = re.compile(r"[a-z_]{1,64}")
MOST_NAME = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """What an attempt died of. `fingerprint` is equal for failures of one cause."""

    type: str
    message: str = ""
    traceback: str = ""
    fingerprint: str = ""

    @property
    def text(self) -> str:
        """Type and message, in one line of text."""
        return f"{self.type}: {self.message}"

    def to_header(self) -> dict[str, str]:
        """The header's `failure`, with its caps applied: a traceback keeps its end, where the error is."""
        return {
            "type": self.type,
            "message": self.message[:MOST_MESSAGE],
            "traceback": self.traceback[-MOST_TRACEBACK:],
            "fingerprint": self.fingerprint,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One counted delivery that ended: when (ms), at which worker, of what, and the delay (ms) that followed."""

    at_ms: int
    worker: str
    exception: str
    delay_ms: int | None = None

    def to_header(self) -> dict[str, Any]:
        """One entry of the header's `attempts`."""
        return {"at": self.at_ms, "worker": self.worker, "exception": self.exception[:MOST_MESSAGE], "delay": self.delay_ms}


@dataclass(frozen=True, slots=True, kw_only=True)
class Envelope:
    """What a message's `redelivery` header says.

    `attempt` counts the deliveries that ended and count; `delivery` every hand-over that ended. `suspect` says that a worker died
    while it held the message. `served_eta` is the ETA that the delay store has already waited for. `undelivered` names the missing
    dead-letter queue that a dead message waits for. `first_death` says queue, reason and time of its very first death; `parked`
    that it is held where it is; `handled` how often a dead-letter handler has failed on it; `since` which generation was begun on
    purpose. `unknown` is what a newer `version` wrote beside these.
    """

    attempt: int = 0
    delivery: int = 0
    generation: int = 0
    first_seen_ms: int | None = None
    origin: Mapping[str, Any] = field(default_factory=dict)
    attempts: tuple[Mapping[str, Any], ...] = ()
    deaths: tuple[Mapping[str, Any], ...] = ()
    failure: Mapping[str, Any] | None = None
    suspect: bool = False
    served_eta: str | None = None
    undelivered: str | None = None
    first_death: Mapping[str, Any] | None = None
    parked: bool = False
    handled: int = 0
    since: int = 0
    version: int = VERSION
    unknown: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, headers: Mapping[str, Any] | None) -> Envelope:
        """Read it from a message's headers; what is absent or cannot be read has its default."""
        header = headers.get(HEADER) if isinstance(headers, dict) else None
        if not isinstance(header, dict):
            return UNWRITTEN
        return cls(
            attempt=count(header.get("attempt")),
            delivery=count(header.get("delivery")),
            generation=count(header.get("generation")),
            first_seen_ms=count(header.get("first_seen")) or None,
            origin=mapping(header.get("origin")),
            attempts=mappings(header.get("attempts")),
            deaths=mappings(header.get("deaths")),
            failure=mapping(header.get("failure")) or None,
            suspect=header.get("suspect") is True,
            served_eta=header["served_eta"] if isinstance(header.get("served_eta"), str) else None,
            undelivered=_undelivered(header),
            first_death=mapping(header.get("first_death")) or None,
            parked=header.get("parked") is True,
            handled=count(header.get("handled")),
            since=count(header.get("since")),
            version=max(count(header.get("version")), VERSION),
            unknown={} if header.keys() <= KNOWN else {name: value for name, value in header.items() if name not in KNOWN},
        )

    @property
    def is_letter(self) -> bool:
        """Whether the message has died, lies in a dead-letter queue, and has not been given another life since."""
        if not self.deaths or self.undelivered is not None:
            return False
        died_in = self.deaths[0].get("generation")
        if isinstance(died_in, int):
            return died_in == self.generation
        # A letter of a version that did not write it: what was given another life is seen anew.
        return self.first_seen_ms is not None and self.first_seen_ms <= count(self.deaths[0].get("last"))

    def closes_circle(self, target: str) -> bool:
        """Whether dying into `target` would send it round: it died there since it was last sent off, and nobody rejected it.

        RabbitMQ drops such a message; a circle with a rejection in it is somebody's will.
        """
        for each in self.deaths:
            if count(each.get("generation")) < self.since or each.get("reason") == "rejected":
                return False
            if each.get("queue") == target:
                return True
        return False

    def life_queue(self, queue: str) -> str:
        """The queue that names the life in the books: its first; a task may have sent itself to `queue` since."""
        first = self.origin.get("queue")
        return first if isinstance(first, str) and first else queue

    def to_header(self) -> dict[str, Any]:
        """What is written; what has its default is left out, but for the counters."""
        header: dict[str, Any] = {
            **self.unknown,
            "version": self.version,
            "attempt": self.attempt,
            "delivery": self.delivery,
            "generation": self.generation,
            "first_seen": self.first_seen_ms,
            "origin": dict(self.origin),
        }
        if self.attempts:
            header["attempts"] = [dict(each) for each in self.attempts]
        if self.deaths:
            header["deaths"] = [dict(each) for each in self.deaths]
        if self.failure is not None:
            header["failure"] = dict(self.failure)
        if self.suspect:
            header["suspect"] = True
        if self.served_eta is not None:
            header["served_eta"] = self.served_eta
        if self.undelivered is not None:
            header["undelivered"] = self.undelivered
        header.update({name: value for name, value in self._rare() if value})
        return header

    def _rare(self) -> tuple[tuple[str, Any], ...]:
        """What few messages have, by the header's names."""
        return (
            ("first_death", self.first_death and dict(self.first_death)),
            ("parked", self.parked),
            ("handled", self.handled),
            ("since", self.since),
        )


#: What a first delivery has: nearly every message.
UNWRITTEN = Envelope()


def eligible_of(headers: Mapping[str, Any]) -> bool | None:
    """What the producer said of keeping the message as a dead letter; None where it said nothing."""
    said = headers.get(ELIGIBLE)
    return said if isinstance(said, bool) else None


def count(value: object) -> int:
    """A counter from an untrusted header: a whole number that is not negative, or 0."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53 else 0


def mapping(value: object) -> dict[str, Any]:
    """A mapping from an untrusted header, or an empty one."""
    return value if isinstance(value, dict) else {}


def _undelivered(header: Mapping[str, Any]) -> str | None:
    """The missing queue that a letter waits for. Only what has died of something waits, and only for what can be a queue's name."""
    name, deaths = header.get("undelivered"), mappings(header.get("deaths"))
    reason = deaths[0].get("reason") if deaths else None
    if not isinstance(name, str) or not isinstance(reason, str):
        return None
    if reason not in _REASONS and (count(header.get("version")) <= VERSION or not _WORD.fullmatch(reason)):
        return None
    return name if name.isprintable() and 0 < len(name) <= MOST_NAME else None


def mappings(value: object) -> tuple[Mapping[str, Any], ...]:
    """A list of mappings from an untrusted header, without what is none in it."""
    return tuple(each for each in value if isinstance(each, dict)) if isinstance(value, list) else ()
