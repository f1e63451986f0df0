"""Malformed messages into a real worker of each pool: it lives, and each is kept with its bytes, or run where Celery would run it.

`FUZZ_MESSAGES` says how many for each pool, `FUZZ_SEED` which ones.
"""

from __future__ import annotations

import base64
import json
import os
import random
import tempfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from redelivery.middleware.departure import raw_id
from tests.hostile_messages import MARK, TASK, hostile
from tests.running import Shop, until
from tests.servers import Server, binaries

if TYPE_CHECKING:
    from collections.abc import Iterator

COUNT = int(os.environ.get("FUZZ_MESSAGES", "1500"))
SEED = int(os.environ.get("FUZZ_SEED", "1"))
MEGABYTE = 1024
#: What a worker may grow by between the first half and the second, whatever their number (KiB).
MOST_GROWTH = 64 * MEGABYTE
#: What waits for longer than this has asked for it; the policy's own delays are far shorter (ms).
LONG = 600_000
PATIENCE = 60 + COUNT / 10
POOLS = [pytest.param(pool, marks=pytest.mark.xdist_group(f"fuzz-{pool}")) for pool in ("prefork", "threads", "solo", "gevent")]


@pytest.fixture(params=POOLS)
def here(request: pytest.FixtureRequest) -> Iterator[Shop]:
    """A worker that says only what kills it, and a broker without a log on disk."""
    with tempfile.TemporaryDirectory(prefix="rd-", ignore_cleanup_errors=True) as name:
        server = Server(Path(name), binaries()["valkey"]).start()
        settings = {"queues": {"#": {"redelivery_delay": 0.02, "max_delivery_attempts": 2}}}
        made = Shop(server, Path(name), settings=settings, backend=True, module="tests.fuzzed")
        made.start("-l", "CRITICAL", pool=request.param)
        yield made
        made.stop()
        server.stop(9)


def at_rest(here: Shop) -> bool:
    """Whether nothing is held, and nothing waits but what has asked for a long time."""
    client = here.server.client
    seconds, _ = client.time()
    with client.pipeline() as pipe:
        for name in queues():
            pipe.llen(name)
            pipe.zcount(f"redelivery:delayed:due:{name}", "-inf", int(seconds) * 1000 + LONG)
        pipe.hlen("unacked")
        return not any(pipe.execute())


def queues() -> list[str]:
    """The lists of the worker's queue."""
    return ["celery", *(f"celery\x06\x16{step}" for step in (3, 6, 9))]


def letters(here: Shop) -> list[bytes]:
    """Whatever lies in a list: the worker's own are empty."""
    client = here.server.client
    found = []
    for name in client.scan_iter(_type="list", count=1000):
        found += client.lrange(name, 0, -1)
    return found


def plain(message: Any) -> Any:
    """A value that can be compared: NaN is not itself."""
    return json.dumps(message, sort_keys=True)


def is_kept(letter: dict[str, Any], raw: bytes) -> bool:
    """Whether the letter holds all of the message: what makes it expire is taken off, and what we write is ours."""
    original = json.loads(raw)
    ours = {"redelivery", "expires", "retries", "redelivered", "eta", "redelivery-time-to-live-ms", "redelivery-published"}
    headers = {name: value for name, value in original["headers"].items() if name not in ours}
    if not isinstance(headers.get("id"), str):
        headers.pop("id", None)
    properties = {name: value for name, value in original["properties"].items() if name not in {"delivery_info", "expiration"}}
    parts = {name: value for name, value in original.items() if name not in {"headers", "properties"}}
    return (
        all(plain(letter.get(name)) == plain(value) for name, value in parts.items())
        and all(plain(letter["headers"].get(name)) == plain(value) for name, value in headers.items())
        and all(plain(letter["properties"].get(name)) == plain(value) for name, value in properties.items())
    )


def unaccounted(here: Shop, sent: list[bytes]) -> list[bytes]:
    """The messages that are neither in a dead-letter queue, whole and once, nor have run, nor wait because they asked to."""
    numbers = {raw_id(raw): number for number, raw in enumerate(sent)}
    there: Counter[int] = Counter()
    for kept in letters(here):
        letter = json.loads(kept)
        headers = letter["headers"]
        number = headers[MARK] if MARK in headers else numbers[headers["id"]]
        if is_wrapped(letter):
            there[number] += base64.b64decode(letter["body"]) == sent[number]
        else:
            there[number] += is_kept(letter, sent[number])
    client = here.server.client
    waiting = [raw for name in queues() for raw in client.hvals(f"redelivery:delayed:messages:{name}")]
    elsewhere = {run["number"] for run in here.runs() if "number" in run}
    elsewhere |= {json.loads(raw)["headers"][MARK] for raw in waiting}
    elsewhere |= {number for number, raw in enumerate(sent) if is_not_to_be_kept(raw)}
    return [raw for number, raw in enumerate(sent) if there[number] > 1 or not (there[number] or number in elsewhere)]


def is_not_to_be_kept(raw: bytes) -> bool:
    """Whether its producer asks that it be discarded where it dies."""
    try:
        return json.loads(raw)["headers"]["redelivery-dead-letter-eligible"] is False
    except (ValueError, LookupError, TypeError, RecursionError):
        return False


def is_wrapped(letter: dict[str, Any]) -> bool:
    """Whether the letter is an envelope of ours around bytes that had none."""
    return letter.get("content-type") == "application/octet-stream" and MARK not in letter["headers"]


def resident(here: Shop) -> int:
    """The worker's memory (KiB)."""
    status = Path(f"/proc/{here.workers[0].process.pid}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1])


@pytest.mark.timeout(300 + COUNT)
def test_whatever_lies_in_the_list_ends_and_costs_the_worker_nothing(here: Shop) -> None:
    """Each of the messages is in a dead-letter queue with its bytes, or was run; the worker lives, and does not grow."""
    chance = random.Random(SEED)  # noqa: S311 - a scenario, no secret
    sent = [hostile(number, chance) for number in range(COUNT)]
    (worker,), sizes = here.workers, []
    for half in (sent[: COUNT // 2], sent[COUNT // 2 :]):
        for at in range(0, len(half), 1000):
            here.server.client.lpush("celery", *half[at : at + 1000])
        until(lambda: at_rest(here) or worker.process.poll() is not None, PATIENCE, f"all to end: {here.leftovers()}")
        assert worker.process.poll() is None, worker.text[-3000:]
        sizes.append(resident(here))
    missing = unaccounted(here, sent)
    assert not missing, (len(missing), missing[:3])
    behind = [here.app.send_task(TASK, ignore_result=True).id for _ in range(4)]
    for task_id in behind:
        here.ended(task_id, "succeeded")
    assert sizes[1] - sizes[0] < MOST_GROWTH, sizes
    assert worker.stop() == 0
