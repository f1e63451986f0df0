"""The transitions on Redis of messages that no worker holds: delayed messages and dead letters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from redelivery.errors import BrokerError

from ...logs import log
from .keys import SEPARATOR
from .scripts import Script, answer_of, encoded, text_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from redis import Redis

    from ...messages.events import Event
    from ...ports import Answer
    from .keys import Keys

#: The most delayed messages of one queue that `advance` accepts; more would block the server for too long.
MAX_ADVANCED = 10_000

_PROMOTE = Script("promote")
_ADVANCE = Script("advance")
_CANCEL = Script("cancel")
_REDRIVE = Script("redrive")
_PURGE = Script("purge")
_MOVE = Script("move")
_RESCHEDULE = Script("reschedule")
_HAND_BACK = Script("hand_back")


class Under(NamedTuple):
    """The operation that moves messages: its key, the key of the lives that it follows (or None), and the token it must have."""

    operation: str
    followed: str | None
    token: str

    @property
    def names(self) -> tuple[str, ...]:
        return (self.operation,) if self.followed is None else (self.operation, self.followed)

    def values(self, target: str, event: Event | None = None) -> tuple[str | bytes, ...]:
        """The arguments to append to a script's own. `target` is where the message goes; `event` begins its next life."""
        life = b"" if event is None else life_text((event.task_id, event.generation, event.queue))
        return self.token, target.encode("utf-8", "replace"), life


def life_text(life: tuple[str, int, str]) -> bytes:
    """One life (task id, generation, queue) as a script's argument."""
    task_id, generation, queue = life
    return f"{generation}{SEPARATOR}{queue}{SEPARATOR}{task_id}".encode("utf-8", "replace")


