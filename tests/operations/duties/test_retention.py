"""Retention: dead letters are removed by age or number, always into the archive first, and never silently."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest
from pyarrow import parquet
from structlog.testing import capture_logs

from redelivery.errors import InputError
from redelivery.middleware.messages.steps import sealed
from redelivery.settings import RedeliverySettings
from redelivery.workers.brokers.redis import taken_keys
from redelivery.workers.duties.bounds.retention import BATCH, Retention
from redelivery.workers.operations.letters.filter import Filter
from redelivery.workers.operations.letters.redrive.redrive import redrive
from tests.support.desk import LETTERS, QUEUE, Desk, each_desk, task_message
from tests.support.running import until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.running import Shop

__all__ = ["each_desk"]


def keeping(desk: Desk, folder: Path | None, **fields: Any) -> Retention:
    """The duty, with these fields for every queue, and this archive."""
    settings: dict[str, Any] = {"queues": {"#": {"max_delivery_attempts": 3, **fields}}}
    if folder is not None:
        settings["dead_letter_archive"] = str(folder)
    desk.install.policies.__dict__["settings"] = RedeliverySettings.load(settings)
    return Retention(desk.install)


def copies(desk: Desk, count: int) -> list[str]:
    """So many letters, made in one go; their task ids, the oldest first."""
    desk.die(task_message("first"))
    raw: Any = desk.client.lpop(LETTERS)
    ids = [f"task-{number:05}" for number in range(count)]
    desk.client.lpush(LETTERS, *[raw.replace(b'"id":"first"', f'"id":"{each}"'.encode()) for each in ids])
    return ids


def archived(folder: Path) -> list[str]:
    """The task ids in an archive, once for each row."""
    return sorted(row["task_id"] for file in folder.rglob("*.parquet") for row in parquet.read_table(file).to_pylist())


def purges(desk: Desk) -> list[tuple[str, str]]:
    """The recorded purges: task id and reason."""
    return [(event.task_id, event.reason) for event in desk.events if event.outcome == "purged"]


@pytest.mark.parametrize("count", [4, 5, 6, 7])
def test_the_cap_is_exact(desk: Desk, tmp_path: Path, count: int) -> None:
    """At N-1 and N nothing goes, at N+1 one; the oldest go into the archive, and are recorded."""
    ids = copies(desk, count)
    gone = max(count - 5, 0)
    assert keeping(desk, tmp_path, max_dead_letters=5).step() == gone
    assert desk.ids(LETTERS) == ids[gone:]
    assert (archived(tmp_path), purges(desk)) == (ids[:gone], [(each, "max_length") for each in ids[:gone]])


def test_a_dead_letter_queue_whose_key_is_another_programs_stops_no_other(desk: Desk, tmp_path: Path) -> None:
    """The key is named in the log."""
    taken_keys.warn_of_taken.cache_clear()
    ids = copies(desk, 6)
    keeper = keeping(desk, tmp_path, max_dead_letters=5)
    desk.install.app.amqp.queues.select_add("another")
    desk.client.set("DLQ.another", "a page of the cache")
    rules = keeper._rules()
    keeper.__dict__["_rules"] = lambda: dict(sorted(rules.items()))  # the taken one comes first
    with capture_logs() as logs:
        assert keeper.step() == 1
    assert desk.ids(LETTERS) == ids[1:]
    assert [line["key"] for line in logs if line["event"] == "queue.taken"] == ["DLQ.another"]


def test_more_than_a_batch_goes_too(desk: Desk, tmp_path: Path) -> None:
    """Each batch has a file."""
    ids = copies(desk, 2 * BATCH + 3)
    assert keeping(desk, tmp_path, max_dead_letters=1).step() == 2 * BATCH + 2
    assert desk.ids(LETTERS) == ids[-1:]
    assert archived(tmp_path) == ids[:-1]
    assert len(list(tmp_path.rglob("*.parquet"))) == 3


def test_letters_that_leave_meanwhile_do_not_make_the_cap_lower(
    desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A redrive runs between the look and the purge: the queue keeps as many as it may."""
    ids = copies(desk, 8)
    keeper, write = keeping(desk, tmp_path, max_dead_letters=5), Retention._purge

    def redriven_first(self: Retention, *args: Any, **kwargs: Any) -> int:
        monkeypatch.undo()
        redrive(desk.transport, LETTERS, Filter(task_ids=frozenset(ids[-2:])))
        return write(self, *args, **kwargs)

    monkeypatch.setattr(Retention, "_purge", redriven_first)
    assert keeper.step() == 1
    assert desk.ids(LETTERS) == ids[1:-2]


def test_what_is_too_old_goes_and_the_rest_stays(desk: Desk, tmp_path: Path) -> None:
    """The age counts from its last death."""
    for task_id, ago_ms in (("a", 7_200_000), ("b", 3_700_000), ("c", 3_500_000), ("d", 0)):
        desk.die(task_message(task_id), ago_ms=ago_ms)
    assert keeping(desk, tmp_path, dead_letter_time_to_live=3600).step() == 2
    assert (desk.ids(LETTERS), archived(tmp_path), purges(desk)) == (["c", "d"], ["a", "b"], [("a", "expired"), ("b", "expired")])


def test_an_old_letter_behind_younger_ones_goes_at_a_thorough_look(desk: Desk, tmp_path: Path) -> None:
    """The first look of every worker is thorough."""
    copies(desk, BATCH + 5)
    desk.die(task_message("old"), ago_ms=7_200_000)
    keeper = keeping(desk, tmp_path, dead_letter_time_to_live=3600)
    assert keeper.step() == 1
    assert archived(tmp_path) == ["old"]


