"""The wake-up protocol with more workers than a machine can hold: `./dev python -m benchmarks.light_fleet --clients 16,1000,10000`.

A light client is a connection with the commands of a waiting worker: it watches keys, asks for messages, acknowledges them, and
renews its lease; the two watchers read all leases. A plain client has the commands of a plain worker. No client runs Celery, and
all are in one process, so the figures are only about the broker. Messages are pushed at an even rate, as a plain producer pushes
them. Prints a line for each number of clients and each side; with `--json` one object at the end.
"""

from __future__ import annotations

import argparse
import heapq
import json
import random
import selectors
import socket
import statistics
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import matplotlib as mpl
from matplotlib.figure import Figure as Canvas

from benchmarks.plots import COLOURS, SETTINGS, svg
from benchmarks.processor import broker_seconds
from redelivery.middleware.brokers.redis.keys import Keys, unacked_suffix
from redelivery.middleware.brokers.redis.scripts import Script, command, packed
from tests.support.servers import Server, binaries

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Fleet", "measured"]

QUEUE: Final = "celery"
#: As in `workers/duties/lease.py`: seconds between two renewals, milliseconds after which a watcher must renew its role, and the
#: maximum size of a small fleet.
RENEW, WATCH_MS, SMALL = 1.0, 3000, 8
SIDES: Final = ("redelivery", "plain")
#: The figures of the curves.
CURVES: Final = {
    "idle_broker_ms_per_second": "broker's processor while nothing comes, ms/s",
    "broker_us_per_task": "broker's processor for a task besides, µs",
}
RECEIVE, ACKNOWLEDGE, RENEWAL, REGISTER = Script("receive"), Script("acknowledge"), Script("renew"), Script("register")


class Incomplete(Exception):
    """An answer is incomplete."""


def parsed(data: bytearray, at: int) -> tuple[Any, int]:
    """Parse one answer (RESP3). Returns it with the offset of the next one. Raises `Incomplete`."""
    end = data.find(b"\r\n", at)
    if end < 0:
        raise Incomplete
    kind, rest, after = data[at : at + 1], bytes(data[at + 1 : end]), end + 2
    if kind in b"+-,#(_":
        return (RuntimeError(rest.decode()) if kind == b"-" else rest), after
    size = int(rest)
    if kind == b":":
        return size, after
    if kind in b"$=":
        if len(data) < after + size + 2:
            raise Incomplete
        return (None, after) if size < 0 else (bytes(data[after : after + size]), after + size + 2)
    values = []
    for _ in range(size * (2 if kind == b"%" else 1)):
        value, after = parsed(data, after)
        values.append(value)
    return (("push", values) if kind == b">" else values), after


class Connection(ABC):
    """A non-blocking connection. Each answer goes to the callback of its command."""

    def __init__(self, fleet: Fleet, number: int) -> None:
        self.fleet, self.token = fleet, f"w{number}"
        self.lists = [fleet.keys.list(name) for name in fleet.keys.list_names(QUEUE)]
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(fleet.server.socket)
        self.socket.settimeout(0)
        self.read, self.expected, self.written = bytearray(), deque[Any](), bytearray()
        self.send(command(b"HELLO", b"3"), None)

    def send(self, words: bytes, answered: Callable[[Any], None] | None) -> None:
        """Send a command. `answered` is called with its answer."""
        self.expected.append(answered)
        self.written += words
        self.flush()

    def flush(self) -> None:
        """Write as much as the socket accepts."""
        if self.written:
            try:
                del self.written[: self.socket.send(self.written)]
            except BlockingIOError:
                self.fleet.blocked.add(self)

    def readable(self) -> None:
        """Read, and handle complete answers."""
        self.read += self.socket.recv(65536)
        at = 0
        while at < len(self.read):
            try:
                value, at = parsed(self.read, at)
            except Incomplete:
                break
            if isinstance(value, tuple):
                self.pushed(value[1][1])
                continue
            if isinstance(value, RuntimeError):
                raise value
            answered = self.expected.popleft()
            if answered is not None:
                answered(value)
        del self.read[:at]

    @abstractmethod
    def begin(self, after: float) -> None:
        """Begin to wait for messages after some seconds."""

    @abstractmethod
    def pushed(self, changed: list[bytes]) -> None:
        """Watched keys have changed."""


