"""Broken builds: known mistakes of brokers and workers, put into processes of the tests; the harness must detect them.

- `pop_then_push`: messages are popped, and recorded as held in a second step (kombu's own way on Redis).
- `acknowledge_then_record`: a message is ended, and its outcome recorded in a second step.
- `no_owner_check`: a transition does not look whether the message is still its worker's.
- `publish_after_acknowledge`: a message that must be delivered again is ended first, and published in a second step.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from redelivery.middleware.brokers.redis import scripts
from redelivery.middleware.brokers.redis.keys import unacked_suffix
from redelivery.middleware.brokers.redis.pipeline import UnderWay
from redelivery.middleware.brokers.redis.receiving.channel import Receiving
from tests.faults.chaos.boundary import here

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["BUILDS", "install"]


def install() -> None:
    """Break this process as `CHAOS_BUILD` says, before the boundaries are installed; nothing if it is not set."""
    name = os.environ.get("CHAOS_BUILD", "")
    if name:
        BUILDS[name]()


def _rewritten(broken: str, before: str, after: str) -> None:
    """Replace text of a script's file when it is read."""
    read = scripts._file

    def _file(name: str) -> str:
        text = read(name)
        if name != broken:
            return text
        assert before in text, f"{broken}.lua has changed: the broken build must be written anew"
        return text.replace(before, after)

    scripts._file = _file
    scripts.source.cache_clear()


def _pop_then_push() -> None:
    _rewritten(
        "receive",
        "local written = redis.pcall('HSET', KEYS[1], tag, '[' .. raw .. ARGV[7 + q])",
        "local written = {}\n          if #written == 0 then written = 1 end",
    )
    take_in = Receiving._take_in

    def take_in_late(self: Any, reply: Any) -> None:
        receiver = self.receiver
        base = 6 + 2 * len(receiver.queues)
        for at in range(4, len(reply), 3):
            tag, index, raw = reply[at], int(reply[at + 1]), reply[at + 2]
            if index:
                queue = receiver.queues[(index - base) % len(receiver.queues)]
                receiver.owner.transport.client.hset("unacked", tag, b"[" + raw + unacked_suffix(queue).encode())
        take_in(self, reply)

    Receiving._take_in = take_in_late  # type: ignore[method-assign]


def _in_two_steps(name: str) -> None:
    call = scripts.Script.__call__

    def called(self: scripts.Script, client: Any, keys: Any, args: Any) -> Any:
        if self.name != name or not args[0]:
            return call(self, client, keys, args)
        answer = call(scripts.Script("acknowledge"), client, keys[:5], args[:2])
        here(f"{name}.after", lambda: True)
        if answer not in {b"done", "done"}:
            return answer
        return call(self, client, keys, ["", *args[1:]])

    scripts.Script.__call__ = called  # type: ignore[method-assign]
    UnderWay.is_here = lambda self: False  # type: ignore[method-assign]  # noqa: ARG005 - every answer is waited for


def _no_owner_check() -> None:
    _rewritten("take", "if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then", "if false then")


BUILDS: dict[str, Callable[[], None]] = {
    "pop_then_push": _pop_then_push,
    "acknowledge_then_record": lambda: _in_two_steps("acknowledge"),
    "no_owner_check": _no_owner_check,
    "publish_after_acknowledge": lambda: _in_two_steps("defer"),
}
