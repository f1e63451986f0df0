"""The deliveries of RabbitMQ, decoded in one go: what py-amqp makes of three frames, from the bytes as they lie in the buffer.

Enters: bytes, and where a frame begins. Leaves: the same `amqp.Message` with the same arguments that py-amqp would have made, or
None where it is anything but a whole delivery of the common kind (headers of text, numbers, truth values, nothing, and tables and
lists of these; a body in one frame): then py-amqp decodes it.
"""

from __future__ import annotations

from struct import Struct
from struct import error as StructError  # noqa: N812 - its name says nothing
from typing import TYPE_CHECKING, Any

import amqp

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["HEADER", "Delivery", "delivery_at"]

HEADER = Struct(">BHI")
CONTENT = Struct(">HHQH")
INTEGER, NUMBER, SIZE, DOUBLE = Struct(">i"), Struct(">Q"), Struct(">I"), Struct(">d")
METHOD, CONTENT_HEADER, BODY, END = 1, 2, 3, 0xCE
DELIVER = b"\x00\x3c\x00\x3c"
#: Properties by their flags, in their order: short texts, but for the three that have a type of their own.
TEXTS = (
    (0x0400, "correlation_id"),
    (0x0200, "reply_to"),
    (0x0100, "expiration"),
    (0x0080, "message_id"),
)
#: `timestamp`, `type`, `user_id`, `app_id`, `cluster_id` and what is beyond: rare, and left to py-amqp.
RARE = 0x007F

#: Channel, arguments of basic.deliver, the message, and where the next frame begins.
Delivery = tuple[int, tuple[str, int, bool, str, str], amqp.Message, int]


def delivery_at(buffer: bytes, at: int) -> Delivery | None:
    """The delivery that begins here; None where there is none that is whole and of the common kind."""
    try:
        return _delivery_at(buffer, at)
    except (ValueError, IndexError, StructError):  # text that is none, or what was taken for a number of bytes
        return None


def _delivery_at(buffer: bytes, at: int) -> Delivery | None:  # noqa: PLR0911 - one for each way of being something else
    end, size = len(buffer), HEADER.size
    if end - at < size:
        return None
    kind, channel, length = HEADER.unpack_from(buffer, at)
    begin, after = at + size, at + size + length + 1
    if kind != METHOD or buffer[begin : begin + 4] != DELIVER or end - after < size or buffer[after - 1] != END:
        return None
    kind, same, content = HEADER.unpack_from(buffer, after)
    head, body = after + size, after + size + content + 1
    if kind != CONTENT_HEADER or same != channel or end < body or buffer[body - 1] != END:
        return None
    _, _, length, flags = CONTENT.unpack_from(buffer, head)
    properties = None if flags & RARE else _properties(buffer, head + CONTENT.size, flags)
    if properties is None:
        return None
    text: bytes | str = ""
    after = body
    if length:
        if end - body < size:
            return None
        kind, same, whole = HEADER.unpack_from(buffer, body)
        after = body + size + length + 1
        if kind != BODY or same != channel or whole != length or end < after or buffer[after - 1] != END:
            return None
        text = buffer[body + size : after - 1]
    message = amqp.Message()
    message.properties, message.body = properties, text
    message.body_size, message.body_received, message.ready = length, length, True
    return channel, _arguments(buffer, begin + 4), message, after


def _arguments(buffer: bytes, at: int) -> tuple[str, int, bool, str, str]:
    consumer, at = _short(buffer, at)
    tag = NUMBER.unpack_from(buffer, at)[0]
    exchange, next_at = _short(buffer, at + 9)
    return consumer, tag, buffer[at + 8] & 1 == 1, exchange, _short(buffer, next_at)[0]


def _short(buffer: bytes, at: int) -> tuple[str, int]:
    end = at + 1 + buffer[at]
    return buffer[at + 1 : end].decode(), end


def _properties(buffer: bytes, at: int, flags: int) -> dict[str, Any] | None:
    properties: dict[str, Any] = {}
    for flag, name in ((0x8000, "content_type"), (0x4000, "content_encoding")):
        if flags & flag:
            properties[name], at = _short(buffer, at)
    if flags & 0x2000:
        table = _table(buffer, at)
        if table is None:
            return None
        properties["application_headers"], at = table
    for flag, name in ((0x1000, "delivery_mode"), (0x0800, "priority")):
        if flags & flag:
            properties[name] = buffer[at]
            at += 1
    for flag, name in TEXTS:
        if flags & flag:
            properties[name], at = _short(buffer, at)
    return properties


def _table(buffer: bytes, at: int) -> tuple[dict[str, Any], int] | None:
    end = at + 4 + SIZE.unpack_from(buffer, at)[0]
    at += 4
    table: dict[str, Any] = {}
    while at < end:
        name_end = at + 1 + buffer[at]
        name, kind = buffer[at + 1 : name_end].decode(), buffer[name_end]
        if kind == TEXT:  # the two most common ones, without a call
            begin = name_end + 5
            at = begin + SIZE.unpack_from(buffer, name_end + 1)[0]
            table[name] = buffer[begin:at].decode()
        elif kind == NOTHING:
            table[name], at = None, name_end + 1
        elif (found := _value(buffer, name_end)) is not None:
            table[name], at = found
        else:
            return None
    return table, at


def _list(buffer: bytes, at: int) -> tuple[list[Any], int] | None:
    end = at + 4 + SIZE.unpack_from(buffer, at)[0]
    at += 4
    values = []
    while at < end:
        found = _value(buffer, at)
        if found is None:
            return None
        value, at = found
        values.append(value)
    return values, at


def _value(buffer: bytes, at: int) -> tuple[Any, int] | None:
    kind = buffer[at]
    at += 1
    if kind == TEXT:
        end = at + 4 + SIZE.unpack_from(buffer, at)[0]
        return buffer[at + 4 : end].decode(), end
    if kind == NOTHING:
        return None, at
    reader = READERS.get(kind)
    return None if reader is None else reader(buffer, at)


TEXT, NOTHING = ord("S"), ord("V")
READERS: dict[int, Callable[[bytes, int], tuple[Any, int] | None]] = {
    ord("I"): lambda buffer, at: (INTEGER.unpack_from(buffer, at)[0], at + 4),
    ord("t"): lambda buffer, at: (buffer[at] != 0, at + 1),
    ord("d"): lambda buffer, at: (DOUBLE.unpack_from(buffer, at)[0], at + 8),
    ord("F"): _table,
    ord("A"): _list,
}
