"""Dead letters as an operator reads them: the queues, their content, and that hostile content does no harm."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

import pytest

from redelivery.errors import InputError
from redelivery.middleware.messages.steps import sealed
from redelivery.workers.brokers.redis.letters import PAGE, SAMPLE, RedisLetterStore
from redelivery.workers.brokers.redis.pages import hash_pages, list_pages
from redelivery.workers.letters import Contents, Letter
from redelivery.workers.operations.letters import dead_letters
from redelivery.workers.operations.letters.filter import Filter
from redelivery.workers.operations.letters.purge import purge
from redelivery.workers.operations.letters.redrive.redrive import redrive
from redelivery.workers.operations.letters.walk import WalkOptions
from tests.support.desk import LETTERS, QUEUE, Desk, body_of, copies, task_message

if TYPE_CHECKING:
    from redelivery.workers.operations.letters.walk import Walked
    from tests.support.servers import Server


def test_a_queue_of_the_app_has_its_dead_letter_queue_before_anything_dies(desk: Desk) -> None:
    """It exists, is empty, and is listed with its origin."""
    [found] = dead_letters.summaries(desk.install)
    assert (found.name, found.origin, found.letters, found.reasons, found.newest_ms) == (LETTERS, QUEUE, 0, {}, None)


def test_a_queue_that_holds_no_letters_is_refused_with_a_list_of_those_that_do(desk: Desk) -> None:
    """The messages of an ordinary queue are not dead, so its name is refused like a misspelt one."""
    desk.die(into="DLQ.elsewhere")
    with pytest.raises(InputError, match=r"no dead-letter queue 'nothing'; there are: DLQ\.elsewhere, DLQ\.orders$"):
        dead_letters.required(desk.install, "nothing")
    with pytest.raises(InputError, match=r"did you mean 'DLQ\.elsewhere' or 'DLQ\.orders', which holds its dead letters\?$"):
        dead_letters.required(desk.install, QUEUE)
    assert dead_letters.required(desk.install, "DLQ.elsewhere") == "DLQ.elsewhere"


@pytest.mark.parametrize("more", [-1, 0, 1])
def test_reasons_are_counted_in_a_bounded_sample(desk: Desk, more: int) -> None:
    """Only the newest are read for the reasons; the times are those of the newest and the oldest of all."""
    letter = desk.die(reason="worker_lost", ago_ms=60_000)
    oldest: Any = desk.client.lpop(desk.keys.list(LETTERS))
    newer = desk.die(task_message(letter), reason="exhausted")
    raw: Any = desk.client.lpop(desk.keys.list(LETTERS))
    desk.client.lpush(LETTERS, oldest, *[raw] * (SAMPLE + more))
    [found] = dead_letters.summaries(desk.install)
    assert newer == letter
    assert found.letters == SAMPLE + more + 1
    assert found.sampled == min(SAMPLE, SAMPLE + more + 1)
    assert found.reasons == ({"exhausted": SAMPLE - 1, "worker_lost": 1} if more == -1 else {"exhausted": SAMPLE})
    assert found.newest_ms is not None
    assert found.oldest_ms is not None
    assert found.newest_ms - found.oldest_ms >= 60_000


def test_the_newest_letters_come_first_and_no_more_than_asked_for(desk: Desk) -> None:
    """They are read from the head of the list."""
    ids = [desk.die() for _ in range(3)]
    assert [letter.task_id for letter in dead_letters.newest(desk.transport, LETTERS, 2)] == [ids[2], ids[1]]


def test_a_letter_is_found_by_its_task_whatever_the_id_looks_like(desk: Desk) -> None:
    """Also ids that JSON escapes."""
    ids = [desk.die(task_message(each)) for each in ("plain-1", 'quo"ted', "snö", "a\\b")]
    for task_id in ids:
        assert [letter.task_id for letter in dead_letters.found(desk.transport, LETTERS, {task_id})] == [task_id]
    with pytest.raises(InputError, match="holds no dead letter of task plain"):
        dead_letters.found(desk.transport, LETTERS, {"plain"})


class Bomb:
    """Notes that it was unpickled."""

    went_off = False

    def __reduce__(self) -> tuple[Any, ...]:
        return (setattr, (Bomb, "went_off", True))


def test_a_pickled_body_is_never_opened() -> None:
    """A look at a dead letter runs no code from its body."""
    message = {**task_message(), "body": pickle.dumps(Bomb()).hex(), "content-type": "application/x-python-serialize"}
    contents = Contents.of(sealed(message))
    assert contents.body() is None
    assert contents.task == "desk.pack"
    assert not Bomb.went_off


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\x00\xff",
        b"[]",
        b"null",
        b'{"headers": 1, "properties": {}}',
        b"[" * 100_000,
        b'{"headers": {"redelivery": 3}, "properties": {}}',
    ],
)
def test_any_bytes_are_a_letter_with_an_id_of_their_own(raw: bytes) -> None:
    """Reading never raises; equal bytes have equal ids."""
    letter = Letter.of(raw)
    assert letter.task_id.startswith("raw-")
    assert letter.task_id == Letter.of(raw).task_id
    assert letter.to_row()["died_ms"] is None


def test_headers_of_the_wrong_kind_are_read_as_absent() -> None:
    """Text as a death's time, a list as a failure, a float as a priority: none stops the reading."""
    message = task_message(
        redelivery={"deaths": [{"last": "soon", "reason": 5}], "failure": ["x"], "generation": -3, "origin": "q"}
    )
    message["properties"]["priority"] = 1.5
    letter = Letter.of(sealed(message))
    assert (letter.died_ms, letter.reason, letter.failure, letter.generation, letter.origin_queue) == (None, "", {}, 0, "")


