"""The audit on Redis: a stream, of which the newest records are kept, exported or not.

The scripts that change an operation's state write its records themselves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from redelivery.middleware.brokers.redis.scripts import Script, text_of

from ...ports import Record, Recorded

if TYPE_CHECKING:
    from redelivery.middleware.brokers.redis.transport import RedisTransport

#: Records that are kept.
MAX_RECORDS = 10_000
#: Records of one answer: the broker serves nobody else while it writes them.
PAGE = 1_000

_RECORD, _READ = Script("record"), Script("read_audit")


class RedisAudit:
    """See `AuditStore`."""

    def __init__(self, transport: RedisTransport) -> None:
        self._client, self.name = transport.client, transport.keys.audit

    def record(self, said: str) -> None:
        _RECORD(self._client, [self.name], [said, MAX_RECORDS])

    def records(self, limit: int) -> list[Record]:
        found: Any = self._client.xrevrange(self.name, count=limit)
        return [_record(record_id, values) for record_id, values in found]

    def following(self, record_id: str, position: int) -> Recorded | None:  # noqa: ARG002 - the stream finds it by its id
        records: list[Record] = []
        last, has_last = record_id, False
        while True:
            answer: Any = _READ(self._client, [self.name], [f"({last}" if last else "-", PAGE, record_id])
            if answer is None:
                return None
            added, length, page, is_there, now_ms = answer
            has_last = has_last or is_there > 0
            records += [_record(each, dict(zip(values[::2], values[1::2], strict=True))) for each, values in page]
            if len(page) < PAGE:
                return Recorded(records, int(added), int(added) - int(length), has_last, int(now_ms))
            last = records[-1].record_id


def _record(record_id: bytes, values: dict[bytes, bytes]) -> Record:
    moved = values.get(b"moved", b"")
    return Record(
        text_of(record_id),
        int(record_id.partition(b"-")[0]),
        values.get(b"record", b"").decode("utf-8", "replace"),
        int(moved) if moved.isdigit() else None,
    )
