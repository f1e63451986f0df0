"""The outcome log stays below its cap, and can be followed."""

from __future__ import annotations

import threading
from itertools import islice
from typing import TYPE_CHECKING

import pytest
from redis import Redis
from structlog.testing import capture_logs

from redelivery.workers.brokers.redis.outcome_log import bound, follow, newest_id
from tests.support.books.recorded import KEYS, record, text

if TYPE_CHECKING:
    from tests.support.servers import Server

MIB = 1024 * 1024


def size(client: Redis) -> int:
    """The memory of the log in bytes, with every block counted."""
    taken = client.memory_usage(KEYS.outcomes, samples=0)
    assert isinstance(taken, int)
    return taken


def test_a_log_that_does_not_exist_takes_nothing(any_server: Server) -> None:
    """The first worker starts before the first event; a look creates nothing."""
    result = bound(any_server.client, KEYS, MIB)
    assert (result.bytes, result.removed, result.filling) == (0, 0, False)
    assert any_server.client.keys() == []


def test_nothing_goes_at_the_cap_and_the_oldest_go_above_it(any_server: Server) -> None:
    """One byte below, exactly at, and one byte above the cap."""
    client = any_server.client
    ids = record(client, 2000)
    now = size(client)
    assert bound(client, KEYS, now + 1).removed == 0
    assert bound(client, KEYS, now).removed == 0
    assert client.exists(KEYS.trimmed) == 0
    above = bound(client, KEYS, now - 1)
    left = [text(entry_id) for entry_id, _ in client.xrange(KEYS.outcomes) or ()]
    assert 0 < above.removed < 400
    assert left == ids[above.removed :]
    assert above.bytes == size(client) <= now - 1


def test_what_went_is_noted_until_it_is_reported(any_server: Server) -> None:
    """The note has the first entry, the number, and the oldest entry that is left, for all cuts together."""
    client = any_server.client
    ids = record(client, 2000)
    removed = bound(client, KEYS, size(client) - 1).removed
    removed += bound(client, KEYS, size(client) - 1).removed
    noted = {text(key): text(value) for key, value in client.hgetall(KEYS.trimmed).items()}
    assert int(noted["entries"]) == removed
    assert noted["first"] == ids[0]
    assert noted["before"] == ids[removed]
    assert 0 < int(noted["since"]) <= int(noted["at"])


def test_the_log_is_filling_from_four_fifths_on(server: Server) -> None:
    """So that operators are warned before events are lost."""
    client = server.client
    record(client, 2000)
    now = size(client)
    assert not bound(client, KEYS, now * 5 // 4 + 10).filling
    result = bound(client, KEYS, now * 5 // 4 - 10)
    assert result.filling
    assert result.removed == 0


def test_older_events_that_are_smaller_do_not_deceive_it(any_server: Server) -> None:
    """The first hundred blocks are small, but their size must not be used as an estimate for the rest."""
    client = any_server.client
    record(client, 10_000, task="", queue="", attempt=0)
    record(client, 300, exception="x" * 20_000)
    result = bound(client, KEYS, 2 * MIB)
    assert result.bytes == size(client) <= 2 * MIB
    assert client.xlen(KEYS.outcomes) > 0


def test_a_cap_below_a_single_event_leaves_no_event(any_server: Server) -> None:
    """The smallest allowed cap is one byte; trimming must not loop or fail."""
    client = any_server.client
    record(client, 1)
    assert bound(client, KEYS, 1).removed == 1
    assert client.xlen(KEYS.outcomes) == 0
    assert client.hget(KEYS.trimmed, "before") == b""


@pytest.mark.full
@pytest.mark.parametrize("bursts", [100])
def test_a_hundred_thousand_events_never_stay_above_the_cap(any_server: Server, bursts: int) -> None:
    """After each call the log is below the cap, and no call removes more than a tenth and the blocks at its edge."""
    client, cap = any_server.client, 2 * MIB
    removed = 0
    for _ in range(bursts):
        record(client, 1000)
        before = size(client)
        result = bound(client, KEYS, cap)
        removed += result.removed
        assert size(client) <= cap
        assert (result.removed > 0) == (before > cap)
        if result.removed:
            assert result.bytes > 0.8 * cap
    assert removed == 1000 * bursts - client.xlen(KEYS.outcomes)
    assert client.hget(KEYS.trimmed, "entries") == str(removed).encode()


def test_workers_that_bound_it_at_once_cut_it_once(server: Server) -> None:
    """Each worker has the duty; two of them must not remove twice as much."""
    client = server.client
    record(client, 5000)
    cap = size(client) - 1
    started = threading.Barrier(4)
    removed = []

    def duty() -> None:
        started.wait()
        removed.append(bound(server.client, KEYS, cap).removed)

    threads = [threading.Thread(target=duty) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert sorted(removed)[:3] == [0, 0, 0]
    assert size(client) > 0.8 * cap


@pytest.mark.parametrize("protocol", [2, 3])
def test_following_gives_what_is_there_and_then_what_comes(server: Server, protocol: int) -> None:
    """In order, each event once, over several waits, with both versions of the Redis protocol."""
    client = Redis(unix_socket_path=server.socket, protocol=protocol)
    there = record(server.client, 600)
    followed = follow(client, KEYS.outcomes, "0", block_ms=10)
    assert [event.event_id for event in islice(followed, 600)] == there
    adder = threading.Timer(0.05, record, (server.client, 2))
    adder.start()
    assert [event.task_id for event in islice(followed, 2)] == ["task-0", "task-1"]
    adder.join()


def test_following_from_now_on_leaves_out_what_is_there(server: Server) -> None:
    """No event that is recorded between two requests is missed."""
    client = server.client
    record(client, 5)
    followed = follow(client, KEYS.outcomes, newest_id(client, KEYS.outcomes), block_ms=10)
    adder = threading.Timer(0.1, record, (server.client, 1), {"task": "new"})
    adder.start()
    assert next(followed).task == "new"
    adder.join()


def test_following_leaves_out_what_is_not_ours_and_says_so(server: Server) -> None:
    """A foreign entry does not end it."""
    client = server.client
    client.xadd(KEYS.outcomes, {"hello": "world"})
    client.xadd(KEYS.outcomes, {"t": "task", "o": "succeeded", "g": "not a number"})
    record(client, 1)
    with capture_logs() as logs:
        assert next(follow(client, KEYS.outcomes, "0", block_ms=10)).task_id == "task-0"
    assert [line["event"] for line in logs] == ["outcome_log.entry_refused"] * 2
