"""The report: the books of one run as one HTML page, which opens offline in any browser and is read in a minute.

From top to bottom: does it balance, and by how much not; the six figures that one looks at every day; where it does not
balance, and why; the flow of lives; attempts, deaths, queues; all verdicts; the runs before.

Enters: a summary with its figures, and the lines of the trend. Leaves: text. The page has no script and refers to nothing outside
itself, which its own content policy forbids besides.
"""

from __future__ import annotations

from importlib.resources import files
from string import Template
from typing import TYPE_CHECKING, Final

from . import sections
from .figures import Figures
from .markup import two
from .tiles import tiles
from .verdicts import DISCREPANCIES
from .wording import count, counted, duration, moment, share

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .summary import Summary
    from .trend import Line

__all__ = ["REPORT", "page"]

REPORT: Final = "report.html"


def page(summary: Summary, trend: Sequence[Line]) -> str:
    """The whole page; the last line of the trend is this run's own."""
    figures = summary.figures or Figures()
    parts = [
        tiles(figures, trend),
        sections.faults(summary, figures),
        sections.flow(figures),
        two(sections.attempts(figures), sections.deaths(summary, figures)),
        sections.causes(figures),
        two(sections.queues(figures), sections.work(figures)),
        two(sections.verdicts(summary), sections.runs(trend)),
    ]
    template = Template((files(__package__) / "report.html").read_text(encoding="utf-8"))
    return template.substitute(
        title=f"The books {'balance' if summary.balanced else 'do not balance'} · {moment(summary.as_of_ms)} UTC",
        state="balanced" if summary.balanced else "unbalanced",
        as_of=moment(summary.as_of_ms),
        as_of_iso=moment(summary.as_of_ms, "%Y-%m-%dT%H:%M:%SZ"),
        headline=f"The books {'<em>balance</em>' if summary.balanced else '<em>do not balance</em>'}.",
        lead=_lead(summary),
        earlier=_earlier(summary),
        sections="\n".join(each for each in parts if each),
        footer=_footer(summary),
    )


def _lead(summary: Summary) -> str:
    """By how much it does not balance, in two sentences."""
    wrong = {name: summary.verdicts[name] for name in DISCREPANCIES if summary.verdicts[name]}
    lives, open_lives = summary.lives, summary.verdicts["in_flight"]
    if not wrong and not summary.gaps:
        waiting = f", but for {counted(open_lives, 'that is', 'that are')} still in flight" if open_lives else ""
        return f"Each of {counted(lives, 'life', 'lives')} was opened once and ended once{waiting}."
    parts = []
    if wrong:
        kinds = ", ".join(
            f"{many:,} {sections.named(name)}{'s' if many > 1 and name.endswith('letter') else ''}"
            for name, many in sorted(wrong.items(), key=lambda each: -each[1])
        )
        total = sum(wrong.values())
        are = "is" if total == 1 else "are"
        parts.append(f"{total:,} of {counted(lives, 'life', 'lives')} ({share(total, lives)}) {are} wrong: {kinds}.")
    if summary.gaps:
        missing = sum(int(gap["count"]) for gap in summary.gaps if str(gap.get("count", "")).isdigit())
        events = f" of {counted(missing, 'event', 'events')}" if missing else ""
        parts.append(
            f"The outcome log has {counted(len(summary.gaps), 'gap', 'gaps')}{events}: what was in it cannot be accounted for."
        )
    return " ".join(parts)


def _earlier(summary: Summary) -> str:
    """What earlier runs had said, and is said no more or not again."""
    parts = []
    if summary.corrections:
        parts.append(f"{counted(summary.corrections, 'life', 'lives')} of closed books are judged anew, as corrections.")
    standing = sum(summary.standing.values())
    if standing:
        parts.append(f"{counted(standing, 'discrepancy', 'discrepancies')} reported before still stand, and are not counted again.")
    return f'<p class="note">{" ".join(parts)}</p>' if parts else ""


def _footer(summary: Summary) -> str:
    return (
        f"{counted(summary.events, 'event', 'events')} of {counted(summary.lives, 'life', 'lives')}, "
        f"{count(summary.unannounced)} of them recorded by no producer. A life is one generation of one task on one queue. "
        f"Open lives count from {duration(summary.grace_ms)} on. Percentiles are right to within 0.25 %. All times are UTC."
    )
