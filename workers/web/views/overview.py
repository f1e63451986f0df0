"""Overview: alarms, rates of the last hour, what waits and is overdue, the oldest dead letter, workers, and the books."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...operations.letters import dead_letters
from ...operations.metrics.rates import KINDS
from ...operations.words.numbers import counted
from ..screen import Screen
from ..shared.figures import alarms, live

if TYPE_CHECKING:
    from ..screen import Visit
    from ..shared.books_result import BooksResult


def overview(visit: Visit) -> Screen:
    """Show the first screen."""
    figures = visit.services.sampler.figures()
    queues = dead_letters.summaries(visit.runtime)
    waiting, delayed = figures.by("queue_messages", "queue"), figures.by("delayed_messages", "queue")
    rows = [
        {"queue": name, "waiting": waiting.get(name, 0), "delayed": delayed.get(name, 0), "letters": _letters(queues, name)}
        for name in sorted({*waiting, *(each for each in delayed if each)})
    ]
    books = visit.services.books_reader.newest()
    return Screen(
        "overview.html",
        {
            "figures": figures,
            "alarms": alarms(figures),
            "of_books": _of_books(books),
            "live": live(figures),
            "kinds": list(KINDS),
            "queues": sorted((each for each in queues if each.letters), key=lambda each: -each.letters),
            "rows": rows,
            "books": books,
        },
    )


def _of_books(books: BooksResult | None) -> list[tuple[str, str]]:
    if books is None or books.is_balanced or books.why:
        return []
    what = f"The books do not balance: {counted(books.wrong, 'life is', 'lives are')} wrong."
    return [(what, "The screen Books has each, with its evidence.")]


def _letters(queues: Any, origin: str) -> int:
    return sum(each.letters for each in queues if each.origin == origin)