class PlainClient(Connection):
    """The commands of a plain worker: wait for a second at a time, add each message to `unacked`, and remove it."""

    def pushed(self, changed: list[bytes]) -> None:
        """Not used: a plain client watches no keys."""

    def begin(self, after: float) -> None:
        self.fleet.at(time.monotonic() + after, self.ask)

    def ask(self) -> None:
        """Wait for a message, at most a second."""
        self.send(command(b"BRPOP", *(name.encode() for name in self.lists), b"1"), self.received)

    def received(self, answer: list[bytes] | None) -> None:
        """Hold the message, acknowledge it, and ask again."""
        if answer:
            keys, tag = self.fleet.keys, self.token.encode()
            self.fleet.took(answer[1])
            held, ended = ([b"ZADD", b"0", tag], [b"HSET", tag, answer[1]]), ([b"ZREM", tag], [b"HDEL", tag])
            for index, note in (held, ended):
                index.insert(1, keys.unacked_index.encode())
                note.insert(1, keys.unacked.encode())
                for words in ([b"MULTI"], index, note, [b"EXEC"]):
                    self.send(command(*words), None)
        self.ask()


class Client(Connection):
    """A client with the commands of a waiting worker."""

    def __init__(self, fleet: Fleet, number: int) -> None:
        super().__init__(fleet, number)
        self.calls, self.keys, keys = 0, fleet.keys, fleet.keys
        self.place = [keys.received(self.token), keys.watch(QUEUE), keys.idle(QUEUE), *self.lists]
        self.own = keys.woken(self.token)
        self.names = [keys.unacked, keys.unacked_index, self.place[0], keys.leases, self.own, *self.place[1:]]
        #: An answer is due; it must ask; it must watch the lists; it waits until another client makes it the watcher.
        self.is_busy = self.must_ask = self.must_look = self.waits = False
        self.look_at = 0.0
        self.send(command(*b"CLIENT TRACKING ON OPTIN NOLOOP".split()), None)

    def begin(self, after: float) -> None:
        """Schedule the renewals of the lease, and the first request."""
        self.fleet.at(time.monotonic() + after, self.renew)
        self.fleet.at(time.monotonic() + after, self.look_again)

    def pushed(self, changed: list[bytes]) -> None:
        """Watched keys have changed: a new watcher looks at the lists, and a watcher of the lists asks."""
        if self.waits and self.own.encode() in changed:
            self.waits, self.must_look = False, True
        else:
            self.must_ask = True
        self.go_on()

    def look(self, names: list[str], answered: Callable[[int], None] | None = None) -> None:
        """Let the server report changes of these keys. `answered` is called with the number of existing ones."""
        self.send(command(b"CLIENT", b"CACHING", b"YES"), None)
        self.send(command(b"EXISTS", *(name.encode() for name in names)), answered)

    def go_on(self) -> None:
        """Take the next step unless an answer is due."""
        if self.is_busy:
            return
        if self.must_ask:
            self.ask(is_look=False)
        elif self.must_look:
            self.is_busy, self.must_look = True, False
            self.look(self.lists, self.looked)

    def ask(self, *, is_look: bool) -> None:
        self.is_busy, self.must_ask, self.calls = True, False, self.calls + 1
        self.look([self.own])
        args = [self.token, self.calls, 1, 10**6, 1, 1, int(is_look), unacked_suffix(QUEUE), 1]
        self.send(packed(RECEIVE.sha, self.names, args), self.received)

    def received(self, answer: list[Any]) -> None:
        """Acknowledge the message, if any. Then watch or wait."""
        _, _, look_ms, watched, *messages = answer
        self.must_ask, self.must_look = not look_ms, watched == b"1"
        self.waits = bool(look_ms) and not self.must_look
        self.look_at = time.monotonic() + abs(look_ms) / 1000 * random.uniform(0.8, 1.0)  # noqa: S311 - not for security
        self.fleet.at(self.look_at, self.look_again)
        place = self.place if look_ms < 0 else []
        if messages:
            tag, raw = messages[0], messages[2]
            self.fleet.took(raw)
            names = [self.keys.unacked, self.keys.unacked_index, self.keys.starts, self.keys.leases, self.keys.outcomes]
            args = [tag, self.token, self.calls if place else ""]
            self.send(packed(ACKNOWLEDGE.sha, [*names, *place], args), self.acknowledged if place else None)
        if not (messages and place):
            self.is_busy = False
            self.go_on()

    def acknowledged(self, answer: bytes | int) -> None:
        """Wait as a free worker, or ask again."""
        self.must_ask, self.is_busy = self.must_ask or answer != self.calls, False
        self.go_on()

    def looked(self, found: int) -> None:
        """Ask if a message arrived before the look."""
        self.must_ask, self.is_busy = self.must_ask or bool(found), False
        self.go_on()

    def look_again(self) -> None:
        """Ask again if it is time and no answer is due."""
        if not self.is_busy and time.monotonic() >= self.look_at - 0.001:
            self.ask(is_look=True)

    def renew(self) -> None:
        keys = self.keys
        needs = [keys.recovering, keys.dispatcher, keys.open_operations, keys.operator]
        names = [keys.leases, keys.lease_watcher, keys.second_lease_watcher, *needs]
        self.send(packed(RENEWAL.sha, names, [self.token, WATCH_MS]), self.renewed)

    def renewed(self, answer: list[int]) -> None:
        """Read all leases if this is a watcher. Otherwise renew half as often, unless the fleet is small."""
        _, leases, watches, *_ = answer
        if watches:
            self.send(command(b"INFO", b"server"), None)
            self.send(command(b"HGETALL", self.keys.leases.encode()), None)
        self.fleet.at(time.monotonic() + RENEW * (1 if watches or leases <= SMALL else 2), self.renew)


