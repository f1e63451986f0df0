"""How a worker reads from RabbitMQ: in one read all bytes that have come, where py-amqp makes three short reads for each frame.

py-amqp reads seven bytes, then the frame, then its last byte, and Celery's event loop makes one turn for each message. Here all
frames are read together and dispatched in one turn; py-amqp decodes them. `fast_receive = false` switches this off.

If frames are left over (a caller waited for a method that came first, or a handler raised), a socket of our own wakes the loop for
them, because the broker's socket has no more data. A caller that waits for an answer gets one method at a time, because py-amqp
registers a consumer only after it has read the answer. With TLS, without an event loop, and in unknown versions, py-amqp itself
reads.
"""

from __future__ import annotations

import socket
from struct import Struct
from typing import TYPE_CHECKING, Any

import amqp
from amqp.exceptions import UnexpectedFrame
from amqp.transport import TCPTransport
from kombu.transport import pyamqp

if TYPE_CHECKING:
    from collections.abc import Callable

#: The versions of py-amqp whose internals this module knows.
KNOWN = ("5.4.",)
#: The most bytes of one read.
PORTION = 262_144

#: The beginning of a frame (type, channel, size), and its last byte.
HEADER, END = Struct(">BHI"), 0xCE


class ReadingAhead(pyamqp.Connection):
    """A connection of py-amqp that an event loop may `read_ahead`."""

    _loop: Any = None
    _ahead = b""
    _at = 0
    _is_woken = False
    _wake_reader: socket.socket
    _wake_writer: socket.socket

    @property
    def reads_ahead(self) -> bool:
        return self._loop is not None

    def read_ahead(self, loop: Any) -> None:
        """Let this loop call `on_readable` from now on; not with TLS or an unknown py-amqp."""
        if type(self.transport) is not TCPTransport or not amqp.__version__.startswith(KNOWN):
            return
        self._ahead, self.transport._read_buffer = bytes(self.transport._read_buffer), b""  # noqa: SLF001 - bytes that it has read
        self._at, self._loop = 0, loop
        self._wake_reader, self._wake_writer = socket.socketpair()
        loop.add_reader(self._wake_reader, self._come_back)

    def collect(self) -> None:
        if self._loop is not None and self._wake_reader.fileno() >= 0:
            self._loop.remove(self._wake_reader)
            self._wake_reader.close()
            self._wake_writer.close()
        super().collect()

    def on_readable(self) -> None:
        """Read all that has come, and dispatch it. Raises what the connection raises."""
        try:
            self._receive(0)
        except TimeoutError:
            return
        self._dispatch(lambda _: False)

    def drain_events(self, timeout: float | None = None) -> None:
        """Dispatch one method, as py-amqp does. Raises `TimeoutError`, and what the connection raises."""
        if self._loop is None:
            super().drain_events(timeout)
            return
        while not self._dispatch(bool):
            self._receive(timeout)

    def _dispatch(self, is_enough: Callable[[Any], bool]) -> bool:
        """Dispatch frames until `is_enough` is true, or no frame is left; return which."""
        try:
            while (frame := self._frame()) is not None:
                if is_enough(self.on_inbound_frame(frame)):
                    return True
            return False
        finally:
            if not self._is_woken and self._size() is not None and self._wake_reader.fileno() >= 0:
                self._is_woken = True
                self._wake_writer.send(b"!")

    def _come_back(self) -> None:
        self._wake_reader.recv(1)
        self._is_woken = False
        if self.connected:
            self._dispatch(lambda _: False)

    def _size(self) -> int | None:
        """The size of the next frame's content in bytes; None if the frame is not complete."""
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
        """Read once. Raises `TimeoutError` if nothing has come, and `OSError` if the broker has closed the connection."""
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