def test_each_letter_is_kept_as_long_as_the_queue_says_where_it_died(desk: Desk, tmp_path: Path) -> None:
    """Two queues share a dead-letter queue, and each has its own time."""
    desk.die(task_message("a"), ago_ms=7_200_000)
    letter = desk.messages(LETTERS)[0]
    letter["headers"]["id"] = "other"
    letter["headers"]["redelivery"]["deaths"][0]["queue"] = "bills"
    desk.client.lpush(LETTERS, sealed(letter))
    keeper = keeping(desk, tmp_path)
    settings = {
        "dead_letter_archive": str(tmp_path),
        "queues": {QUEUE: {"dead_letter_time_to_live": 3600}, "bills": {"dead_letter_time_to_live": 86_400}},
    }
    desk.install.policies.__dict__["settings"] = RedeliverySettings.load(settings)
    assert keeper.step() == 1
    assert desk.ids(LETTERS) == ["other"]


def test_bytes_without_a_time_of_death_do_not_outlive_the_cap_alone(desk: Desk, tmp_path: Path) -> None:
    """Their age is not known, but they count for the cap."""
    desk.client.lpush(LETTERS, b"garbage")
    ids = copies(desk, 2)
    keeper = keeping(desk, tmp_path, dead_letter_time_to_live=0.001, max_dead_letters=1)
    until(lambda: keeper.step() or desk.client.llen(LETTERS) == 1)
    left: Any = desk.client.lindex(LETTERS, 0)
    assert (left, archived(tmp_path)) == (b"garbage", ids)


def test_without_an_archive_nothing_leaves_and_a_line_says_so(desk: Desk) -> None:
    """They are never removed silently."""
    ids = copies(desk, 3)
    keeper = keeping(desk, None, max_dead_letters=1)
    with capture_logs() as logs:
        assert [keeper.step(), keeper.step()] == [0, 0]
    assert (desk.ids(LETTERS), purges(desk)) == (ids, [])
    assert [line["event"] for line in logs] == ["letters.kept"]


@pytest.mark.parametrize("looks", [1, 2])
def test_a_whole_batch_that_cannot_go_is_read_once_in_each_look(desk: Desk, looks: int) -> None:
    """Without an archive the whole batch stays too old: another look at once would never end."""
    ids = copies(desk, BATCH)
    keeper = keeping(desk, None, dead_letter_time_to_live=0.001)
    until(lambda: desk.transport.now_ms() > desk.events[-1].at_ms + 1, what="the letters to be too old")
    desk.client.config_resetstat()
    work = threading.Thread(target=lambda: [keeper.step() for _ in range(looks)])
    work.start()
    work.join(20)
    is_over = not work.is_alive()
    keeper.stop()
    work.join()
    assert is_over
    stats: Any = desk.client.info("commandstats")
    assert stats["cmdstat_lrange"]["calls"] == looks
    assert (desk.ids(LETTERS), purges(desk)) == (ids, [])


def test_an_archive_that_cannot_be_written_keeps_every_letter(desk: Desk, tmp_path: Path) -> None:
    """The error names the place."""
    ids = copies(desk, 3)
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(InputError):
        keeping(desk, tmp_path / "file", max_dead_letters=1).step()
    assert (desk.ids(LETTERS), purges(desk)) == (ids, [])


def test_a_crash_between_archive_and_purge_is_finished_by_the_next_look(desk: Desk, tmp_path: Path) -> None:
    """For a while the dead letters are in the queue and in the archive; the archive has one file."""
    ids = copies(desk, 4)
    keeper, transport = keeping(desk, tmp_path, max_dead_letters=1), desk.transport
    carry = transport.stores.purge_many

    def crash(*_: Any, **__: Any) -> list[Any]:
        raise KeyboardInterrupt

    transport.stores.purge_many = crash  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        keeper.step()
    assert (desk.ids(LETTERS), archived(tmp_path)) == (ids, ids[:3])
    transport.stores.purge_many = carry  # type: ignore[method-assign]
    assert keeper.step() == 3
    assert (desk.ids(LETTERS), archived(tmp_path), len(purges(desk))) == (ids[3:], ids[:3], 3)


def test_one_worker_does_it(desk: Desk) -> None:
    """The lead is a lease."""
    assert desk.transport.leases.lead(desk.keys.letter_keeper, "one", 60)
    assert not desk.transport.leases.lead(desk.keys.letter_keeper, "two", 60)
    assert desk.transport.leases.lead(desk.keys.letter_keeper, "one", 60)


def test_a_worker_keeps_the_letters_of_its_queues(shop: Callable[..., Shop], tmp_path: Path) -> None:
    """The worker starts the duty if a setting asks for it: by age and by number, archived first, and recorded."""
    fields = {"max_delivery_attempts": 1, "max_dead_letters": 2, "dead_letter_time_to_live": 3600}
    made = shop(settings={"dead_letter_archive": str(tmp_path), "queues": {"#": fields}})
    desk = Desk(made.server)
    desk.app.conf.task_default_queue = "celery"
    ids = copies(desk, 5)
    desk.die(task_message("old"), ago_ms=7_200_000)
    desk.client.lmove(LETTERS, LETTERS, "LEFT", "RIGHT")  # it died before the others
    desk.client.rename(LETTERS, "DLQ.celery")
    worker = made.start("-Q", "celery", pool="solo")
    until(lambda: len(purges(desk)) == 4, what="the oldest letters to be purged")
    assert desk.ids("DLQ.celery") == ids[3:]
    assert purges(desk) == [("old", "expired"), *((each, "max_length") for each in ids[:3])]
    assert archived(tmp_path) == ["old", *ids[:3]]
    until(lambda: worker.text.count("event=letters.purged") == 2, what="both lines")
    desk.transport.close()
