"""The summary: the result of the books as an object and as a table for people. And the trend, with a line for each run.

The books balance if no life has a discrepancy and the export noticed no gap.

The trend is kept in the output (`trend.json`, the oldest line first) and in the state. A run adds its line to the trend of both. A
repeated run replaces its own line, so the same inputs give the same trend.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from redelivery.errors import InputError
from redelivery.middleware.messages.events import Outcome

from ..figures.figures import Figures
from ..rules import DISCREPANCIES, RULES, VERDICTS
from ..spark.sql import row_of
from .wording import counted, fitted, lines_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pyspark.sql import DataFrame

    from ..spark.few_rows import Execution
    from ..spark.files import Files

_VERDICT: Final = "verdict."
_OUTCOME: Final = "outcome."
_STANDING: Final = "standing."
#: The columns at which a verdict's rule and the text after a figure begin.
_RULE, _WHAT = 38, 13


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The books in numbers.

    Ages count up to `as_of_ms`. `events` counts each event once. `lives` also counts lives that only the inventory has.
    `unannounced` counts lives that no producer recorded. `possible_repeats` counts lives that were delivered again without a
    policy, so that their task may have run twice.

    With a state, `events` and `outcomes` count the events that no earlier run counted, and `verdicts` the lives of this run and
    those that were open before. `corrections` counts settled lives with another verdict now. `standing` counts discrepancies that
    were reported before; `verdicts` does not count them. `from_ms` and `until_ms` are the times of the first and last event.
    `dead_letters_held` counts the dead letters in the inventory. `app` and `broker` come from the inventory's notes. `unlisted` has
    the numbers of messages that the inventory counted but did not list, by queue.
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
    corrections: int = 0
    standing: dict[str, int] = field(default_factory=dict)
    app: str = ""
    broker: str = ""
    from_ms: int | None = None
    until_ms: int | None = None
    dead_letters_held: int = 0
    unlisted: dict[str, int] = field(default_factory=dict)
    figures: Figures | None = field(default=None, compare=False, repr=False)

    @property
    def has_questions(self) -> bool:
        """Whether a life needs evidence."""
        return self.corrections > 0 or any(self.verdicts[name] for name in DISCREPANCIES)

    def to_dict(self) -> dict[str, Any]:
        """The contents of `summary.json`."""
        values = asdict(replace(self, figures=None))
        del values["figures"]
        ran = {} if self.figures is None else self.figures.run_times_in_all
        in_time = [] if self.figures is None else self.figures.all_in_time
        return values | {"run_times": ran, "in_time": in_time[0] if in_time else {}}

    def to_table(self, width: int | None = None) -> str:
        """The summary as a table for a screen of `width` columns."""
        lines = [f"  {name:<20} {self.verdicts[name]:>12,}   {RULES[name]}" for name in VERDICTS]
        if self.gaps:
            lines.append(f"  {'gap':<20} {len(self.gaps):>12,}   events left the outcome log before they were exported")
        if self.unlisted:
            note = "the inventory only counted them: lost lives may be among them"
            lines.append(f"  {'not listed':<20} {sum(self.unlisted.values()):>12,}   {note}")
        if self.corrections:
            lines.append(f"  {'corrected':<20} {self.corrections:>12,}   settled lives of earlier runs, now with another verdict")
        if self.standing:
            names = ", ".join(f"{name} {count:,}" for name, count in self.standing.items())
            lines.append(f"  {'reported before':<20} {sum(self.standing.values()):>12,}   {names}")
        outcomes = ", ".join(f"{name} {count:,}" for name, count in self.outcomes.items() if count)
        ending = [
            *(lines_of(self.figures) if self.figures else []),
            f"{counted(self.possible_repeats, 'task', 'tasks')} may have run twice.",
            f"The books {'balance' if self.balanced else 'DO NOT BALANCE'}.",
        ]
        return "\n".join(
            [
                fitted(f"{self.events:,} events of {self.lives:,} lives: {outcomes}", width),
                "",
                *(fitted(line, width, _RULE) for line in lines),
                "",
                *(fitted(line, width, _WHAT if line.startswith(" ") else 0) for line in ending),
            ]
        )


def summarise(
    judged: DataFrame,
    gaps: list[dict[str, Any]],
    *,
    as_of_ms: int,
    grace_ms: int,
    execution: Execution,
    before: DataFrame | None = None,
    plain: Mapping[str, int] | None = None,
) -> Summary:
    """Count the lives, in one action. `before` has the lives of earlier runs, as these counted them (a second action).

    `plain` has the counts of the plain lives, which balance and are not in `judged`: `lives`, `events` and outcomes by name.
    """
    plain = {} if plain is None else plain
    unannounced = f"{Outcome.RECEIVED} > 0 AND {Outcome.PUBLISHED} + {Outcome.REDRIVEN} = 0"
    sums = {"events": "sum(events)", **{_OUTCOME + each: f"sum({each})" for each in Outcome}}
    counts_of = {
        "lives": "count_if(NOT is_standing)",
        "possible_repeats": "count_if(NOT is_standing AND is_repeated)",
        "unannounced": f"count_if(NOT is_standing AND {unannounced})",
        "corrections": "count_if(is_correction)",
        **{_VERDICT + name: f"count_if(NOT is_standing AND verdict = '{name}')" for name in VERDICTS},
        **{_STANDING + name: f"count_if(is_standing AND verdict = '{name}')" for name in DISCREPANCIES},
        **sums,
    }
    asked = [partial(_counted, judged, counts_of), *([] if before is None else [partial(_counted, before, sums)])]
    counts, known = [*execution.run_all(asked), {}][:2]
    verdicts = {name: counts.get(_VERDICT + name, 0) for name in VERDICTS}
    verdicts["balanced"] += plain.get("lives", 0)

    def counted_now(name: str, of_plain: str) -> int:
        return counts.get(name, 0) - known.get(name, 0) + plain.get(of_plain, 0)

    return Summary(
        balanced=not gaps and not any(verdicts[name] for name in DISCREPANCIES),
        as_of_ms=as_of_ms,
        grace_ms=grace_ms,
        events=counted_now("events", "events"),
        lives=counts.get("lives", 0) + plain.get("lives", 0),
        verdicts=verdicts,
        outcomes={str(each): counted_now(_OUTCOME + each, str(each)) for each in Outcome},
        possible_repeats=counts.get("possible_repeats", 0),
        unannounced=counts.get("unannounced", 0),
        gaps=gaps,
        corrections=counts.get("corrections", 0),
        standing={name: count for name in DISCREPANCIES if (count := counts.get(_STANDING + name, 0))},
    )


def _counted(lives: DataFrame, counts: dict[str, str]) -> dict[str, int]:
    return {name: int(count) for name, count in row_of(lives, counts).items() if count is not None}


TREND: Final = "trend.json"
MAX_RUNS: Final = 60

_OF_THE_SUMMARY: Final = ("as_of_ms", "balanced", "events", "lives", "possible_repeats", "dead_letters_held")
_OF_THE_FIGURES: Final = (
    "published",
    "redriven",
    "redriven_succeeded",
    "succeeded",
    "succeeded_at_first_attempt",
    "dead_lettered",
    "redeliveries",
    "attempts_made",
    "attempts_wasted",
    "in_flight",
)

Line = dict[str, Any]


def read_trend(files: Files, output: str) -> list[Line]:
    """The trend in an earlier output; empty if it has none. Raises `InputError` if the file is not a trend."""
    text = files.read(f"{output.rstrip('/')}/{TREND}")
    if text is None:
        return []
    try:
        lines = json.loads(text)
        return [dict(line) | {"as_of_ms": int(line["as_of_ms"])} for line in lines]
    except (ValueError, TypeError, KeyError) as exc:
        msg = f"{output}/{TREND} is not a trend of these books ({exc}): remove it, or name another output"
        raise InputError(msg) from exc


def write_trend(files: Files, lines: list[Line], folder: str) -> None:
    """Write the trend, by a rename: a run that dies leaves the earlier trend."""
    name, new = (f"{folder.rstrip('/')}/{each}" for each in (TREND, f".{TREND}.new"))
    files.write(new, json.dumps(lines, indent=1) + "\n")
    files.replace(new, name)


def line_of(summary: Summary) -> Line:
    """The line of this run in the trend."""
    figures = summary.figures or Figures()
    p50, p95, p99 = figures.total.get("time_to_success_ms") or (None, None, None)
    return {
        **{name: getattr(summary, name) for name in _OF_THE_SUMMARY},
        "discrepancies": sum(summary.verdicts[name] for name in DISCREPANCIES),
        "gaps": len(summary.gaps),
        **{name: figures.total.get(name, 0) for name in _OF_THE_FIGURES},
        **{f"time_to_success_p{p}_ms": None if at is None else round(at) for p, at in ((50, p50), (95, p95), (99, p99))},
    }


def merged(earlier: Iterable[Line], line: Line) -> list[Line]:
    """The trend with this run's line, ordered by `as_of_ms`. Lines of the same time or later are dropped."""
    by_moment = {each["as_of_ms"]: each for each in earlier if each["as_of_ms"] < line["as_of_ms"]}
    return [*[by_moment[at] for at in sorted(by_moment)][-(MAX_RUNS - 1) :], line]
