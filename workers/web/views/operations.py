"""Operations on many dead letters or delayed messages: preview, begin, watch, pause, resume and abort them; and the audit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from redelivery.display import word
from redelivery.errors import InputError

from ...operations.letters import dead_letters
from ...operations.runs.audit import entries
from ...operations.runs.audit_history import Told, told
from ...operations.runs.operation import (
    ALLOWED,
    NOT_HERE,
    Kind,
    Operation,
    Options,
    State,
    abort,
    begin,
    check,
    found,
    is_kept,
    listed,
    pause,
    resume,
)
from ...operations.runs.preview import Preview, preview
from ...operations.words.numbers import moment, rate_of, seconds, share_of
from ..asked import Go, Shown
from .letters import Choice, choice_of, waiting_choice

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...operations.letters.walk import Walked
    from ..asked import Asked

#: Operations, and records of the audit, of one screen.
LIMIT, RECORDS = 50, 100
#: What may be done with an operation, and the state that follows.
TURNS = {"pause": (pause, State.PAUSED), "resume": (resume, State.WAITING), "abort": (abort, State.ABORTED)}
#: What has happened to the dead letters or messages that went.
WENT = {Kind.REDRIVE: "sent back", Kind.MOVE: "moved", Kind.PURGE: "removed", Kind.CANCEL: "cancelled"}
#: Fields of a form: numbers, and texts.
_COUNTS, _TEXTS = ("limit", "canary", "abort_after"), ("to", "archive")


def operations(asked: Asked) -> Shown:
    """The newest operations, and the newest records of the audit."""
    is_here = is_kept(asked.transport)
    audit = told(asked.runtime, RECORDS)
    return Shown(
        "operations.html",
        {
            "is_here": is_here,
            "not_here": NOT_HERE,
            "rows": [
                {"operation": each, "href": asked.href("/operation", id=each.id), "filter": _words(each)}
                for each in (listed(asked.runtime, limit=LIMIT) if is_here else ())
            ],
            "records": audit.entries,
            "notes": audit.notes,
        },
    )


def _words(each: Operation) -> str:
    """The filter as options of the command line; its ages as the moments that they meant when it began."""
    names = {"task_ids": "id", "reasons": "reason", "tasks": "task", "exceptions": "exception", "fingerprints": "fingerprint"}
    said = each.filter.to_dict()
    parts = [f"--{option} {word(str(value))}" for name, option in names.items() for value in said.get(name, ())]
    ages = {"died_before_ms": "died before", "died_after_ms": "died after"}
    return " ".join([*parts, *(f"{when} {moment(said[name])}" for name, when in ages.items() if name in said)])


def operation(asked: Asked) -> Shown:
    """One operation: what was asked, how far it is, what can be done with it."""
    each = found(asked.runtime, asked.first("id"))
    may = all(asked.may(str(each.kind), queue) for queue in _concerned(asked, each.kind, each.queue, each.options))
    if each.has_ended:
        audit = told(asked.runtime, RECORDS, operation=each.id)
    else:  # it is looked at every few seconds, and its records are on the broker
        audit = Told(entries(asked.transport, RECORDS, operation=each.id))
    return Shown(
        "operation.html",
        {
            "operation": each,
            "filter": _words(each),
            "deaths": [{name: str(death.get(name) or "") for name in ("task_id", "reason", "exception")} for death in each.deaths],
            "options": each.options.in_words(),
            "can": [name for name, (_, state) in TURNS.items() if may and each.state in ALLOWED[state]],
            "records": audit.entries,
            "notes": audit.notes,
            "is_waiting": each.state is State.WAITING,
            "went": WENT[each.kind],
            "refresh": 3 if each.state in {State.WAITING, State.RUNNING} else None,
        },
    )


def turn(name: str, asked: Asked) -> Go:
    """Pause, resume or abort an operation. The user needs the rights with which the same operation is begun."""
    act, _ = TURNS[name]
    each = found(asked.runtime, asked.first("id"))
    _require(asked, each.kind, each.queue, each.options)
    act(asked.runtime, each.id, asked.acting(), asked.first("why"))
    return Go("/operation", {"id": each.id})


def planned(asked: Asked) -> Shown:
    """The dry run: what an operation would do, and the form that begins it. It changes nothing."""
    kind, choice, options = _plan(asked)

    def count(rest: Callable[[Walked], None]) -> Preview:
        return preview(asked.runtime, kind, choice.queue, choice.chosen, options, on_progress=rest)

    check(asked.runtime, kind, choice.queue, choice.chosen, options)  # while the status can still say that it cannot be done
    asked.head_first(is_reached=False)
    job = asked.desk.previews.of((kind, choice.queue, repr(choice.given), options), count)
    return Shown(
        "preview.html",
        {
            "kind": kind,
            "choice": choice,
            "one": "message" if kind is Kind.CANCEL else "dead letter",
            "many": "messages" if kind is Kind.CANCEL else "dead letters",
            "preview": job.preview,
            "is_done": job.preview is not None,
            "looked_at": job.looked_at,
            "total": job.total,
            "given": _given(asked, kind, choice),
            "options": options,
            "refresh": None if job.preview is not None else 1,
        },
    )


def _given(asked: Asked, kind: Kind, choice: Choice) -> list[tuple[str, str]]:
    """The fields of the form that begins the previewed operation."""
    pairs = [("kind", str(kind)), ("queue", choice.queue)]
    for name, value in choice.given.items():
        pairs += [(name.replace("_", "-"), each) for each in (value if isinstance(value, tuple) else (value,)) if each]
    if not choice.has_filter:
        pairs.append(("all", "1"))
    said = {name: asked.first(name) for name in (*_COUNTS, *_TEXTS, "create", "rate", "canary_wait", "abort_share")}
    return [*pairs, *((name, value) for name, value in said.items() if value)]


def start(asked: Asked) -> Go:
    """Begin the operation."""
    kind, choice, options = _plan(asked)
    if not choice.has_filter and asked.first("all") != "1":
        msg = "no dead letters are chosen: choose some with a filter, or choose all"
        raise InputError(msg)
    begun = begin(asked.runtime, kind, choice.queue, choice.chosen, options, actor=asked.acting(), why=asked.first("why"))
    return Go("/operation", {"id": begun.id})


def _plan(asked: Asked) -> tuple[Kind, Choice, Options]:
    """The operation that was asked for, if its user may do it with every queue concerned. Raises `InputError`, `Refused`."""
    try:
        kind = Kind(asked.first("kind"))
    except ValueError as exc:
        msg = f"unknown operation {asked.first('kind')!r}: choose redrive, move or purge"
        raise InputError(msg) from exc
    if kind is Kind.CANCEL:
        return _cancel(asked)
    name = dead_letters.required(asked.runtime, asked.first("queue"))
    options = options_of(asked)
    _require(asked, kind, name, options)
    if not is_kept(asked.transport):
        raise InputError(NOT_HERE)
    return kind, choice_of(asked, name), options


def _require(asked: Asked, kind: Kind, name: str, options: Options) -> None:
    """Raise `Refused` if the user may not do this with every queue that it concerns."""
    for queue in _concerned(asked, kind, name, options):
        asked.require(str(kind), queue)


def _concerned(asked: Asked, kind: Kind, name: str, options: Options) -> list[str]:
    """The queues for which a user needs the right to begin or control an operation; an empty name stands for every queue.

    A move also needs the right for its target, even if the move makes that queue. A redrive to another queue also needs the right
    for the dead-letter queue of its target; if the target has none, or must be made, it needs the right for every queue.
    """
    target = options.to
    if kind is Kind.MOVE:
        return [name, target or name]
    if kind is not Kind.REDRIVE or target is None:
        return [name]
    its = asked.runtime.policies.policy_for(target).dead_letter_queue_for(target)
    return [name, its or "", *([""] if options.create else [])]


def _cancel(asked: Asked) -> tuple[Kind, Choice, Options]:
    """As `_plan`, for messages that wait. Without a queue it needs the right for every queue."""
    name = asked.first("queue")
    asked.require(str(Kind.CANCEL), name)
    if not is_kept(asked.transport):
        raise InputError(NOT_HERE)
    return Kind.CANCEL, waiting_choice(name, asked.many("task")), options_of(asked)


def options_of(asked: Asked) -> Options:
    """The options of an operation, as the form names them. Raises `InputError`."""
    said: dict[str, Any] = {name: asked.number(name) for name in _COUNTS}
    said |= {name: asked.first(name) or None for name in _TEXTS}
    said["create"] = asked.first("create") == "1"
    said["rate"] = rate_of(asked.first("rate")) if asked.first("rate") else None
    said["abort_share"] = share_of(asked.first("abort_share")) if asked.first("abort_share") else None
    wait = asked.first("canary_wait")
    said["canary_wait"] = seconds(wait) if wait else None
    return Options.from_dict({name: value for name, value in said.items() if value is not None})
