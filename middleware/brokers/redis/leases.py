"""The leases of owners on Redis, and the messages that each owner holds."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...ports import Held
from .keys import split_unacked
from .scripts import Script, text_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from redis import Redis

    from .keys import Keys

#: The most tags in one call of a script.
PAGE = 500

_REGISTER = Script("register")
_RENEW = Script("renew")
_FENCE = Script("fence")
_UNREGISTER = Script("unregister")
_EXTEND = Script("extend")
_LEAD = Script("lead")
_RESIGN = Script("resign")


@dataclass(frozen=True, slots=True)
class Renewal:
    """The answer to a renewal. `leases`: the number of all leases. `watches`: this owner is one of the two that watch all leases.

    `recovering`: an owner was fenced, and its messages are not all given back yet. `no_dispatcher`: no dispatcher leads.
    `no_operator`: there are open operations, and no process carries them out.
    """

    leases: int
    watches: bool
    recovering: bool
    no_dispatcher: bool
    no_operator: bool


class Leases:
    """The leases of owners, and the leads: roles that one process at a time has for all."""

    def __init__(self, client: Redis, keys: Keys) -> None:
        self.client, self.keys = client, keys

    def register(self, token: str, about: dict[str, Any], *, lost: str = "") -> None:
        """Open a lease for a new owner. `lost` is its earlier token, whose messages are recovered."""
        keys = self.keys
        _REGISTER(self.client, [keys.leases, keys.owners, keys.recovering], [token, json.dumps(about), lost])

    def renew(self, token: str, watch_seconds: float = 0.0) -> Renewal | None:
        """Renew a lease; None if the owner is fenced. With `watch_seconds` the owner offers to watch all leases for that time."""
        keys = self.keys
        asked = keys.recovering, keys.dispatcher, keys.open_operations, keys.operator
        names = [keys.leases, keys.lease_watcher, keys.second_lease_watcher, *asked]
        alive, *answer = _RENEW(self.client, names, [token, int(watch_seconds * 1000)])
        return Renewal(answer[0], *map(bool, answer[1:])) if alive else None

    def fence(self, token: str, counter: bytes) -> bool:
        """End the lease if its counter still has this value; return whether it did."""
        return int(_FENCE(self.client, [self.keys.leases, self.keys.recovering], [token, counter])) > 0

    def unregister(self, token: str) -> None:
        keys = self.keys
        _UNREGISTER(self.client, [keys.leases, keys.owners, keys.received(token), keys.recovering], [token])

    def held_by(self, token: str) -> Iterator[Held]:
        """The messages that an owner holds, in any order, some perhaps twice. It does not block the server."""
        for tag, value in self.client.hscan_iter(self.keys.unacked, match=f"{token}:*", count=1000):
            raw, queue = split_unacked(value)
            yield Held(text_of(tag), queue, self.keys.list_name(queue, priority_of(raw)), raw, 0)

    def started(self, tags: Sequence[str]) -> list[str | None]:
        """The recorded start of each tag: `ACCEPTED`, the time (milliseconds), or None."""
        values: Any = self.client.hmget(self.keys.starts, list(tags)) if tags else []
        return [None if value is None else text_of(value) for value in values]

    def extend(self, tags: Iterable[str], seconds: float) -> None:
        """Keep plain workers from restoring these tags' messages for this long, by the server's clock."""
        listed = list(tags)
        for at in range(0, len(listed), PAGE):
            _EXTEND(self.client, [self.keys.unacked_index], [seconds, *listed[at : at + PAGE]])

    def lead(self, role: str, token: str, seconds: float) -> bool:
        """Take or keep the lead for this long; return whether this token leads. `role` is the role's key."""
        return int(_LEAD(self.client, [role], [token, int(seconds * 1000)])) > 0

    def resign(self, role: str, token: str) -> None:
        _RESIGN(self.client, [role], [token])


def priority_of(raw: bytes) -> int:
    """The priority that a message was published with; 0 if it has none, or the bytes are not a message."""
    try:
        return int(json.loads(raw)["properties"]["priority"])  # as kombu reads it
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return 0
