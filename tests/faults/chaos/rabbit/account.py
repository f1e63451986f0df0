"""The account of a run on RabbitMQ: a verdict for each life, by plain Python, to be compared with the reconciliation.

A transition has three steps there, so a task may end twice after a crash. Nothing may be lost, and whatever did not end exactly
once must be named: by the same word here and in the books, for the same life. The account shares only these words with the
reconciliation.

From the exported events, the dead letters, the ledger of the producers and the notes of the tasks, it finds a word for each life
that is not `balanced`, and the faults: sentences about what must not happen.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tests.faults.chaos.verdict import OPENING, TERMINAL

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["NAMED", "NEVER_SENT", "Account", "Life", "account"]

#: Task id, nesting, generation and queue.
Life = tuple[str, int, int, str]
#: What a crash between two steps may leave, and the books name: ended twice, redriven by a command that died before it recorded
#: that, a letter that lies in its queue although it has gone elsewhere, delivered again after its end, and not ended again.
NAMED = ("duplicated", "orphaned", "phantom_dead_letter", "resurrected")
#: A publication whose producer died before it was sent: its event is recorded first. The books rightly call it lost.
NEVER_SENT = "never_sent"


@dataclass
class Account:
    """The word of each life that is not balanced. `twice` are dead letters that are in their queues more than once."""

    words: dict[Life, str] = field(default_factory=dict)
    lives: int = 0
    repeats: int = 0
    twice: int = 0
    faults: list[str] = field(default_factory=list)

    def count(self, word: str) -> int:
        """How many lives have this word."""
        return sum(each == word for each in self.words.values())

    def compare(self, books: Mapping[Life, str]) -> None:
        """Each life that is not balanced has the same word in the books; a message that was never sent is `lost` there."""
        ours = {life: "lost" if word == NEVER_SENT else word for life, word in self.words.items()}
        for life in sorted(ours.keys() | books.keys()):
            here, there = ours.get(life, "balanced"), books.get(life, "balanced")
            if here != there:
                self.faults.append(f"{life}: {here} by this account, {there} in the books")


def account(
    events: Iterable[Mapping[str, Any]],
    letters: Iterable[Life],
    notes: Iterable[Mapping[str, Any]],
    ledger: Iterable[Mapping[str, Any]],
    died: Mapping[int, str],
) -> Account:
    """The account. `letters` are the lives of the dead letters, `died` the boundaries at which processes died, by process id.

    A dead letter whose life has no event was moved by a command that died before it recorded that: it is still in its old queue
    too.
    """
    made, lives = Account(), _lives(events)
    lying, unsent = Counter(letters), _unsent(list(ledger), died, made, {life[0] for life in lives})
    made.lives, made.twice = len(lives), sum(count > 1 for count in lying.values())
    generations = defaultdict(set)
    for (task_id, _, generation, _), steps in lives.items():
        if any(event["outcome"] == "redriven" for event in steps):
            generations[task_id].add(generation)
    for life, steps in lives.items():
        word = _word(steps, lying[life], was_redriven=any(each > life[2] for each in generations[life[0]]))
        if word == "lost" and life[0] in unsent and {event["outcome"] for event in steps} == {"published"}:
            word = NEVER_SENT
        if word != "balanced":
            made.words[life] = word
        if word not in {"balanced", NEVER_SENT, *NAMED} or (word == "resurrected" and not _crashed(steps)):
            said = [f"{event['outcome']}({event['reason']})" for event in steps]
            made.faults.append(f"{life}: {word}: {said}")
    made.words |= dict.fromkeys(lying.keys() - lives.keys(), "phantom_dead_letter")
    _repeats(made, lives, notes)
    return made


def _lives(events: Iterable[Mapping[str, Any]]) -> dict[Life, list[Mapping[str, Any]]]:
    """The events of each life, each once, in the order of their times."""
    once = {event["event_id"]: event for event in events}
    lives = defaultdict(list)
    for event in sorted(once.values(), key=lambda each: each["at_ms"]):
        lives[event["task_id"], event.get("nesting") or 0, event["generation"], event["queue"]].append(event)
    return dict(lives)


def _word(steps: list[Mapping[str, Any]], lying: int, *, was_redriven: bool) -> str:  # noqa: PLR0911 - one for each word
    words = Counter(str(event["outcome"]) for event in steps)
    closed = words["dead_lettered"] and (words["purged"] or words["discarded"])
    ends = sum(words[each] for each in TERMINAL) - (1 if closed else 0)
    if not OPENING & words.keys():
        return "orphaned"
    if ends > 1:
        return "duplicated"
    if not ends:
        return "lost"
    if lying and (closed or not words["dead_lettered"]):
        return "phantom_dead_letter"
    if words["dead_lettered"] and not closed and not lying and not was_redriven:
        return "missing_dead_letter"
    ended = next(event for event in steps if event["outcome"] in TERMINAL)  # a later purge concerns the dead letter, not a delivery
    again = [event for event in steps if event["outcome"] == "redelivery_scheduled"]
    if any(event["at_ms"] > ended["at_ms"] and event["delivery"] >= ended["delivery"] for event in again):
        return "resurrected"
    return "balanced"


def _crashed(steps: list[Mapping[str, Any]]) -> bool:
    """Whether a worker is known to have died with the message, or to have lost its connection."""
    return any(event["outcome"] == "redelivery_scheduled" and event["reason"] == "worker_lost" for event in steps)


def _unsent(ledger: list[Mapping[str, Any]], died: Mapping[int, str], made: Account, known: set[str]) -> set[str]:
    """Tasks that were perhaps never sent: no producer noted the broker's answer, and none died when it had just got it."""
    said: dict[str, set[str]] = defaultdict(set)
    for line in ledger:
        said[line["id"]].add(line["said"])
        if line["said"] == "published" and line["id"] not in known:
            made.faults.append(f"{line['id']}: its publication was answered, and the books do not know it")
    last = {line["pid"]: line["id"] for line in ledger}
    answered = {last[pid] for pid, boundary in died.items() if boundary == "publish.after" and pid in last}
    return {task_id for task_id, words in said.items() if "published" not in words} - answered


def _repeats(made: Account, lives: Mapping[Life, list[Mapping[str, Any]]], notes: Iterable[Mapping[str, Any]]) -> None:
    """Which tasks ran twice for one attempt; each is named, by a `worker_lost` event or by its word."""
    named, redriven = {life[0] for life in made.words}, Counter[str]()
    for life, steps in lives.items():
        for event in steps:
            redriven[life[0]] += event["outcome"] == "redriven"
            if event["outcome"] == "redelivery_scheduled" and event["reason"] == "worker_lost":
                named.add(life[0])
    published = Counter(life[0] for life, steps in lives.items() for event in steps if event["outcome"] == "published")
    runs = Counter((note["id"], note.get("attempt", 1)) for note in notes if note.get("event") != "end")
    again = {task_id for (task_id, _), count in runs.items() if count > max(published[task_id], 1) + redriven[task_id]}
    made.repeats = len(again)
    made.faults += [f"{task_id}: ran twice, and nothing names it" for task_id in sorted(again - named)]
