"""Messages for RabbitMQ with headers that py-amqp refuses to write: deep, badly encoded, odd."""

from __future__ import annotations

import math
import struct
import sys
from typing import TYPE_CHECKING, Any

from redelivery.middleware.brokers.rabbitmq.messages import message_of
from redelivery.middleware.messages.envelope import HEADER
from redelivery.middleware.messages.steps import sealed

if TYPE_CHECKING:
    import amqp

__all__ = ["deep", "table", "wired"]

#: Encoded values that RabbitMQ accepts, and that may break a reader.
ODD: dict[str, bytes] = {
    "a time in the year 292 billion": b"T" + b"\xff" * 8,
    "text that is not UTF-8": b"S" + struct.pack(">I", 2) + b"\xff\xfe",
    "bytes": b"x" + struct.pack(">I", 3) + b"\x00\xff\x01",
    "a decimal": b"D\xff\x7f\xff\xff\xff",
    "a short": b"u\xff\xff",
}


def deep(depth: int, kind: bytes = b"A") -> bytes:
    """Nested arrays, or nested tables (`F`)."""
    name = b"\x01n" if kind == b"F" else b""
    step = 5 + len(name)
    heads = [kind + struct.pack(">I", step * left) for left in range(depth - 1, -1, -1)]
    return name.join(heads)


def item(value: Any) -> bytes:  # noqa: PLR0911 - one for each type
    """A value in AMQP's encoding. Numbers are clipped to 64 bits."""
    if isinstance(value, bool):
        return b"t" + bytes([value])
    if isinstance(value, int):
        return b"l" + struct.pack(">q", max(min(value, 2**63 - 1), -(2**63)))
    if isinstance(value, float) and math.isfinite(value):
        return b"d" + struct.pack(">d", value)
    if isinstance(value, (str, float)):  # RabbitMQ closes a connection that sends an infinity or NaN
        text = str(value).encode("utf-8", "surrogatepass")
        return b"S" + struct.pack(">I", len(text)) + text
    if isinstance(value, bytes):  # already encoded
        return value
    if isinstance(value, dict):
        return b"F" + table(value)
    if isinstance(value, (list, tuple)):
        inner = b"".join(map(item, value))
        return b"A" + struct.pack(">I", len(inner)) + inner
    return b"V"


def table(values: dict[Any, Any]) -> bytes:
    """A table with its length. Names are cut to 255 bytes."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(10_000)
    try:
        pairs = [
            (name if isinstance(name, bytes) else name.encode("utf-8", "surrogatepass"), each) for name, each in values.items()
        ]
        inner = b"".join(bytes([len(name[:255])]) + name[:255] + item(each) for name, each in pairs)
    finally:
        sys.setrecursionlimit(limit)
    return struct.pack(">I", len(inner)) + inner


def wired(message: dict[str, Any], **properties: bytes) -> amqp.Message:
    """The message with hand-encoded headers. `properties` replace its own short strings."""
    headers = message["headers"]
    plain = {name: each for name, each in headers.items() if name in {"task", "id", "lang", "retries"} and name != HEADER}
    made = message_of(sealed({**message, "headers": plain}), target=("", "celery"))
    parts = [(0x8000, "content_type", None), (0x4000, "content_encoding", None), (0x2000, "headers", table(headers))]
    parts += [(0x1000, "delivery_mode", b"\x02"), (0x0400, "correlation_id", None), (0x0200, "reply_to", None)]
    flags, written = 0, b""
    for flag, name, value in parts:
        text = properties.get(name, str(made.properties.get(name) or "").encode())
        flags, written = flags | flag, written + (bytes([len(text)]) + text if value is None else value)
    raw = struct.pack(">H", flags) + written
    made._serialize_properties = lambda: raw
    return made
