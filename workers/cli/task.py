"""`redelivery task`: everything about one task, in one command."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from redelivery.display import safe
from redelivery.errors import InputError

from ..operations.inventory.task_life import life_of
from ..operations.words.numbers import age, counted, moment, span
from ..operations.words.policies import shown
from ..operations.words.short_ids import hint
from .books.outcomes import events_table
from .context import Context, exported_option, json_option, pass_context
from .terminal.options import whole
from .terminal.output import INDENT, facts, print_json, say, wrapped

if TYPE_CHECKING:
    from redelivery.settings import RedeliveryPolicy

    from ..ports import Place, TaskLife

HINT = "check the id; if its events were exported, say where with --outcomes, or set outcome_archive"

#: The fields of a policy that are shown.
POLICY = ("max_delivery_attempts", "redelivery_delay", "redelivery_delay_multiplier", "max_redelivery_delay", "max_age")


@click.group()
def task() -> None:
    """The whole life of one task."""


@task.command()
@click.argument("task_id")
@click.option(
    "--scan",
    type=whole(1),
    default=100_000,
    show_default=True,
    help="Read at most this many events, and this many messages of each queue.",
)
@exported_option("events")
@json_option
@pass_context
def show(context: Context, task_id: str, scan: int, uri: str | None) -> None:
    """Show a task's events, where it is now, and its policy.

    TASK_ID is its id, or the beginning of it: six characters or more. Exported events are read, too, if --outcomes or the settings
    say where they are.

    On RabbitMQ the command reads the log and the dead letters, and gives them back. It does not see messages that wait to run,
    or that workers hold.
    """
    now = context.transport.now_ms()
    life = life_of(context.runtime, task_id, most=scan, outcomes=uri)
    for each in life.unread:
        say(safe(each), err=True)
    if not life.events and not life.places:
        how_far = f"; {'; '.join(life.cut)}: look at more with --scan" if life.cut else f": {HINT}"
        msg = f"nothing is known about task {task_id!r}{hint([task_id])}{how_far}"
        raise InputError(msg)
    found = context.runtime.policies.policy_for(life.queue, life.task or None) if life.queue else None
    if context.as_json:
        print_json(
            {
                "task_id": life.task_id,
                "task": life.task,
                "events": [event.to_dict() for event in life.events],
                "places": [_place_json(place) for place in life.places],
                "policy": {} if found is None else _policy(found, life.queue),
                "cut": life.cut,
            }
        )
        return
    click.echo(_text(life, found, now))


def _policy(found: RedeliveryPolicy, queue: str) -> dict[str, Any]:
    return {
        "queue": queue,
        **{name: getattr(found, name) for name in POLICY},
        "dead_letter_queue": found.dead_letter_queue_for(queue),
    }


def _place_json(place: Place) -> dict[str, Any]:
    generation, attempt = place.contents.generation, place.contents.envelope.attempt
    return {"place": place.place, "name": place.name, "generation": generation, "attempts": attempt, **place.detail}


def _text(life: TaskLife, policy: RedeliveryPolicy | None, now: int) -> str:
    parts = [facts({"task id": life.task_id, "task": life.task, "queue": life.queue})]
    events = events_table(life.events, of_one_task=True, indent=INDENT) if life.events else ""
    parts.append("events\n" + (events or "  none in the log: they were exported, or are too old"))
    places = "\n".join(wrapped(f"{INDENT}{_place_text(place, now)}", 4) for place in life.places)
    parts.append("now\n" + (places or "  in no queue, not held by a worker, not a dead letter"))
    if policy is not None:
        target = policy.dead_letter_queue_for(life.queue)
        values = {name: shown(policy, name, target) for name in (*POLICY, "dead_letter_queue")}
        parts.append("policy\n" + facts(values, INDENT))
    parts += [f"Not all was read: {safe(each)}; more with --scan." for each in life.cut]
    return "\n\n".join(parts)


def _place_text(place: Place, now: int) -> str:
    name, detail = safe(place.name), place.detail
    if place.place == "delayed":
        due = detail["due_ms"]
        return f"waits for {name} until {moment(due)} ({f'in {span((due - now) / 1000)}' if due > now else 'now'})"
    if place.place == "unacked":
        holder = (
            f"is held by {safe(detail['owner'])}" if detail["owner"] else "was held by a worker that is gone; it will be given back"
        )
        return f"{holder} (from {name})"
    if place.place == "dead_letter":
        said = f"{detail['exception']}: {detail['message']}" if detail["exception"] else "no exception"
        reason, attempts = safe(detail["reason"] or "an unknown reason"), counted(detail["attempts"], "attempt", "attempts")
        return f"is in {name}: died {age(detail['died_ms'], now)} after {attempts} ({reason}): {safe(said)}"
    return f"is in {name}"
