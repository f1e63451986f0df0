"""An operation: a redrive, a move, a purge or a bulk cancel that the broker keeps, and that a process of the fleet carries out.

One of all workers, dispatchers and pages leads and carries out the operations (`execution`). If it dies, another process continues.
An operator may pause, resume and abort an operation.

    waiting -> running -> done                   all chosen letters were read
       ^          |-----> stopped                its guard stopped it: its letters died again
       |          |-----> failed                 it cannot be carried out; the message says why
       |          v
       '------ paused                            and from waiting, running and paused: aborted

Any client that can write to the broker may have stored an operation. One that cannot be read is shown as failed.
"""

from __future__ import annotations

import json
import math
import uuid
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Self

from redelivery.display import scrubbed
from redelivery.errors import BrokerError, InputError, RedeliveryError
from redelivery.middleware.messages.envelope import count, json_mapping
from redelivery.middleware.ports import Answer, Capability

from ...brokers.broker import broker_of
from ..letters import dead_letters
from ..letters.archive import require_place
from ..letters.filter import Filter
from ..letters.live_queues import require_rest, why_it_runs
from ..letters.redrive.guard import CANARY_WAIT, Guard
from ..queues import declare, require_queue
from ..words.numbers import SLOWEST, span
from ..words.short_ids import LEAST, MAX_CANDIDATES, hint
from .audit import Act, Acted, acted

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from redelivery.middleware.ports import Transport
    from redelivery.middleware.runtime import Runtime

    from ...brokers.redis.operations import RedisOperationStore
    from ...ports import StoredOperation
    from ..letters.redrive.fates import Fates

#: The error text for a broker that keeps no operations.
NOT_HERE = (
    "this broker keeps no operations (Redis and Valkey do): use `redelivery dlq redrive|move|purge` without --detach, or "
    "`redelivery delayed cancel`, and let the command run until it is done"
)
#: The maximum number of characters of an operator's name, and of a reason.
MAX_ACTOR, MAX_WHY = 200, 1_000


class Kind(StrEnum):
    """The kind of an operation."""

    REDRIVE = "redrive"
    MOVE = "move"
    PURGE = "purge"
    CANCEL = "cancel"


class State(StrEnum):
    """The state of an operation."""

    WAITING = "waiting"
    RUNNING = "running"
    PAUSED = "paused"
    DONE = "done"
    STOPPED = "stopped"
    ABORTED = "aborted"
    FAILED = "failed"


