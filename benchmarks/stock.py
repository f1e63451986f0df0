"""Fills a broker with waiting, delayed or dead messages by the product's own transitions, many in one round trip.

A transition calls its script on a client. This client stores the calls and sends them together. Then it reads the answers, which
must all be `done`. So the broker has the same messages as by a worker, and a million of them take minutes instead of an hour.
"""

from __future__ import annotations

import time
import uuid
from typing import TYPE_CHECKING, Any

from redelivery.middleware.brokers.redis.keys import Keys, unacked_suffix
from redelivery.middleware.brokers.redis.scripts import Script
from redelivery.middleware.brokers.redis.transport import RedisTransport
from redelivery.middleware.messages.envelope import Attempt, Failed
from redelivery.middleware.messages.events import Event, Outcome
from redelivery.middleware.messages.steps import dead, sealed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from redis import Redis

__all__ = ["TASK", "Stock"]

TASK = "benchmarks.app.noop"
#: The queue from which messages are received (no worker consumes it), the owner token, and the name of the worker.
QUEUE, OWNER, WORKER = "stock", "stock", "worker@shop"
#: The number of messages in one round trip, and in one call of the receive script.
BATCH, RECEIVED = 2048, 64
TRACEBACK = "Traceback (most recent call last):\n" + '  File "shop/tasks.py", line 42, in charge\n    raise Declined(card)\n' * 6


class _Later:
    """A client for transitions that stores each encoded call, and answers `done` at once."""

    def __init__(self) -> None:
        self.calls: list[bytes] = []
        self.connection_pool = self.retry = self

    def get_connection(self) -> _Later:
        return self

    def release(self, connection: _Later) -> None:
        """Do nothing."""

    def call_with_retry(self, ask: Callable[[], Any], fail: Any) -> Any:  # noqa: ARG002 - redis-py's signature
        return ask()

    def send_packed_command(self, command: list[bytes]) -> None:
        self.calls += command

    def read_response(self) -> bytes:
        return b"done"

    def flush(self, client: Redis) -> None:
        """Send all stored calls. Raises `RuntimeError` if an answer is not `done`, and redis-py's errors."""
        connection = client.connection_pool.get_connection()
        try:
            connection.send_packed_command([b"".join(self.calls)])
            answers = [connection.read_response() for _ in self.calls]
        finally:
            client.connection_pool.release(connection)
        self.calls.clear()
        if set(answers) - {b"done"}:
            msg = f"a transition was not done: {set(answers)}"
            raise RuntimeError(msg)


