"""A request as a screen gets it, and the answer that a screen gives: what to show, or the next address."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

from redelivery.display import harmless
from redelivery.errors import InputError

from .guard import Refused
from .shared.asking import Turn
from .shared.last_word import LastWord
from .shared.looks import Looks, leaves_marks
from .shared.previews import Previews
from .shared.sampler import Sampler
from .shared.searches import Searches
from .shared.survey import Survey

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import AbstractContextManager

    from redelivery.middleware.ports import Transport
    from redelivery.middleware.runtime import Runtime

    from .access import User
    from .shared.source import Source


class Desk:
    """What the screens of one page share. `allows` bounds what any user may do; `books` is the folder of the books' output."""

    def __init__(self, source: Source, allows: User, books: str | None) -> None:
        self.source, self.allows, self.books = source, allows, books
        self.sampler, self.looks, self.searches = Sampler(source), Looks(), Searches()
        counting = Searches()
        self.survey, self.previews = Survey(source, counting), Previews(counting)
        self.last_word = LastWord(books)


@dataclass(frozen=True, slots=True)
class Shown:
    """A screen: its template, the template's values, and the status."""

    template: str
    values: Mapping[str, Any]
    status: int = 200


@dataclass(frozen=True, slots=True)
class Go:
    """Another address of the page, to be asked for next."""

    path: str
    query: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Asked:
    """One request, as a screen sees it. `form` is empty unless the request posts one.

    `searches` is called when a search begins: the head of the screen may be sent then.
    """

    desk: Desk
    user: User
    root: str
    path: str
    query: Mapping[str, list[str]]
    form: Mapping[str, list[str]] = field(default_factory=dict)
    turn: Turn = field(default_factory=Turn)
    searches: Callable[[], None] = lambda: None

    @property
    def runtime(self) -> Runtime:
        """The app's installation."""
        return self.desk.source.runtime

    @property
    def transport(self) -> Transport:
        """The transitions on its broker. Raises `BrokerUnavailable`, `BrokerError`."""
        return self.desk.source.transport

    def head_first(self, *, is_reached: bool = True) -> None:
        """Must be called before a screen begins a search that may take long.

        If the broker was not reached yet, it is asked for its time: if it does not answer, the status can still say so.
        Raises what the broker's driver raises.
        """
        if not is_reached:
            self.transport.now_ms()
        self.searches()

    def search(self) -> AbstractContextManager[None]:
        """One search, in its turn, after the others of this page. Raises `Refused` if it waits too long."""
        return self.desk.searches.one(self.turn)

    def screen(self) -> AbstractContextManager[None]:
        """A whole screen: if each question costs the broker much (RabbitMQ), it is a search. Raises as `search`."""
        return self.search() if leaves_marks(self.transport) and not self.form else nullcontext()

    def first(self, name: str) -> str:
        """A value of the form, or else of the address; empty if there is none."""
        return next(iter(self._given(name)), "").strip()

    def many(self, name: str) -> tuple[str, ...]:
        """All values of this name that are not empty."""
        return tuple(each.strip() for each in self._given(name) if each.strip())

    def _given(self, name: str) -> list[str]:
        return self.form[name] if name in self.form else self.query.get(name, [])

    def number(self, name: str, otherwise: int | None = None) -> int | None:
        """A number of the address. Raises `InputError`."""
        given = self.first(name)
        return _number(name, given) if given else otherwise

    def numbers(self, name: str) -> list[int]:
        """All numbers of this name. Raises `InputError`."""
        return [_number(name, each) for each in self.many(name)]

    def href(self, path: str, /, **query: Any) -> str:
        """The address of a screen of this page; what is None or empty is left out."""
        pairs = [(name.rstrip("_").replace("_", "-"), value) for name, value in query.items() if value not in (None, "", ())]
        said = urlencode(pairs, doseq=True)
        return f"{quote(self.root)}{path}{'?' if said else ''}{said}"

    @property
    def again(self) -> dict[str, Any]:
        """The query of this address, to ask for it once more."""
        return (
            {}
            if self.form
            else {name.replace("-", "_"): values for name, values in self.query.items() if name.isidentifier() or "-" in name}
        )

    def acting(self) -> str:
        """The user's name; called right before a change. Raises `Refused` if the page has answered "too late" already."""
        self.turn.begin()
        return self.user.name

    def may(self, action: str, *queues: str) -> bool:
        """Whether the page allows this, and its user may do it."""
        return self.desk.allows.may(action, queues) and self.user.may(action, queues)

    def require(self, action: str, *queues: str) -> None:
        """Raises `Refused` if `may` says no."""
        if not self.may(action, *queues):
            where = f" for {harmless(queues[0]) or 'every queue'}" if queues else ""
            if not self.desk.allows.may(action, queues):
                raise Refused(
                    403, f"This page may not {action}{where}: it is started with --allow {action}, or mounted with allow=…"
                )
            raise Refused(403, f"{harmless(self.user.name)} may not {action}{where}: the login of this page gives no such right")


def _number(name: str, given: str) -> int:
    if not given.isascii() or not given.isdecimal() or len(given) > 18:  # noqa: PLR2004 - digits that any integer of the broker holds
        msg = f"{name} = {given!r} is not a number"
        raise InputError(msg)
    return int(given)
