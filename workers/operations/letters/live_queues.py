"""Live queues: a move to such a queue is refused, because a worker would run the dead letters there.

A move leaves dead letters dead, and needs only the right to move. In a live queue they would run, which is a redrive.

A dead-letter queue for which this app has a handler is not live: the handler decides about its letters. Any other queue is live if
one of these is true:

- the app declares it: a worker consumes it, now or when the next worker starts;
- somebody consumes it, as far as the broker knows;
- it is not a dead-letter queue, and the app names it elsewhere (a route, a task, a policy);
- it is not a dead-letter queue, and it exists already, if the broker records which dead-letter queues were used (Redis).

Limits: Redis remembers for thirty days that a worker with redelivery consumed a queue. RabbitMQ knows only present consumers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from redelivery.display import word
from redelivery.errors import ConfigurationError, InputError
from redelivery.middleware.transitions.homes import named_by, required

from ...brokers.broker import broker_of, needed

if TYPE_CHECKING:
    from collections.abc import Mapping

    from celery import Celery

    from ...ports import Transitions


def why_it_runs(transport: Transitions, queue: str) -> str | None:
    """Why a dead letter in this queue would run; None if it stays dead. Raises what the broker's driver raises."""
    app, letters = transport.app, needed(broker_of(transport).letters)
    if app is not None and queue in app.amqp.queues:
        why = "is a queue of the app, whose workers run what is in it"
    elif letters.is_consumed(queue):
        why = "is consumed by a worker, which runs what is in it"
    elif queue in _letter_queues(app, letters.queues()):
        return None
    elif app is not None and queue in set(named_by(app)):
        why = "is a queue that the app sends tasks to"
    elif transport.registry is not None and letters.has_queue(queue):
        why = "is a queue already, and no dead-letter queue"
    else:
        return None
    return None if app is not None and _is_handled(app, queue) else why


def require_rest(transport: Transitions, queue: str) -> None:
    """Raise `InputError` if nothing may be sent to this queue, or if dead letters in it would run."""
    required(transport, queue)
    why = why_it_runs(transport, queue)
    if why is not None:
        msg = (
            f"{queue!r} {why}: workers would run the dead letters there. To have them run, use `redelivery dlq redrive … --to "
            f"{word(queue)}`, which needs the right to redrive. To keep them dead, name a dead-letter queue"
        )
        raise InputError(msg)


def _letter_queues(app: Celery | None, used: Mapping[str, str]) -> set[str]:
    """The dead-letter queues that were used, and those that the policies name for the app's queues."""
    if app is None:
        return set(used)
    policies = app.redelivery.policies
    named = (policies.policy_for(queue).dead_letter_queue_for(queue) for queue in app.amqp.queues)
    return {*used, *(each for each in named if each is not None)}


def _is_handled(app: Celery, queue: str) -> bool:
    """Whether this app has a handler for this queue's letters. Raises `ConfigurationError` if its tasks cannot be imported."""
    try:
        app.loader.import_default_modules()  # a handler may be defined in a module of tasks
    except (Exception, SystemExit) as exc:
        msg = f"the tasks of the app cannot be imported: {type(exc).__name__}: {exc}"
        raise ConfigurationError(msg) from exc
    if not app.redelivery.letter_handlers:
        return False
    from redelivery.middleware.worker.deliveries.letter_handler import handlers_of  # noqa: PLC0415 - few apps have one

    return queue in handlers_of(app.redelivery)
