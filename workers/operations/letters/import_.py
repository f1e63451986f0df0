"""Imports dead letters that RabbitMQ itself made into redelivery's dead-letter queues, and into the books.

If RabbitMQ ends a message by a time to live, a length or a delivery limit, it moves the message to the queue behind its dead-letter
exchange, and records nothing. An import reads that queue from its oldest message on. `brokers.rabbitmq.deaths` recognises the
messages that RabbitMQ moved there. Each of them

1. is published to the dead-letter queue of its origin, with a death record, and confirmed;
2. is recorded as `dead_lettered`, with an event id that is always the same for this death; before that as `received`, if no event
   has recorded the message;
3. is acknowledged in its old queue.

Other messages stay. Limits: after a crash between two steps, an imported dead letter is still in its old queue. The next import
removes it if the journal of moves has the move; otherwise it is imported twice, and the books count it once. The books report a
message that RabbitMQ's dead-lettering loses as `lost`.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from redelivery.errors import InputError
from redelivery.middleware.brokers.errors import ANY_BROKER_ERRORS
from redelivery.middleware.ports import Answer
from redelivery.settings import names

from ...brokers.rabbitmq.deaths import deaths_in
from . import dead_letters
from .walk import BATCH, UNSURE, Walked

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from redelivery.middleware.runtime import Runtime

    from ...brokers.rabbitmq.deaths import AmqpDeathList, Death


@dataclass(slots=True, kw_only=True)
class Import(Walked):
    """The result of an import: how many letters were `moved`, by reason and by target dead-letter queue."""

    kind: ClassVar[str] = "import"
    went: ClassVar[str] = "had been imported"

    reasons: Counter[str] = field(default_factory=Counter)
    targets: Counter[str] = field(default_factory=Counter)

    def count(self, death: Death, answer: Answer) -> None:
        """Count a letter that was imported, or that stays."""
        if answer is not Answer.DONE:
            self.left[UNSURE if answer is Answer.UNSURE else f"the queue {death.target!r} does not exist, or is full"] += 1
            return
        self.moved += 1
        self.reasons[str(death.reason)] += 1
        self.targets[death.target] += 1


def import_letters(
    runtime: Runtime, name: str, *, dry_run: bool, limit: int | None, on_progress: Callable[[Import], None]
) -> Import:
    """Import the dead letters in this queue (see `require_source`), at most `limit`, the oldest first.

    Raises `BrokerError`; its text says how many letters had been imported.
    """
    result = Import(dead_letter_queue=name, dry_run=dry_run)
    try:
        with deaths_in(runtime, name) as found:
            result.total = found.total
            for batch in _batches(found, result, limit):
                answers = [Answer.DONE] * len(batch) if dry_run else found.bury(batch)
                for death, answer in zip(batch, answers, strict=True):
                    result.count(death, answer)
                on_progress(result)
    except ANY_BROKER_ERRORS as exc:
        raise result.cut_short(exc) from exc
    return result


def require_source(runtime: Runtime, name: str) -> None:
    """Raise `InputError` if the queue does not exist, has a reserved name, or is an ordinary queue of the app."""
    if (why := names.objection(name)) is not None:
        msg = f"{name!r} {why}: name the queue behind the dead-letter exchange"
        raise InputError(msg)
    if name in runtime.app.amqp.queues and name not in dead_letters.known(runtime):
        msg = f"{name!r} is a queue of the app, and its messages are not dead: name the queue behind the dead-letter exchange"
        raise InputError(msg)
    if not runtime.transport.has_queue(name):
        msg = f"there is no queue {name!r} on the broker: name the queue that is bound to the dead-letter exchange"
        raise InputError(msg)


def _batches(found: AmqpDeathList, result: Import, limit: int | None) -> Iterator[list[Death]]:
    """Yield the deaths to import in batches; the last batch may be empty."""
    batch: list[Death] = []
    for death in found:
        result.looked_at += 1
        if isinstance(death, str):
            result.left[death] += 1
            continue
        result.matched += 1
        batch.append(death)
        if len(batch) >= BATCH or result.is_full(limit):
            yield batch
            batch = []
            if result.is_full(limit):
                return
    yield batch
