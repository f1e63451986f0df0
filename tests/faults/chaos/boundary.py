"""The boundaries: every step of a message has a name, and a process of the tests can be told to die there.

A boundary is `<step>.before` (the process is about to ask the broker) or `<step>.after` (the broker has done it, and the answer
has not been used yet). If nobody waits for the answer there is also `<step>.asked` (the broker may have done it or not). Steps are
the scripts, by their names, and what is no script: `receive` (the batch has been answered), `hand_over` (the message is queued for
its consumer), `run` (the task's own code), `recover` (one message of a dead worker), `write` (a file: of the outcome log, of an
inventory, of an archive) and in the middle of it `name` (its bytes are on the disk, and it gets its name).

The order is in the environment: `CHAOS_ORDER=<boundary>:<n>` for the process that is started, and for the children of its pool
`CHAOS_CHILDREN=<seed>:<most>:<boundary>,...`: each child draws a boundary, and a number if it often reaches it. When the process
reaches that boundary for the n-th time while a message is in hand, it writes a line into `CHAOS_KILLS` and kills itself by
SIGKILL. The product knows nothing of this: a process without an order runs the product unchanged.
"""

from __future__ import annotations

import json
import os
import random
import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from celery import signals

from redelivery.middleware.brokers.redis import scripts
from redelivery.middleware.brokers.redis.pipeline import Asking, UnderWay
from redelivery.middleware.brokers.redis.receiving.channel import Receiving
from redelivery.middleware.brokers.redis.receiving.receiver import Receiver
from redelivery.middleware.brokers.redis.stores import Stores
from redelivery.workers.export import tables
from redelivery.workers.operations.fleet import recovery
from redelivery.workers.operations.letters import archive as letter_archive

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Order", "begin", "here", "install", "stand_around"]

#: Steps whose first argument is the tag of the message; an empty tag means that no message is in hand.
TAGGED = {"acknowledge", "defer", "dead_letter", "start", "accept"}
#: Steps that concern no single message: a message is in hand if any worker holds one.
DUTIES = {"renew", "fence", "lead", "watch", "register", "unregister", "bind", "bound", "forget", "resign"}


@dataclass(frozen=True)
class Order:
    """Where to die: at the `nth` time at this boundary."""

    boundary: str
    nth: int

    @classmethod
    def read(cls, text: str) -> Order | None:
        """Read it from the environment; None if there is no order."""
        boundary, _, nth = text.partition(":")
        return cls(boundary, int(nth)) if boundary else None

    def __str__(self) -> str:
        return f"{self.boundary}:{self.nth}"


