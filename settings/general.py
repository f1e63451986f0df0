"""The settings that hold for the whole app and belong to no queue: one table of their defaults, their meaning and their checks.

Enters: values as people write them. Leaves: a frozen `GeneralSettings`. Refuses, with `ConfigurationError`, values out of range.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Literal

from redelivery.settings import values

__all__ = ["GENERAL", "GeneralSettings", "read_general"]

#: A lease is renewed once a second: below this, a worker that is merely busy would be taken for dead.
LEAST_LEASE = 2.0


@dataclass(frozen=True, kw_only=True)
class GeneralSettings:
    """What holds for the whole app.

    - `mode`: `"enforce"`, or `"observe"`, which records outcomes and the decisions it would take and changes nothing.
    - `lease`: seconds after which a worker that gave no sign counts as dead; 2 or more.
    - `outcome_log_max_bytes`: the most that the outcome log may take in the broker; beyond it the oldest events go, and the gap is
      recorded.
    - `fast_receive`: the batched receive script; false leaves receiving to kombu.
    - `eta_threshold`: messages due later than in so many seconds wait in the delay store, not in the worker.
    - `dispatcher`: whether every worker runs a dispatcher; false where it runs as a process of its own.
    - `redact`: whether the arguments of tasks are hidden in what operators see.
    - `wait_replicas`: how many Redis replicas must confirm a transition (`WAIT`); 0 asks none.
    """

    mode: Literal["enforce", "observe"] = "enforce"
    lease: float = 10.0
    outcome_log_max_bytes: int = 256 * 1024 * 1024
    fast_receive: bool = True
    eta_threshold: float = 1.0
    dispatcher: bool = True
    redact: bool = False
    wait_replicas: int = 0


_CHECKS: dict[str, values.Check] = {
    "mode": values.choice("enforce", "observe"),
    "lease": values.duration_from(LEAST_LEASE),
    "outcome_log_max_bytes": values.count(1),
    "fast_receive": values.flag,
    "eta_threshold": values.duration,
    "dispatcher": values.flag,
    "redact": values.flag,
    "wait_replicas": values.count(0),
}

#: The names of the general settings, in the order in which they are shown.
GENERAL: tuple[str, ...] = tuple(each.name for each in fields(GeneralSettings))


def read_general(setting: str, value: Any, where: str = "") -> Any:
    """One general setting, checked and in the form in which it is kept. Raises `ConfigurationError`."""
    return _CHECKS[setting](f"{where}: {setting}" if where else setting, value)
