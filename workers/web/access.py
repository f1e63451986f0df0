"""The user of a request, and the user's rights for each action and queue.

A page knows its users in one way: by a token (`TokenLogin`), by the login of the application around it (`HostLogin`), or by a
header that a proxy sets (`ProxyLogin`). Nothing is changed without a user.
"""

from __future__ import annotations

import fnmatch
import hashlib
import hmac
import inspect
import ipaddress
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from anyio.to_thread import run_sync

from redelivery.errors import ConfigurationError
from redelivery.settings.values import suggestion

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from starlette.requests import Request

#: The actions that may be allowed; `all` means all of them.
ACTIONS = ("redrive", "edit", "move", "purge", "cancel", "promote", "reschedule", "look")
#: The maximum number of characters of a user's name.
MAX_NAME = 120
#: Actions for all queues; or for each action the queues, by shell patterns.
Allowed = Collection[str] | Mapping[str, Collection[str]]


def allowed(given: Allowed) -> Mapping[str, tuple[str, ...]]:
    """Return the queues of each action, as shell patterns. Raises `ConfigurationError` for an unknown action."""
    if isinstance(given, str):
        given = [each.strip() for each in given.split(",") if each.strip()]
    pairs = given.items() if isinstance(given, Mapping) else [(each, ("*",)) for each in given]
    found: dict[str, tuple[str, ...]] = {}
    for action, queues in pairs:
        if action != "all" and action not in ACTIONS:
            others = suggestion(action, ACTIONS) or f"; actions are: {', '.join(ACTIONS)}, or all"
            msg = f"the page has no action {action!r}{others}"
            raise ConfigurationError(msg)
        for each in ACTIONS if action == "all" else (action,):
            found[each] = (*found.get(each, ()), *([queues] if isinstance(queues, str) else queues))
    return found


@dataclass(frozen=True, slots=True)
class User:
    """The user of a request: a name for the audit, and the actions that the user may do if the page allows them.

    `allow` names actions (`ACTIONS`, or `all`), or maps each action to its queues: names or shell patterns. `look` reads a
    dead-letter queue of RabbitMQ, which marks its dead letters.
    """

    name: str
    allow: Allowed = ()
    _rights: Mapping[str, tuple[str, ...]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_rights", allowed(self.allow))

    @property
    def actions(self) -> Collection[str]:
        """The actions that this user may do for at least one queue."""
        return self._rights.keys()

    def may(self, action: str, queues: Iterable[str] = ()) -> bool:
        """Whether the user may do this for one of these queues; without queues, for any queue."""
        patterns = self._rights.get(action, ())
        names = list(queues)
        return any(fnmatch.fnmatchcase(name, pattern) for name in names for pattern in patterns) if names else bool(patterns)


class Login(Protocol):
    """Finds the user of a request."""

    async def user(self, request: Request) -> User | None:
        """Return the user of a request; None without a login."""
        ...


class TokenLogin:
    """The one user who has the token that was printed when the page was started.

    The cookie has a value that is derived from the token: a stolen cookie does not reveal the token.
    """

    cookie = "redelivery_session"

    def __init__(self, token: str, user: User) -> None:
        self._token, self._user = token.encode(), user
        self.session = hmac.new(self._token, b"redelivery session", hashlib.sha256).hexdigest()

    def accepts(self, token: str) -> bool:
        """Whether this is the token."""
        return hmac.compare_digest(token.encode("utf-8", "replace"), self._token)

    async def user(self, request: Request) -> User | None:
        """Check the token in a header (`Authorization: Bearer …`), or the cookie."""
        kind, _, given = request.headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer" and self.accepts(given.strip()):
            return self._user
        session = request.cookies.get(self.cookie, "")
        return self._user if hmac.compare_digest(session.encode("utf-8", "replace"), self.session.encode()) else None


class HostLogin:
    """The login of the application in which the page is mounted: its function returns the user of a request, or None."""

    def __init__(self, find: Callable[[Request], User | Awaitable[User | None] | None]) -> None:
        self._find = find

    async def user(self, request: Request) -> User | None:
        """Call the application's function. A plain function runs in a thread, so that it may use a database."""
        if inspect.iscoroutinefunction(self._find):
            found = await self._find(request)
        else:
            found = await run_sync(self._find, request)
            if inspect.isawaitable(found):
                found = await found
        if found is not None and not isinstance(found, User):
            msg = f"user= gave {type(found).__name__}: it must give redelivery.web.User, or None for nobody"
            raise ConfigurationError(msg)
        return found if found is not None and found.name else None


class ProxyLogin:
    """A header in which a proxy names the user. Only requests from the proxy's addresses are accepted."""

    def __init__(self, header: str, addresses: Collection[str], allow: Allowed) -> None:
        self._header, self._allow = header, allow
        try:
            self._networks = [ipaddress.ip_network(each, strict=False) for each in addresses]
        except ValueError as exc:
            msg = f"{exc}: name the proxy's address as 10.0.0.5 or 10.0.0.0/24"
            raise ConfigurationError(msg) from exc
        if not self._networks:
            msg = f"anybody who reaches the page could send {header!r}: name the proxy's address with --trusted-address"
            raise ConfigurationError(msg)

    async def user(self, request: Request) -> User | None:
        """Read the header, if the request comes from the proxy."""
        if request.client is None:
            return None
        try:
            address = ipaddress.ip_address(request.client.host)
        except ValueError:
            return None
        given = request.headers.getlist(self._header)
        if len(given) != 1 or not given[0].strip() or not any(address in each for each in self._networks):
            return None
        return User(given[0].strip()[:MAX_NAME], self._allow)
