"""Operations on many dead letters or delayed messages: previews, begins, shows, pauses, resumes and aborts them; the audit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from redelivery.display import word
from redelivery.errors import InputError

from ...operations.letters import dead_letters
from ...operations.letters.choice import NAMES
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

#: The maximum number of operations, and of records of the audit, on one screen.
LIMIT, RECORDS = 50, 100
#: The controls of an operation, and the state that follows.
TURNS = {"pause": (pause, State.PAUSED), "resume": (resume, State.WAITING), "abort": (abort, State.ABORTED)}
#: The word for moved dead letters or messages.
WENT = {Kind.REDRIVE: "sent back", Kind.MOVE: "moved", Kind.PURGE: "removed", Kind.CANCEL: "cancelled"}
#: Fields of a form: numbers, and texts.
_COUNTS, _TEXTS = ("limit", "canary", "abort_after"), ("to", "archive")


def operations(asked: Asked) -> Shown:
    """Show the newest operations, and the newest records of the audit."""
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
    """Return the filter as options of the command line, with times instead of ages."""
    conditions = each.filter.to_dict()
    parts = [f"--{option} {word(str(value))}" for option, name in NAMES.items() for value in conditions.get(name, ())]
    times = {"died_before_ms": "died before", "died_after_ms": "died after"}
    return " ".join([*parts, *(f"{when} {moment(conditions[name])}" for name, when in times.items() if name in conditions)])


def operation(asked: Asked) -> Shown:
    """Show one operation: the request, its progress, and its controls."""
    each = found(asked.runtime, asked.first("id"))
    may = all(asked.may(str(each.kind), queue) for queue in _concerned(asked, each.kind, each.queue, each.options))
    if each.has_ended:
        audit = told(asked.runtime, RECORDS, operation=each.id)
    else:  # the screen is reloaded every few seconds, and all its records are on the broker
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
    """Pause, resume or abort an operation. The user needs the same rights as for its beginning."""
    act, _ = TURNS[name]
    each = found(asked.runtime, asked.first("id"))
    _require(asked, each.kind, each.queue, each.options)
    act(asked.runtime, each.id, asked.acting(), asked.first("why"))
    return Go("/operation", {"id": each.id})


def planned(asked: Asked) -> Shown:
    """Show the dry run of an operation, and the form that begins it."""
    kind, choice, options = _plan(asked)

    def count(on_progress: Callable[[Walked], None]) -> Preview:
        return preview(asked.runtime, kind, choice.queue, choice.chosen, options, on_progress=on_progress)

    check(asked.runtime, kind, choice.queue, choice.chosen, options)  # the HTTP status can still report an error
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
    """Return the fields of the form that begins the operation."""
    pairs = [("kind", str(kind)), ("queue", choice.queue)]
    for name, value in choice.given.items():
        pairs += [(name.replace("_", "-"), each) for each in (value if isinstance(value, tuple) else (value,)) if each]
    if not choice.has_filter:
        pairs.append(("all", "1"))
    options = {name: asked.first(name) for name in (*_COUNTS, *_TEXTS, "create", "rate", "canary_wait", "abort_share")}
    return [*pairs, *((name, value) for name, value in options.items() if value)]


def start(asked: Asked) -> Go:
    """Begin the operation."""
    kind, choice, options = _plan(asked)
    if not choice.has_filter and asked.first("all") != "1":
        msg = "no dead letters are chosen: choose some with a filter, or choose all"
        raise InputError(msg)
    begun = begin(asked.runtime, kind, choice.queue, choice.chosen, options, actor=asked.acting(), why=asked.first("why"))
    return Go("/operation", {"id": begun.id})


def _plan(asked: Asked) -> tuple[Kind, Choice, Options]:
    """Return the requested operation. Raises `InputError`, and `Refused` if the user may not do it."""
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
    """Raise `Refused` if the user may not do this for every queue that it concerns."""
    for queue in _concerned(asked, kind, name, options):
        asked.require(str(kind), queue)


def _concerned(asked: Asked, kind: Kind, name: str, options: Options) -> list[str]:
    """Return the queues for which a user needs the right to begin or control an operation; an empty name means every queue.

    A move also needs the right for its target. A redrive to another queue also needs the right for the dead-letter queue of its
    target; if the target has none, or must be declared, it needs the right for every queue.
    """
    target = options.to
    if kind is Kind.MOVE:
        return [name, target or name]
    if kind is not Kind.REDRIVE or target is None:
        return [name]
    letters = asked.runtime.policies.policy_for(target).dead_letter_queue_for(target)
    return [name, letters or "", *([""] if options.create else [])]


def _cancel(asked: Asked) -> tuple[Kind, Choice, Options]:
    """Return the requested cancel. Without a queue it needs the right for every queue."""
    name = asked.first("queue")
    asked.require(str(Kind.CANCEL), name)
    if not is_kept(asked.transport):
        raise InputError(NOT_HERE)
    return Kind.CANCEL, waiting_choice(name, asked.many("task")), options_of(asked)


def options_of(asked: Asked) -> Options:
    """Return the options in the form. Raises `InputError`."""
    parsers = {"rate": rate_of, "abort_share": share_of, "canary_wait": seconds}
    values: dict[str, Any] = {name: asked.number(name) for name in _COUNTS}
    values |= {name: asked.first(name) or None for name in _TEXTS}
    values |= {name: parse(asked.first(name)) for name, parse in parsers.items() if asked.first(name)}
    values["create"] = asked.first("create") == "1"
    return Options.from_dict({name: value for name, value in values.items() if value is not None})
