"""The preview of an operation: a dry run of its walk, by task, by cause and by target, with examples."""

from __future__ import annotations

import functools
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from redelivery.errors import InputError

from ..delayed.bulk import cancel_waiting
from ..letters import dead_letters
from ..letters.archive import require_place
from ..letters.move import move
from ..letters.purge import purge
from ..letters.reading.causes import Causes
from ..letters.redrive.redrive import Edit, Redrive, redrive
from ..letters.walk import WalkOptions
from ..words.redaction import seen
from .operation import Kind, Options, check

if TYPE_CHECKING:
    from collections.abc import Callable

    from redelivery.middleware.runtime import Runtime

    from ...letters import Letter
    from ..letters.filter import Filter
    from ..letters.reading.causes import Cause
    from ..letters.walk import Walked

#: The maximum number of letters as examples, and of causes (`Causes`).
MAX_EXAMPLES, MAX_CAUSES = 10, 1_000


@dataclass(slots=True, kw_only=True)
class Preview:
    """What an operation would do: of `total` letters it would choose `matched` and move `moved`; `left` would stay, by reason.

    `by_task` and `causes` count the chosen letters, `by_target` those that would move. `examples` are the first chosen letters, as
    rows of a listing, without texts if the settings say `redact`.
    """

    total: int = 0
    matched: int = 0
    moved: int = 0
    chords: int = 0
    left: Counter[str] = field(default_factory=Counter)
    by_task: Counter[str] = field(default_factory=Counter)
    by_target: Counter[str] = field(default_factory=Counter)
    causes: list[Cause] = field(default_factory=list)
    examples: list[dict[str, Any]] = field(default_factory=list)


def preview(
    runtime: Runtime,
    kind: Kind,
    queue: str,
    chosen: Filter,
    options: Options | None = None,
    *,
    on_progress: Callable[[Walked], None] = lambda _: None,
) -> Preview:
    """Return what this operation would do now. Raises `InputError` if it cannot be carried out.

    `on_progress` is called with the counts so far; it may sleep to slow the walk down.
    """
    wanted = options or Options()
    check(runtime, kind, queue, chosen, wanted)
    result, causes = Preview(), Causes(most=MAX_CAUSES)

    def on_chosen(each: Letter) -> None:
        letter = seen(runtime, each)
        result.by_task[letter.task] += 1
        causes.add(letter, queue)
        if len(result.examples) < MAX_EXAMPLES:
            result.examples.append(letter.to_row())

    walk = walk_of(runtime, kind, queue, chosen, wanted)
    walked = walk(how=WalkOptions(dry_run=True, limit=wanted.limit, on_progress=on_progress, on_chosen=on_chosen))
    result.total, result.matched, result.moved, result.left = walked.total, walked.matched, walked.moved, walked.left
    if isinstance(walked, Redrive):
        result.chords, result.by_target = walked.chords, walked.by_target
    elif walked.moved and wanted.to is not None:
        result.by_target[wanted.to] = walked.moved
    result.causes = causes.ranked()
    return result


def walk_of(
    runtime: Runtime, kind: Kind, queue: str, chosen: Filter, options: Options, *, actor: str | None = None
) -> Callable[..., Walked]:
    """Return the function that carries out this kind of operation; the command of that name calls it, too.

    It takes `how`; the function of a redrive also takes `guard`. Any client may have stored the operation, so this raises
    `InputError` for a queue whose messages are not dead, and for an archive outside the app's.
    """
    transport = runtime.transport
    if kind is not Kind.CANCEL and queue in runtime.app.amqp.queues and queue not in dead_letters.known(runtime):
        msg = f"{queue!r} is a queue of the app, and its messages are not dead"
        raise InputError(msg)
    if kind is Kind.REDRIVE:
        edit = None if options.to is None else Edit(queue=options.to)
        return functools.partial(redrive, transport, queue, chosen, edit=edit, actor=actor)
    if kind is Kind.MOVE:
        return functools.partial(move, transport, queue, options.to or "", chosen, actor=actor)
    if kind is Kind.PURGE:
        if options.archive is not None:
            require_place(runtime, options.archive)
        return functools.partial(purge, transport, queue, chosen, archive_to=options.archive, actor=actor)
    return functools.partial(cancel_waiting, runtime, queue, chosen, actor=actor)
