"""Checks of Celery's settings and redelivery's: those that a worker refuses, have no effect, or weaken a guarantee."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from celery.backends.base import DisabledBackend

from redelivery.middleware.worker.startup.contradictions import found_contradictions
from redelivery.settings import UNLIMITED
from redelivery.settings.policy import OF_QUEUES
from redelivery.settings.sources import OVERRIDE_QUEUES, OVERRIDE_TASKS, QUEUES, TASKS

from ...ports import NotKnown
from ..adoption.adoption import queue_of
from .finding import Finding, named

if TYPE_CHECKING:
    from collections.abc import Iterator

    from redelivery.settings import RedeliveryPolicy

    from .seen import Seen

#: The number of attempts whose delays are checked if a policy has no limit.
MANY = 1000
RETENTION = ("dead_letter_time_to_live", "max_dead_letters")


def check_refused(seen: Seen) -> Iterator[Finding]:
    """Find settings with which no worker of this app starts."""
    for each in found_contradictions(seen.runtime):
        yield Finding("settings.refused", "danger", each.what, each.why or "no worker of this app starts with it", each.fix)


def check_patterns(seen: Seen) -> Iterator[Finding | NotKnown]:
    """Find rows of the settings whose patterns match no queue and no task of the app."""
    tasks = {name for name in seen.runtime.app.tasks if not name.startswith("celery.")}
    queues, workers = _queues(seen, tasks), [] if seen.fleet is None else seen.fleet.workers
    for row in seen.runtime.settings.rows:
        is_of_queues = row.table in {QUEUES, OVERRIDE_QUEUES}
        known = queues if is_of_queues else tasks
        if not known or any(row.pattern.matches(each) for each in known):
            continue
        what = f"{row.table}[{row.pattern.text!r}] matches no {'queue' if is_of_queues else 'task'} of this app"
        if is_of_queues and not workers and seen.runtime.app.conf.task_create_missing_queues:
            why = "no worker answers, and a worker may consume queues that the app does not declare (-Q)"
            yield NotKnown(f"whether {row.table}[{row.pattern.text!r}] matches a queue", why, "run doctor while the workers run")
            continue
        fix = f"correct the pattern (there are: {named(sorted(known))}), or take the row out"
        yield Finding("policy.matches_nothing", "warning", what, "its values apply to nothing: the defaults apply instead", fix)


def check_task_rows(seen: Seen) -> Iterator[Finding]:
    """Find fields that a task sets, although they have an effect only for a queue."""
    runtime = seen.runtime
    rows = (row for row in runtime.settings.rows if row.table in {TASKS, OVERRIDE_TASKS})
    sources = {f"{row.table}[{row.pattern.text!r}]": row.fields for row in rows}
    for task in runtime.app.tasks:
        options = runtime.policies.options_of(task)
        sources |= {} if options is None else {f"the decorator of {task!r}": options.fields}
    for where, fields in sources.items():
        for name in sorted(OF_QUEUES & fields.keys()):
            what, why = f"{where} sets {name}", "it belongs to a queue, and has no effect for a task"
            yield Finding("policy.not_for_tasks", "warning", what, why, f"set {name} in a row of queues, or take it out")


def _queues(seen: Seen, tasks: set[str]) -> set[str]:
    """The queues that the app declares or sends its tasks to, that a worker consumes, or that have messages."""
    app = seen.runtime.app
    routed = {queue_of(app, name) for name in tasks}
    consumed = {queue for worker in ([] if seen.fleet is None else seen.fleet.workers) for queue in worker.queues}
    return {*app.amqp.queues, *routed, *consumed, *([] if seen.queues is None else seen.queues.waiting)}


def check_retention(seen: Seen) -> Iterator[Finding]:
    """Find retention settings that remove nothing because there is no archive."""
    settings = seen.runtime.settings
    fields = sorted({name for row in settings.rows for name in RETENTION if row.fields.get(name) is not None})
    if fields and settings.dead_letter_archive is None:
        what = f"{' and '.join(fields)} without dead_letter_archive"
        why = "no dead letter is removed before it is in an archive, so these settings remove none"
        yield Finding("retention.no_archive", "warning", what, why, 'dead_letter_archive = "/var/lib/shop/letters" (a path or URI)')


def check_results(seen: Seen) -> Iterator[Finding]:
    """Find results that expire while their task still waits for its next attempt."""
    app = seen.runtime.app
    expires = app.conf.result_expires
    seconds = expires.total_seconds() if isinstance(expires, timedelta) else float(expires or 0)
    if not seconds or isinstance(app.backend, DisabledBackend) or app.conf.task_ignore_result:
        return
    waits = {queue: _longest(seen.runtime.policies.policy_for(queue)) for queue in app.amqp.queues.consume_from}
    queue, longest = max(waits.items(), key=lambda each: each[1], default=("", 0.0))
    if longest > seconds:
        what = f"result_expires is {seconds:g} s, and a message of queue {queue!r} may wait {longest:g} s between attempts"
        why = "the state RETRY expires meanwhile: the caller sees PENDING, and may take the task for lost"
        yield Finding("results.expire_early", "warning", what, why, f"result_expires = {round(2 * longest)}")


def _longest(policy: RedeliveryPolicy) -> float:
    """Return the longest single delay of a message, for its first delivery or between two attempts."""
    if not policy.enabled:
        return 0
    attempts = MANY if policy.max_delivery_attempts == UNLIMITED else min(policy.max_delivery_attempts, MANY)
    wait = longest = float(policy.redelivery_delay)
    for _ in range(attempts - 2):
        wait = min(wait * policy.redelivery_delay_multiplier, policy.cap)
        longest = max(longest, wait)
    return max(min(longest, policy.cap) if attempts > 1 else 0, policy.delivery_delay)


def check_celery(seen: Seen) -> Iterator[Finding]:
    """Find settings of Celery by which messages bypass the broker, are lost, or all go to one worker."""
    conf = seen.runtime.app.conf
    if conf.task_always_eager:
        why = "nothing goes through the broker, so that nothing is redelivered and no dead letter is kept"
        yield Finding("app.always_eager", "danger", "task_always_eager = True", why, "task_always_eager = False")
    if conf.worker_prefetch_multiplier == 0:
        why = "one worker takes all waiting messages: the others stay idle, and if it dies, all of them go back"
        yield Finding("prefetch.unlimited", "warning", "worker_prefetch_multiplier = 0", why, "worker_prefetch_multiplier = 4")
    if seen.kind != "redis" and not (conf.broker_transport_options or {}).get("confirm_publish"):
        why = "a producer does not learn that the broker did not take its task: a restart or an alarm loses it silently"
        fix = 'broker_transport_options = {"confirm_publish": True}'
        yield Finding("publications.unconfirmed", "warning", "confirm_publish is not set", why, fix)
    if seen.kind != "redis":
        yield from _transient(seen)


def _transient(seen: Seen) -> Iterator[Finding]:
    queues = seen.runtime.app.amqp.queues
    transient = sorted(name for name, queue in queues.items() if not queue.durable or queue.auto_delete)
    why = "a restart of the broker loses its messages"
    if transient:
        fix = f"Queue({transient[0]!r}, durable=True, auto_delete=False), and delete the old queue"
        yield Finding("queue.transient", "danger", f"a queue that does not last: {named(transient)}", why, fix)
    if seen.runtime.app.conf.task_default_delivery_mode in {1, "transient"}:
        fix = 'task_default_delivery_mode = "persistent"'
        yield Finding("publications.transient", "danger", "task_default_delivery_mode is transient", why, fix)
