"""The settings of the whole app, which belong to no queue: their defaults, their meaning and their checks."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, Literal

from . import values
from .values import checks_of, setting

#: A lease is renewed once a second. With a shorter lease, a busy worker would count as dead.
MIN_LEASE = 2.0
#: Environment variables that name the release if the settings do not. The first one set is used.
RELEASE_VARIABLES = ("IMAGE_TAG", "SENTRY_RELEASE")


@dataclass(frozen=True, kw_only=True)
class GeneralSettings:
    """The settings of the whole app.

    Each setting with its unit and its default.

    - `mode` (word; "enforce"): with "observe", redelivery records outcomes and what it would decide, and changes nothing.
    - `lease` (seconds; 10): a worker that does not renew its lease for this long counts as dead. 2 or more.
    - `outcome_log_max_bytes` (bytes; 268435456): the largest size of the outcome log in the broker. Beyond it the oldest events
      are removed, and the gap is recorded.
    - `outcome_export` (path or URI; None): where one of the workers exports the outcome log to. With None no worker does.
    - `outcome_export_every` (seconds; 60): the time between two such exports.
    - `outcome_archive` (path or URI; None): where exported events are. `task show` and `audit` read them there. `outcomes export`
      writes them there if it has no `--to`. With None all of these use `outcome_export`.
    - `fast_receive` (flag; true): whether workers receive messages in batches, and read ahead on RabbitMQ. With false, kombu
      receives them.
    - `fast_publish` (flag; true): whether groups, chunks, chords and `publishing()` blocks publish in batches. With false, each
      message is published by itself.
    - `fast_results` (flag; true): whether a worker stores the result of a task in the step that acknowledges its message, if the
      result backend and the broker are one Redis or Valkey server. With false, the task's process stores it before, as Celery does.
    - `eta_threshold` (seconds; 1): a message that is due later than this waits in the delay store, not in the worker.
    - `dispatcher` (flag; true): whether every worker runs a dispatcher. Set false if you run it as a process of its own.
    - `redact` (flag; false): whether commands, logs and JSON hide the arguments of tasks, and the texts and tracebacks of
      exceptions. The stored data does not change.
    - `store_failure_texts` (flag; true): whether texts and tracebacks of exceptions are written into messages. With false,
      only their types and fingerprints are.
    - `wait_replicas` (replicas; 0): how many Redis replicas must confirm a publication or a transition (`WAIT`, for a second
      at most). 0 means none.
    - `dead_letter_archive` (path or URI; None): where dead letters are written before `dead_letter_time_to_live` or
      `max_dead_letters` removes them. With None they are not removed.
    - `management_url` (URL; None): the address of RabbitMQ's management plugin. At start, a worker asks it for policies of the
      broker that end messages. If the URL has no user, the broker's user is used. With None such policies are not seen.
    - `metrics_listen` (address; None): where each worker serves its own counters for Prometheus, for example `127.0.0.1:9541`. It
      needs the extra `metrics`. With None nothing is counted.
    - `opentelemetry` (flag; false): whether publications, deliveries, attempts and moves are reported to OpenTelemetry, as spans
      and as figures. It needs the extra `otel`, and an SDK that your app sets up.
    - `release` (text; None): the release of the app, as outcome events name it. With None it is the environment variable
      `IMAGE_TAG`, or `SENTRY_RELEASE`. Without them the release is unknown.
    """

    mode: Literal["enforce", "observe"] = setting(values.choice("enforce", "observe"), default="enforce")
    lease: float = setting(values.duration_from(MIN_LEASE), default=10.0)
    outcome_log_max_bytes: int = setting(values.count(1), default=256 * 1024 * 1024)
    outcome_export: str | None = setting(values.optional(values.some_text), default=None)
    outcome_export_every: float = setting(values.duration_from(1.0), default=60.0)
    outcome_archive: str | None = setting(values.optional(values.some_text), default=None)
    fast_receive: bool = setting(values.flag, default=True)
    fast_publish: bool = setting(values.flag, default=True)
    fast_results: bool = setting(values.flag, default=True)
    eta_threshold: float = setting(values.duration, default=1.0)
    dispatcher: bool = setting(values.flag, default=True)
    redact: bool = setting(values.flag, default=False)
    store_failure_texts: bool = setting(values.flag, default=True)
    wait_replicas: int = setting(values.count(0), default=0)
    dead_letter_archive: str | None = setting(values.optional(values.some_text), default=None)
    management_url: str | None = setting(values.optional(values.http_url), default=None)
    metrics_listen: str | None = setting(values.optional(values.address), default=None)
    opentelemetry: bool = setting(values.flag, default=False)
    release: str | None = setting(values.optional(values.some_text), default=None)

    @property
    def known_release(self) -> str | None:
        """The release of this process, from the settings or the environment; None if neither names it."""
        return self.release or next((os.environ[name] for name in RELEASE_VARIABLES if os.environ.get(name)), None)

    @property
    def exported_outcomes(self) -> str | None:
        """The path or URI where exported events are; None if there is none."""
        return self.outcome_export if self.outcome_archive is None else self.outcome_archive


_CHECKS = checks_of(GeneralSettings)
#: The names of the general settings, in the order in which they are shown.
GENERAL: tuple[str, ...] = tuple(_CHECKS)


def read_general(setting: str, value: Any, where: str = "") -> Any:
    """The value of one general setting, checked and converted. Raises `ConfigurationError`."""
    return _CHECKS[setting](f"{where}: {setting}" if where else setting, value)
