"""Operations on many dead letters or delayed messages: previews, begins, shows, pauses, resumes and aborts them; the audit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from redelivery.display import word
from redelivery.errors import InputError

from ...operations.letters import dead_letters
from ...operations.letters.choice import NAMES
from ...operations.runs.audit import entries
from ...operations.runs.audit_history import History, history
from ...operations.runs.operation import (
    ALLOWED,
    NOT_HERE,
    TURNS,
    Kind,
    Operation,
    Options,
    State,
    begin,
    check,
    found,
    is_kept,
    listed,
)
from ...operations.runs.operation import turn as turn_
from ...operations.runs.preview import Preview, preview
from ...operations.words.numbers import moment, rate_of, seconds, share_of
from ..screen import Redirect, Screen
from .letters import Choice, choice_of, waiting_choice

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...operations.letters.walk import Walked
    from ..screen import Visit

#: The maximum number of operations, and of records of the audit, on one screen.
LIMIT, RECORDS = 50, 100
#: The word for moved dead letters or messages.
WENT = {Kind.REDRIVE: "sent back", Kind.MOVE: "moved", Kind.PURGE: "removed", Kind.CANCEL: "cancelled"}
#: Fields of a form: numbers, and texts.
_COUNTS, _TEXTS = ("limit", "canary", "abort_after"), ("to", "archive")


def operations(visit: Visit) -> Screen:
    """Show the newest operations, and the newest records of the audit."""
    is_here = is_kept(visit.transport)
    audit = history(visit.runtime, RECORDS)
    return Screen(
        "operations.html",
        {
            "is_here": is_here,
            "not_here": NOT_HERE,
            "rows": [
                {"operation": each, "href": visit.href("/operation", id=each.id), "filter": _words(each)}
                for each in (listed(visit.runtime, limit=LIMIT) if is_here else ())
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


def operation(visit: Visit) -> Screen:
    """Show one operation: the request, its progress, and its controls."""
    each = found(visit.runtime, visit.first("id"))
    may = all(visit.may(str(each.kind), queue) for queue in _concerned(visit, each.kind, each.queue, each.options))
    if each.has_ended:
        audit = history(visit.runtime, RECORDS, operation=each.id)
    else:  # the screen is reloaded every few seconds, and all its records are on the broker
        audit = History(entries(visit.transport, RECORDS, operation=each.id))
    return Screen(
        "operation.html",
        {
            "operation": each,
            "filter": _words(each),
            "deaths": [{name: str(death.get(name) or "") for name in ("task_id", "reason", "exception")} for death in each.deaths],
            "options": each.options.in_words(),
            "can": [name for name, (state, _) in TURNS.items() if may and each.state in ALLOWED[state]],
            "records": audit.entries,
            "notes": audit.notes,
            "is_waiting": each.state is State.WAITING,
            "went": WENT[each.kind],
            "refresh": 3 if each.state in {State.WAITING, State.RUNNING} else None,
        },
    )


def turn(name: str, visit: Visit) -> Redirect:
    """Pause, resume or abort an operation. The user needs the same rights as for its beginning."""
    each = found(visit.runtime, visit.first("id"))
    _require(visit, each.kind, each.queue, each.options)
    turn_(visit.runtime, each.id, name, visit.acting(), visit.first("why"))
    return Redirect("/operation", {"id": each.id})


def planned(visit: Visit) -> Screen:
    """Show the dry run of an operation, and the form that begins it."""
    kind, choice, options = _plan(visit)

    def count(on_progress: Callable[[Walked], None]) -> Preview:
        return preview(visit.runtime, kind, choice.queue, choice.chosen, options, on_progress=on_progress)

    check(visit.runtime, kind, choice.queue, choice.chosen, options)  # the HTTP status can still report an error
    visit.head_first(is_reached=False)
    job = visit.services.previews.of((kind, choice.queue, repr(choice.given), options), count)
    return Screen(
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
            "given": _given(visit, kind, choice),
            "options": options,
            "refresh": None if job.preview is not None else 1,
        },
    )


def _given(visit: Visit, kind: Kind, choice: Choice) -> list[tuple[str, str]]:
    """Return the fields of the form that begins the operation."""
    pairs = [("kind", str(kind)), ("queue", choice.queue)]
    for name, value in choice.given.items():
        pairs += [(name.replace("_", "-"), each) for each in (value if isinstance(value, tuple) else (value,)) if each]
    if not choice.has_filter:
        pairs.append(("all", "1"))
    options = {name: visit.first(name) for name in (*_COUNTS, *_TEXTS, "create", "rate", "canary_wait", "abort_share")}
    return [*pairs, *((name, value) for name, value in options.items() if value)]


def start(visit: Visit) -> Redirect:
    """Begin the operation."""
    kind, choice, options = _plan(visit)
    if not choice.has_filter and visit.first("all") != "1":
        msg = "no dead letters are chosen: choose some with a filter, or choose all"
        raise InputError(msg)
    begun = begin(visit.runtime, kind, choice.queue, choice.chosen, options, actor=visit.acting(), why=visit.first("why"))
    return Redirect("/operation", {"id": begun.id})


def _plan(visit: Visit) -> tuple[Kind, Choice, Options]:
    """Return the requested operation. Raises `InputError`, and `Refused` if the user may not do it."""
    try:
        kind = Kind(visit.first("kind"))
    except ValueError as exc:
        msg = f"unknown operation {visit.first('kind')!r}: choose redrive, move or purge"
        raise InputError(msg) from exc
    if kind is Kind.CANCEL:
        return _cancel(visit)
    name = dead_letters.required(visit.runtime, visit.first("queue"))
    options = options_of(visit)
    _require(visit, kind, name, options)
    if not is_kept(visit.transport):
        raise InputError(NOT_HERE)
    return kind, choice_of(visit, name), options


def _require(visit: Visit, kind: Kind, name: str, options: Options) -> None:
    """Raise `Refused` if the user may not do this for every queue that it concerns."""
    for queue in _concerned(visit, kind, name, options):
        visit.require(str(kind), queue)


def _concerned(visit: Visit, kind: Kind, name: str, options: Options) -> list[str]:
    """Return the queues for which a user needs the right to begin or control an operation; an empty name means every queue.

    A move also needs the right for its target. A redrive to another queue also needs the right for the dead-letter queue of its
    target; if the target has none, or must be declared, it needs the right for every queue.
    """
    target = options.to
    if kind is Kind.MOVE:
        return [name, target or name]
    if kind is not Kind.REDRIVE or target is None:
        return [name]
    letters = visit.runtime.policies.policy_for(target).dead_letter_queue_for(target)
    return [name, letters or "", *([""] if options.create else [])]


def _cancel(visit: Visit) -> tuple[Kind, Choice, Options]:
    """Return the requested cancel. Without a queue it needs the right for every queue."""
    name = visit.first("queue")
    visit.require(str(Kind.CANCEL), name)
    if not is_kept(visit.transport):
        raise InputError(NOT_HERE)
    return Kind.CANCEL, waiting_choice(name, visit.many("task")), options_of(visit)


def options_of(visit: Visit) -> Options:
    """Return the options in the form. Raises `InputError`."""
    parsers = {"rate": rate_of, "abort_share": share_of, "canary_wait": seconds}
    values: dict[str, Any] = {name: visit.number(name) for name in _COUNTS}
    values |= {name: visit.first(name) or None for name in _TEXTS}
    values |= {name: parse(visit.first(name)) for name, parse in parsers.items() if visit.first(name)}
    values["create"] = visit.first("create") == "1"
    return Options.from_dict({name: value for name, value in values.items() if value is not None})