class Fleet:
    """Clients of one server, all plain or all of redelivery."""

    def __init__(self, server: Server, count: int, side: str) -> None:
        self.server, self.keys, self.timers = server, Keys(), list[Any]()
        self.selector, self.blocked, self.taken, self.number = selectors.DefaultSelector(), set[Connection](), list[float](), 0
        for script in (RECEIVE, ACKNOWLEDGE, RENEWAL):
            server.client.script_load(script.text)
        kind: type[Connection] = PlainClient if side == "plain" else Client
        self.clients = [kind(self, number) for number in range(count)]
        for number, client in enumerate(self.clients):
            REGISTER(server.client, [self.keys.leases, self.keys.owners], [client.token, "{}"])
            self.selector.register(client.socket, selectors.EVENT_READ, client)
            client.begin(RENEW * number / count)

    def at(self, when: float, work: Callable[[], None]) -> None:
        self.number += 1
        heapq.heappush(self.timers, (when, self.number, work))

    def took(self, raw: bytes) -> None:
        """Note the wait of a received message."""
        self.taken.append(time.monotonic() - float(json.loads(raw)["headers"]["id"]))

    def run(self, seconds: float, per_second: float = 0.0) -> int:
        """Run for `seconds`, and push messages at this rate. Returns their number."""
        began, pushed, client = time.monotonic(), 0, self.server.client
        while (now := time.monotonic()) < began + seconds:
            while pushed < (now - began) * per_second:
                message = {"body": "", "headers": {"id": str(time.monotonic())}, "properties": {"priority": 0}}
                client.lpush(self.keys.list(QUEUE), json.dumps(message))
                pushed += 1
            while self.timers and self.timers[0][0] <= now:
                heapq.heappop(self.timers)[2]()
            for each in list(self.blocked):
                self.blocked.discard(each)
                each.flush()
            for key, _ in self.selector.select(0.002):
                key.data.readable()
        return pushed

    def close(self) -> None:
        for each in self.clients:
            each.socket.close()
        self.selector.close()


