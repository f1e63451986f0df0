"""Books: the result of the last run of the job, the trend, and each wrong life with its evidence."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..screen import Screen

if TYPE_CHECKING:
    from ..screen import Visit

#: Lives of one screen.
PAGE = 50


def books(visit: Visit) -> Screen:
    """Show the last report."""
    if visit.services.books is None:
        return Screen("books.html", {"report": None})
    from ...reconciliation.outputs.pages import page_of  # noqa: PLC0415 - pyarrow is an optional dependency
    from ...reconciliation.outputs.written import written  # noqa: PLC0415 - as above
    from ...reconciliation.rules import DISCREPANCIES  # noqa: PLC0415 - as above

    report, after = written(visit.services.books), visit.number("after", 0) or 0
    verdict = visit.first("verdict")
    chosen = (verdict,) if verdict in report.summary["verdicts"] else tuple(DISCREPANCIES)
    visit.head_first()
    lives = page_of(visit.services.books, verdicts=chosen, limit=PAGE, after=after, with_history=True)
    return Screen(
        "books.html",
        {"report": report, "lives": lives, "verdict": verdict, "discrepancies": DISCREPANCIES, "trend": report.trend},
    )
