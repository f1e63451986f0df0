"""Checks of the tasks: options that weaken the guarantee."""

from __future__ import annotations

from typing import TYPE_CHECKING

from redelivery.middleware.child.task_defaults import explicit_app_setting, explicit_task_option
from redelivery.middleware.worker.own_strategy import WHY, own_strategies

from .finding import Finding, named

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .seen import Seen

LOST = "if a worker dies while the task runs, the task never runs again"


def check_acknowledgement(seen: Seen) -> Iterator[Finding]:
    """Find `acks_late=False`, in the app and in single tasks."""
    app, policies = seen.runtime.app, seen.runtime.policies
    if not seen.runtime.enforces:
        return
    if explicit_app_setting(app, "task_acks_late") is False:
        yield Finding("app.acks_early", "warning", "task_acks_late = False in the app's settings", LOST, "task_acks_late = True")
    early = sorted(
        name
        for name, task in app.tasks.items()
        if policies.is_enabled(name) and not name.startswith("celery.") and explicit_task_option(task, "acks_late") is False
    )
    if early:
        why = f"{LOST}; if it must not run twice, --ignore this"
        yield Finding("task.acks_early", "warning", f"acks_late=False: {named(early)}", why, "@app.task(acks_late=True)")


def check_strategies(seen: Seen) -> Iterator[Finding]:
    """Find tasks with their own `Strategy`: redelivery does not see how they end."""
    own = {name: each for name, each in own_strategies(seen.runtime.app).items() if seen.runtime.policies.is_enabled(name)}
    if own:
        what = f"a Strategy of their own: {named([f'{name} ({each})' for name, each in sorted(own.items())])}"
        fix = "catch failures in the task, and publish it again from there"
        yield Finding("task.unobserved", "warning", what, WHY, fix)
