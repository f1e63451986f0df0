"""The bench of the tests of transitions: a transport on a private server."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from redelivery.middleware.brokers.redis.keys import Keys, split_unacked, unacked_suffix
from redelivery.middleware.brokers.redis.scripts import Script
from redelivery.middleware.brokers.redis.transport import RedisTransport
from redelivery.middleware.messages.events import Event, entries
from tests.support.running import until

if TYPE_CHECKING:
    from redis import Redis

    from tests.support.servers import Server

__all__ = ["QUEUE", "Bench"]

QUEUE = "orders"


class Bench:
    """A transport on a private server, with an owner `w` that is alive."""

    def __init__(self, server: Server, prefix: str = "") -> None:
        self.client = server.client
        self.keys = Keys(prefix)
        self.transport = RedisTransport(self.client, self.keys)
        self.transport.leases.register("w", {"worker": "w@test"})
        self.receive_script, self.acknowledge_script = Script("receive"), Script("acknowledge")
        self.calls = 0

    def publish(self, *bodies: str, priority: int = 0, queue: str = QUEUE) -> None:
        """Publish messages as kombu does, the first one first."""
        for body in bodies:
            raw = json.dumps({"body": body, "headers": {"id": body}, "properties": {"priority": priority}})
            self.client.lpush(self.keys.list(self.keys.list_name(queue, priority)), raw)

    def receive(
        self,
        budget: int = 10,
        *,
        number: int | None = None,
        token: str = "w",  # noqa: S107 - no password
        queues: tuple[str, ...] = (QUEUE,),
        room: int = 10**6,
        client: Redis | None = None,
        free: int = 0,
        is_look: bool = False,
    ) -> list[Any]:
        """Call the receive script as the channel does. Returns its answer."""
        keys = self.keys
        self.calls = self.calls + 1 if number is None else number
        fixed = [keys.unacked, keys.unacked_index, keys.received(token), keys.leases, keys.woken(token)]
        lists = [keys.list(keys.list_name(queue, step)) for step in keys.priority_steps for queue in queues]
        suffixes = [unacked_suffix(queue) for queue in queues]
        args = [token, self.calls, budget, room, len(queues), free, int(is_look), *suffixes, 1]
        names = [*fixed, *map(keys.watch, queues), *map(keys.idle, queues), *lists]
        answer = self.receive_script(client or self.client, names, args)
        return list(answer)

    def bodies(self, answer: list[Any]) -> list[str]:
        """The bodies of the messages that were received."""
        raws = [answer[at + 2] if answer[at + 1] else split_unacked(answer[at + 2])[0] for at in range(4, len(answer), 3)]
        return [json.loads(raw)["body"] for raw in raws]

    def take(self, body: str = "a") -> str:
        """Publish and receive one message. Returns its tag."""
        self.publish(body)
        return str(self.receive(1)[4].decode())

    def waiting(self, name: str = QUEUE) -> list[str]:
        """The bodies in a queue, the next to be received first."""
        return [json.loads(raw)["body"] for raw in reversed(self.client.lrange(self.keys.list(name), 0, -1))]

    def let_pass(self, ms: int) -> None:
        """Wait until the server's clock has advanced by `ms`."""
        begun = self.transport.now_ms()
        until(lambda: self.transport.now_ms() > begun + ms, what="the server's clock to go on")

    @property
    def events(self) -> list[Event]:
        return entries(self.client.xrange(self.keys.outcomes))
