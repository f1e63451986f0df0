"""The import of the broker's own deaths: letters that RabbitMQ made, taken over into the books and into our dead-letter queues.

A queue whose arguments, or a policy of the broker's, give it `x-message-ttl`, a length limit or a delivery limit lets RabbitMQ end
messages by itself, past every policy here and unrecorded. Where it has a dead-letter exchange, they come out at its other end.

1. The queue behind that exchange is looked at, from its oldest message on; what RabbitMQ made is read (`amqp_deaths`).
2. Each such letter is published to the dead-letter queue of its origin, with a death record, and confirmed;
3. it is recorded as `dead_lettered`, under an id that is always the same for this death, and before that as `received`, where
   nobody has recorded that it was there;
4. and it is acknowledged where it lay.

What is no letter of RabbitMQ's stays, and is counted by the reason why. Limits: a crash between two steps leaves a letter that has
gone in its old queue as well: imported again it counts once, and lies in its dead-letter queue twice. RabbitMQ's own dead-lettering
is at most once (but for quorum queues with `at-least-once`): what it loses on the way nobody can import, and the books say `lost`.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, cast

from redelivery.errors import BrokerError, InputError, RedriveError
from redelivery.middleware.brokers.errors import BROKER_ERRORS
from redelivery.middleware.ports import Answer
from redelivery.settings import names

from ...brokers.rabbitmq.deaths import death_of, read
from ...brokers.rabbitmq.letters import TIMEOUT, UNCONFIRMED, AmqpLetterStore
from ...brokers.rabbitmq.peek import Look, depth_of
from . import dead_letters
from .walk import BATCH, Walked

if TYPE_CHECKING:
    from collections.abc import Callable

    from redelivery.middleware.brokers.rabbitmq.transport import AmqpTransport
    from redelivery.middleware.runtime import Runtime

    from ...brokers.rabbitmq.deaths import Death
    from ...brokers.rabbitmq.peek import Found


@dataclass(slots=True, kw_only=True)
class Import(Walked):
    """What an import did, or would do: `moved` letters are in the books, counted by reason, and by the DLQ that they went to."""

    kind: ClassVar[str] = "import"
    went: ClassVar[str] = "had been imported"

    reasons: Counter[str] = field(default_factory=Counter)
    targets: Counter[str] = field(default_factory=Counter)


def import_letters(
    runtime: Runtime,
    name: str,
    *,
    dry_run: bool = False,
    limit: int | None = None,
    on_progress: Callable[[Import], None] = lambda _: None,
) -> Import:
    """Import the letters that lie in this queue, at most `limit`, the oldest first.

    Raises `InputError` where there is no such queue, or its name is one of ours, kombu's or Celery's, or the app runs it;
    `BrokerError` where the broker refuses or does not answer: it says how many letters had been imported.
    """
    store, result = AmqpLetterStore(cast("AmqpTransport", runtime.transport)), Import(dead_letter_queue=name, dry_run=dry_run)
    if (why := names.objection(name)) is not None:
        msg = f"{name!r} {why}: name the queue behind the dead-letter exchange"
        raise InputError(msg)
    if name in runtime.app.amqp.queues and name not in dead_letters.known(runtime):
        msg = f"{name!r} is a queue that the app runs: the messages there are alive; name the queue behind the dead-letter exchange"
        raise InputError(msg)
    with store.transport.connect() as connection:
        depth = depth_of(connection, name)
        if depth is None:
            msg = f"there is no queue {name!r} on the broker: name the queue that is bound to the dead-letter exchange"
            raise InputError(msg)
        result.total = depth
        try:
            with Look(connection, name, most=depth, read=read) as look:
                _Walk(runtime, store, look, result, on_progress).run(limit)
        except BROKER_ERRORS as exc:
            msg = f"the import of {name!r} stopped when {result.moved} dead letters {result.went}: {exc}; the same command goes on"
            raise BrokerError(msg) from exc
    return result


@dataclass(slots=True)
class _Walk:
    """One way through the queue."""

    runtime: Runtime
    store: AmqpLetterStore
    look: Look
    result: Import
    on_progress: Callable[[Import], None]

    def run(self, limit: int | None) -> None:
        batch: list[tuple[Found, Death]] = []
        for found in self.look:
            self.result.looked_at += 1
            try:
                death = death_of(self.runtime, self.store, found.raw, self.result.dead_letter_queue)
            except RedriveError as exc:
                self.result.left[str(exc)] += 1
                continue
            self.result.matched += 1
            batch.append((found, death))
            if self.result.matched == limit:
                break
            if len(batch) >= BATCH:
                self._carry(batch)
                batch = []
        self._carry(batch)

    def _carry(self, batch: list[tuple[Found, Death]]) -> None:
        """Publish and record all of them; then take away what has arrived."""
        if not self.result.dry_run:
            for _, death in batch:
                for move in filter(None, (death.opening, death.move)):
                    self.store.transport.publisher.submit(move)
        for found, death in batch:
            if self.result.dry_run or self._has_gone(found, death):
                self.result.moved += 1
                self.result.reasons[str(death.reason)] += 1
                self.result.targets[death.target] += 1
        self.on_progress(self.result)

    def _has_gone(self, found: Found, death: Death) -> bool:
        if not all(move.wait(TIMEOUT) for move in (death.move, death.opening) if move is not None):
            raise BrokerError(UNCONFIRMED)
        if death.move.answer is not Answer.DONE:
            self.result.left[f"nothing takes it to {death.target!r}"] += 1
            return False
        self.look.take(found)
        return True
