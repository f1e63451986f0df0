"""Refuses a move of dead letters to a live queue, where a worker would run them. Only a redrive may have them run.

A queue for which this app has a dead-letter handler is not live. Any other queue is live if one of these is true:

- the app declares it, so a worker consumes it, now or later;
- the broker knows of a consumer;
- it is not a dead-letter queue, and the app sends tasks to it (a route, a task, a policy);
- it is not a dead-letter queue, it exists, and the broker records which dead-letter queues were used (Redis).

Limits: Redis remembers the consumers with redelivery of the last thirty days. RabbitMQ knows only present consumers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from redelivery.display import word
from redelivery.errors import ConfigurationError, InputError
from redelivery.middleware.transitions.homes import named_by, required

from ...brokers.broker import broker_of
from . import dead_letters

if TYPE_CHECKING:
    from celery import Celery

    from redelivery.middleware.ports import Transport


def why_it_runs(transport: Transport, queue: str) -> str | None:
    """Return why a dead letter in this queue would run; None if it stays dead."""
    app, letters = transport.app, broker_of(transport).letters
    if app is not None and queue in app.amqp.queues:
        why = "is a queue of the app, whose workers run what is in it"
    elif letters.is_consumed(queue):
        why = "is consumed by a worker, which runs what is in it"
    elif queue in letters.queues({} if app is None else dead_letters.named(app)):
        return None
    elif app is not None and queue in set(named_by(app)):
        why = "is a queue that the app sends tasks to"
    elif transport.registry is not None and transport.has_queue(queue):
        why = "is a queue already, and no dead-letter queue"
    else:
        return None
    return None if app is not None and _is_handled(app, queue) else why


def require_rest(transport: Transport, queue: str) -> None:
    """Raise `InputError` if no message may be sent to this queue, or if dead letters in it would run."""
    required(transport, queue)
    why = why_it_runs(transport, queue)
    if why is not None:
        msg = (
            f"{queue!r} {why}: workers would run the dead letters there. To have them run, use `redelivery dlq redrive … --to "
            f"{word(queue)}`, which needs the right to redrive. To keep them dead, name a dead-letter queue"
        )
        raise InputError(msg)


def _is_handled(app: Celery, queue: str) -> bool:
    try:
        app.loader.import_default_modules()  # a handler may be defined in a module of tasks
    except (Exception, SystemExit) as exc:
        msg = f"the tasks of the app cannot be imported: {type(exc).__name__}: {exc}"
        raise ConfigurationError(msg) from exc
    if not app.redelivery.letter_handlers:
        return False
    from redelivery.middleware.worker.deliveries.letter_handler import handlers_of  # noqa: PLC0415 - few apps have one

    return queue in handlers_of(app.redelivery)
