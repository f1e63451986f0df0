"""A request as a screen gets it (`Visit`), and the answer of a screen: a template (`Screen`), or the next address (`Redirect`)."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

from redelivery.display import harmless
from redelivery.errors import InputError

from .guard import Refused
from .shared.books_result import BooksReader
from .shared.looks import Looks, leaves_marks
from .shared.previews import Previews
from .shared.sampler import Sampler
from .shared.searches import Searches
from .shared.survey import Survey
from .shared.threads import Turn

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import AbstractContextManager

    from redelivery.middleware.ports import Transport
    from redelivery.middleware.runtime import Runtime

    from .access import User
    from .shared.source import Source


#: The fields that name a queue. Only links and hidden fields have them, and a name may begin or end with a space.
QUEUE_NAMES = frozenset({"queue", "name"})


class PageServices:
    """What the screens of one page share. `allows` limits the rights of all users; `books` is the folder of the books' output."""

    def __init__(self, source: Source, allows: User, books: str | None) -> None:
        self.source, self.allows, self.books = source, allows, books
        self.sampler, self.looks, self.searches = Sampler(source), Looks(), Searches()
        counting = Searches()
        self.survey, self.previews = Survey(source, counting), Previews(counting)
        self.books_reader = BooksReader(books)


@dataclass(frozen=True, slots=True)
class Screen:
    """A screen to show: its template, the template's values, and the HTTP status."""

    template: str
    values: Mapping[str, Any]
    status: int = 200


@dataclass(frozen=True, slots=True)
class Redirect:
    """A redirect to another address of the page."""

    path: str
    query: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Visit:
    """One request. `form` is empty if the request posts none.

    `searches` is called when a search begins: the head of the screen may then be sent.
    """

    services: PageServices
    user: User
    root: str
    path: str
    query: Mapping[str, list[str]]
    form: Mapping[str, list[str]] = field(default_factory=dict)
    turn: Turn = field(default_factory=Turn)
    searches: Callable[[], None] = lambda: None

    @property
    def runtime(self) -> Runtime:
        """The app's runtime."""
        return self.services.source.runtime

    @property
    def transport(self) -> Transport:
        """The transitions on the app's broker. Raises `BrokerError`."""
        return self.services.source.transport

    def head_first(self, *, is_reached: bool = True) -> None:
        """Allow the head of the screen to be sent. A screen must call this before a search that may take long.

        If the broker was not reached yet, it is asked for its time first: the HTTP status can still report an error.
        """
        if not is_reached:
            self.transport.now_ms()
        self.searches()

    def search(self) -> AbstractContextManager[None]:
        """One search, which waits for the earlier searches of this page. Raises `Refused` if it waits too long."""
        return self.services.searches.one(self.turn)

    def screen(self) -> AbstractContextManager[None]:
        """A whole screen. On RabbitMQ, where reading is expensive, it is a search. Raises as `search`."""
        return self.search() if leaves_marks(self.transport) and not self.form else nullcontext()

    def first(self, name: str) -> str:
        """The first value of this name in the form, or in the address; empty if there is none."""
        return next(iter(self._given(name)), "")

    def many(self, name: str) -> tuple[str, ...]:
        """All non-empty values of this name."""
        return tuple(each for each in self._given(name) if each)

    def _given(self, name: str) -> list[str]:
        found = self.form[name] if name in self.form else self.query.get(name, [])
        return found if name in QUEUE_NAMES else [each.strip() for each in found]

    def number(self, name: str, otherwise: int | None = None) -> int | None:
        """The first value as a number. Raises `InputError`."""
        given = self.first(name)
        return _number(name, given) if given else otherwise

    def numbers(self, name: str) -> list[int]:
        """All values as numbers. Raises `InputError`."""
        return [_number(name, each) for each in self.many(name)]

    def href(self, path: str, /, **query: Any) -> str:
        """The address of a screen of this page, without empty values."""
        pairs = [(name.rstrip("_").replace("_", "-"), value) for name, value in query.items() if value not in (None, "", ())]
        encoded = urlencode(pairs, doseq=True)
        return f"{quote(self.root)}{path}{'?' if encoded else ''}{encoded}"

    @property
    def again(self) -> dict[str, Any]:
        """The query of this address, for a link that repeats the request."""
        query = {} if self.form else self.query
        return {name.replace("-", "_"): values for name, values in query.items() if name.isidentifier() or "-" in name}

    def acting(self) -> str:
        """Return the user's name. Call it right before a change. Raises `Refused` if the page has already answered "too late"."""
        self.turn.begin()
        return self.user.name

    def may(self, action: str, *queues: str) -> bool:
        """Whether the page allows this, and its user may do it."""
        return self.services.allows.may(action, queues) and self.user.may(action, queues)

    def require(self, action: str, *queues: str) -> None:
        """Raise `Refused` if `may` is False."""
        if not self.may(action, *queues):
            where = f" for {harmless(queues[0]) or 'every queue'}" if queues else ""
            if not self.services.allows.may(action, queues):
                raise Refused(
                    403, f"This page may not {action}{where}: it is started with --allow {action}, or mounted with allow=…"
                )
            raise Refused(403, f"{harmless(self.user.name)} may not {action}{where}: the login of this page gives no such right")


def _number(name: str, given: str) -> int:
    if not given.isascii() or not given.isdecimal() or len(given) > 18:  # noqa: PLR2004 - fits into 64 bits
        msg = f"{name} = {given!r} is not a number"
        raise InputError(msg)
    return int(given)