class Stores:
    """The transitions of delayed messages and dead letters.

    `under` is the operation that makes a transition; the answer is `REFUSED` if it may not go on.
    """

    def __init__(self, client: Redis, keys: Keys) -> None:
        self.client, self.keys = client, keys

    def promote(self, limit: int) -> tuple[int, int, float | None]:
        """Move the delayed messages that are due, at most `limit` for each list.

        Returns how many moved, how many ids had no message, and the seconds until the next is due (None: no message waits).
        """
        lists = [text_of(name) for name in self.client.zrange(self.keys.destinations, 0, -1)]
        if not lists:
            return 0, 0, None
        names = [name for each in lists for name in (self.keys.due(each), self.keys.waiting(each), self.keys.list(each))]
        keys = [self.keys.destinations, self.keys.delayed_tasks, *names]
        moved, missing, next_ms, error = _PROMOTE(self.client, keys, [limit, SEPARATOR, *lists])
        if error:
            log.error("delayed.refused", error=text_of(error), why="its messages wait: repair or remove that list")
        return int(moved), int(missing), None if int(next_ms) < 0 else int(next_ms) / 1000

    def cancel(self, list_name: str, ident: str, event: Event, under: Under | None = None) -> Answer:
        """Remove a message from the delay store for good; `ALREADY` if it no longer waits there. `ident` is its id in the store."""
        keys = self.keys
        names = [keys.destinations, keys.delayed_tasks, keys.due(list_name), keys.waiting(list_name), keys.outcomes]
        args = [ident, SEPARATOR, list_name, *encoded(event)]
        if under is not None:
            names, args = [*names, under.operation], [*args, *under.values(event.queue)]
        return answer_of(_CANCEL(self.client, names, args))

    def advance(self, ms: int, aged: Callable[[bytes], bytes]) -> int:
        """Make delayed messages due `ms` earlier, for tests; return how many. Raises `BrokerError` if too many wait for a queue."""
        lists = [text_of(name) for name in self.client.zrange(self.keys.destinations, 0, -1)]
        names = [self.keys.destinations, *(key for each in lists for key in (self.keys.due(each), self.keys.waiting(each)))]
        older: list[Any] = []
        for number, each in enumerate(lists, 1):
            waiting: dict[Any, Any] = self.client.hgetall(self.keys.waiting(each))
            for ident, raw in waiting.items():
                older += (number, ident, aged(raw))
        moved = int(_ADVANCE(self.client, names, [ms, MAX_ADVANCED, len(lists), *lists, *older]))
        if moved < 0:
            msg = f"more than {MAX_ADVANCED} messages wait for one queue: advance is only for tests"
            raise BrokerError(msg)
        return moved

    def redrive_many(
        self, dead_letter_queue: str, moves: Sequence[tuple[bytes, str, bytes, Event]], under: Under | None = None
    ) -> list[Answer | Exception]:
        """Move dead letters back to their origins, each in a step of its own, in one round trip. Returns their answers or errors.

        A move is the stored dead letter, its origin's list, the message that goes there, and its event. `ALREADY`: the dead letter
        is no longer there.
        """
        letters, outcomes = self.keys.list(dead_letter_queue), self.keys.outcomes
        more = () if under is None else under.names
        calls = []
        for letter, list_name, message, event in moves:
            last = () if under is None else under.values(self.keys.queue_of(list_name), event)
            calls.append(((letters, self.keys.list(list_name), outcomes, *more), (letter, message, *encoded(event), *last)))
        return self._many(_REDRIVE, calls)

    def purge_many(
        self, dead_letter_queue: str, gone: Sequence[tuple[bytes, Event]], *, down_to: int | None = None, under: Under | None = None
    ) -> list[Answer | Exception]:
        """Remove dead letters for good; with `down_to`, only while the queue is longer. Returns their answers or errors."""
        names = (self.keys.list(dead_letter_queue), self.keys.outcomes, *(() if under is None else (under.operation,)))
        last: tuple[Any, ...] = () if down_to is None else (down_to,)
        last = last if under is None else under.values("")
        return self._many(_PURGE, ((names, (letter, *encoded(event), *last)) for letter, event in gone))

    def move_many(
        self,
        dead_letter_queue: str,
        target: str,
        moves: Sequence[tuple[bytes, bytes, str, tuple[Event, Event]]],
        under: Under | None = None,
    ) -> list[Answer | Exception]:
        """Move dead letters to another dead-letter queue, in one round trip. Returns their answers or errors.

        A move is the stored dead letter, the dead letter to store in `target`, its origin queue, and its two events.
        """
        keys = self.keys
        names: tuple[str, ...] = (keys.list(dead_letter_queue), keys.list(target), keys.outcomes, keys.dead_letter_queues)
        last: tuple[Any, ...] = ()
        if under is not None:
            names, last = (*names, under.operation), under.values(target)
        calls = []
        for letter, moved, queue, (left, died) in moves:
            calls.append((names, (letter, moved, target, queue, *encoded(left), *encoded(died), *last)))
        return self._many(_MOVE, calls)

    def _many(self, script: Script, calls: Iterable[tuple[Sequence[str], Sequence[Any]]]) -> list[Answer | Exception]:
        answers = script.many(self.client, calls)
        return [answer if isinstance(answer, Exception) else answer_of(answer) for answer in answers]

    def reschedule(self, list_name: str, ident: str, message: bytes, event: Event, *, due_ms: int | None) -> Answer:
        """Give a message in the delay store another due time (None: now); `ALREADY` if it no longer waits there."""
        keys = self.keys
        names = [keys.destinations, keys.due(list_name), keys.waiting(list_name), keys.outcomes]
        args = [ident, list_name, "" if due_ms is None else due_ms, message, keys.wake, *encoded(event)]
        return answer_of(_RESCHEDULE(self.client, names, args))

    def hand_back(self, list_name: str, ident: str, message: bytes) -> Answer:
        """Move a message from the delay store into its list, as `message`; `ALREADY` if it no longer waits there."""
        keys = self.keys
        names = [keys.destinations, keys.delayed_tasks, keys.due(list_name), keys.waiting(list_name), keys.list(list_name)]
        return answer_of(_HAND_BACK(self.client, names, [ident, SEPARATOR, list_name, message]))
