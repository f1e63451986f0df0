"""`dead_letters`: the dead letters of a test's app, read from the broker at each access."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, overload

from redelivery.errors import RedriveError

from ..brokers.redis.transport import redis_of
from ..operations.letters import dead_letters
from ..operations.letters.filter import Filter
from ..operations.letters.redrive.redrive import redrive

if TYPE_CHECKING:
    from redelivery.middleware.brokers.redis.broker import RedisBroker

    from .. import letters as contents
    from .worker import RunningWorker

#: The most dead letters of one queue that a test sees.
LIMIT = 10_000


@dataclass(frozen=True, kw_only=True)
class Letter:
    """One dead letter.

    `reason` is why it died (`redelivery.Reason`), `attempts` how many deliveries counted in this `generation`. `exception` is the
    type's name (built-ins bare, others dotted), `message` its message, `traceback` its text. `args` and `kwargs` are None if the
    body is not JSON: nothing is ever unpickled. `died_ms` is the server's time.
    """

    task_id: str
    task: str
    reason: str
    attempts: int
    exception: str
    message: str
    args: tuple[Any, ...] | None
    kwargs: dict[str, Any] | None
    queue: str
    dead_letter_queue: str
    generation: int
    died_ms: int | None
    traceback: str = field(repr=False)
    _transport: RedisBroker = field(repr=False, compare=False)

    def redrive(self) -> None:
        """Send it back to its origin queue, as an operator does. Raises `RedriveError`."""
        done = redrive(self._transport, self.dead_letter_queue, Filter(task_ids=frozenset({self.task_id})))
        if done.moved == 0:
            reasons = ", ".join(done.left) or f"it is no longer in {self.dead_letter_queue}"
            msg = f"{self.task_id} was not redriven: {reasons}"
            raise RedriveError(msg)


class DeadLetters(Sequence[Letter]):
    """All dead letters of the app, the oldest death first."""

    def __init__(self, worker: RunningWorker) -> None:
        self._worker = worker

    @overload
    def __getitem__(self, index: int) -> Letter: ...

    @overload
    def __getitem__(self, index: slice) -> list[Letter]: ...

    def __getitem__(self, index: int | slice) -> Letter | list[Letter]:
        return self._letters()[index]

    def __len__(self) -> int:
        return len(self._letters())

    def __repr__(self) -> str:
        return repr(self._letters())

    def of(self, task_id: Any) -> list[Letter]:
        """The dead letters of one task; `task_id` is its id, or the result of `delay`."""
        return [letter for letter in self._letters() if letter.task_id == str(task_id)]

    def redrive(self, letter: Letter | None = None) -> None:
        """Send this dead letter (None: the only one) back to its origin queue. Raises `RedriveError`."""
        if letter is None:
            letters = self._letters()
            if len(letters) != 1:
                msg = f"there are {len(letters)} dead letters, not one: name the one to redrive"
                raise RedriveError(msg)
            (letter,) = letters
        letter.redrive()

    def _letters(self) -> list[Letter]:
        """Read all dead letters, when the worker has nothing more to do."""
        self._worker.settle()
        runtime = self._worker.runtime
        found = [
            _letter(letter, name, redis_of(runtime))
            for name in dead_letters.known(runtime)
            for letter in dead_letters.newest(redis_of(runtime), name, LIMIT)[::-1]
        ]
        return sorted(found, key=lambda letter: letter.died_ms or 0)


def _letter(letter: contents.Letter, name: str, transport: RedisBroker) -> Letter:
    call = letter.call()
    return Letter(
        task_id=letter.task_id,
        task=letter.task,
        reason=letter.reason,
        attempts=letter.envelope.attempt,
        exception=str(letter.failure.get("type") or ""),
        message=str(letter.failure.get("message") or ""),
        traceback=str(letter.failure.get("traceback") or ""),
        args=None if call is None else tuple(call[0]),
        kwargs=None if call is None else dict(call[1]),
        queue=letter.queue,
        dead_letter_queue=name,
        generation=letter.generation,
        died_ms=letter.died_ms,
        _transport=transport,
    )
