"""Reads the properties of RabbitMQ messages in a way that no producer's message can break the connection.

py-amqp ends the connection if it cannot read a value: tables nested deeper than Python's stack, a time after the year 9999, text
that is not UTF-8. Here such a header value, and one that nests deeper than `MAX_DEPTH`, is kept as bytes, in a table with a mark
(`KEPT_RAW`); text that is not UTF-8 is read with `?`. Our own header is left out if it cannot be read.
"""

from __future__ import annotations

from collections import defaultdict
from struct import Struct
from struct import error as StructError  # noqa: N812 - its name says nothing
from typing import TYPE_CHECKING, Any

import amqp
from amqp import spec
from amqp.exceptions import AMQPError, UnexpectedFrame
from amqp.serialization import loads

from ...messages.envelope import HEADER

if TYPE_CHECKING:
    from collections.abc import Callable

#: The key that marks our tables, and its value for a table with an unread value's bytes.
MARK, KEPT_RAW = "redelivery:is", "raw"
#: How deep lists and tables may nest.
MAX_DEPTH = 64
#: py-amqp's errors for a value that it cannot read.
UNREADABLE = (ArithmeticError, AMQPError, LookupError, OSError, RecursionError, StructError, TypeError, ValueError)
METHOD, CONTENT_HEADER, BODY, HEARTBEAT = 1, 2, 3, 8
SIZE, NUMBER = Struct(">I"), Struct(">Q")
#: The types of a table's values: types that begin with their length, and the lengths of the others.
SIZED, LENGTHS = b"SxFA", dict(zip(b"bBtsUuIifDlLdTV", (1, 1, 1, 2, 2, 2, 4, 4, 4, 5, 8, 8, 8, 8, 0), strict=True))
#: The properties before and after the headers, in their order, with their flags.
BEFORE = ((0x8000, "content_type"), (0x4000, "content_encoding"))
BEHIND = (
    *((0x1000, "delivery_mode"), (0x0800, "priority"), (0x0400, "correlation_id"), (0x0200, "reply_to"), (0x0100, "expiration")),
    *((0x0080, "message_id"), (0x0040, "timestamp"), (0x0020, "type"), (0x0010, "user_id"), (0x0008, "app_id")),
    (0x0004, "cluster_id"),
)
OCTETS = frozenset({"delivery_mode", "priority"})
#: The methods that carry a message, and where their exchange and routing key begin.
WITH_A_MESSAGE: dict[tuple[int, int], Callable[[bytes], int]] = {
    spec.Basic.Deliver: lambda content: 14 + content[4],
    spec.Basic.GetOk: lambda _: 13,
    spec.Basic.Return: lambda content: 7 + content[6],
}


class Received(amqp.Message):
    """A message that one of our connections reads."""

    def _load_properties(self, class_id: int, buf: bytes, offset: int) -> int:
        """As py-amqp's; an unreadable value, or one that nests too deep, is kept as bytes."""
        try:
            end: int = super()._load_properties(class_id, buf, offset)
        except UNREADABLE:
            self.properties = _salvaged(buf, offset)
            return len(buf)
        if is_deep(self.properties.get("application_headers"), MAX_DEPTH + 1):
            self.properties = _salvaged(buf, offset)
        return end


def frame_handler(connection: Any, callback: Callable[..., Any]) -> Callable[[tuple[int, int, bytes]], bool]:
    """As py-amqp's: the function that handles each frame of a connection. Its messages are `Received`."""
    expected: defaultdict[int, int] = defaultdict(lambda: METHOD)
    partial: dict[int, Received] = {}

    def on_frame(frame: tuple[int, int, bytes]) -> bool:
        kind, channel, content = frame
        connection.bytes_recv += 1
        if kind == HEARTBEAT:
            return False
        if kind != expected[channel]:
            msg = f"Received frame {kind} while expecting type: {expected[channel]}"
            raise UnexpectedFrame(msg)
        if kind == METHOD:
            method = (content[0] << 8 | content[1], content[2] << 8 | content[3])
            if method not in WITH_A_MESSAGE:
                callback(channel, method, content, None)
                return True
            partial[channel] = Received(frame_method=method, frame_args=_readable(method, content))
            expected[channel] = CONTENT_HEADER
            return False
        message = partial[channel]
        (message.inbound_header if kind == CONTENT_HEADER else message.inbound_body)(content)
        if not message.ready:
            expected[channel] = BODY
            return False
        expected[channel] = METHOD
        del partial[channel]
        callback(channel, message.frame_method, message.frame_args, message)
        return True

    return on_frame


