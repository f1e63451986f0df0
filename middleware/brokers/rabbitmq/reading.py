"""How a worker reads from RabbitMQ: everything that is there at once, instead of three short reads for each frame.

py-amqp asks the socket for seven bytes, then for the frame, then for its last byte, and Celery's event loop goes round once for
each message. Here all is read together and dispatched in one turn, and a delivery of the common kind is decoded at once; what is
anything else py-amqp decodes. `docs/performance.md` says what that is worth; `fast_receive = false` switches it off.

Whenever something that was read is left (a method that was waited for came first, a handler raised), a socket of its own wakes the
loop for it, since the broker's has no more to say. Whoever waits for an answer is given one method at a time, as by py-amqp, which
registers a consumer only after its answer has been read. TLS, workers without an event loop, and a py-amqp that this was not
written against are left to py-amqp itself.
"""

from __future__ import annotations

import contextlib
import socket
from struct import Struct
from struct import error as StructError  # noqa: N812 - its name says nothing
from typing import TYPE_CHECKING, Any

import amqp
from amqp import spec
from amqp.exceptions import UnexpectedFrame
from amqp.transport import TCPTransport
from kombu.transport import pyamqp

from .properties import is_deep

if TYPE_CHECKING:
    from collections.abc import Callable

#: The py-amqps whose inner workings this was written against and is tested with.
KNOWN = ("5.4.",)
#: Bytes that are read at once.
PORTION = 262_144

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


class ReadingAhead(pyamqp.Connection):
    """A connection of py-amqp that an event loop may `read_ahead`."""

    _loop: Any = None
    _ahead = b""
    _at = 0
    _is_woken = False
    _hears: socket.socket
    _wakes: socket.socket

    @property
    def reads_ahead(self) -> bool:
        """Whether a loop reads it so."""
        return self._loop is not None

    def read_ahead(self, loop: Any) -> None:
        """From now on this loop calls `on_readable`, where the connection is one that can be read so."""
        if type(self.transport) is not TCPTransport or not amqp.__version__.startswith(KNOWN):
            return
        self._ahead, self.transport._read_buffer = bytes(self.transport._read_buffer), b""  # noqa: SLF001 - what it has begun
        self._at, self._loop = 0, loop
        self._hears, self._wakes = socket.socketpair()
        loop.add_reader(self._hears, self._come_back)

    def collect(self) -> None:
        """As py-amqp's; the loop is woken no more."""
        if self._loop is not None and self._hears.fileno() >= 0:
            self._loop.remove(self._hears)
            self._hears.close()
            self._wakes.close()
        super().collect()

    def on_readable(self) -> None:
        """Read what there is, and dispatch all of it. Raises what the connection raises."""
        try:
            self._receive(0)
        except TimeoutError:
            return
        self._dispatch(lambda _: False)

    def drain_events(self, timeout: float | None = None) -> None:
        """As py-amqp's: one method. Raises `TimeoutError`, and what the connection raises."""
        if self._loop is None:
            super().drain_events(timeout)
            return
        while not self._dispatch(bool):
            self._receive(timeout)

    def _dispatch(self, is_enough: Callable[[Any], bool]) -> bool:
        """Dispatch frames until it is enough, or there are no more; whether it was enough."""
        try:
            while True:
                if (delivery := delivery_at(self._ahead, self._at)) is not None:
                    found = self._deliver(*delivery)
                elif (frame := self._frame()) is not None:
                    found = self.on_inbound_frame(frame)
                else:
                    return False
                if is_enough(found):
                    return True
        finally:
            if not self._is_woken and self._size() is not None and self._hears.fileno() >= 0:
                self._is_woken = True
                self._wakes.send(b"!")

    def _deliver(self, channel_id: int, arguments: tuple[Any, ...], message: amqp.Message, after: int) -> bool:
        """As py-amqp's `dispatch_method`, for a whole delivery."""
        self._at = after
        self.bytes_recv += 3  # frames, by which py-amqp knows that the broker lives
        channel = self.channels[channel_id]
        if not channel.is_closing:
            encoding = message.properties.get("content_encoding")
            if channel.auto_decode and encoding and isinstance(message.body, bytes):
                with contextlib.suppress(LookupError, ValueError):
                    message.body = message.body.decode(encoding)
            channel._callbacks[spec.Basic.Deliver](*arguments, message)  # noqa: SLF001 - as `dispatch_method` does
        return True

    def _come_back(self) -> None:
        self._hears.recv(1)
        self._is_woken = False
        if self.connected:
            self._dispatch(lambda _: False)

    def _size(self) -> int | None:
        """How many bytes the next frame's content has; None where the frame is not whole."""
        if len(self._ahead) - self._at < HEADER.size:
            return None
        size: int = HEADER.unpack_from(self._ahead, self._at)[2]
        return size if len(self._ahead) - self._at > HEADER.size + size else None

    def _frame(self) -> tuple[int, int, bytes] | None:
        size = self._size()
        if size is None:
            return None
        kind, channel, _ = HEADER.unpack_from(self._ahead, self._at)
        begin = self._at + HEADER.size
        self._at = begin + size + 1
        if self._ahead[begin + size] != END:
            msg = f"a frame ends with {self._ahead[begin + size]:#04x}"
            raise UnexpectedFrame(msg)
        return kind, channel, self._ahead[begin : begin + size]

    def _receive(self, timeout: float | None) -> None:
        """Read once. Raises `TimeoutError` where nothing has come, and `OSError` where the broker has closed the connection."""
        with self.transport.having_timeout(timeout) as sock:
            try:
                data = sock.recv(PORTION)
            except (TimeoutError, BlockingIOError, InterruptedError) as exc:
                raise TimeoutError from exc
            except OSError:
                self.transport.connected = False
                raise
        if not data:
            self.transport.connected = False
            msg = "Server unexpectedly closed connection"
            raise OSError(msg)
        self._ahead = self._ahead[self._at :] + data
        self._at = 0


def delivery_at(buffer: bytes, at: int) -> Delivery | None:
    """The delivery that begins here; None where there is none that is whole and of the common kind."""
    try:
        return _delivery_at(buffer, at)
    except (ValueError, IndexError, StructError, RecursionError):  # text that is none, or what was taken for a number of bytes
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
        if table is None or any(is_deep(value) for value in table[0].values() if isinstance(value, (dict, list))):
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
