"""The header `redelivery`, the history of a message, as a record; `steps` writes its fields.

Any client that can publish can write this header. So each number read from it is a whole number within bounds, each text has a
maximum length and can be encoded, and no name in it is used as a destination. A field that cannot be read counts as absent, at any
level, and `unreadable` names it. Fields of a newer version are kept as they are.
"""

from __future__ import annotations

import hashlib
import json
import re
import traceback
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from redelivery.settings.exceptions import known_as

from .events import Reason

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

HEADER = "redelivery"
#: Set by producers with redelivery, which record what they publish.
ANNOUNCED = "redelivery-announced"
ELIGIBLE = "redelivery-dead-letter-eligible"
#: Headers used on RabbitMQ only: kombu's `expiration` (milliseconds, a text of digits); the exchange and routing key of the
#: publication, if the message was moved since; the keys of its copies (`CC`); and how often a stopping worker put it back.
EXPIRATION, DELIVERED, COPIES = "redelivery-expiration", "redelivery-delivered", "redelivery-cc"
RELEASED = "redelivery-released"
VERSION = 1
#: The most characters of a failure's traceback, and of its message (or any other text in the header).
MAX_TRACEBACK = 16 * 1024
MAX_MESSAGE = 1024
#: A fingerprint is made from this many innermost frames.
MAX_FRAMES = 12
#: The most attempts, deaths, and routing keys of one death.
MAX_ATTEMPTS, MAX_DEATHS, MAX_KEYS = 20, 20, 21
_REASONS = frozenset(Reason)
#: The form of a reason that only a newer version knows.
_WORD = re.compile(r"[a-z_]{1,64}")
#: A W3C trace context, version 00: trace id, span id, flags.
TRACE_CONTEXT = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")
MAX_NAME = 256
#: Upper bounds, excluded: of numbers, and of times (milliseconds, the year 10000).
MAX_COUNT, LATEST_MS = 2**53, 253_402_300_800_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """The failure that ended an attempt. `fingerprint` is equal for failures of one cause."""

    type: str
    message: str = ""
    traceback: str = ""
    fingerprint: str = ""

    @property
    def text(self) -> str:
        """Type and message in one text; the type alone if no message is kept."""
        return f"{self.type}: {self.message}" if self.message else self.type

    def to_header(self) -> dict[str, str]:
        """The header's `failure`. A traceback that is too long keeps its end, where the error is."""
        return {
            "type": self.type,
            "message": self.message[:MAX_MESSAGE],
            "traceback": self.traceback[-MAX_TRACEBACK:],
            "fingerprint": self.fingerprint,
        }


def failed_of(exc: BaseException, *, with_traceback: bool = True) -> Failed:
    """An exception's type, message, traceback and fingerprint, for the death record."""
    path, at = [], exc.__traceback__
    while at is not None:
        code = at.tb_frame.f_code
        path.append(f"{PurePath(code.co_filename).name}:{code.co_name}")
        at = at.tb_next
    kind = known_as(type(exc))
    text = f"{kind}|{'|'.join(path[-MAX_FRAMES:])}"
    digest = hashlib.sha1(text.encode(errors="replace"), usedforsecurity=False).hexdigest()[:12]
    written = "".join(traceback.format_exception(exc)) if with_traceback else ""
    return Failed(type=kind, message=_message(exc), traceback=written, fingerprint=digest)


def _message(exc: BaseException) -> str:
    try:
        return str(exc)
    except Exception:  # noqa: BLE001 - the exception's own code may raise anything
        return f"<{type(exc).__name__} whose str() fails>"


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """A counted delivery that ended: its time (ms), worker and exception, the delay (ms) after it, and its span's context."""

    at_ms: int
    worker: str
    exception: str
    delay_ms: int | None = None
    trace: str = ""

    def to_header(self) -> dict[str, Any]:
        """One entry of the header's `attempts`."""
        entry = {"at": self.at_ms, "worker": self.worker, "exception": self.exception[:MAX_MESSAGE], "delay": self.delay_ms}
        return {**entry, "trace": self.trace} if self.trace else entry