#: The states in which an operation has ended.
ENDED = frozenset({State.DONE, State.STOPPED, State.ABORTED, State.FAILED})
#: What an operator may do with an operation: the state that follows, and what the audit records.
TURNS = {
    "pause": (State.PAUSED, Acted.PAUSED),
    "resume": (State.WAITING, Acted.RESUMED),
    "abort": (State.ABORTED, Acted.ABORTED),
}
#: The states that an operator may set, and for each the states in which the operation may be before.
ALLOWED: Mapping[State, frozenset[State]] = {
    State.PAUSED: frozenset({State.WAITING, State.RUNNING}),
    State.WAITING: frozenset({State.PAUSED}),
    State.ABORTED: frozenset({State.WAITING, State.RUNNING, State.PAUSED}),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options of an operation, as in `redelivery dlq redrive|move|purge` and `delayed cancel`. None: not set.

    `to` is the target queue of a move, or of a redrive instead of the origin; `create` declares it. `rate` is in letters a second,
    `canary_wait` in seconds, `abort_share` a part of 1. `archive` is where a purge writes the letters first.
    """

    to: str | None = None
    create: bool = False
    rate: float | None = None
    limit: int | None = None
    canary: int | None = None
    canary_wait: float | None = None
    abort_after: int | None = None
    abort_share: float | None = None
    archive: str | None = None

    @classmethod
    def from_dict(cls, words: Mapping[str, Any]) -> Self:
        """Parse what `whole` wrote. Raises `InputError` for anything else."""
        known = {each.name for each in fields(cls)}
        for name, value in words.items():
            if name not in known:
                msg = f"an operation has no option {name!r}"
                raise InputError(msg)
            if not _CHECKS[name](value):
                msg = f"the option {name} of an operation cannot be {value!r}"[:200]
                raise InputError(msg)
        return cls(**words)

    @property
    def is_guarded(self) -> bool:
        """Whether a redrive stops if its letters die again."""
        return self.canary is not None or self.abort_after is not None or self.abort_share is not None

    def whole(self) -> dict[str, Any]:
        """The options that are set, for JSON on the broker."""
        found = {each.name: getattr(self, each.name) for each in fields(self)}
        return {name: value for name, value in found.items() if value is not None and value is not False}

    def to_dict(self) -> dict[str, Any]:
        """The options that are set, for people: an archive's address is without its user and password."""
        found = self.whole()
        return found if self.archive is None else {**found, "archive": scrubbed(self.archive)}

    def in_words(self) -> dict[str, str]:
        """The values of `to_dict` as texts, with units."""
        return {name: _UNITS.get(name, _plain)(value) for name, value in self.to_dict().items()}


def _plain(value: object) -> str:
    return "yes" if value is True else f"{value:,}" if isinstance(value, int) else str(value)


#: How options with a unit are written.
_UNITS: dict[str, Callable[[Any], str]] = {
    "rate": lambda value: f"{value:,g}/s",
    "canary_wait": span,
    "abort_share": lambda value: f"{100 * value:g}%",
}


def _is_text(value: object) -> bool:
    return isinstance(value, str) and value != ""


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _is_positive(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < math.inf


def _is_rate(value: Any) -> bool:
    return _is_positive(value) and value >= SLOWEST


_CHECKS = {
    "to": _is_text,
    "create": lambda value: isinstance(value, bool),
    "rate": _is_rate,
    "limit": _is_count,
    "canary": _is_count,
    "canary_wait": _is_positive,
    "abort_after": _is_count,
    "abort_share": lambda value: _is_positive(value) and value <= 1,
    "archive": _is_text,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One operation at this moment.

    `queue` is the dead-letter queue; for a cancel, the queue of the delayed messages, empty for all queues. Times are the broker's,
    in milliseconds since the epoch; None means not yet. `message` says why the operation stopped, failed or waits.

    The counts `moved` and `by_target` are always exact, the others are from the last report. Of the `total` letters at the
    beginning, `looked_at` were read and `matched` were chosen. Of the chosen ones, `moved` were moved, `gone` had left the queue
    otherwise, and the others stay: `left` counts them by reason. `died_again` counts redriven letters that died again, if a guard
    watched them (`canary`, `abort_after`, `abort_share`); `deaths` has the first of them.
    """

    id: str
    kind: Kind
    queue: str
    filter: Filter
    options: Options
    actor: str
    why: str
    state: State
    created_ms: int
    started_ms: int | None = None
    ended_ms: int | None = None
    heartbeat_ms: int | None = None
    total: int = 0
    looked_at: int = 0
    matched: int = 0
    moved: int = 0
    gone: int = 0
    left: Mapping[str, int] = field(default_factory=dict)
    by_target: Mapping[str, int] = field(default_factory=dict)
    died_again: int = 0
    deaths: tuple[Mapping[str, Any], ...] = ()
    message: str = ""

    @property
    def has_ended(self) -> bool:
        """Whether the state is final."""
        return self.state in ENDED

    def to_dict(self) -> dict[str, Any]:
        """The values for JSON. `filter` and `options` have only what is set."""
        found = {each.name: getattr(self, each.name) for each in fields(self)}
        return {**found, "filter": self.filter.to_dict(), "options": self.options.to_dict(), "deaths": list(self.deaths)}

    @classmethod
    def of(cls, stored: StoredOperation) -> Self:
        """Parse the broker's data. If they cannot be read, the operation counts as failed, and is never carried out."""
        try:
            about = _about(stored.about)
            state = State(stored.state)
            message = stored.message
        except (InputError, ValueError) as exc:
            about = {"kind": Kind.REDRIVE, "queue": "", "filter": Filter(), "options": Options(), "actor": "", "why": ""}
            state, message = State.FAILED, f"its stored data cannot be read, so it is not carried out: {exc}"
        return cls(
            id=stored.operation_id,
            state=state,
            message=message,
            moved=stored.moved,
            by_target=dict(sorted(stored.by_target.items())),
            created_ms=stored.created_ms,
            started_ms=stored.started_ms or None,
            ended_ms=stored.ended_ms or None,
            heartbeat_ms=stored.heartbeat_ms or None,
            **about,
            **_progress(stored.progress),
        )


def _about(text: str) -> dict[str, Any]:
    """Parse the JSON that `begin` wrote. Raises `InputError` for anything else."""
    try:
        read = json.loads(text)
    except (ValueError, RecursionError) as exc:
        msg = "it is not JSON"
        raise InputError(msg) from exc
    names = {"kind": str, "queue": str, "filter": dict, "options": dict, "actor": str, "why": str}
    if not isinstance(read, dict) or any(not isinstance(read.get(name), kind) for name, kind in names.items()):
        msg = "a part of it is missing, or is something else"
        raise InputError(msg)
    try:
        kind = Kind(read["kind"])
    except ValueError as exc:
        msg = f"this version does not know the operation {read['kind'][:40]!r}"
        raise InputError(msg) from exc
    return {
        "kind": kind,
        "queue": read["queue"],
        "filter": Filter.from_dict(read["filter"]),
        "options": Options.from_dict(read["options"]),
        "actor": read["actor"],
        "why": read["why"],
    }


_COUNTS = ("total", "looked_at", "matched", "gone", "died_again")


def _progress(text: str) -> dict[str, Any]:
    """Return the progress as fields of `Operation`. A value that cannot be read counts as 0 or empty."""
    given = json_mapping(text)
    left, deaths = given.get("left"), given.get("deaths")
    return {
        **{name: count(given.get(name)) for name in _COUNTS},
        "left": {str(why): count(each) for why, each in left.items()} if isinstance(left, dict) else {},
        "deaths": tuple(each for each in deaths if isinstance(each, dict)) if isinstance(deaths, list) else (),
    }


def store_of(transport: Transport) -> RedisOperationStore:
    """Return the broker's store of operations. Raises `BrokerError` if the broker keeps none."""
    store = broker_of(transport).operations
    if store is None:
        raise BrokerError(NOT_HERE)
    return store


def is_kept(transport: Transport) -> bool:
    """Whether the broker keeps operations."""
    return Capability.LEASES in transport.capabilities


def begin(
    runtime: Runtime, kind: Kind, queue: str, chosen: Filter, options: Options | None = None, *, actor: str, why: str = ""
) -> Operation:
    """Store an operation, which the leading process then carries out. With `create`, declare the target queue of a redrive at once.

    Raises `InputError` if the operation cannot be carried out, and `BrokerError` if the broker keeps no operations.
    """
    store, wanted = store_of(runtime.transport), options or Options()
    check(runtime, kind, queue, chosen, wanted)
    if wanted.to is not None and wanted.create and kind is Kind.REDRIVE:
        declare(runtime, wanted.to)
    operation_id, who, reason, words = str(uuid.uuid4()), actor[:MAX_ACTOR], why[:MAX_WHY], wanted.whole()
    about = {"kind": kind, "queue": queue, "filter": chosen.to_dict(), "options": words, "actor": who, "why": reason}
    record = acted(
        Act(kind), Acted.BEGUN, queue, actor=who, why=reason, operation=operation_id, chosen=chosen, options=wanted.to_dict()
    )
    return Operation.of(store.begin(operation_id, json.dumps(about), record))


def check(runtime: Runtime, kind: Kind, queue: str, chosen: Filter, options: Options) -> None:
    """Raise `InputError` if this operation cannot be carried out."""
    Options.from_dict(options.whole())
    wrong = [name for name in options.to_dict() if name not in _TAKES[kind]]
    if wrong:
        msg = f"a {kind} takes no {wrong[0]!r}; it takes: {', '.join(sorted(_TAKES[kind]))}"
        raise InputError(msg)
    if (options.abort_after is not None or options.abort_share is not None) and options.rate is None:
        msg = "abort_after and abort_share need a rate: without one all dead letters are sent before the first can die again"
        raise InputError(msg)
    if options.canary_wait is not None and options.canary is None:
        msg = "canary_wait needs canary: say how many dead letters go first"
        raise InputError(msg)
    if kind is Kind.CANCEL:
        _check_cancel(runtime, queue, chosen)
        return
    dead_letters.required(runtime, queue)
    if options.archive is not None:
        require_place(runtime, options.archive)
    if kind is Kind.MOVE:
        _check_move(runtime, queue, options)
    elif kind is Kind.REDRIVE and options.to is not None:
        _check_target(runtime, options.to, options)


def _check_cancel(runtime: Runtime, queue: str, chosen: Filter) -> None:
    if chosen.to_dict().keys() - {"task_ids", "tasks"}:
        msg = "choose delayed messages by id or task: they have not died, so they have no reason and no exception"
        raise InputError(msg)
    if queue:
        require_queue(runtime, queue)


def _check_move(runtime: Runtime, queue: str, options: Options) -> None:
    if options.to is None or options.to == queue:
        msg = "where to? a move needs the name of another dead-letter queue"
        raise InputError(msg)
    if options.to not in dead_letters.known(runtime) and not options.create:
        msg = f"there is no dead-letter queue {options.to!r}: have it created, or redrive the dead letters to a queue of the app"
        raise InputError(msg)
    require_rest(runtime.transport, options.to)


def _check_target(runtime: Runtime, target: str, options: Options) -> None:
    if target in dead_letters.known(runtime) and why_it_runs(runtime.transport, target) is None:
        msg = f"{target!r} is a dead-letter queue: move the dead letters there instead"
        raise InputError(msg)
    if not options.create:
        require_queue(runtime, target, instead="have it created")


_TAKES = {
    Kind.REDRIVE: {"to", "create", "rate", "limit", "canary", "canary_wait", "abort_after", "abort_share"},
    Kind.MOVE: {"to", "create", "rate", "limit"},
    Kind.PURGE: {"rate", "limit", "archive"},
    Kind.CANCEL: {"rate", "limit"},
}


def listed(runtime: Runtime, *, limit: int = 50, is_open: bool = False) -> list[Operation]:
    """Return the newest operations, the newest first; with `is_open`, only those that have not ended."""
    store = store_of(runtime.transport)
    found = store.unended()[::-1] if is_open else store.newest(limit)
    return [Operation.of(each) for each in found[:limit]]


def found(runtime: Runtime, given: str) -> Operation:
    """Return the operation with this id, or beginning of an id. Raises `InputError` if none or several match."""
    store = store_of(runtime.transport)
    stored = store.stored(given)
    if stored is None and len(given) >= LEAST:
        ids = [each for each in store.ids() if each.startswith(given)]
        if len(ids) > 1:
            msg = f"{given!r} may mean more than one operation: {', '.join(ids[:MAX_CANDIDATES])}; give more of the id"
            raise InputError(msg)
        stored = store.stored(ids[0]) if ids else None
    if stored is None:
        msg = f"there is no operation {given!r}{hint([given])}: `redelivery ops list` lists all operations"
        raise InputError(msg)
    return Operation.of(stored)


def turn(runtime: Runtime, given: str, act: str, actor: str, why: str = "") -> Operation:
    """Pause, resume or abort an operation (`act`, of `TURNS`). When this returns, a paused or aborted one moves no more messages.

    Raises `InputError` as `found`, and if the operation's state does not allow it.
    """
    state, done = TURNS[act]
    store, operation = store_of(runtime.transport), found(runtime, given)
    who, reason = actor[:MAX_ACTOR], why[:MAX_WHY]
    record = acted(Act(operation.kind), done, operation.queue, actor=who, why=reason, operation=operation.id)
    message = f"{done} by {who}{': ' if reason else ''}{reason}"
    answer = store.turn(operation.id, state, states=ALLOWED[state], message=message, record=record, has_ended=state in ENDED)
    now = found(runtime, operation.id)
    if answer is not Answer.DONE:
        msg = f"the operation {operation.id} is {now.state}, and cannot be {done}"
        raise InputError(msg)
    return now


def readable(exc: BaseException) -> str:
    """Return the text of an error that ended an operation."""
    return str(exc) if isinstance(exc, RedeliveryError) else f"{type(exc).__name__}: {exc}"


def guard_of(options: Options, fates: Fates, on_wait: Callable[[str], None], **so_far: Any) -> Guard:
    """Return the guard of a redrive with these options. `so_far` has the values `sent` and `may_follow` of an earlier process."""
    return Guard(
        fates=fates,
        canary=options.canary or 0,
        canary_wait=CANARY_WAIT if options.canary_wait is None else options.canary_wait,
        abort_after=options.abort_after,
        abort_share=options.abort_share,
        on_wait=on_wait,
        **so_far,
    )