def is_deep(value: Any, left: int = MAX_DEPTH) -> bool:
    """Whether lists and tables nest deeper than this."""
    if not isinstance(value, (dict, list)):
        return False
    inner = value.values() if isinstance(value, dict) else value
    return not left or any(is_deep(each, left - 1) for each in inner if isinstance(each, (dict, list)))


def _readable(method: tuple[int, int], content: bytes) -> bytes:
    """A method's arguments. If exchange or routing key are not UTF-8, `?` replaces each byte that is not ASCII."""
    at = WITH_A_MESSAGE[method](content)
    if content[at:].isascii():  # nearly always: the names are ASCII, and shorter than 128 bytes
        return content
    for _ in range(2):
        name, end = _short(content, at)
        content = content[: at + 1] + name.encode("utf-8", "surrogatepass") + content[end:]
        at = end
    return content


def _salvaged(buf: bytes, at: int) -> dict[str, Any]:
    """The properties, read one by one."""
    flags, at = int.from_bytes(buf[at : at + 2], "big"), at + 2
    properties: dict[str, Any] = {}
    for flag, name in BEFORE:
        if flags & flag:
            properties[name], at = _short(buf, at)
    if flags & 0x2000:
        end = at + 4 + SIZE.unpack_from(buf, at)[0]
        properties["application_headers"], at = _headers(buf[at + 4 : end]), end
    for flag, name in BEHIND:
        if not flags & flag:
            continue
        if name in OCTETS:
            properties[name], at = buf[at], at + 1
        elif name == "timestamp":
            properties[name], at = NUMBER.unpack_from(buf, at)[0], at + 8
        else:
            properties[name], at = _short(buf, at)
    return properties


def _short(buf: bytes, at: int) -> tuple[str, int]:
    """A short text, and where it ends. If it is not UTF-8, `?` replaces each byte that is not ASCII; the length stays."""
    end = at + 1 + buf[at]
    given = bytes(buf[at + 1 : end])
    try:
        return given.decode("utf-8", "surrogatepass"), end
    except UnicodeDecodeError:
        return given.decode("ascii", "replace").replace("\ufffd", "?"), end


def _headers(table: bytes) -> dict[Any, Any]:
    """The headers, each read separately. From a value of an unknown type on, the rest is kept as one value."""
    headers: dict[Any, Any] = {}
    at = 0
    while at < len(table):
        try:
            begin = at + 1 + table[at]
            end = begin + 1 + (4 + SIZE.unpack_from(table, begin + 1)[0] if table[begin] in SIZED else LENGTHS[table[begin]])
        except (LookupError, StructError):
            headers[MARK] = _raw(table[at:])
            break
        name, value = _name(table[at + 1 : begin]), _value(table[begin:end])
        if name != HEADER or not (isinstance(value, dict) and value.get(MARK) == KEPT_RAW):
            headers[name] = value
        at = end
    return headers


def _name(name: bytes) -> str | bytes:
    try:
        return name.decode()
    except UnicodeDecodeError:
        return name  # as py-amqp's


def _value(item: bytes) -> Any:
    try:
        [[value]], _ = loads("A", SIZE.pack(len(item)) + item, 0)
    except UNREADABLE:
        return _raw(item)
    return _raw(item) if is_deep(value) else value


def _raw(item: bytes) -> dict[str, Any]:
    return {MARK: KEPT_RAW, "of": bytes(item)}