@dataclass(frozen=True, slots=True, kw_only=True)
class Envelope:
    """The contents of a message's `redelivery` header.

    - `attempt`: how many deliveries ended and count; `delivery`: how many ended.
    - `suspect`: a worker died while it held the message.
    - `served_eta`: the ETA that the delay store has already waited for.
    - `undelivered`: the missing dead-letter queue that a dead letter waits for, for people to read.
    - `first_death`: queue, reason and time of the very first death. `parked`: the message is kept in its queue.
    - `handled`: how often a dead-letter handler has failed on it. `since`: the last generation that an operator or a handler began.
    - `lost`: number and span of the last delivery, if its worker died and it does not count.
    - `unknown`: the fields that a newer `version` has written.
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
    lost: Mapping[str, Any] | None = None
    version: int = VERSION
    unknown: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, headers: Mapping[str, Any] | None) -> Envelope:
        """Read a message's headers; a field that is absent or unreadable gets its default."""
        header = headers.get(HEADER) if isinstance(headers, dict) else None
        if not isinstance(header, dict):
            return UNWRITTEN
        return cls(
            attempt=count(header.get("attempt")),
            delivery=count(header.get("delivery")),
            generation=count(header.get("generation")),
            first_seen_ms=_time(header.get("first_seen")) or None,
            origin=_fields(header.get("origin"), ORIGIN),
            attempts=_records(header.get("attempts"), ATTEMPT, MAX_ATTEMPTS),
            deaths=_records(header.get("deaths"), DEATH, MAX_DEATHS),
            failure=_fields(header.get("failure"), FAILURE) or None,
            suspect=header.get("suspect") is True,
            served_eta=_name(header.get("served_eta")),
            undelivered=_undelivered(header),
            first_death=_fields(header.get("first_death"), FIRST_DEATH) or None,
            parked=header.get("parked") is True,
            handled=count(header.get("handled")),
            since=count(header.get("since")),
            lost=_fields(header.get("lost"), LOST) or None,
            version=max(count(header.get("version")), VERSION),
            unknown={} if header.keys() <= KNOWN else {name: value for name, value in header.items() if name not in KNOWN},
        )

    @staticmethod
    def origin_of(headers: Mapping[str, Any]) -> Mapping[str, Any]:
        """The `origin` alone, read from a message's headers."""
        return _fields(mapping(headers.get(HEADER)).get("origin"), ORIGIN)

    @property
    def is_letter(self) -> bool:
        """Whether the message has died, is in a dead-letter queue, and has not begun a new generation since."""
        if not self.deaths or self.undelivered is not None:
            return False
        died_in = self.deaths[0].get("generation")
        if isinstance(died_in, int):
            return died_in == self.generation
        # Older versions wrote no generation: a redriven message was first seen after its death.
        return self.first_seen_ms is not None and self.first_seen_ms <= count(self.deaths[0].get("last"))

    def closes_circle(self, target: str) -> bool:
        """Whether a death into `target` closes a circle: it died there since generation `since`, and was not rejected afterwards.

        RabbitMQ drops such a message. A circle with a rejection counts as intended.
        """
        for each in self.deaths:
            if count(each.get("generation")) < self.since or each.get("reason") == "rejected":
                return False
            if each.get("queue") == target:
                return True
        return False

    def life_queue(self, queue: str) -> str:
        """The queue under which the message is recorded: its first one, even if the task has sent itself to `queue` since."""
        first = self.origin.get("queue")
        return first if isinstance(first, str) and first else queue

    def to_header(self) -> dict[str, Any]:
        """The header to write; fields with their default are left out, except for the counters."""
        rare = {
            "attempts": [dict(each) for each in self.attempts],
            "deaths": [dict(each) for each in self.deaths],
            "failure": None if self.failure is None else dict(self.failure),
            "suspect": self.suspect,
            "served_eta": self.served_eta,
            "undelivered": self.undelivered,
            "first_death": None if self.first_death is None else dict(self.first_death),
            "parked": self.parked,
            "handled": self.handled,
            "since": self.since,
            "lost": None if self.lost is None else dict(self.lost),
        }
        return {
            **self.unknown,
            "version": self.version,
            "attempt": self.attempt,
            "delivery": self.delivery,
            "generation": self.generation,
            "first_seen": self.first_seen_ms,
            "origin": dict(self.origin),
            **{name: value for name, value in rare.items() if value or value == ""},
        }