def measured(kind: str, side: str, count: int, seconds: float, per_second: float) -> dict[str, Any]:
    """The broker's cost of `count` idle clients, and the additional cost of a task."""
    with tempfile.TemporaryDirectory(prefix="rd-") as name:
        server = Server(Path(name), binaries()[kind], {"maxclients": "19900"}).start()
        try:
            fleet = Fleet(server, count, side)
            fleet.run(4 + count / 1000)  # until all clients wait
            spent = [broker_seconds(server.client)]
            began = time.monotonic()
            fleet.run(seconds)
            idle = time.monotonic() - began
            spent.append(broker_seconds(server.client))
            began = time.monotonic()
            pushed = fleet.run(seconds, per_second)
            busy = time.monotonic() - began
            spent.append(broker_seconds(server.client))
            fleet.run(2)
            if len(fleet.taken) != pushed or server.client.exists(fleet.keys.unacked):
                msg = f"{pushed} were pushed, {len(fleet.taken)} received, {server.client.hlen(fleet.keys.unacked)} not ended"
                raise RuntimeError(msg)
            fleet.close()
        finally:
            server.stop(9)
    per_idle = (spent[1] - spent[0]) / idle
    waits = sorted(fleet.taken)
    return {
        "side": side,
        "clients": count,
        "idle_broker_ms_per_second": round(per_idle * 1e3, 1),
        "idle_broker_us_per_client_and_second": round(per_idle * 1e6 / count, 1),
        "broker_us_per_task": round((spent[2] - spent[1] - per_idle * busy) / pushed * 1e6),
        "wait_p50_ms": round(statistics.median(waits) * 1e3, 2),
        "wait_p99_ms": round(waits[int(len(waits) * 0.99)] * 1e3, 2),
        "tasks": pushed,
    }


def curves(rows: list[dict[str, Any]]) -> str:
    """The plot: the cost of the idle clients, and the additional cost of a task."""
    with mpl.rc_context(SETTINGS):
        canvas = Canvas(figsize=(7.2, 2.8), layout="constrained")
        for axes, (name, title) in zip(canvas.subplots(1, 2), CURVES.items(), strict=True):
            for side in SIDES:
                mine = [row for row in rows if row["side"] == side]
                axes.plot([row["clients"] for row in mine], [row[name] for row in mine], "o-", color=COLOURS[side], label=side)
            axes.set_xscale("log")
            axes.set_ylim(bottom=0)
            axes.set_xlabel("workers")
            axes.set_title(title, loc="left", fontsize=9)
            axes.legend()
        return svg(canvas)


def main() -> None:
    parser = argparse.ArgumentParser(prog="./dev python -m benchmarks.light_fleet")
    parser.add_argument("--clients", default="16,100,1000,10000", help="how many, several with commas (16,100,1000,10000)")
    parser.add_argument("--server", choices=["valkey", "redis"], default="redis")
    parser.add_argument("--seconds", type=float, default=10, help="how long without messages, and with (10)")
    parser.add_argument("--per-second", type=float, default=250, help="messages a second (250)")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the curves into this SVG file")
    said = parser.parse_args()
    rows = []
    for count in map(int, said.clients.split(",")):
        for side in SIDES:
            rows.append(measured(said.server, side, count, said.seconds, said.per_second))
            if not said.json:
                sys.stdout.write(
                    "  ".join([side, *(f"{name} {value:,}" for name, value in rows[-1].items() if name != "side")]) + "\n"
                )
                sys.stdout.flush()
    if said.json:
        sys.stdout.write(json.dumps({"server": said.server, "rows": rows}) + "\n")
    if said.plot:
        said.plot.write_text(curves(rows))


if __name__ == "__main__":
    main()
