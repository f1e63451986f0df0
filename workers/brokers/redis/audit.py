"""The audit on Redis: a stream that keeps the newest records.

The scripts that change an operation's state also record the change.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from redelivery.middleware.brokers.redis.scripts import Script, text_of

from ...ports import Gap, Record, Recorded

if TYPE_CHECKING:
    from redelivery.middleware.brokers.redis.transport import RedisTransport

#: The maximum number of records in the stream.
MAX_RECORDS = 10_000
#: The maximum number of records in one answer: the broker serves no other client while it writes the answer.
PAGE = 1_000

_RECORD, _READ = Script("record"), Script("read_audit")


class Read(NamedTuple):
    """The records after a given one, and the stream's counts at that time.

    `added` is how many records were ever added, and `gone` how many of them were removed. `has_last` says whether the given record
    is still there.
    """

    records: list[Record]
    added: int
    gone: int
    has_last: bool
    now_ms: int


class RedisAudit:
    """Implements `AuditStore` on Redis."""

    def __init__(self, transport: RedisTransport) -> None:
        self._client, self.name = transport.client, transport.keys.audit

    def record(self, said: str) -> None:
        _RECORD(self._client, [self.name], [said, MAX_RECORDS])

    def records(self, limit: int) -> list[Record]:
        found: Any = self._client.xrevrange(self.name, count=limit)
        return [_record(record_id, values) for record_id, values in found]

    def following(self, record_id: str, position: int) -> Recorded:
        read = self._behind(record_id)
        is_another = read.added < position or (read.gone < position and not read.has_last)
        if is_another:
            read = self._behind("")
        if not read.records:
            return Recorded([], position)
        lost = read.added - position - len(read.records)
        if lost == 0 and not is_another:
            return Recorded(read.records, read.added)
        why = "replaced" if is_another else "cap" if read.gone > position else "removed"
        before, count = read.records[0].record_id, None if is_another else lost
        gap = Gap(after=record_id, before=before, lost=count, why=why, noticed_ms=read.now_ms)
        return Recorded(read.records, read.added, gap)

    def _behind(self, record_id: str) -> Read:
        """Read all records after this one in pages, including records that are added meanwhile."""
        records: list[Record] = []
        last, has_last = record_id, False
        while True:
            answer: Any = _READ(self._client, [self.name], [f"({last}" if last else "-", PAGE, record_id])
            if answer is None:
                return Read([], 0, 0, has_last=False, now_ms=0)
            added, length, page, is_there, now_ms = answer
            has_last = has_last or is_there > 0
            records += [_record(each, dict(zip(values[::2], values[1::2], strict=True))) for each, values in page]
            if len(page) < PAGE:
                return Read(records, int(added), int(added) - int(length), has_last=has_last, now_ms=int(now_ms))
            last = records[-1].record_id


def _record(record_id: bytes, values: dict[bytes, bytes]) -> Record:
    moved = values.get(b"moved", b"")
    return Record(
        text_of(record_id),
        int(record_id.partition(b"-")[0]),
        values.get(b"record", b"").decode("utf-8", "replace"),
        int(moved) if moved.isdigit() else None,
    )