#: The envelope of a first delivery, which nearly every message has.
UNWRITTEN = Envelope()


def eligible_of(headers: Mapping[str, Any]) -> bool | None:
    """Whether the producer wants the message kept as a dead letter; None without a valid header."""
    return _flag(headers.get(ELIGIBLE))


def count(value: object) -> int:
    """A counter from an untrusted header: a whole number that is not negative, or 0."""
    return _count(value) or 0


def text(value: object, most: int) -> str:
    """A text from an untrusted header, cut to `most` characters, or an empty one. What UTF-8 cannot encode becomes `?`."""
    if not isinstance(value, str):
        return ""
    cut = value if len(value) <= most else value[:most]
    return cut if cut.isascii() else cut.encode("utf-8", "replace").decode()


def mapping(value: object) -> dict[str, Any]:
    """A mapping from an untrusted header, or an empty one."""
    return value if isinstance(value, dict) else {}


def json_mapping(text: bytes | str | None) -> dict[str, Any]:
    """The JSON object in a text that any client may have written; empty if there is no text, or it is anything else."""
    try:
        return mapping(json.loads(text or ""))
    except (ValueError, RecursionError):
        return {}


def _undelivered(header: Mapping[str, Any]) -> str | None:
    """The missing queue that a dead letter waits for; None without a death that has a reason, or if the name is not valid.

    It is for people to read: the letter goes to the queue that its policy names.
    """
    name, deaths = header.get("undelivered"), header.get("deaths")
    first = next((each for each in deaths if isinstance(each, dict)), {}) if isinstance(deaths, list) else {}
    reason = first.get("reason")
    if not isinstance(name, str) or not isinstance(reason, str):
        return None
    if reason not in _REASONS and (count(header.get("version")) <= VERSION or not _WORD.fullmatch(reason)):
        return None
    return name if name.isprintable() and 0 < len(name) <= MAX_NAME else None


# the strict reader: one function for each kind of field; None if the value cannot be read


def _count(value: object, limit: int = MAX_COUNT) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < limit else None


def _time(value: object) -> int | None:
    return _count(value, LATEST_MS)


def _flag(value: object) -> bool | None:
    return value if isinstance(value, bool) else None


def _text(most: int) -> Callable[[object], str | None]:
    def read(value: object) -> str | None:
        if not isinstance(value, str):
            return None
        return value if len(value) <= most and value.isascii() else text(value, most)

    return read


def _traceback(value: object) -> str | None:
    return text(value[-MAX_TRACEBACK:], MAX_TRACEBACK) if isinstance(value, str) else None


def _name(value: object) -> str | None:
    """A name, unchanged, or None: a name that is cut, or has characters replaced, is another name."""
    return value if isinstance(value, str) and text(value, MAX_NAME) == value else None


def _trace(value: object) -> str | None:
    return value if isinstance(value, str) and TRACE_CONTEXT.fullmatch(value) else None


def _names(value: object) -> list[str] | None:
    read = [_name(each) for each in value[:MAX_KEYS]] if isinstance(value, list) else [None]
    return None if None in read else [each for each in read if each is not None]


