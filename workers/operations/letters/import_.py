"""The import of the broker's own deaths: letters that RabbitMQ made, taken over into the books and into our dead-letter queues.

A queue whose arguments, or a policy of the broker's, give it `x-message-ttl`, a length limit or a delivery limit lets RabbitMQ end
messages by itself, past every policy here and unrecorded. Where it has a dead-letter exchange, they come out at its other end.

1. The queue behind that exchange is looked at, from its oldest message on; what RabbitMQ made is read (`brokers.rabbitmq.deaths`).
2. Each such letter is published to the dead-letter queue of its origin, with a death record, and confirmed;
3. it is recorded as `dead_lettered`, under an id that is always the same for this death, and before that as `received`, where
   nobody has recorded that it was there;
4. and it is acknowledged where it lay.

Any message that RabbitMQ did not dead-letter stays, and is counted by the reason why. Limits: a crash between two steps leaves an
imported dead letter in its old queue as well. The next import removes it if the journal of moves knows it; else it counts once, and
lies in its dead-letter queue twice. RabbitMQ's own dead-lettering is at most once (but for queues with `at-least-once`): what it
loses on the way cannot be imported, and the books say `lost`.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from redelivery.errors import InputError
from redelivery.middleware.brokers.errors import BROKER_ERRORS
from redelivery.middleware.ports import Answer
from redelivery.settings import names

from ...brokers.broker import broker_of, needed
from . import dead_letters
from .walk import BATCH, UNSURE, Walked

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from redelivery.middleware.runtime import Runtime

    from ...ports import DeathList, OwnDeath


@dataclass(slots=True, kw_only=True)
class Import(Walked):
    """What an import did, or would do: `moved` letters are in the books, counted by reason, and by the DLQ that they went to."""

    kind: ClassVar[str] = "import"
    went: ClassVar[str] = "had been imported"

    reasons: Counter[str] = field(default_factory=Counter)
    targets: Counter[str] = field(default_factory=Counter)

    def count(self, death: OwnDeath, answer: Answer) -> None:
        """A letter went, or it stays."""
        if answer is not Answer.DONE:
            self.left[UNSURE if answer is Answer.UNSURE else f"the broker has no queue {death.target!r}"] += 1
            return
        self.moved += 1
        self.reasons[str(death.reason)] += 1
        self.targets[death.target] += 1


def import_letters(
    runtime: Runtime,
    name: str,
    *,
    dry_run: bool = False,
    limit: int | None = None,
    on_progress: Callable[[Import], None] = lambda _: None,
) -> Import:
    """Import the letters that lie in this queue (`require_source`), at most `limit`, the oldest first.

    Raises `BrokerError` where the broker refuses or does not answer: it says how many letters had been imported.
    """
    broker, result = broker_of(runtime.transport), Import(dead_letter_queue=name, dry_run=dry_run)
    try:
        with needed(broker.deaths).open(runtime, name) as found:
            result.total = found.total
            for batch in _batches(found, result, limit):
                answers = [Answer.DONE] * len(batch) if dry_run else found.bury(batch)
                for death, answer in zip(batch, answers, strict=True):
                    result.count(death, answer)
                on_progress(result)
    except BROKER_ERRORS as exc:
        raise result.cut_short(exc) from exc
    return result


def require_source(runtime: Runtime, name: str) -> None:
    """Raises `InputError` where there is no such queue, or its name is one of ours, kombu's or Celery's, or the app runs it."""
    if (why := names.objection(name)) is not None:
        msg = f"{name!r} {why}: name the queue behind the dead-letter exchange"
        raise InputError(msg)
    if name in runtime.app.amqp.queues and name not in dead_letters.known(runtime):
        msg = f"{name!r} is a queue of the app, and its messages are not dead: name the queue behind the dead-letter exchange"
        raise InputError(msg)
    if not needed(broker_of(runtime.transport).letters).has_queue(name):
        msg = f"there is no queue {name!r} on the broker: name the queue that is bound to the dead-letter exchange"
        raise InputError(msg)


def _batches(found: DeathList, result: Import, limit: int | None) -> Iterator[list[OwnDeath]]:
    """The deaths that go, in batches; the last is empty perhaps."""
    batch: list[OwnDeath] = []
    for death in found:
        result.looked_at += 1
        if isinstance(death, str):
            result.left[death] += 1
            continue
        result.matched += 1
        batch.append(death)
        if len(batch) >= BATCH or _is_full(result, limit):
            yield batch
            batch = []
            if _is_full(result, limit):
                return
    yield batch


def _is_full(result: Import, limit: int | None) -> bool:
    """Whether the limit is reached; dead letters that may or may not have gone are not counted."""
    return limit is not None and result.matched - result.left[UNSURE] >= limit