class Stock:
    """Puts messages into one broker."""

    def __init__(self, client: Redis) -> None:
        self.client = client
        self.keys = Keys()
        self._later = _Later()
        self._own = RedisTransport(client, self.keys)
        self._transport = RedisTransport(self._later, self.keys)  # type: ignore[arg-type]
        self._received = 0
        for name in ("defer", "dead_letter"):
            client.script_load(Script(name).text)

    def wait(self, count: int, queue: str = QUEUE) -> None:
        """Put messages into a queue, as a plain producer does."""
        while count > 0:
            self.client.lpush(self.keys.list(queue), *(sealed(_message()) for _ in range(min(count, BATCH))))
            count -= BATCH

    def delay(self, count: int, list_name: str, seconds: float) -> None:
        """Put messages into the delay store. Ten of them are due in each millisecond."""
        base = self._own.now_ms() + round(seconds * 1000)
        for at, (tag, message) in enumerate(self._held(count)):
            event = _event(message, Outcome.DEFERRED)
            task_id = message["headers"]["id"]
            self._transport.defer(tag, list_name, sealed(message), task_id=task_id, event=event, due_ms=base + at // 10)

    def kill(self, count: int, queue: str, dead_letter_queue: str) -> None:
        """Put dead letters of `queue` into `dead_letter_queue`."""
        failed = Failed(type="shop.Declined", message="card declined", traceback=TRACEBACK, fingerprint="0123456789abcdef")
        for tag, message in self._held(count):
            now = int(time.time() * 1000)
            attempt = Attempt(at_ms=now, worker=WORKER, exception="Declined: card declined")
            letter = dead(
                message,
                queue,
                dead_letter_queue=dead_letter_queue,
                reason="exhausted",
                at_ms=now,
                seen_ms=now,
                attempt=attempt,
                failed=failed,
            )
            event = _event(message, Outcome.DEAD_LETTERED, reason="exhausted")
            self._transport.dead_letter(tag, sealed(letter), dead_letter_queue=dead_letter_queue, queue=queue, event=event)

    def _held(self, count: int) -> Iterator[tuple[str, dict[str, Any]]]:
        """Publish and receive messages. The caller's transitions of them are sent batch by batch.

        The outcome log is emptied after each batch.
        """
        self._own.leases.register(OWNER, {"worker": WORKER})
        self._received = 0
        while count > 0:
            self._own.leases.renew(OWNER)
            batch = [_message() for _ in range(min(count, BATCH))]
            with self.client.pipeline(transaction=False) as pipe:
                for message in batch:
                    pipe.lpush(self.keys.list(QUEUE), sealed(message))
                pipe.execute()
            yield from zip(self._receive(len(batch)), batch, strict=True)
            self._later.flush(self.client)
            self.client.delete(self.keys.outcomes)
            count -= len(batch)
        self._own.leases.unregister(OWNER)

    def _receive(self, count: int) -> list[str]:
        """Receive the oldest `count` messages. Returns their tags."""
        keys, receive = self.keys, Script("receive")
        tags: list[str] = []
        fixed = [keys.unacked, keys.unacked_index, keys.received(OWNER), keys.leases, keys.woken(OWNER)]
        fixed += [keys.watch(QUEUE), keys.idle(QUEUE)]
        names = [*fixed, *(keys.list(each) for each in keys.list_names(QUEUE))]
        while len(tags) < count:
            self._received += 1
            budget = min(RECEIVED, count - len(tags))
            answer = receive(self.client, names, [OWNER, self._received, budget, 10**9, 1, -1, 0, unacked_suffix(QUEUE), RECEIVED])
            if answer[0] != b"ok" or len(answer) == 4:  # noqa: PLR2004 - the fields before the messages
                msg = f"{count - len(tags)} messages were to be received, and the broker said {answer!r}"
                raise RuntimeError(msg)
            tags += [tag.decode() for tag in answer[4::3]]
        return tags


def _message() -> dict[str, Any]:
    task_id = str(uuid.uuid4())
    return {
        "body": "W1tdLCB7fSwgeyJjYWxsYmFja3MiOiBudWxsLCAiZXJyYmFja3MiOiBudWxsLCAiY2hhaW4iOiBudWxsLCAiY2hvcmQiOiBudWxsfV0=",
        "content-encoding": "utf-8",
        "content-type": "application/json",
        "headers": {
            "lang": "py",
            "task": TASK,
            "id": task_id,
            "shadow": None,
            "eta": None,
            "expires": None,
            "group": None,
            "group_index": None,
            "retries": 0,
            "timelimit": [None, None],
            "root_id": task_id,
            "parent_id": None,
            "argsrepr": "()",
            "kwargsrepr": "{}",
            "origin": "gen1@shop",
            "ignore_result": True,
            "replaced_task_nesting": 0,
            "stamped_headers": None,
            "stamps": {},
        },
        "properties": {
            "correlation_id": task_id,
            "reply_to": str(uuid.UUID(int=7)),
            "delivery_mode": 2,
            "delivery_info": {"exchange": "", "routing_key": QUEUE},
            "priority": 0,
            "body_encoding": "base64",
            "delivery_tag": str(uuid.uuid4()),
        },
    }


def _event(message: dict[str, Any], outcome: Outcome, reason: str = "") -> Event:
    return Event(
        task_id=message["headers"]["id"],
        outcome=outcome,
        task=TASK,
        queue=QUEUE,
        reason=reason,
        attempt=1,
        delivery=1,
        worker=WORKER,
    )
