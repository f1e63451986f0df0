"""A batch on Redis: one script publishes and records all its messages, or none, and does so once.

The script gets a token and a number, which the server remembers for `REMEMBERED`: if the answer is lost and the batch is repeated,
nothing is published twice. Batches reuse tokens, so that a process leaves only one key for each publishing thread.

Values that most events of a batch share (task, queue, parent) are sent once, as a form. If a queue with a `max_length` has no room
for all messages, the script changes nothing, and the messages are published one by one.
"""

from __future__ import annotations

import os
import uuid
from typing import TYPE_CHECKING, Any

from ..scripts import Script, text_of
from .bounds import text_and_gaps

if TYPE_CHECKING:
    from collections.abc import Callable

    from redis import Redis

    from ....messages.events import Event
    from ....messages.publication import Batch
    from ....policy.resolver import Bounds
    from ..keys import Keys

#: Milliseconds that a batch is remembered: longer than any producer retries.
REMEMBERED = 600_000


class Stamps:
    """The tokens of this process, each with the number of its last batch; a forked child has its own."""

    def __init__(self) -> None:
        self._pid = 0
        self._free: list[tuple[str, int]] = []

    def take(self) -> tuple[str, int]:
        if self._pid != os.getpid():
            self._pid, self._free = os.getpid(), []
        try:
            token, number = self._free.pop()
        except IndexError:
            token, number = uuid.uuid4().hex, 0
        return token, number + 1

    def give_back(self, stamp: tuple[str, int]) -> None:
        self._free.append(stamp)


class Gathering:
    """Collects messages as the arguments of one call of the script."""

    def __init__(self, keys: Keys) -> None:
        self._keys = keys
        self._names: dict[str, int] = {}
        self._forms: dict[tuple[str, ...], int] = {}
        self._rules: dict[str, tuple[int | None, Any]] = {}
        self._adds: dict[str, int] = {}
        self._messages: list[Any] = []

    def __len__(self) -> int:
        return len(self._messages) // 5

    def add(
        self, message: dict[str, Any], event: Event, queue: str, *, list_name: str, bounds: Bounds | None, expires: Any
    ) -> None:
        most = None if bounds is None else bounds.max_length
        if most is not None or expires != "":
            self._rules.setdefault(queue, (most, expires))
        self._adds[queue] = self._adds.get(queue, 0) + 1
        text, gaps = text_and_gaps(message, bounds)
        task_id, *rest = event.to_entry()
        form = self._forms.setdefault(tuple(rest), len(self._forms) + 1)
        self._messages += (self._place(list_name), form, task_id, gaps, text)

    def _place(self, list_name: str) -> int:
        """The index of a list among the script's keys."""
        return self._names.setdefault(list_name, len(self._names) + 3)

    def send(self, client: Redis, batch: Batch) -> Callable[[], bool]:
        """Send all. The returned function waits for the answer (False: a queue has no room). Both raise what redis-py raises."""
        if batch.stamp is None:
            batch.stamp = _STAMPS.take()
        token, number = batch.stamp
        rules = [self._rule(queue, most, expires) for queue, (most, expires) in self._rules.items()]
        forms = [value.encode("utf-8", "replace") for form in self._forms for value in form]
        names = [self._keys.outcomes, self._keys.published(token), *map(self._keys.list, self._names)]
        args = [number, REMEMBERED, len(self._forms), len(rules), *forms, *rules, *self._messages]
        answer = _PUBLISH_BATCH.begin(client, names, args)

        def are_published() -> bool:
            text = text_of(answer())
            _STAMPS.give_back((token, number))
            batch.stamp = None
            return text != "full"

        return are_published

    def _rule(self, queue: str, most: int | None, expires: Any) -> str:
        lists = " ".join(str(self._place(name)) for name in self._keys.list_names(queue))
        return f"{'' if most is None else most},{expires},{self._adds[queue]},{lists}"


_PUBLISH_BATCH = Script("publish_batch", answers_last=True)
_STAMPS = Stamps()
