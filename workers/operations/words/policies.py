"""A policy for people: each value with its unit and its source, and the resulting delays."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from redelivery.middleware.policy.backoff import delay_range
from redelivery.middleware.policy.decorator import options_of
from redelivery.settings import DEFAULT_QUEUE, UNLIMITED

from .numbers import duration_text

if TYPE_CHECKING:
    from redelivery.middleware.policy.options import Options
    from redelivery.middleware.runtime import Runtime
    from redelivery.settings import RedeliveryPolicy, ResolvedPolicy

#: The number of delays that are shown.
DELAYS = 10
SECONDS = frozenset({"redelivery_delay", "max_redelivery_delay", "max_age", "max_time_to_live", "delivery_delay"})


def sources_of(runtime: Runtime, queue: str, task: str | None) -> ResolvedPolicy:
    """Return the policy for a queue and a task of this app, with the source of each value."""
    options = options_for(runtime.app, task)
    return runtime.settings.policy_for(queue, task, decorator=None if options is None else options.fields)


def options_for(app: Any, task: str | None) -> Options | None:
    """Return the options in the decorator of a task of the app; None if it has none."""
    if app is None or task is None or task not in app.tasks:
        return None
    return options_of(app.tasks[task])


def delays_of(policy: RedeliveryPolicy) -> list[tuple[int, float, float, bool]]:
    """Return for each delay the attempt that failed, the least and the greatest delay, and whether another attempt follows."""
    limit = policy.max_delivery_attempts
    return [(n, *delay_range(policy, n), limit == UNLIMITED or n < limit) for n in range(1, DELAYS + 1)]


def shown(policy: RedeliveryPolicy, key: str, target: str | None) -> str:
    """Return a value as text with its unit. `target` is the dead-letter queue."""
    value = plain_value(policy, key)
    special = {
        ("max_delivery_attempts", UNLIMITED): "-1 (no limit)",
        ("dead_letter_queue", DEFAULT_QUEUE): f"default ({target})",
        ("dead_letter_queue", None): "none (discard)",
    }
    if isinstance(value, (list, dict)):
        return json.dumps(value) if value else "none"
    if (key, value) in special:
        return special[key, value]
    return _word(value) if key not in SECONDS or value is None else duration_text(value)


def plain_value(policy: RedeliveryPolicy, key: str) -> Any:
    """Return a value for JSON. `max_redelivery_delay` is the cap that applies."""
    if key == "max_redelivery_delay":
        return policy.cap
    value = getattr(policy, key)
    if key == "rules":
        return {each: dict(rule) for each, rule in value.items()}
    return list(value) if isinstance(value, tuple) else value


def _word(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:g}" if isinstance(value, float) else str(value) or "(empty)"
