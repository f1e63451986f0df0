"""The wake-up protocol with more workers than a machine can hold: `./dev python -m benchmarks.light_fleet --clients 16,1000,10000`.

A light client is a connection that does what a waiting worker's does: it looks at keys, asks for messages, acknowledges them, and
renews its lease; the two that watch look at all leases. It runs no Celery, and all of them live in one process, so the figures are
the broker's alone. Messages are pushed at an even rate, as a plain producer pushes them. A line for each number of clients; with
`--json` one object at the end.
"""

from __future__ import annotations

import argparse
import heapq
import json
import selectors
import socket
import statistics
import sys
import tempfile
import time
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from benchmarks.processor import broker_seconds
from redelivery.middleware.brokers.redis.keys import Keys, unacked_suffix
from redelivery.middleware.brokers.redis.scripts import Script, command, packed
from tests.support.servers import Server, binaries

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Fleet", "measured"]

QUEUE: Final = "celery"
#: Seconds between two renewals, and how long a watcher watches without one, as a worker's lease has it (milliseconds).
RENEW, WATCH_MS = 1.0, 3000
RECEIVE, ACKNOWLEDGE, RENEWAL, REGISTER = Script("receive"), Script("acknowledge"), Script("renew"), Script("register")


class Incomplete(Exception):
    """The rest of an answer has not come yet."""


def parsed(data: bytearray, at: int) -> tuple[Any, int]:
    """One answer of the server's (RESP3), and where the next one begins. Raises `Incomplete`."""
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


class Client:
    """One connection: a worker that waits, without a worker."""

    def __init__(self, fleet: Fleet, number: int) -> None:
        self.fleet, self.token, self.calls = fleet, f"w{number}", 0
        self.keys, keys = fleet.keys, fleet.keys
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(fleet.server.socket)
        self.socket.settimeout(0)
        self.read, self.expected, self.written = bytearray(), deque[Any](), bytearray()
        self.lists = [keys.list(name) for name in keys.list_names(QUEUE)]
        fixed = [keys.unacked, keys.unacked_index, keys.received(self.token), keys.leases, keys.woken(self.token)]
        self.names = [*fixed, keys.watch(QUEUE), keys.idle(QUEUE), *self.lists]
        self.woken = self.is_asking = False
        self.look_at = 0.0
        for words in (b"HELLO 3", b"CLIENT TRACKING ON OPTIN NOLOOP"):
            self.send(command(*words.split()), None)

    def send(self, words: bytes, answered: Callable[[Any], None] | None) -> None:
        """Send a command; `answered` is called with its answer."""
        self.expected.append(answered)
        self.written += words
        self.flush()

    def flush(self) -> None:
        """Write what can be written."""
        if self.written:
            try:
                del self.written[: self.socket.send(self.written)]
            except BlockingIOError:
                self.fleet.blocked.add(self)

    def readable(self) -> None:
        """Read, and handle what is whole."""
        self.read += self.socket.recv(65536)
        at = 0
        while at < len(self.read):
            try:
                value, at = parsed(self.read, at)
            except Incomplete:
                break
            if isinstance(value, tuple):
                self.wake()
                continue
            if isinstance(value, RuntimeError):
                raise value
            answered = self.expected.popleft()
            if answered is not None:
                answered(value)
        del self.read[:at]

    def wake(self) -> None:
        """A key that it looked at has changed."""
        self.woken = True
        if not self.is_asking:
            self.ask()

    def look(self, names: list[str], answered: Callable[[int], None] | None = None) -> None:
        """The server is to say when one of these changes; `answered` is called with how many there are."""
        self.send(command(b"CLIENT", b"CACHING", b"YES"), None)
        self.send(command(b"EXISTS", *(name.encode() for name in names)), answered)

    def ask(self) -> None:
        """Ask for a message."""
        self.is_asking, self.calls, is_look, self.woken = True, self.calls + 1, not self.woken, False
        self.look([self.keys.woken(self.token)])
        args = [self.token, self.calls, 1, 10**6, 1, 1, int(is_look), unacked_suffix(QUEUE), 1]
        self.send(packed(RECEIVE.sha, self.names, args), self.received)

    def received(self, answer: list[Any]) -> None:
        """Acknowledge what came, and ask on; or watch, or wait."""
        _, _, look_ms, watched, *messages = answer
        if messages:
            tag, raw = messages[0], messages[2]
            self.fleet.took(raw)
            names = [self.keys.unacked, self.keys.unacked_index, self.keys.starts, self.keys.leases, self.keys.outcomes]
            self.send(packed(ACKNOWLEDGE.sha, names, [tag, self.token, ""]), None)
            self.ask()
            return
        self.look_at = time.monotonic() + abs(look_ms) / 1000
        self.fleet.at(self.look_at, self.look_again)
        if watched == b"1":
            self.look(self.lists, self.looked)
        else:
            self.rest()

    def looked(self, found: int) -> None:
        """Something may have come before the look."""
        self.woken = self.woken or bool(found)
        self.rest()

    def rest(self) -> None:
        """Wait, but for what came meanwhile."""
        self.is_asking = False
        if self.woken:
            self.ask()

    def look_again(self) -> None:
        """It is time, unless it has asked since."""
        if not self.is_asking and time.monotonic() >= self.look_at - 0.001:
            self.ask()

    def renew(self) -> None:
        """Renew the lease, and look at all leases where it is this one's turn."""
        self.fleet.at(time.monotonic() + RENEW, self.renew)
        keys = self.keys
        needs = [keys.recovering, keys.dispatcher, keys.open_operations, keys.operator]
        names = [keys.leases, keys.lease_watcher, keys.second_lease_watcher, *needs]
        self.send(packed(RENEWAL.sha, names, [self.token, WATCH_MS]), self.renewed)

    def renewed(self, answer: list[int]) -> None:
        """Two of all watch."""
        if answer[1]:
            self.send(command(b"INFO", b"server"), None)
            self.send(command(b"HGETALL", self.keys.leases.encode()), None)


