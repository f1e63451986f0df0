"""The verdict on a run, by plain Python: from the outcome log, the broker and the tasks' own notes.

From the exported events, the messages left on the broker, the notes of the tasks and the ledger of the producers, it makes a list
of faults, each a sentence. It shares only the names of the outcomes with the reconciliation; a run uses that too.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

__all__ = ["OPENING", "TERMINAL", "Verdict", "archived_in", "judge"]

#: Task id, nesting, generation and queue.
Life = tuple[str, int, int, str]
TERMINAL = {"succeeded", "dead_lettered", "discarded", "expired", "revoked", "ignored", "purged", "cancelled", "unobserved"}
OPENING = {"published", "redriven", "received"}


@dataclass
class Verdict:
    """The result: nothing lost or ended twice, and every repeat named, or sentences that say what is wrong."""

    lost: list[str] = field(default_factory=list)
    duplicated: list[str] = field(default_factory=list)
    unnamed: list[str] = field(default_factory=list)
    other: list[str] = field(default_factory=list)
    lives: int = 0
    repeats: int = 0

    @property
    def faults(self) -> list[str]:
        """All that must not happen."""
        return [*self.lost, *self.duplicated, *self.unnamed, *self.other]


def archived_in(folder: Path) -> set[tuple[str, int]]:
    """Task id and generation of each letter in an archive."""
    from pyarrow import parquet  # noqa: PLC0415 - the oldest promised Celery is tested without it

    tables = [parquet.read_table(file) for file in folder.rglob("*.parquet")]
    return {(row["task_id"], row["generation"]) for table in tables for row in table.to_pylist()}


def judge(
    events: Iterable[dict[str, Any]],
    letters: set[str],
    runs: Iterable[dict[str, Any]],
    ledger: Iterable[dict[str, Any]],
    archived: set[tuple[str, int]],
) -> Verdict:
    """The verdict; `letters` are the ids of the tasks in a dead-letter queue, `archived` those in the archive."""
    verdict = Verdict()
    lives: dict[Life, list[dict[str, Any]]] = defaultdict(list)
    named, opened = set(), {"published": Counter[str](), "redriven": Counter[str]()}
    for event in {each["event_id"]: each for each in events}.values():
        lives[event["task_id"], event.get("nesting") or 0, event["generation"], event["queue"]].append(event)
        if event["outcome"] == "redelivery_scheduled" and event["reason"] == "worker_lost":
            named.add(event["task_id"])
        if event["outcome"] in opened:
            opened[event["outcome"]][event["task_id"]] += 1
        if event["outcome"] == "purged" and (event["task_id"], event["generation"]) not in archived:
            verdict.lost.append(f"{event['task_id']}/{event['generation']}: purged, and no archive has it")
    for life, steps in lives.items():
        _judge_life(verdict, "/".join(map(str, life)), steps)
    verdict.lives = len(lives)
    known = {life[0] for life in lives}
    sure = {line["id"] for line in ledger if line["said"] == "published"}
    verdict.lost += [f"{task_id}: its publication was answered, and the books do not know it" for task_id in sorted(sure - known)]
    _judge_letters(verdict, lives, letters)
    again = Counter((run["id"], run.get("attempt", 1)) for run in runs if run.get("event") != "end")
    most = {task_id: max(opened["published"][task_id], 1) + opened["redriven"][task_id] for task_id, _ in again}
    repeated = {task_id for (task_id, _), count in again.items() if count > most[task_id]}
    verdict.repeats = len(repeated)
    verdict.unnamed += [f"{task_id}: ran twice, and nothing names it" for task_id in sorted(repeated - named)]
    return verdict


def _judge_letters(verdict: Verdict, lives: dict[Life, list[dict[str, Any]]], letters: set[str]) -> None:
    """Check that the dead-letter queues hold exactly the tasks that died and stayed dead."""
    of_task = defaultdict(list)
    for life in lives:
        of_task[life[0]].append(life)
    verdict.other += [f"{task_id}: a letter that the books do not know" for task_id in sorted(letters - of_task.keys())]
    for task_id, its in of_task.items():
        last = max(life[2] for life in its)
        words = {each["outcome"] for life in its if life[2] == last for each in lives[life]}
        if task_id in letters and "dead_lettered" not in words:
            verdict.other.append(f"{task_id}: a letter of a life that did not die")
        if task_id not in letters and "dead_lettered" in words and not words & {"purged", "discarded"}:
            verdict.lost.append(f"{task_id}/{last}: it died, and no dead-letter queue has it")


def _judge_life(verdict: Verdict, name: str, steps: list[dict[str, Any]]) -> None:
    words = Counter(event["outcome"] for event in steps)
    ends = [event["outcome"] for event in steps if event["outcome"] in TERMINAL]
    if not OPENING & words.keys():
        verdict.other.append(f"{name}: nothing opens it: {dict(words)}")
    closed = words["dead_lettered"] and (words["purged"] or words["discarded"])
    count = len(ends) - (1 if closed else 0)
    if not count:
        verdict.lost.append(f"{name}: no end: {dict(words)}")
    elif count > max(words["published"] + words["redriven"], 1):
        verdict.duplicated.append(f"{name}: ended {count} times: {dict(words)}")