class _Seam:
    """This process's order, and how often it has been at the boundary; a forked child starts again with its own order."""

    def __init__(self) -> None:
        self.main = self.pid = os.getpid()
        self.order = Order.read(os.environ.get("CHAOS_ORDER", ""))
        self.kills = os.environ["CHAOS_KILLS"]
        self.count = 0

    def current(self) -> Order | None:
        if os.getpid() != self.pid:
            self.pid, self.count = os.getpid(), 0
            self.order = _drawn(os.environ.get("CHAOS_CHILDREN", ""), self.pid)
        return self.order

    def hit(self, boundary: str) -> None:
        self.count += 1
        order = self.order
        if order is None or self.count < order.nth:
            return
        role = os.environ.get("CHAOS_ROLE", "") if self.pid == self.main else "child"
        line = json.dumps({"boundary": boundary, "role": role, "pid": self.pid}) + "\n"
        descriptor = os.open(self.kills, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(descriptor, line.encode())
        os.kill(self.pid, signal.SIGKILL)


def _drawn(text: str, pid: int) -> Order | None:
    seed, _, rest = text.partition(":")
    most, _, boundaries = rest.partition(":")
    if not boundaries:
        return None
    chance = random.Random(f"{seed}-{pid}")  # noqa: S311 - a scenario, no secret
    boundary = chance.choice(boundaries.split(","))
    return Order(boundary, chance.randint(1, int(most)) if boundary.startswith("run.") else 1)


_seam: _Seam | None = None


def here(boundary: str, in_hand: Callable[[], Any]) -> None:
    """Die here if the process is at its boundary."""
    if _seam is None:
        return
    order = _seam.current()
    if order is None or order.boundary != boundary:
        return
    try:
        has_message = bool(in_hand())
    except Exception:  # noqa: BLE001 - a broker that does not answer: it is not known, so it does not count
        return
    if has_message:
        _seam.hit(boundary)


def _yes() -> bool:
    return True


def install() -> None:
    """Watch every boundary of this process from here on. Once in a process."""
    begin()
    _at_scripts()
    _at_what_is_under_way()
    _at_receiving()
    _at_duties()


def begin() -> None:
    """Read this process's order, and watch the steps that do not depend on the broker: its tasks, and its files."""
    global _seam  # noqa: PLW0603 - one process, one seam
    _seam = _Seam()
    _at_files()
    signals.task_prerun.connect(_before_run, weak=False)
    signals.task_postrun.connect(_after_run, weak=False)


def _before_run(**_: Any) -> None:
    here("run.before", _yes)


def _after_run(**_: Any) -> None:
    here("run.after", _yes)


def _at_scripts() -> None:
    call, begin, many = scripts.Script.__call__, scripts.Script.begin, Stores._many

    def called(self: scripts.Script, client: Any, keys: Any, args: Any) -> Any:
        name = _step_of(self.name, keys, args)
        here(f"{name}.before", lambda: _is_in_hand(name, client, keys, args, None))
        answer = call(self, client, keys, args)
        here(f"{name}.after", lambda: _is_in_hand(name, client, keys, args, answer))
        return answer

    def begun(self: scripts.Script, client: Any, keys: Any, args: Any) -> Any:
        here(f"{self.name}.before", lambda: bool(args))
        answer = begin(self, client, keys, args)
        here(f"{self.name}.asked", lambda: bool(args))

        def answered() -> Any:
            said = answer()
            here(f"{self.name}.after", lambda: bool(args))
            return said

        return answered

    def called_many(self: Any, script: scripts.Script, calls: Any) -> Any:
        listed = list(calls)
        here(f"{script.name}.before", lambda: listed)
        answers = many(self, script, listed)
        here(f"{script.name}.after", lambda: listed)
        return answers

    scripts.Script.__call__ = called  # type: ignore[method-assign]
    scripts.Script.begin = begun  # type: ignore[method-assign]
    Stores._many = called_many  # type: ignore[method-assign]


def _at_what_is_under_way() -> None:
    ask, call_back = Asking._ask, UnderWay._call_back
    steps: dict[str, str] = {}

    def asked(self: Any, script: scripts.Script, keys: Any, args: Any) -> Any:
        name = _step_of(script.name, keys, args)
        here(f"{name}.before", lambda: bool(args[0]))
        answer = ask(self, script, keys, args)
        steps[args[0]] = name
        here(f"{name}.asked", lambda: bool(args[0]))
        return answer

    def called_back(self: Any, one: Any, answer: Any) -> None:
        name = steps.pop(one.tag)
        here(f"{name}.after", lambda: bool(one.tag))
        call_back(self, one, answer)

    Asking._ask = asked  # type: ignore[method-assign]
    UnderWay._call_back = called_back  # type: ignore[method-assign,assignment]


def _step_of(script: str, keys: Any, args: Any) -> str:
    """The step of a script; two scripts serve two steps each: the watch over dead letters is a `lead`, and `accept` a `start`."""
    if script == "start" and args[1]:
        return "accept"
    if script == "lead" and keys[0].endswith("letter_watcher"):
        return "watch"
    return script


def _is_in_hand(name: str, client: Any, keys: Any, args: Any, answer: Any) -> bool:
    """Whether a message is in hand at this step; `answer` is None before it."""
    if name in TAGGED:
        return bool(args[0])
    if name == "evict":
        return bool(args[2]) if answer is None else answer[0] in {b"done", "done"}
    if name == "promote":
        if answer is not None:
            return int(answer[0]) > 0
        seconds, micros = client.time()
        first: Any = client.zrange(keys[0], 0, 0, withscores=True)
        return bool(first) and float(first[0][1]) <= seconds * 1000 + micros / 1000
    return name not in DUTIES or _somebody_holds(client)


def _somebody_holds(client: Any) -> bool:
    return int(client.hlen("unacked")) > 0


def _at_receiving() -> None:
    asked, take_in, hand_over = Receiver.asked, Receiving._take_in, Receiving._hand_over

    def asked_here(self: Any) -> None:
        client = self.owner.transport.client
        lists = {name for (queues, _), (names, _) in self.names.items() for name in names[5 + 2 * len(queues) :]}
        here("receive.before", lambda: any(client.llen(each) for each in lists))
        asked(self)

    def take_in_here(self: Any, reply: Any) -> None:
        here("receive.after", lambda: len(reply) > 4)
        take_in(self, reply)
        here("hand_over.before", lambda: self.receiver.pending)

    def hand_over_here(self: Any, *args: Any, **options: Any) -> int:
        count = hand_over(self, *args, **options)
        here("hand_over.after", lambda: count)
        return count

    Receiver.asked = asked_here  # type: ignore[method-assign]
    Receiving._take_in = take_in_here  # type: ignore[method-assign]
    Receiving._hand_over = hand_over_here  # type: ignore[method-assign]


def _at_duties() -> None:
    rescuing: Any = recovery  # what this module imports is no name that it exports
    stand_around(rescuing, "recover", "recover")


def _at_files() -> None:
    stand_around(tables, "_whole", "write")
    stand_around(tables, "_rename", "name")
    stand_around(letter_archive, "_write_lines", "write")


def stand_around(owner: Any, name: str, step: str, in_hand: Callable[..., Any] = lambda *_: True) -> None:
    """Wrap a function with both its boundaries; `in_hand` gets the function's arguments."""
    inner = getattr(owner, name)

    def outer(*args: Any, **facts: Any) -> Any:
        here(f"{step}.before", lambda: in_hand(*args))
        answer = inner(*args, **facts)
        here(f"{step}.after", lambda: in_hand(*args))
        return answer

    setattr(owner, name, outer)
