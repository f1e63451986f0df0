"""Dead letters, one page at a time. The address has the filters of the command line."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from redelivery.display import word
from redelivery.errors import InputError

from ...letters import REASONS
from ...operations.letters import dead_letters
from ...operations.letters.choice import NAMES, filter_of, listing_of
from ...operations.letters.filter import Filter
from ...operations.letters.reading.browse import SLOW, Browsed, browsed
from ...operations.runs.audit import Act, Acted, acted, record
from ...operations.runs.operation import is_kept
from ...operations.words.numbers import seconds
from ...operations.words.redaction import seen
from ...operations.words.short_ids import is_whole
from ..screen import Redirect, Screen
from ..shared.looks import LIMIT, leaves_marks

if TYPE_CHECKING:
    from ...letters import Letter
    from ..screen import Visit

#: Dead letters of one page; in a queue with more dead letters than `SEARCHED`, short ids are not looked up.
PAGE, SEARCHED = 50, 200_000
#: Queues whose dead letters are on one screen, how many of each, and the maximum number of queues in an address.
QUEUES, EACH, MOST_QUEUES = 8, 10, 50


@dataclass(frozen=True, slots=True)
class Choice:
    """A choice of dead letters in one queue. `given` has the values as they were given, for addresses.

    `takes_whole`: ids were not looked up, so they must be whole.
    """

    queue: str
    chosen: Filter
    given: dict[str, Any]
    takes_whole: bool = False

    @property
    def words(self) -> str:
        """The choice as options of the command line."""
        parts = [f"--{option} {word(each)}" for option in NAMES for each in self.given[option]]
        ages = ((name, self.given[name]) for name in ("older_than", "newer_than"))
        parts += [f"--{name.replace('_', '-')} {word(age)}" for name, age in ages if age]
        return " ".join(parts)

    @property
    def has_filter(self) -> bool:
        """Whether the choice has any condition."""
        return any(self.given.values())


def choice_of(visit: Visit, queue: str, *, is_listed: bool = False) -> Choice:
    """Return the choice in the address or the form. Raises `InputError`.

    A shortened id is looked up in the queue, except if the queue is too long, or the choice `is_listed`: a list shows all dead
    letters whose ids begin with it.
    """
    given: dict[str, Any] = {option: visit.many(option) for option in NAMES}
    given |= {"older_than": visit.first("older-than"), "newer_than": visit.first("newer-than")}
    options = {name: given[option] for option, name in NAMES.items()}
    options |= {age: seconds(given[age]) if given[age] else None for age in ("older_than", "newer_than")}
    if is_listed:
        return Choice(queue, listing_of(visit.transport, options), given)
    if all(map(is_whole, given["id"])):
        return Choice(queue, filter_of(visit.transport, queue, options), given)
    if sum(each.letters for each in dead_letters.summaries(visit.runtime) if each.name == queue) > SEARCHED:
        chosen = filter_of(visit.transport, queue, {**options, "task_ids": ()})
        return Choice(queue, replace(chosen, task_ids=frozenset(given["id"])), given, takes_whole=True)
    visit.head_first(is_reached=False)
    with visit.search():
        return Choice(queue, filter_of(visit.transport, queue, options), given)


def waiting_choice(queue: str, tasks: tuple[str, ...]) -> Choice:
    """Return the choice of delayed messages by task."""
    given = dict.fromkeys(("id", "reason", "exception", "fingerprint"), ()) | {"older_than": "", "newer_than": ""}
    return Choice(queue, Filter(tasks=tasks), {**given, "task": tasks})


def letters(visit: Visit) -> Screen:
    """Show the dead letters of one queue, or the newest of several; without a queue, the list of dead-letter queues."""
    runtime = visit.runtime
    queues = dead_letters.summaries(runtime)
    if len(visit.many("queue")) > 1:
        return _of_several(visit, {each.name for each in queues})
    name = visit.first("queue")
    if not name:
        full = [each for each in queues if each.letters]
        if len(full) != 1:
            return Screen("letter_queues.html", {"queues": queues})
        name = full[0].name
    if name not in {each.name for each in queues}:
        dead_letters.required(runtime, name)
    choice = choice_of(visit, name, is_listed=True)
    visit.head_first()
    is_marked = leaves_marks(visit.transport)
    found, at_ms = _found(visit, choice, visit.number("before"), is_marked=is_marked)
    return Screen(
        "letters.html",
        {
            "queue": next((each for each in queues if each.name == name), None),
            "queues": queues,
            "name": name,
            "choice": choice,
            "found": found,
            "rows": [] if found is None else [row_of(visit, name, place, letter) for place, letter in found.letters],
            "reasons": REASONS,
            "before": visit.number("before"),
            "is_marked": is_marked,
            "looked_ms": at_ms,
            "most": LIMIT,
            "allowed": [each for each in ("redrive", "move", "purge") if is_kept(visit.transport) and visit.may(each, name)],
        },
    )


def _of_several(visit: Visit, known: set[str]) -> Screen:
    """Show the newest dead letters of each queue, with a link to all of them. Queues beyond `QUEUES` have only the link."""
    names, places = visit.many("queue"), visit.numbers("before")
    if len(names) > MOST_QUEUES:
        msg = f"{len(names)} queues are too many for one screen: name {MOST_QUEUES} at most"
        raise InputError(msg)
    starts = dict(zip(names, places, strict=True)) if len(places) == len(names) else {}
    for name in names:
        if name not in known:
            dead_letters.required(visit.runtime, name)
    choices = [choice_of(visit, name, is_listed=True) for name in dict.fromkeys(names)]
    visit.head_first()
    is_marked = leaves_marks(visit.transport)
    parts: list[dict[str, Any]] = []
    for choice in choices:
        href = visit.href("/letters", queue=choice.queue, before=starts.get(choice.queue), **choice.given)
        part: dict[str, Any] = {"choice": choice, "href": href}
        if len(parts) < QUEUES:
            found, at_ms = _found(visit, choice, starts.get(choice.queue), is_marked=is_marked, limit=EACH, seconds=SLOW / QUEUES)
            rows = [] if found is None else [row_of(visit, choice.queue, place, letter) for place, letter in found.letters[:EACH]]
            part |= {"found": found, "looked_ms": at_ms, "rows": rows}
        parts.append(part)
    return Screen("letters_of_several.html", {"parts": parts, "shown": QUEUES, "most": LIMIT})


def _found(
    visit: Visit, choice: Choice, before: int | None, *, is_marked: bool, limit: int = PAGE, seconds: float | None = None
) -> tuple[Browsed | None, int | None]:
    if not is_marked:
        with visit.search() if choice.has_filter else nullcontext():
            return browsed(visit.transport, choice.queue, choice.chosen, before=before, limit=limit, seconds=seconds), None
    last = visit.services.looks.last(choice.queue)
    if last is None:
        return None, None
    passing = [(place, letter) for place, letter in last.seen.letters if choice.chosen.passes(letter)]
    return Browsed(passing, last.seen.looked_at, last.seen.total, None), last.at_ms


def row_of(visit: Visit, name: str, place: int, letter: Letter) -> dict[str, Any]:
    """Return a row of the table of dead letters, redacted if the settings say so."""
    shown = seen(visit.runtime, letter).to_row()
    return {**shown, "href": visit.href("/letter", queue=name, id=letter.task_id, at=place)}


def look(visit: Visit) -> Redirect:
    """Read the oldest dead letters of a queue, which marks them."""
    name = dead_letters.required(visit.runtime, visit.first("queue"))
    if not leaves_marks(visit.transport):
        msg = "this broker needs no look: open the dead letters"
        raise InputError(msg)
    visit.require("look", name)
    actor, last = visit.acting(), visit.services.looks.last(name)
    found = visit.services.looks.look(visit.transport, name)
    if found is not last:
        result = {"looked_at": found.seen.looked_at}
        record(visit.transport, acted(Act.LOOK, Acted.DONE, name, actor=actor, result=result))
    back = visit.first("back")
    return Redirect("/causes" if back == "causes" else "/letters", {"queue": name})
