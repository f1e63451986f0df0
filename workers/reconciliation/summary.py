"""The summary: what the books say in one object, and in one table for people.

Enters: judged lives and gaps. Leaves: `Summary`, whose `to_dict` is `summary.json` (design, section 9). The books balance when no
life has a discrepancy and the export noticed no gap.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as F  # noqa: N812 - Spark's own custom

from redelivery.middleware.outcomes import Outcome
from redelivery.workers.reconciliation.verdicts import DISCREPANCIES, RULES, VERDICTS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["Summary", "summarise"]

_VERDICT: Final = "verdict."
_OUTCOME: Final = "outcome."


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The books in numbers.

    `as_of_ms` is the moment that ages were counted up to. `events` counts each event once, `lives` also those that only the
    inventory knows, `unannounced` those that no producer recorded. `possible_repeats` are lives that were handed over again
    without a redelivery of ours, so that their task may have run twice.
    """

    balanced: bool
    as_of_ms: int
    grace_ms: int
    events: int
    lives: int
    verdicts: dict[str, int]
    outcomes: dict[str, int]
    possible_repeats: int
    unannounced: int
    gaps: list[dict[str, Any]]

    def to_dict(self) -> dict[str, Any]:
        """What `summary.json` holds."""
        return asdict(self)

    def to_table(self) -> str:
        """The same for people."""
        lines = [f"  {name:<20} {self.verdicts[name]:>12,}   {RULES[name]}" for name in VERDICTS]
        if self.gaps:
            lines.append(f"  {'gap':<20} {len(self.gaps):>12,}   events left the outcome log before they were exported")
        outcomes = ", ".join(f"{name} {count:,}" for name, count in self.outcomes.items() if count)
        return "\n".join(
            [
                f"{self.events:,} events of {self.lives:,} lives: {outcomes}",
                "",
                *lines,
                "",
                f"{self.possible_repeats:,} may have run twice.",
                f"The books {'balance' if self.balanced else 'DO NOT BALANCE'}.",
            ]
        )


def summarise(judged: DataFrame, gaps: list[dict[str, Any]], *, as_of_ms: int, grace_ms: int) -> Summary:
    """Count the lives, in one action."""
    unannounced = (F.col(Outcome.RECEIVED) > 0) & (F.col(Outcome.PUBLISHED) + F.col(Outcome.REDRIVEN) == 0)
    row = judged.agg(
        F.count("*").alias("lives"),
        F.sum("events").alias("events"),
        F.count_if("is_repeated").alias("possible_repeats"),
        F.count_if(unannounced).alias("unannounced"),
        *(F.count_if(F.col("verdict") == name).alias(_VERDICT + name) for name in VERDICTS),
        *(F.sum(each).alias(_OUTCOME + each) for each in Outcome),
    ).first()
    counts = {} if row is None else {name: int(count) for name, count in row.asDict().items() if count is not None}
    verdicts = {name: counts.get(_VERDICT + name, 0) for name in VERDICTS}
    return Summary(
        balanced=not gaps and not any(verdicts[name] for name in DISCREPANCIES),
        as_of_ms=as_of_ms,
        grace_ms=grace_ms,
        events=counts.get("events", 0),
        lives=counts.get("lives", 0),
        verdicts=verdicts,
        outcomes={str(each): counts.get(_OUTCOME + each, 0) for each in Outcome},
        possible_repeats=counts.get("possible_repeats", 0),
        unannounced=counts.get("unannounced", 0),
        gaps=gaps,
    )