def _scalar(value: object) -> str | int | float | None:
    """A lifetime as a producer wrote it: a text, or a number within bounds."""
    if isinstance(value, float):
        return value if abs(value) < MAX_COUNT else None
    if isinstance(value, int):
        return value if not isinstance(value, bool) and abs(value) < MAX_COUNT else None
    return text(value, MAX_NAME) if isinstance(value, str) else None


_message_text = _text(MAX_MESSAGE)
_Shape = dict[str, "Callable[[object], Any]"]
ORIGIN: _Shape = {"queue": _name, "exchange": _name, "routing_key": _name}
ATTEMPT: _Shape = {"at": _time, "worker": _message_text, "exception": _message_text, "delay": _count, "trace": _trace}
DEATH: _Shape = {
    "queue": _name,
    "reason": _text(MAX_NAME),
    "count": _count,
    "first": _time,
    "last": _time,
    "generation": _count,
    "exchange": _name,
    "routing_keys": _names,
    "detail": _message_text,
    **dict.fromkeys(("expires", "time_to_live", "expiration", "published"), _scalar),
}
FAILURE: _Shape = {"type": _message_text, "message": _message_text, "traceback": _traceback, "fingerprint": _text(MAX_NAME)}
FIRST_DEATH: _Shape = {"queue": _name, "reason": _text(MAX_NAME), "at": _time}
LOST: _Shape = {"delivery": _count, "trace": _trace}
#: The other fields of the header.
_SIMPLE: _Shape = {
    **dict.fromkeys(("version", "attempt", "delivery", "generation", "handled", "since"), _count),
    "first_seen": _time,
    **dict.fromkeys(("suspect", "parked"), _flag),
    **dict.fromkeys(("served_eta", "undelivered"), _name),
}
_NESTED = {"origin": ORIGIN, "failure": FAILURE, "first_death": FIRST_DEATH, "lost": LOST}
_LISTS = {"attempts": (ATTEMPT, MAX_ATTEMPTS), "deaths": (DEATH, MAX_DEATHS)}
#: Every field of the header that this version knows.
KNOWN = _SIMPLE.keys() | _NESTED.keys() | _LISTS.keys()


def _fields(value: object, shape: _Shape) -> dict[str, Any]:
    """A mapping from an untrusted header, without the fields that this shape cannot read."""
    read = dict(mapping(value))
    for name, reader in shape.items():
        each = read.get(name)
        if each is not None and (known := reader(each)) is not each:
            read[name] = known
            if known is None:
                del read[name]
    return read


def _records(value: object, shape: _Shape, most: int) -> tuple[Mapping[str, Any], ...]:
    """The first `most` mappings of a list in an untrusted header, each read by `_fields`."""
    given = [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []
    return tuple(_fields(each, shape) for each in given[:most])


def unreadable(headers: Mapping[str, Any]) -> list[str]:
    """The names of the header's unreadable fields (`deaths.last`), each once; the header's name if it is not a mapping."""
    header = headers.get(HEADER)
    if header is None:
        return []
    return sorted(set(_unreadable(header))) if isinstance(header, dict) else [HEADER]


def _unreadable(header: Mapping[str, Any]) -> Iterator[str]:
    for name, value in header.items():
        if value is None:
            continue
        if name in _SIMPLE and _SIMPLE[name](value) is None:
            yield name
        elif name in _NESTED:
            yield from _lost(name, value, _NESTED[name])
        elif name in _LISTS:
            shape, most = _LISTS[name]
            if not isinstance(value, list) or len(value) > most:
                yield name
            for each in value if isinstance(value, list) else []:
                yield from _lost(name, each, shape)


def _lost(name: str, value: object, shape: _Shape) -> Iterator[str]:
    """The names of the fields that `_fields` leaves out."""
    if not isinstance(value, dict):
        yield name
        return
    yield from (f"{name}.{each}" for each in value.keys() - _fields(value, shape).keys())
