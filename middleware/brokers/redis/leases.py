"""The leases of the owners on Redis, and the messages that each owner holds."""

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

#: Tags that go in one script.
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
    """A lease was renewed. `leases`: how many there are. `watches`: its owner is one of the two that watch all leases.

    `recovering`: an owner was fenced, and its messages are not given back yet. `no_dispatcher`: no dispatcher leads. `no_operator`:
    there are open operations, and no process carries them out.
    """

    leases: int
    watches: bool
    recovering: bool
    no_dispatcher: bool
    no_operator: bool


class Leases:
    """The leases of the owners, and the leads: the roles that one process has for all."""

    def __init__(self, client: Redis, keys: Keys) -> None:
        self.client, self.keys = client, keys

    def register(self, token: str, about: dict[str, Any], *, lost: str = "") -> None:
        """Open a lease for a new owner. `lost` is the token that it had before: what that one held is recovered."""
        keys = self.keys
        _REGISTER(self.client, [keys.leases, keys.owners, keys.recovering], [token, json.dumps(about), lost])

    def renew(self, token: str, watch_seconds: float = 0.0) -> Renewal | None:
        """Renew a lease; None if it is gone, because the owner is fenced.

        With `watch_seconds` the owner offers to watch the other owners' leases for so long. Two owners watch at a time.
        """
        keys = self.keys
        asked = keys.recovering, keys.dispatcher, keys.open_operations, keys.operator
        names = [keys.leases, keys.lease_watcher, keys.second_lease_watcher, *asked]
        alive, *answer = _RENEW(self.client, names, [token, int(watch_seconds * 1000)])
        return Renewal(answer[0], *map(bool, answer[1:])) if alive else None

    def fence(self, token: str, counter: bytes) -> bool:
        """End a lease whose counter did not move; False if it moved after all."""
        return int(_FENCE(self.client, [self.keys.leases, self.keys.recovering], [token, counter])) > 0

    def unregister(self, token: str) -> None:
        """Forget an owner that no longer holds messages."""
        keys = self.keys
        _UNREGISTER(self.client, [keys.leases, keys.owners, keys.received(token), keys.recovering], [token])

    def held_by(self, token: str) -> Iterator[Held]:
        """The messages that an owner holds, in no order, some perhaps twice; without blocking the server."""
        for tag, value in self.client.hscan_iter(self.keys.unacked, match=f"{token}:*", count=1000):
            raw, queue = split_unacked(value)
            yield Held(text_of(tag), queue, self.keys.list_name(queue, priority_of(raw)), raw, 0)

    def started(self, tags: Sequence[str]) -> list[str | None]:
        """How each of these tags was recorded as started: `ACCEPTED`, or when (milliseconds), or not at all."""
        values: Any = self.client.hmget(self.keys.starts, list(tags)) if tags else []
        return [None if value is None else text_of(value) for value in values]

    def extend(self, tags: Iterable[str], seconds: float) -> None:
        """Keep plain workers' sweeps away from these tags for this long, by the server's clock."""
        listed = list(tags)
        for at in range(0, len(listed), PAGE):
            _EXTEND(self.client, [self.keys.unacked_index], [seconds, *listed[at : at + PAGE]])

    def lead(self, role: str, token: str, seconds: float) -> bool:
        """Take or keep the lead in this role (its key) for this long; return whether this token leads."""
        return int(_LEAD(self.client, [role], [token, int(seconds * 1000)])) > 0

    def resign(self, role: str, token: str) -> None:
        """Give up the lead in this role (its key); nothing happens if another token leads."""
        _RESIGN(self.client, [role], [token])


def about_of(raw: bytes | None) -> dict[str, Any]:
    """What an owner has registered about itself; empty if there is nothing, or redelivery did not write it."""
    try:
        read = {} if raw is None else json.loads(raw)
    except (ValueError, RecursionError):
        return {}
    return read if isinstance(read, dict) else {}


def priority_of(raw: bytes) -> int:
    """The priority that a message was published with; 0 if it has none, or these bytes are no message."""
    try:
        return int(json.loads(raw)["properties"]["priority"])  # as kombu reads it
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return 0
