"""Hostile messages from a seeded generator: garbage, wrong shapes, hostile values in every place.

Each is bytes for a list of the broker. If a message can carry it, its header `fuzz` has its number.
"""

from __future__ import annotations

import base64
import json
import pickle
from typing import TYPE_CHECKING, Any

from redelivery.middleware.messages.envelope import KNOWN

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

__all__ = ["MARK", "TASK", "hostile"]

MARK = "fuzz"
TASK = "tests.support.hostile.fuzzed.take"
HEADERS = (
    "lang",
    "task",
    "id",
    "shadow",
    "eta",
    "expires",
    "group",
    "group_index",
    "retries",
    "timelimit",
    "root_id",
    "parent_id",
    "argsrepr",
    "kwargsrepr",
    "origin",
    "ignore_result",
    "stamped_headers",
    "stamps",
    "replaced_task_nesting",
    "compression",
    "redelivered",
    "redelivery",
    "redelivery-announced",
    "redelivery-published",
    "redelivery-dead-letter-eligible",
    "redelivery-time-to-live-ms",
    "redelivery-delivery-delay-ms",
    "redelivery-expiration",
    "redelivery-delivered",
    "redelivery-cc",
    "redelivery-released",
    "redelivery:is",
)
PROPERTIES = (
    "correlation_id",
    "reply_to",
    "delivery_mode",
    "delivery_info",
    "priority",
    "body_encoding",
    "delivery_tag",
    "expiration",
)
TYPES = (
    "application/x-python-serialize",
    "application/x-yaml",
    "application/x-msgpack",
    "text/plain",
    "application/data",
    "x",
    "",
    5,
    None,
)
ENCODINGS = ("binary", "utf-16", "utf-7", "ascii", "rot13", "hex", "zlib", "idna", "punycode", "undefined", "no-such", "", 5, None)
#: Reading it does not run it: only unpickling leaves a trace that the test looks for.
PICKLED = pickle.dumps(([], {}, {}))


def nested(depth: int, chance: random.Random) -> Any:
    """Lists or objects in each other."""
    value: Any = []
    for _ in range(depth):
        value = [value] if chance.random() < 0.5 else {"a": value}
    return value


SCALARS: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 5, 2**31, 2**53, 2**63, 2**64, -(2**63) - 1, 10**400, 0.5, -0.0, 1e308, float("inf"),
    float("-inf"), float("nan"), "", " ", "0", "-1", "x", "celery", "unacked", "nan", "\x00", "\ud800", "\udfff\ud800",
    "\u202e", "\x06\x16", "é" * 40, "DLQ.celery", "../../etc/passwd", "'; DROP TABLE", "{{7*7}}", "%s%n", "\r\n*1\r\n",
    "1" * 5000, "2001-01-01T00:00:00", "9999-12-31T23:59:59", "9999-99-99", "0001-01-01T00:00:00+23:59", "2020-02-30",
    "12:00", [], {}, [[]], [None], [1, 2], [1, 2, 3], [-1, -1], [float("nan"), None], [float("inf"), 1], ["a", "b"],
    [None, None], [{}], {"a": 1}, {"queue": []}, {"queue": "\ud800"}, {"": ""}, {"routing_key": 5},
    {"exchange": [], "routing_key": {}},
)  # fmt: skip


def value(chance: random.Random) -> Any:
    """Any value that JSON can express."""
    draw = chance.random()
    if draw < 0.85:
        return chance.choice(SCALARS)
    if draw < 0.9:
        return chance.randbytes(chance.randrange(30)).decode("latin-1")
    if draw < 0.95:
        return {str(chance.choice(SCALARS))[:50]: chance.choice(SCALARS) for _ in range(3)}
    return nested(chance.choice((3, 50, 300)), chance) if draw < 0.99 else nested(900, chance)


def hostile(number: int, chance: random.Random) -> bytes:
    """One message."""
    kinds: tuple[Callable[[int, random.Random], bytes], ...] = (
        *[_garbage, _broken, _misshapen, _body] * 2,
        _history,
        *[_field] * 3,
    )
    return chance.choice(kinds)(number, chance)