class Fleet:
    """So many clients of one server."""

    def __init__(self, server: Server, count: int) -> None:
        self.server, self.keys, self.timers = server, Keys(), list[Any]()
        self.selector, self.blocked, self.taken, self.number = selectors.DefaultSelector(), set[Client](), list[float](), 0
        for script in (RECEIVE, ACKNOWLEDGE, RENEWAL):
            server.client.script_load(script.text)
        for number in range(count):
            REGISTER(server.client, [self.keys.leases, self.keys.owners], [f"w{number}", "{}"])
        self.clients = [Client(self, number) for number in range(count)]
        now = time.monotonic()
        for number, client in enumerate(self.clients):
            self.selector.register(client.socket, selectors.EVENT_READ, client)
            self.at(now + RENEW * number / count, client.renew)
            self.at(now + RENEW * number / count, client.ask)

    def at(self, when: float, work: Callable[[], None]) -> None:
        """Do this then."""
        self.number += 1
        heapq.heappush(self.timers, (when, self.number, work))

    def took(self, raw: bytes) -> None:
        """A message was received."""
        self.taken.append(time.monotonic() - float(json.loads(raw)["headers"]["id"]))

    def run(self, seconds: float, per_second: float = 0.0) -> int:
        """Live so long; push messages at this rate. Returns how many."""
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
        """All of them go."""
        for each in self.clients:
            each.socket.close()
        self.selector.close()


def measured(kind: str, count: int, seconds: float, per_second: float) -> dict[str, float]:
    """What so many clients cost the broker while nothing comes, and what a task costs beside that."""
    with tempfile.TemporaryDirectory(prefix="rd-") as name:
        server = Server(Path(name), binaries()[kind], {"maxclients": "19900"}).start()
        try:
            fleet = Fleet(server, count)
            fleet.run(4 + count / 1000)  # until all have asked and wait
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
        "clients": count,
        "idle_broker_ms_per_second": round(per_idle * 1e3, 1),
        "idle_broker_us_per_client_and_second": round(per_idle * 1e6 / count, 1),
        "broker_us_per_task": round((spent[2] - spent[1] - per_idle * busy) / pushed * 1e6),
        "wait_p50_ms": round(statistics.median(waits) * 1e3, 2),
        "wait_p99_ms": round(waits[int(len(waits) * 0.99)] * 1e3, 2),
        "tasks": pushed,
    }


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="./dev python -m benchmarks.light_fleet")
    parser.add_argument("--clients", default="16,100,1000,10000", help="how many, several with commas (16,100,1000,10000)")
    parser.add_argument("--server", choices=["valkey", "redis"], default="redis")
    parser.add_argument("--seconds", type=float, default=10, help="how long without messages, and with (10)")
    parser.add_argument("--per-second", type=float, default=250, help="messages a second (250)")
    parser.add_argument("--json", action="store_true")
    said = parser.parse_args()
    rows = []
    for count in map(int, said.clients.split(",")):
        rows.append(measured(said.server, count, said.seconds, said.per_second))
        if not said.json:
            sys.stdout.write("  ".join(f"{name} {value:,}" for name, value in rows[-1].items()) + "\n")
            sys.stdout.flush()
    if said.json:
        sys.stdout.write(json.dumps({"server": said.server, "rows": rows}) + "\n")


if __name__ == "__main__":
    main()
