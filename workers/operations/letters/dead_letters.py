"""Reads dead-letter queues and their letters, and changes nothing. Names of other queues are refused (`InputError`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from redelivery.errors import InputError
from redelivery.settings.values import suggestion

from ...brokers.broker import broker_of
from ...letters import Letter
from ..words.short_ids import begins, hint, is_whole, meant

if TYPE_CHECKING:
    from collections.abc import Collection

    from celery import Celery

    from redelivery.middleware.ports import Transport
    from redelivery.middleware.runtime import Runtime

    from ...ports import DeadLetterQueue


def known(runtime: Runtime) -> dict[str, str]:
    """Return every dead-letter queue with its origin: used queues, and queues in the policies of this app's queues and tasks.

    If a task's policy, or an `expiry_queue`, names a queue that the app consumes, its messages are not dead: they run.
    """
    return dict(sorted(broker_of(runtime.transport).letters.queues(named(runtime.app)).items()))


def named(app: Celery) -> dict[str, str]:
    """As `known`, without the queues that were used."""
    policies, queues = app.redelivery.policies, app.amqp.queues
    names = {target: queue for queue in queues for target in policies.targets_of(queue) if target not in queues}
    own = {queue: policies.policy_for(queue).dead_letter_queue_for(queue) for queue in queues}
    return names | {target: queue for queue, target in own.items() if target is not None}


def required(runtime: Runtime, name: str) -> str:
    """Return the name if it is a dead-letter queue. Raises `InputError`, whose text names a similar queue, or all queues."""
    names = known(runtime)
    if name in names:
        return name
    every = f"; there are: {', '.join(names)}" if names else "; nothing has died yet, and no queue of the app keeps dead letters"
    of_origin = " or ".join(repr(each) for each, origin in names.items() if origin == name)
    near = f"; did you mean {of_origin}, which holds its dead letters?" if of_origin else suggestion(name, names)
    msg = f"there is no dead-letter queue {name!r}{near or every}"
    raise InputError(msg)


def summaries(runtime: Runtime) -> list[DeadLetterQueue]:
    """Return all dead-letter queues with their counts; times and reasons come from a bounded number of letters."""
    return broker_of(runtime.transport).letters.summaries(known(runtime))


def depth(transport: Transport, name: str) -> int:
    """Return the number of dead letters in a queue. Reads none of them."""
    return broker_of(transport).letters.depth(name)


def newest(transport: Transport, name: str, limit: int) -> list[Letter]:
    """Return the `limit` newest dead letters, the newest first."""
    with broker_of(transport).letters.open(name) as letters:
        return [Letter.of(raw) for raw in letters.newest(limit)]


def found(transport: Transport, name: str, given: Collection[str]) -> list[Letter]:
    """Return the dead letters of the tasks with these ids, or beginnings of ids, the newest first. Reads the whole queue, in pages.

    Raises `InputError` if an id matches no dead letter, or the dead letters of several tasks.
    """
    read = broker_of(transport).letters.found(name, given)
    letters = [letter for letter in read if any(begins(letter.task_id, each) for each in given)]
    named = {each: meant(each, (letter.task_id for letter in letters)) for each in given}
    missing = sorted(each for each, task_id in named.items() if task_id is None)
    if missing:
        of_them = f"{', '.join(missing)}{hint(missing)}"
        msg = f"{name!r} holds no dead letter of task {of_them}: `redelivery task show` says where a task is"
        raise InputError(msg)
    return [letter for letter in letters if letter.task_id in named.values()]


def whole_ids(transport: Transport, name: str, given: Collection[str]) -> frozenset[str]:
    """Return the whole ids. Reads the queue only if an id is shortened. Raises as `found`."""
    short = [each for each in given if not is_whole(each)]
    looked_up = (letter.task_id for letter in found(transport, name, short)) if short else ()
    return frozenset([*(each for each in given if is_whole(each)), *looked_up])