def _sound(number: int) -> dict[str, Any]:
    """A message as kombu publishes it, with nothing wrong."""
    headers = {
        "lang": "py",
        "task": TASK,
        "id": f"fuzz-{number}",
        "retries": 0,
        "eta": None,
        "expires": None,
        "timelimit": [None, None],
    }
    return {
        "body": _encoded(b"[[], {}, {}]"),
        "content-type": "application/json",
        "content-encoding": "utf-8",
        "headers": {**headers, MARK: number},
        "properties": {
            "delivery_tag": f"t{number}",
            "body_encoding": "base64",
            "delivery_info": {"exchange": "", "routing_key": "celery"},
            "priority": 0,
        },
    }


def _sealed(message: Any) -> bytes:
    return json.dumps(message).encode()


def _encoded(body: bytes) -> str:
    return base64.b64encode(body).decode()


def _garbage(number: int, chance: random.Random) -> bytes:
    return b"%d:" % number + chance.randbytes(chance.choice((0, 1, 10, 200, 5000)))


def _broken(number: int, chance: random.Random) -> bytes:
    """A valid message whose bytes were cut, flipped or doubled; if it is still a message, it has its number."""
    while True:
        raw = _damaged(number, chance)
        try:
            message = json.loads(raw)
        except ValueError:
            return raw
        headers = message.get("headers") if isinstance(message, dict) else None
        if not isinstance(headers, dict) or headers.get(MARK) == number:
            return raw


def _damaged(number: int, chance: random.Random) -> bytes:
    raw = bytearray(_sealed(_sound(number)))
    for _ in range(chance.randrange(1, 4)):
        at = chance.randrange(len(raw))
        draw = chance.random()
        if draw < 0.3:
            del raw[at:]
            raw += b" %d" % number
        elif draw < 0.7:
            raw[at] = chance.randrange(256)
        else:
            raw[at:at] = raw[at : at + chance.randrange(1, 20)]
    return bytes(raw)


def _misshapen(number: int, chance: random.Random) -> bytes:
    """Bytes that are no message, or lack a part of one."""
    draw = chance.random()
    if draw < 0.2:
        return json.dumps([number, value(chance)]).encode()
    if draw < 0.22:
        return b'{"%d": ' % number + b"[" * 100_000 + b"]" * 100_000 + b"}"
    message = _sound(number)
    if draw < 0.5:
        del message[chance.choice(list(message))]
    elif draw < 0.8:
        part = message[chance.choice(["headers", "properties"])]
        del part[chance.choice([name for name in part if name != MARK])]
    else:
        message[chance.choice(list(message))] = value(chance)
    return _sealed(message)


def _body(number: int, chance: random.Random) -> bytes:
    """A body that is not Celery's, or differs from what its headers say."""
    message = _sound(number)
    embed = {name: value(chance) for name in ("callbacks", "errbacks", "chain", "chord") if chance.random() < 0.3}
    bodies: tuple[Any, ...] = (
        value(chance), [value(chance)], [[], value(chance), {}], [value(chance), {}, {}], [[], {}, value(chance)], [[], {}, embed],
    )  # fmt: skip
    raw = chance.choice((json.dumps(chance.choice(bodies)).encode(), PICKLED, chance.randbytes(50), b"", b"[" * 3000))
    message["body"] = chance.choice((_encoded(raw), _encoded(raw)[:-1], raw.decode("latin-1"), value(chance)))
    if chance.random() < 0.4:
        message["content-type"] = chance.choice(TYPES)
    if chance.random() < 0.4:
        message["content-encoding"] = chance.choice(ENCODINGS)
    if chance.random() < 0.2:
        message["headers"]["compression"] = chance.choice(("application/x-gzip", "gzip", "zlib", "no-such"))
    return _sealed(message)


def _history(number: int, chance: random.Random) -> bytes:
    """Our own header with any content."""
    message = _sound(number)
    header = {name: value(chance) for name in sorted(KNOWN) if chance.random() < 0.4}
    for name in ("deaths", "attempts"):
        if chance.random() < 0.4:
            entry = {key: value(chance) for key in ("queue", "reason", "count", "first", "last", "generation", "delay", "at")}
            header[name] = [entry] * chance.choice((1, 2, 30))
    message["headers"]["redelivery"] = header
    return _sealed(message)


def _field(number: int, chance: random.Random) -> bytes:
    """One to three headers or properties with any content."""
    message = _sound(number)
    for _ in range(chance.randrange(1, 4)):
        if chance.random() < 0.7:
            message["headers"][chance.choice(HEADERS)] = value(chance)
        else:
            message["properties"][chance.choice(PROPERTIES)] = value(chance)
    return _sealed(message)
