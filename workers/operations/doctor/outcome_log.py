"""Checks of the outcome log: it is not exported, it is nearly full, or it has lost events."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...brokers.redis.outcome_log import FILLING
from ..words.numbers import counted
from .finding import Finding

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .seen import Seen

#: The maximum seconds until an event is exported: an hour, or three intervals of the export if that is longer.
UNEXPORTED, ROUNDS = 3600.0, 3


def _export(seen: Seen) -> str:
    return f"redelivery -A {seen.app} outcomes export --to books/outcomes"


def check_export(seen: Seen) -> Iterator[Finding]:
    """Find events that have waited too long for an export."""
    settings = seen.runtime.settings
    if seen.log is None or seen.log.oldest_ms is None:
        return
    waited = (seen.now_ms - seen.log.oldest_ms) / 1000
    if waited <= max(UNEXPORTED, ROUNDS * settings.outcome_export_every):
        return
    why = "the log fills until its oldest events are removed: then the books have a gap (outcome_export lets a worker export)"
    fix = f"{_export(seen)} --every 60s"
    what = f"the oldest event of the outcome log has waited for {waited / 3600:.1f} h: nobody exports it"
    yield Finding("outcome_log.not_exported", "warning", what, why, fix)


def check_bytes(seen: Seen) -> Iterator[Finding]:
    """Find a log that is near its cap, or has lost events."""
    log, cap = seen.log, seen.runtime.settings.outcome_log_max_bytes
    if log is None:
        return
    if log.lost:
        what = f"{counted(log.lost, 'event', 'events')} left the outcome log unexported since the last export"
        why = "the books have a gap there: export more often, or raise outcome_log_max_bytes"
        yield Finding("outcome_log.lost", "danger", what, why, f"{_export(seen)} --every 60s")
    elif log.bytes is not None and log.bytes >= FILLING * cap:
        what = f"the outcome log takes {log.bytes * 100 // cap} % of outcome_log_max_bytes"
        yield Finding("outcome_log.filling", "danger", what, "beyond it the oldest events are removed, unexported", _export(seen))
