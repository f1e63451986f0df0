"""The messages in `unacked`, which workers hold, each with its worker: one with redelivery, or a plain Celery worker.

Other entries are skipped.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from redelivery.middleware.brokers.redis.keys import split_unacked
from redelivery.middleware.messages.envelope import json_mapping

from .pages import hash_pages

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from redelivery.middleware.brokers.redis.transport import RedisTransport

#: The owner of messages that were received without a lease. Whether it lives is unknown; the visibility timeout gives its messages
#: back.
PLAIN_WORKER = "(plain worker)"


@dataclass(frozen=True, slots=True)
class HeldMessage:
    """A held message and its origin queue. `owner` is the name of its worker, empty if that worker is gone.

    `token` is the token of the worker's lease; empty if it has none.
    """

    raw: bytes
    queue: str
    owner: str
    token: str = ""


def held_pages(transport: RedisTransport) -> Iterator[tuple[int, list[HeldMessage]]]:
    """Yield the held messages, in no order, each page with the server's time (ms)."""
    client, keys = transport.client, transport.keys
    leases: Any = client.hkeys(keys.leases)
    abouts: Any = client.hgetall(keys.owners)
    living = {token: str(json_mapping(abouts.get(token)).get("worker") or token.decode(errors="replace")) for token in leases}
    routes = bindings(transport)
    for now, page in hash_pages(client, keys.unacked):
        yield now, [held for tag, value in page.items() if (held := _held(tag, value, living, routes)) is not None]


def bindings(transport: RedisTransport) -> dict[tuple[str, str], str]:
    """Return the queue of each exchange and routing key, from kombu's tables for the app's exchanges."""
    queues, found = {} if transport.app is None else transport.app.amqp.queues, {}
    for exchange in {queue.exchange.name for queue in queues.values() if queue.exchange is not None}:
        members: Any = transport.client.smembers(transport.keys.bindings(exchange))
        for member in members:
            routing_key, _, queue = [*member.decode(errors="replace").split(transport.keys.separator), "", ""][:3]
            found[exchange, routing_key] = queue
    return found


def _held(tag: bytes, value: bytes, living: Mapping[bytes, str], routes: Mapping[tuple[str, str], str]) -> HeldMessage | None:
    token, is_minted, _ = tag.partition(b":")
    owner = living.get(token, "") if is_minted else PLAIN_WORKER
    try:
        raw, queue = split_unacked(value)
    except (ValueError, IndexError):
        return _of_kombu(value, owner, routes)
    return HeldMessage(raw, queue, owner, token.decode(errors="replace") if is_minted and owner else "")


def _of_kombu(value: bytes, owner: str, routes: Mapping[tuple[str, str], str]) -> HeldMessage | None:
    try:
        message, exchange, routing_key = json.loads(value)
        queue = routes.get((exchange, routing_key), routing_key)
    except (ValueError, TypeError, RecursionError):
        return None
    return HeldMessage(json.dumps(message).encode(), str(queue), owner)
