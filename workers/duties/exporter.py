"""The exporter: writes the outcome log, and new records of the audit, to their destination at regular intervals.

It runs in a worker (`outcome_export`) or its own process. One exporter leads, by a lease on the broker, and the others stand by. If
two run at once, nothing is lost. An exporter may end at any moment: the next one writes the events again that are written but not
yet removed from the log. If the destination or the broker fails, the events stay in the log until the next step. No event is lost
before the log reaches its cap.
"""

from __future__ import annotations

import time
import uuid
from typing import TYPE_CHECKING

from redelivery.errors import BrokerError, RedeliveryError
from redelivery.middleware.logs import log

from ..operations.runs.audit_export import export_audit
from .duty import Duty

if TYPE_CHECKING:
    from ..ports import AuditStore, Format, OutcomeLog

#: Seconds between two exports: each writes a file for every hour from which it has events.
EVERY = 60.0
#: Events of one file, in memory until it is written: about 10 MB, because a worker's tasks need memory, too.
BATCH = 10_000
#: An exporter keeps the lead for this many rounds, and at least this many seconds.
ROUNDS, MIN_LEAD = 3, 30.0


class Exporter(Duty):
    """Exports every `every` seconds."""

    title = "exporter"
    line_if_unanswered = "warning", "outcome_log.export_waiting"
    begins_at_once = True

    def __init__(
        self,
        outcomes: OutcomeLog,
        destination: str,
        *,
        audit: AuditStore,
        every: float = EVERY,
        format: Format = "parquet",  # noqa: A002 - as the command has it
    ) -> None:
        super().__init__(every)
        self._outcomes, self._destination, self._audit, self._format = outcomes, destination, audit, format
        self._token = uuid.uuid4().hex
        self._lead_ms = round(max(ROUNDS * every, MIN_LEAD) * 1000)

    def leads(self) -> bool:
        """Whether this exporter leads."""
        return self._outcomes.lead(self._token, self._lead_ms)

    def step(self) -> int:
        """Export all events and new audit records; return the number of events. Raises errors of broker and destination."""
        began = time.monotonic()
        try:
            done = self._outcomes.export(self._destination, format=self._format, batch=BATCH)
        except BrokerError as exc:
            log.info("outcome_log.export_overtaken", why=str(exc))
            return 0
        if done.events or done.refused or done.gaps:
            seconds = round(time.monotonic() - began, 3)
            log.info("outcome_log.exported", to=self._destination, events=done.events, files=len(done.files), seconds=seconds)
        if (records := export_audit(self._audit, self._destination).records) > 0:
            log.info("audit.exported", to=self._destination, records=records)
        return done.events

    def failed(self, exc: Exception) -> None:
        """Log what an operator must repair: the destination, or missing pyarrow."""
        if isinstance(exc, RedeliveryError):
            log.error("outcome_log.export_failed", to=self._destination, error=str(exc))
        elif isinstance(exc, ImportError):
            why = f"the export needs pyarrow ({exc}): install redelivery[export]"
            log.error("outcome_log.export_failed", to=self._destination, error=why)
        else:
            log.exception("outcome_log.export_failed", to=self._destination)
