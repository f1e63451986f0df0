"""Dead-letter queues and their letters, read without changing anything.

The name of any other queue is refused (`InputError`): messages in an ordinary queue are not dead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from redelivery.errors import InputError
from redelivery.settings.values import suggestion

from ...brokers.broker import broker_of, needed
from ...letters import Letter
from ..words.short_ids import begins, hint, is_whole, meant

if TYPE_CHECKING:
    from collections.abc import Collection

    from redelivery.middleware.runtime import Runtime

    from ...ports import DeadLetterQueue, Transitions


def known(runtime: Runtime) -> dict[str, str]:
    """Every dead-letter queue with its origin: the queues that were used, and those of the policies of this app's queues."""
    names: dict[str, str] = {}
    for queue in runtime.app.amqp.queues:
        target = runtime.policies.policy_for(queue).dead_letter_queue_for(queue)
        if target is not None:
            names[target] = queue
    names.update(needed(broker_of(runtime.transport).letters).queues())
    return dict(sorted(names.items()))


def required(runtime: Runtime, name: str) -> str:
    """The same name. Raises `InputError` if there is no such dead-letter queue; its text names a similar one, or all."""
    names = known(runtime)
    if name in names:
        return name
    there = f"; there are: {', '.join(names)}" if names else "; nothing has died yet, and no queue of the app keeps dead letters"
    its = " or ".join(repr(each) for each, origin in names.items() if origin == name)
    near = f"; did you mean {its}, which holds its dead letters?" if its else suggestion(name, names)
    msg = f"there is no dead-letter queue {name!r}{near or there}"
    raise InputError(msg)


def summaries(runtime: Runtime) -> list[DeadLetterQueue]:
    """All dead-letter queues, counted; their times and reasons come from a bounded number of letters."""
    return needed(broker_of(runtime.transport).letters).summaries(known(runtime))


def depth(transport: Transitions, name: str) -> int:
    """How many dead letters there are; none is read."""
    return needed(broker_of(transport).letters).depth(name)


def newest(transport: Transitions, name: str, limit: int) -> list[Letter]:
    """The `limit` newest dead letters, the newest first."""
    with needed(broker_of(transport).letters).open(name) as letters:
        return [Letter.of(raw) for raw in letters.newest(limit)]


def found(transport: Transitions, name: str, given: Collection[str]) -> list[Letter]:
    """The dead letters of the tasks that these ids, or beginnings of ids, name; the newest first. Reads the whole queue, in pages.

    Raises `InputError` if one of them names no dead letter, or the dead letters of several tasks.
    """
    read = needed(broker_of(transport).letters).found(name, given)
    letters = [letter for letter in read if any(begins(letter.task_id, each) for each in given)]
    named = {each: meant(each, (letter.task_id for letter in letters)) for each in given}
    missing = sorted(each for each, task_id in named.items() if task_id is None)
    if missing:
        of_them = f"{', '.join(missing)}{hint(missing)}"
        msg = f"{name!r} holds no dead letter of task {of_them}: `redelivery task show` says where a task is"
        raise InputError(msg)
    return [letter for letter in letters if letter.task_id in named.values()]


def whole_ids(transport: Transitions, name: str, given: Collection[str]) -> frozenset[str]:
    """The whole ids of these ids, or beginnings of ids. Looks into the queue only for beginnings. Raises as `found`."""
    short = [each for each in given if not is_whole(each)]
    looked_up = (letter.task_id for letter in found(transport, name, short)) if short else ()
    return frozenset([*(each for each in given if is_whole(each)), *looked_up])