def test_a_body_that_says_it_is_json_and_is_not_is_not_shown() -> None:
    """With broken base64, broken JSON or an unknown compression, the body is None."""
    for broken in ({**task_message(), "body": "%%%"}, {**task_message(), "body": "AAAA"}, task_message(compression="nonsense")):
        assert Contents.of(sealed(broken)).body() is None
    assert Contents.of(sealed(task_message(body=body_of(1, "x")))).body()[0] == [1, "x"]


@pytest.mark.parametrize("count", [0, 1, 4, 5, 6, 9, 10, 11])
def test_pages_give_every_element_of_a_list(server: Server, count: int) -> None:
    """Page boundaries at N-1, N and N+1 lose nothing."""
    client = server.client
    for number in range(count):
        client.rpush("list", number)
    seen = [int(raw) for _, page in list_pages(client, "list", 5) for raw in page]
    assert sorted(set(seen)) == list(range(count))


def test_pages_of_huge_elements_are_small(server: Server) -> None:
    """They are limited by bytes; nothing is left out."""
    server.client.rpush("list", *(str(number).ljust(100_000) for number in range(300)))
    pages = [page for _, page in list_pages(server.client, "list")]
    assert max(map(len, pages[1:])) <= 21
    assert {int(raw) for page in pages for raw in page} == set(range(300))


def test_pages_of_a_list_miss_nothing_when_elements_before_them_go(server: Server) -> None:
    """The removal of elements that were read moves the rest forward; the reader goes back and finds them."""
    client = server.client
    client.rpush("list", *range(100))
    seen: set[int] = set()
    for number, (_, page) in enumerate(list_pages(client, "list", 10)):
        seen.update(int(raw) for raw in page)
        if number < 3:
            for gone in range(number * 4, number * 4 + 4):
                client.lrem("list", 1, str(gone))
    assert seen >= set(range(12, 100))


def test_pages_of_a_list_miss_nothing_when_elements_are_added_before_them(server: Server) -> None:
    """New messages move the others back."""
    client = server.client
    client.rpush("list", *range(50))
    seen: set[int] = set()
    for number, (_, page) in enumerate(list_pages(client, "list", 10)):
        seen.update(int(raw) for raw in page)
        client.lpush("list", *range(1000 + number * 3, 1003 + number * 3))
        if number > 30:
            break
    assert seen >= set(range(50))


@pytest.mark.parametrize("gone", [1, PAGE - 1, PAGE, PAGE + 1, 2 * PAGE])
def test_letters_that_stay_are_read_once_while_others_leave(desk: Desk, gone: int) -> None:
    """A redrive of other letters runs meanwhile: their places change."""
    ids = copies(desk, 4 * PAGE)
    seen: list[str] = []
    with RedisLetterStore(desk.transport).open(LETTERS) as letters:
        for number, page in enumerate(letters.pages()):
            seen += [Letter.of(raw).task_id for raw in page]
            if number == 1:
                desk.client.ltrim(LETTERS, 0, -gone - 1)
    assert seen == (ids if gone < 2 * PAGE else ids[: 2 * PAGE] + ids[gone:])


def test_a_redrive_misses_no_letter_while_others_are_purged(desk: Desk) -> None:
    """Of the letters that it does not take, a purge removes the older ones meanwhile."""
    copies(desk, 3 * PAGE)
    raws: Any = desk.client.lrange(LETTERS, 0, -1)
    desk.client.delete(LETTERS)
    desk.client.rpush(LETTERS, *[raw.replace(b"desk.pack", b"desk.seal") if at % 2 else raw for at, raw in enumerate(raws)])

    purged: list[Walked] = []

    def purge_others(so_far: Walked) -> None:
        if so_far.moved == PAGE and not purged:
            purged.append(purge(desk.transport, LETTERS, Filter(tasks=("desk.seal",)), WalkOptions(limit=PAGE)))

    done = redrive(desk.transport, LETTERS, Filter(tasks=("desk.pack",)), WalkOptions(on_progress=purge_others))
    assert (done.moved, desk.client.llen(LETTERS)) == (3 * PAGE // 2, PAGE // 2)


def test_pages_give_every_field_of_a_hash(server: Server) -> None:
    """However many there are."""
    server.client.hset("hash", mapping={str(number): "x" * 100 for number in range(2000)})
    seen = {int(name) for _, page in hash_pages(server.client, "hash", 50) for name in page}
    assert seen == set(range(2000))
