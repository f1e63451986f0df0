"""`redelivery policy`: the policy of a queue and a task, and the source of each value."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from redelivery.display import safe
from redelivery.settings import FIELDS, UNLIMITED
from redelivery.settings.values import suggestion

from ...operations.words.numbers import seconds_text
from ...operations.words.policies import DELAYS, delays_of, options_for, plain_value, shown
from ..terminal.output import Column, print_json, table, wrapped

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from redelivery.middleware.policy.options import Options
    from redelivery.settings import ResolvedPolicy

SETTINGS = ("setting", Column("value", 1, 12), Column("source", 2, 10))


@click.group()
def policy() -> None:
    """The policy of a queue and a task."""


@policy.command()
@click.option("--queue", required=True, help="The queue that messages come from.")
@click.option("--task", help="The task's name; without it, the policy of the queue alone.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.pass_obj
def explain(obj: Any, queue: str, task: str | None, *, as_json: bool) -> None:
    """Show each setting, its value and its source, and the delays up to the last attempt."""
    options = options_for(obj.app, task)
    resolved = obj.settings.policy_for(queue, task, decorator=None if options is None else options.fields)
    target = resolved.policy.dead_letter_queue_for(queue)
    strategies = _strategies(options)
    if obj.app is not None:
        _notice_names(obj.app, queue, task)
    if as_json:
        print_json(_object(resolved, target, strategies))
    else:
        click.echo("\n\n".join(_parts(resolved, target, strategies)))


def _notice_names(app: Any, queue: str, task: str | None) -> None:
    """Warn on stderr about unknown names. They are not errors: a queue or task may have a policy before it exists."""
    asked = (("queue", queue, set(app.amqp.queues)), ("task", task, set(app.tasks)))
    for kind, name, known in asked:
        if name is not None and name not in known and (near := suggestion(name, known)):
            click.echo(f"the app has no {kind} {safe(name)}{near}", err=True)


def _strategies(options: Options | None) -> dict[str, str]:
    if options is None:
        return {}
    given = {"wait": options.wait, "stop": options.stop, "retry": options.retry}
    return {key: getattr(value, "__qualname__", type(value).__qualname__) for key, value in given.items() if value is not None}


def _object(resolved: ResolvedPolicy, target: str | None, strategies: Mapping[str, str]) -> dict[str, Any]:
    return {
        "queue": resolved.queue,
        "task": resolved.task,
        "policy": {key: {"value": plain_value(resolved.policy, key), "source": resolved.sources[key]} for key in FIELDS},
        "dead_letter_queue": target,
        "strategies": dict(strategies),
        "delays": []
        if "wait" in strategies
        else [
            {"attempt": attempt, "least_s": least, "most_s": most, "reached": reached}
            for attempt, least, most, reached in delays_of(resolved.policy)
        ],
    }


def _parts(resolved: ResolvedPolicy, target: str | None, strategies: Mapping[str, str]) -> Iterator[str]:
    subject = f"queue {resolved.queue}" if resolved.task is None else f"queue {resolved.queue}, task {resolved.task}"
    ends = "discarded" if target is None else f"dead-lettered into {target}"
    yield wrapped(f"Policy for {safe(subject)}: a message that fails for good is {safe(ends)}.")
    yield table([(key, shown(resolved.policy, key, target), resolved.sources[key]) for key in FIELDS], SETTINGS)
    if strategies:
        yield "\n".join(f"{key}={name} of the decorator decides at each attempt." for key, name in strategies.items())
    if "wait" in strategies:
        yield "It decides the delays, so they are not known beforehand."
        return
    rows = [
        (f"after attempt {attempt}", f"{seconds_text(least)} - {seconds_text(most)}")
        for attempt, least, most, reached in delays_of(resolved.policy)
        if reached
    ]
    if rows:
        yield table(rows, ("next delay", "least - most"))
    limit = resolved.policy.max_delivery_attempts
    if limit != UNLIMITED and limit <= DELAYS + 1:
        yield wrapped(f"Attempt {limit} is the last: if it fails, the message is {safe(ends)}.")
