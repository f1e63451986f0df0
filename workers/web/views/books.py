"""Books: the result of the last run of the job, the trend, and each wrong life with its evidence."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..asked import Shown

if TYPE_CHECKING:
    from ..asked import Asked

#: Lives of one screen.
PAGE = 50


def books(asked: Asked) -> Shown:
    """Show the last report."""
    if asked.desk.books is None:
        return Shown("books.html", {"report": None})
    from ...reconciliation.outputs.pages import page_of  # noqa: PLC0415 - pyarrow is an optional dependency
    from ...reconciliation.outputs.written import written  # noqa: PLC0415 - as above
    from ...reconciliation.rules import DISCREPANCIES  # noqa: PLC0415 - as above

    report, after = written(asked.desk.books), asked.number("after", 0) or 0
    verdict = asked.first("verdict")
    chosen = (verdict,) if verdict in report.summary["verdicts"] else tuple(DISCREPANCIES)
    asked.head_first()
    lives = page_of(asked.desk.books, verdicts=chosen, limit=PAGE, after=after, with_history=True)
    return Shown(
        "books.html",
        {"report": report, "lives": lives, "verdict": verdict, "discrepancies": DISCREPANCIES, "trend": report.trend},
    )
