"""The outcome log on Redis as an operator and an exporter have it: a stream, with a lease for whoever exports."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from redelivery.middleware.brokers.redis.scripts import Script
from redelivery.middleware.messages.events import Event

from ...export.batch import decoded
from ...ports import Tail
from .heard import Reading
from .outcome_log import follow

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from redelivery.middleware.brokers.redis.transport import RedisTransport

    from ...ports import ExportResult, Format

_LEAD = Script("lead")


class RedisOutcomeLog:
    """See `OutcomeLog`."""

    def __init__(self, transport: RedisTransport) -> None:
        self._transport, self._client, self._keys = transport, transport.client, transport.keys

    def lead(self, token: str, lead_ms: int) -> bool:
        """As `OutcomeLog.lead`: one of all exporters does, by a lease."""
        return bool(_LEAD(self._client, [self._keys.exporter], [token, lead_ms]))

    def export(self, destination: str, *, format: Format = "parquet", batch: int = 50_000) -> ExportResult:  # noqa: A002 - as `OutcomeLog`
        from ...export.export import export_outcomes  # noqa: PLC0415 - pyarrow is an optional dependency

        return export_outcomes(self._client, self._keys, destination, format=format, batch=batch)

    @contextmanager
    def tail(self, limit: int, *, is_followed: bool) -> Iterator[Tail]:  # noqa: ARG002 - the log is read on from where it stood
        raw: Any = self._client.xrevrange(self._keys.outcomes, count=max(limit, 1))
        last = raw[0][0].decode() if raw else "0"
        events = [each for each in decoded(reversed(raw[:limit])) if isinstance(each, Event)]
        yield Tail(events, 0, lambda: follow(self._client, self._keys.outcomes, last))

    @contextmanager
    def hear(self, dead_letter_queue: str, *, since_ms: int | None = None) -> Iterator[Callable[[float], Iterable[Event]]]:
        yield Reading(self._transport, dead_letter_queue, since_ms).heard
