"""The comparison of the books with the receiver's own journal, for each webhook.

`balance` makes an `Account` from the plan, the exported outcome events, the verdicts and the journal: the figures, and one
sentence for each difference.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from redelivery.middleware.messages.events import TERMINAL, Outcome, Reason
from webhooks.scenarios import PERMANENT, Scenario, Webhook

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from webhooks.journal import Line

__all__ = ["Account", "History", "balance", "histories"]

#: Outcome and reason of a message that was delivered again, but not by its policy.
REPEATED = {(Outcome.REDELIVERY_SCHEDULED, Reason.WORKER_LOST), (Outcome.RECEIVED, "redelivered")}


@dataclass(slots=True)
class History:
    """The events of one id."""

    generation: int = 0
    ends: list[dict[str, Any]] = field(default_factory=list)
    may_have_repeated: bool = False
    was_published: bool = False

    @property
    def end(self) -> dict[str, Any] | None:
        """The terminal event of its last life, or None."""
        return next((event for event in reversed(self.ends) if event["generation"] == self.generation), None)

    @property
    def attempts(self) -> int:
        """The number of attempts in all its lives."""
        return sum(int(event["attempt"]) for event in self.ends)


@dataclass(frozen=True, slots=True)
class Account:
    """The figures of one run. Each webhook counts in one of succeeded, dead_lettered, discarded, in_flight and lost.

    `only_doubled`: the only faults in the books are ends that were recorded twice, and for each of them the books name the
    repeated delivery, on a broker where a crash can cause that.
    """

    published: int
    succeeded: int
    first_time: int
    after_redelivery: int
    redriven: int
    redriven_succeeded: int
    dead_lettered: int
    deaths: dict[str, int]
    discarded: int
    in_flight: int
    lost: int
    lost_ids: list[str]
    duplicated: int
    only_doubled: bool
    possible_repeats: int
    requests: int
    processed: int
    repeated: int
    disagreements: list[str]


def histories(events: Iterable[Mapping[str, Any]]) -> dict[str, History]:
    """The history of each id. An event that is exported twice counts once."""
    found: dict[str, History] = {}
    seen: set[str] = set()
    for event in sorted(events, key=lambda each: (each["at_ms"], each["event_id"])):
        if event["event_id"] in seen:
            continue
        seen.add(event["event_id"])
        history = found.setdefault(event["task_id"], History())
        history.generation = max(history.generation, event["generation"])
        history.was_published |= event["outcome"] == Outcome.PUBLISHED
        history.may_have_repeated |= (event["outcome"], event["reason"]) in REPEATED
        if event["outcome"] in TERMINAL:
            history.ends.append(dict(event))
    return found


def balance(
    webhooks: Sequence[Webhook],
    events: Iterable[Mapping[str, Any]],
    verdicts: Iterable[Mapping[str, Any]],
    journal: Iterable[Line],
    *,
    may_repeat: bool = False,
) -> Account:
    """Compare the books with the journal, id by id."""
    books = histories(events)
    lines: dict[str, list[Line]] = {}
    for line in journal:
        lines.setdefault(line.id, []).append(line)
    judged: dict[str, set[str]] = {}
    for verdict in verdicts:
        judged.setdefault(verdict["verdict"], set()).add(verdict["task_id"])
    disagreements = [
        f"{webhook.id} ({webhook.scenario}): {difference}"
        for webhook in webhooks
        for difference in _differences(webhook, books.get(webhook.id, History()), lines.get(webhook.id, []))
    ]
    planned = {webhook.id for webhook in webhooks}
    disagreements += [f"{stranger}: nobody sent it" for stranger in sorted((books.keys() | lines.keys()) - planned)]
    only_doubled = may_repeat and _are_named(books, judged)
    return _figures(books, judged, [line for each in lines.values() for line in each], disagreements, only_doubled=only_doubled)


def _are_named(books: Mapping[str, History], judged: Mapping[str, set[str]]) -> bool:
    """Whether the only faults are duplicated lives, and the books name a repeated delivery for each."""
    wrong = {verdict for verdict, ids in judged.items() if ids} - {"balanced", "in_flight"}
    return wrong == {"duplicated"} and all(books[task_id].may_have_repeated for task_id in judged["duplicated"])


def _figures(
    books: Mapping[str, History],
    judged: Mapping[str, set[str]],
    lines: Sequence[Line],
    disagreements: list[str],
    *,
    only_doubled: bool,
) -> Account:
    ends = [(history, history.end) for history in books.values()]
    succeeded = [(history, end) for history, end in ends if end is not None and end["outcome"] == Outcome.SUCCEEDED]
    final = Counter(end["outcome"] for _, end in ends if end is not None)
    deaths = Counter(
        event["reason"] for history in books.values() for event in history.ends if event["outcome"] == Outcome.DEAD_LETTERED
    )
    lost = sorted(judged.get("lost", ()))
    return Account(
        published=sum(history.was_published for history in books.values()),
        succeeded=len(succeeded),
        first_time=sum(history.generation == 0 and end["attempt"] == 1 for history, end in succeeded),
        after_redelivery=sum(history.generation == 0 and end["attempt"] > 1 for history, end in succeeded),
        redriven=sum(history.generation > 0 for history in books.values()),
        redriven_succeeded=sum(history.generation > 0 for history, _ in succeeded),
        dead_lettered=final[Outcome.DEAD_LETTERED],
        deaths=dict(sorted(deaths.items())),
        discarded=final[Outcome.DISCARDED],
        in_flight=len(judged.get("in_flight", set()) | judged.get("stuck", set())),
        lost=len(lost),
        lost_ids=lost,
        duplicated=len(judged.get("duplicated", ())),
        only_doubled=only_doubled,
        possible_repeats=sum(history.may_have_repeated for history in books.values()),
        requests=len(lines),
        processed=sum(line.processed for line in lines),
        repeated=sum(line.repeated for line in lines),
        disagreements=disagreements,
    )


def _differences(webhook: Webhook, history: History, lines: Sequence[Line]) -> list[str]:
    end = history.end
    processed = sum(line.processed for line in lines)
    if end is None:
        return [f"the books have no end for it, and the receiver processed it {processed} times"] if processed else []
    outcome, found = end["outcome"], []
    if processed != (outcome == Outcome.SUCCEEDED):
        found.append(f"the books say {outcome}, and the receiver processed it {processed} times")
    if outcome != (expected := _expected(webhook.scenario)):
        found.append(f"the books say {outcome}, and its scenario ends as {expected}")
    if not history.may_have_repeated and len(lines) != history.attempts:
        found.append(f"the books count {history.attempts} attempts, and the receiver {len(lines)} requests")
    if webhook.scenario is Scenario.POISON and lines:
        found.append("it kills whoever prepares it, and yet the receiver got it")
    return found


def _expected(scenario: Scenario) -> Outcome:
    return Outcome.DEAD_LETTERED if scenario in PERMANENT or scenario is Scenario.POISON else Outcome.SUCCEEDED
