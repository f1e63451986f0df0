"""Malformed messages into a real worker of each pool: it lives, and each message is kept with its bytes, or runs as in Celery.

`FUZZ_MESSAGES` says how many for each pool, the seed of the run which ones.
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

from redelivery.middleware.messages.envelope import ANNOUNCED, VERSION, Envelope
from redelivery.middleware.messages.events import TERMINAL, Reason
from redelivery.middleware.messages.recording import raw_id
from redelivery.workers.letters import Letter
from tests.faults.fuzz.hostile_messages import MARK, TASK, hostile
from tests.support.lanes import first_quick, seed
from tests.support.running import Shop, until
from tests.support.servers import Server, binaries

if TYPE_CHECKING:
    from collections.abc import Iterator

COUNT = int(os.environ.get("FUZZ_MESSAGES", "1500"))
MEGABYTE = 1024
#: How much memory a worker may gain between the first batch and the last, whatever their number (KiB).
MAX_GROWTH = 64 * MEGABYTE
#: A message that waits for longer than this asked for it itself; the policy's own delays are far shorter (ms).
LONG = 600_000
#: How many are sent, waited for and checked together; checked messages are removed.
BATCH = max(min(COUNT // 2, 15_000), 1)
TIMEOUT = 60 + BATCH / 5
POOLS = first_quick(
    pytest.param(pool, marks=pytest.mark.xdist_group(f"fuzz-{pool}")) for pool in ("prefork", "threads", "solo", "gevent")
)


@pytest.fixture(params=POOLS)
def here(request: pytest.FixtureRequest) -> Iterator[Shop]:
    """A worker that logs only fatal errors, and a broker that does not write to disk."""
    with tempfile.TemporaryDirectory(prefix="rd-", ignore_cleanup_errors=True) as name:
        server = Server(Path(name), binaries()["valkey"]).start()
        settings = {"queues": {"#": {"redelivery_delay": 0.02, "max_delivery_attempts": 2}}}
        made = Shop(server, Path(name), settings=settings, backend=True, module="tests.support.hostile.fuzzed")
        made.start("-l", "CRITICAL", pool=request.param)
        yield made
        made.stop()
        server.stop(9)


def at_rest(here: Shop) -> bool:
    """Whether nothing is held, and only messages that asked for a long delay wait."""
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
    """All elements of the lists, except the worker's own queues, which are empty."""
    client = here.server.client
    found = []
    for name in client.scan_iter(_type="list", count=1000):
        found += client.lrange(name, 0, -1)
    return found


def plain(message: Any) -> Any:
    """A value that can be compared: NaN is not equal to itself."""
    return json.dumps(message, sort_keys=True)


def is_kept(letter: dict[str, Any], raw: bytes) -> bool:
    """Whether the dead letter has all of the message, except its expiry and our own additions."""
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


def unaccounted(here: Shop, sent: dict[int, bytes]) -> list[bytes]:
    """Messages that are not complete in a dead-letter queue once, have not run, and do not wait by their own wish."""
    numbers = {raw_id(raw): number for number, raw in sent.items()}
    there: Counter[int] = Counter()
    for kept in letters(here):
        letter = json.loads(kept)
        headers = letter["headers"]
        assert reason_of(headers) in set(Reason), headers
        number = headers[MARK] if MARK in headers else numbers.get(headers["id"])
        if number is None:
            assert is_offspring(headers), headers
        elif is_wrapped(letter):
            there[number] += base64.b64decode(letter["body"]) == sent[number]
        else:
            there[number] += is_kept(letter, sent[number])
    client = here.server.client
    waiting = [raw for name in queues() for raw in client.hvals(f"redelivery:delayed:messages:{name}")]
    ran = {run["number"] for run in here.runs() if "number" in run} & sent.keys()
    asked = {json.loads(raw)["headers"].get(MARK) for raw in waiting} & sent.keys()
    unwanted = {number for number, raw in sent.items() if is_not_to_be_kept(raw)}
    alone, discarded = len(ran - there.keys()), len(unwanted - there.keys() - ran)
    print(f"up to {max(sent)}: {len(there)} in a dead-letter queue, {alone} ran, {len(asked)} wait, {discarded} discarded as asked")  # noqa: T201
    elsewhere = ran | asked | unwanted
    return [raw for number, raw in sent.items() if there[number] > 1 or not (there[number] or number in elsewhere)]


def is_offspring(headers: dict[str, Any]) -> bool:
    """Whether the worker itself published a message of ours: a hostile message's callbacks are tasks, too.

    The publication of a message without a task name has no event: it is recorded when it is received.
    """
    return headers.get("parent_id") is not None and (ANNOUNCED in headers or not isinstance(headers.get("task"), str))


def reason_of(headers: dict[str, Any]) -> str:
    """The reason of its death; an unknown reason, as some hostile headers have it, counts as `invalid`."""
    envelope = Envelope.of(headers)
    return "invalid" if envelope.version > VERSION else str(envelope.deaths[0]["reason"])


def is_not_to_be_kept(raw: bytes) -> bool:
    """Whether its producer asks that it is discarded when it dies."""
    try:
        return json.loads(raw)["headers"]["redelivery-dead-letter-eligible"] is False
    except (ValueError, LookupError, TypeError, RecursionError):
        return False


def is_wrapped(letter: dict[str, Any]) -> bool:
    """Whether the dead letter is an envelope of ours around bytes that had none."""
    return letter.get("content-type") == "application/octet-stream" and MARK not in letter["headers"]


def resident(here: Shop) -> int:
    """The worker's memory (KiB)."""
    status = Path(f"/proc/{here.workers[0].process.pid}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1])


@pytest.mark.timeout(300 + COUNT)
def test_whatever_lies_in_the_list_ends_and_costs_the_worker_nothing(here: Shop) -> None:
    """Each message is in a dead-letter queue with its bytes, or has run; the worker lives, and its memory does not grow."""
    chance = random.Random(seed())  # noqa: S311 - a scenario, no secret
    (worker,), sizes, client = here.workers, [], here.server.client
    newer: set[str] = set()
    for begin in range(0, COUNT, BATCH):
        sent = {number: hostile(number, chance) for number in range(begin, min(begin + BATCH, COUNT))}
        raws = list(sent.values())
        for at in range(0, len(raws), 1000):
            client.lpush("celery", *raws[at : at + 1000])
        until(lambda: at_rest(here) or worker.process.poll() is not None, TIMEOUT, f"all to end: {here.leftovers()}")
        assert worker.process.poll() is None, worker.text[-3000:]
        sizes.append(resident(here))
        missing = unaccounted(here, sent)
        assert not missing, (len(missing), missing[:3])
        newer |= {Letter.of(kept).reason for kept in letters(here) if Envelope.of(json.loads(kept)["headers"]).version > VERSION}
        client.delete(*client.scan_iter(_type="list", count=1000))
    ends = {str(event.reason) for event in here.events if event.outcome in TERMINAL and event.reason}
    assert ends <= newer | set(Reason), ends - set(Reason)
    behind = [here.app.send_task(TASK, ignore_result=True).id for _ in range(4)]
    for task_id in behind:
        here.ended(task_id, "succeeded")
    assert sizes[-1] - sizes[0] < MAX_GROWTH, sizes
    assert worker.stop() == 0
