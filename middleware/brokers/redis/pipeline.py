"""The pipeline: sends transitions to the broker, and reads their answers later.

In a worker with a process pool, the main process sends a transition and goes on with the next task. Its event loop reads the
answers, in the order of the transitions. A message stays held until its answer has come. If a transition cannot be sent, is
interrupted by a signal handler, gets an error or no answer, it goes to the outbox as if it had not been sent: the scripts recognise
a repeated call.

Limits: only the event loop's thread sends, while the loop runs. Other threads wait for each answer, and with `wait_replicas` all
threads do. A worker that runs tasks in its main process waits, too: otherwise it would see an error only after the next task.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from redis.exceptions import ConnectionError as BrokerGone
from redis.exceptions import RedisError, ResponseError

from ...logs import log
from ...ports import Answer
from ...transitions.outbox import call_back
from .scripts import packed
from .transport import SOCKET_TIMEOUT, RedisTransport

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...transitions.outbox import Then
    from .scripts import Script

    Transition = Callable[[RedisTransport], Answer]


@dataclass(slots=True, eq=False)
class Asked:
    """A transition that was sent to the broker, and when (monotonic seconds)."""

    tag: str
    transition: Transition
    then: Then
    at: float


class UnderWay:
    """The transitions that have no answer yet, on their own connection. `wait_for` is `Outbox.carry_out`."""

    def __init__(self, transport: RedisTransport, hub: Any, wait_for: Callable[..., None]) -> None:
        self._transport, self._hub, self._wait_for = transport, hub, wait_for
        self._pool = transport.client.connection_pool
        self._timeout = float(self._pool.connection_kwargs.get("socket_timeout") or SOCKET_TIMEOUT)
        self._asking = Asking(transport, self._send)
        self._asked: deque[Asked] = deque()
        self._next: Asked | None = None
        self._connection: Any = None
        self._file = -1
        #: A command is being sent, or an answer read. A call that finds this set has interrupted that, so that the order of answers
        #: on the connection is unknown.
        self._is_busy = False
        self._is_watched = False
        self._loop_thread = _this_thread()

    def __len__(self) -> int:
        return len(self._asked)

    def tags(self) -> set[str]:
        return {each.tag for each in list(self._asked)}

    def is_here(self) -> bool:
        return self._loop_thread == _this_thread()

    def begin(self, tag: str, transition: Transition, then: Then) -> None:
        self._check_interrupted()
        asked = self._next = Asked(tag, transition, then, time.monotonic())
        self._is_busy = True
        try:
            transition(self._asking)
        except Exception as exc:  # noqa: BLE001 - the outbox handles any error
            if self._asked and self._asked[-1] is asked:
                self._give_up(exc)
            else:  # nothing was sent
                self._repeat(asked)
        self._is_busy = False

    def settle(self) -> None:
        """Wait for every answer, and give the connection back."""
        self._check_interrupted()
        while self._asked:
            self._read()
        self._disconnect()

    def _send(self, script: Script, keys: list[str], args: list[Any]) -> None:
        command = packed(script.sha, keys, args)
        if self._connection is None:
            self._connect()
        assert self._next is not None  # noqa: S101 - `begin` has set it
        self._asked.append(self._next)
        self._connection.send_packed_command([command], check_health=False)  # the check's PING would take another answer
        self._watch()

    def _connect(self) -> None:
        connection: Any = self._pool.get_connection()
        try:
            file = connection._sock.fileno()  # noqa: SLF001 - redis-py has no public name for it
            self._hub.add_reader(file, self._read)
        except BaseException:  # nothing would read the answers
            self._pool.release(connection)
            raise
        self._connection, self._file = connection, file

    def _read(self) -> None:
        """Read the answers that have come, and wait for the first. If none is due, the broker has ended the connection."""
        self._check_interrupted()
        self._is_busy = True
        answered, failed = self._answers()
        if failed is None:
            self._is_busy = False
        else:
            self._give_up(failed)
        for asked, answer in answered:
            self._call_back(asked, answer)

    def _answers(self) -> tuple[list[tuple[Asked, Any]], Exception | None]:
        answered: list[tuple[Asked, Any]] = []
        try:
            while self._asked:
                try:
                    answer = self._connection.read_response()
                except ResponseError as exc:
                    answer = exc
                answered.append((self._asked.popleft(), answer))
                if not self._asked or not self._connection.can_read(0):
                    return answered, None
        except (RedisError, OSError) as exc:
            return answered, exc
        return answered, BrokerGone("the broker has ended the connection")

    def _call_back(self, asked: Asked, answer: Any) -> None:
        if isinstance(answer, Exception):  # the transition has changed nothing
            self._repeat(asked)
        else:
            call_back(asked.then, self._transport.answered(answer), asked.tag)

    def _watch(self) -> None:
        if not self._is_watched:
            self._is_watched = True
            self._hub.call_later(self._timeout, self._check_overdue)

    def _check_overdue(self) -> None:
        self._is_watched = False
        if not self._asked:
            return
        if self._asked[0].at + self._timeout > time.monotonic():
            self._watch()
        elif self._has_answer():  # the loop was blocked
            self._read()
        else:
            self._give_up(TimeoutError(f"no answer in {self._timeout:g} s"))

    def _has_answer(self) -> bool:
        try:
            return bool(self._connection.can_read(0))
        except (RedisError, OSError):
            return False

    def _check_interrupted(self) -> None:
        if self._is_busy:
            self._give_up(InterruptedError("a signal came in between"))

    def _give_up(self, why: Exception) -> None:
        """Drop the connection, and carry out the unanswered transitions, in order, by calls that wait."""
        self._disconnect()
        if self._asked:
            log.info("transition.repeated", count=len(self._asked), error=f"{type(why).__name__}: {why}")
        while self._asked:
            self._repeat(self._asked.popleft())

    def _repeat(self, asked: Asked) -> None:
        tag, then = asked.tag, asked.then
        self._wait_for(tag, partial(asked.transition, self._transport), lambda answer: call_back(then, answer, tag))

    def _disconnect(self) -> None:
        connection, self._connection, self._is_busy = self._connection, None, False
        if connection is not None:
            self._hub.remove(self._file)
            connection.disconnect()
            self._pool.release(connection)


class Asking(RedisTransport):
    """A transport whose transitions are only sent."""

    def __init__(self, transport: RedisTransport, send: Callable[[Script, list[str], list[Any]], None]) -> None:
        super().__init__(transport.client, transport.keys)
        self._transport, self._send = transport, send

    def _place_of(self, tag: str) -> tuple[tuple[str, ...], str]:
        return self._transport._place_of(tag)  # noqa: SLF001 - of the same class

    def _ask(self, script: Script, keys: list[str], args: list[Any]) -> Answer:
        self._send(script, keys, args)
        return Answer.ASKED


def _this_thread() -> tuple[int, int]:
    return os.getpid(), threading.get_ident()
