"""Dead letters and the operator's commands, on every broker: looking loses nothing and keeps the order."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from redelivery.middleware.messages.steps import sealed
from redelivery.middleware.ports import Capability
from tests.conformance.brokers import letter
from tests.support.desk import LETTERS, QUEUE, body_of, task_message
from tests.support.running import until

if TYPE_CHECKING:
    from tests.conformance.brokers import Place

pytestmark = pytest.mark.needs(Capability.OUTCOME_LOG)  # the commands record what they do
ROOT = Path(__file__).resolve().parents[2]
DIED = 1_700_000_000_000


def put_many(place: Place, count: int) -> list[str]:
    """Put dead letters that died one second apart, every second one of a `KeyError`; returns their task ids, the oldest first."""
    ids = [f"task-{number:03}" for number in range(count)]
    kinds = ("ValueError", "KeyError")
    place.put(
        *(letter(task_message(each), exception=kinds[number % 2], died_ms=DIED + number * 1000) for number, each in enumerate(ids))
    )
    return ids


def test_looking_changes_neither_the_order_nor_the_number_of_letters(place: Place) -> None:
    """40 dead letters keep their order, whichever command shows them, however often, and however few of them."""
    ids, desk = put_many(place, 40), place.desk()
    for words in (["show", LETTERS], ["show", LETTERS, "--limit", "3"], ["causes"], ["export", LETTERS], ["list"]) * 2:
        done = desk.run("dlq", *words)
        assert done.exit_code == 0, done.output
    assert desk.run("dlq", "show", LETTERS, "--id", ids[7]).exit_code == 0
    assert place.ids(LETTERS) == ids


def test_a_letter_is_shown_whole_and_the_newest_comes_first(place: Place) -> None:
    """`dlq show`: reason, exception, times; with `--id` the message itself."""
    ids, desk = put_many(place, 5), place.desk()
    assert [row["task_id"] for row in desk.json("dlq", "show", LETTERS, "--limit", "3")] == ids[:1:-1]
    (row,) = desk.json("dlq", "show", LETTERS, "--limit", "1")
    assert (row["reason"], row["exception"], row["died_ms"]) == ("exhausted", "ValueError", DIED + 4000)
    (whole,) = desk.json("dlq", "show", LETTERS, "--id", ids[2])
    assert whole["headers"]["id"] == ids[2]


def test_the_beginning_of_an_id_names_a_letter(place: Place) -> None:
    """For `dlq show`, `redrive`, `move`, `purge` and `task show`: six characters or more. An ambiguous beginning is refused."""
    first, second = "3f2a9c1e-6d0b-4f7e-9a51-0c2f6b8e4d01", "3f2a9c77-11aa-4c1e-8b62-5d3e7c9f1a02"
    ids = [first, second, "a04e5b9d-2c7f-4e0a-b3d8-9f1e6a2c7b03", "order-1", "order-12"]
    place.put(*(letter(task_message(each)) for each in ids))
    desk = place.desk()
    for given, meant in {"3f2a9c1": first, first[:20]: first, "order-1": "order-1", "order-12": "order-12"}.items():
        assert [row["task_id"] for row in desk.json("dlq", "show", LETTERS, "--id", given)] == [meant]
        assert desk.json("task", "show", given)["task_id"] == meant
    for words in (
        ["dlq", "show", LETTERS, "--id", "3f2a9c"],
        ["dlq", "redrive", LETTERS, "--id", "3f2a9c"],
        ["task", "show", "3f2a9c"],
    ):
        done = desk.run(*words)
        assert (done.exit_code, done.stdout) == (2, "")
        assert f"3f2a9c may mean more than one task: {first}, {second}; give more of the id" in done.stderr
    assert "holds no dead letter of task 3f2a9" in desk.run("dlq", "show", LETTERS, "--id", "3f2a9").stderr
    assert place.ids(LETTERS) == ids
    assert desk.json("dlq", "redrive", LETTERS, "--id", "3f2a9c1")["moved"] == 1
    assert desk.json("dlq", "move", LETTERS, "--id", "3f2a9c", "--to", "DLQ.other", "--create")["moved"] == 1
    assert desk.json("dlq", "purge", LETTERS, "--id", "a04e5b", "--yes")["purged"] == 1
    assert place.ids(LETTERS) == ids[3:]


def test_queues_are_counted_without_being_looked_at(place: Place) -> None:
    """`dlq list` has the number of dead letters. An empty queue has 0."""
    desk = place.desk()
    assert {row["name"]: row["letters"] for row in desk.json("dlq", "list")} == {LETTERS: 0}
    put_many(place, 3)
    assert {row["name"]: row["letters"] for row in desk.json("dlq", "list")} == {LETTERS: 3}


def test_letters_go_back_by_id_and_the_others_stay_in_their_order(place: Place) -> None:
    """Two of nine are redriven, one of them named twice. The other seven keep their order."""
    ids, desk = put_many(place, 9), place.desk()
    done = desk.json("dlq", "redrive", LETTERS, "--id", ids[6], "--id", ids[2])
    assert (done["moved"], done["looked_at"]) == (2, 9)
    assert place.ids(QUEUE) == [ids[2], ids[6]]
    assert place.ids(LETTERS) == [each for each in ids if each not in {ids[2], ids[6]}]


def test_letters_go_back_by_what_they_died_of_at_most_so_many_the_oldest_first(place: Place) -> None:
    """`--exception` and `--limit` together. A dry run counts the same and moves nothing."""
    ids, desk = put_many(place, 9), place.desk()
    words = ("dlq", "redrive", LETTERS, "--exception", "KeyError", "--limit", "3")
    assert desk.json(*words, "--dry-run")["moved"] == 3
    assert place.ids(LETTERS) == ids
    assert desk.json(*words)["moved"] == 3
    assert place.ids(QUEUE) == [ids[1], ids[3], ids[5]]
    assert place.ids(LETTERS) == [ids[0], ids[2], ids[4], *ids[6:]]


def test_a_rate_is_not_passed(place: Place) -> None:
    """`--rate` spaces them evenly: at five a second, the sixth goes a second or more after the first."""
    ids, desk = put_many(place, 6), place.desk()
    began = time.monotonic()
    assert desk.json("dlq", "redrive", LETTERS, "--all", "--rate", "5/s")["moved"] == 6
    assert time.monotonic() - began >= 0.99
    assert place.ids(QUEUE) == ids


def test_many_letters_go_back_in_their_order(place: Place) -> None:
    """More than one page and one batch go back in order. The outcome log has each of them, in its next generation."""
    ids, desk = put_many(place, 300), place.desk()
    assert desk.json("dlq", "redrive", LETTERS, "--all")["moved"] == 300
    assert place.ids(LETTERS) == []
    assert place.ids(QUEUE) == ids
    redriven = [event for event in place.server.events() if event.outcome == "redriven"]
    assert [event.task_id for event in redriven] == ids
    assert {event.generation for event in redriven} == {1}


def test_a_redriven_message_is_what_it_was(place: Place) -> None:
    """Body, priority, custom headers and properties do not change. The history stays, and the counts begin again."""
    message = task_message("whole", priority=6, tenant="täglich", nested={"a": [1, None, {"b": True}]})
    message["properties"].update(correlation_id="c-1", reply_to="r-1")
    place.put(letter(message))
    desk = place.desk()
    assert desk.json("dlq", "redrive", LETTERS, "--all")["moved"] == 1
    (again,) = place.messages(place.queue_of(QUEUE, 6))
    assert again["body"] == message["body"]
    headers = again["headers"]
    assert (headers["tenant"], headers["nested"]) == ("täglich", {"a": [1, None, {"b": True}]})
    assert {name: again["properties"].get(name) for name in ("priority", "correlation_id", "reply_to")} == {
        "priority": 6,
        "correlation_id": "c-1",
        "reply_to": "r-1",
    }
    ours = headers["redelivery"]
    assert (ours["generation"], ours["attempt"], ours["deaths"][0]["reason"]) == (1, 0, "exhausted")
    assert not any(name.startswith(("x-death", "x-first", "x-last", "x-delivery")) for name in headers)


def test_a_letter_is_edited_on_its_way_back(place: Place) -> None:
    """`--with` and `--to` give it other arguments and another queue."""
    place.put(letter(task_message("one")))
    desk = place.desk()
    place.declare(desk, "other")
    changes = place.folder / "changes.json"
    changes.write_text(json.dumps({"args": [5], "kwargs": {}}))
    done = desk.json("dlq", "redrive", LETTERS, "--id", "one", "--with", str(changes), "--to", "other")
    assert done["by_queue"] == {"other": 1}
    (again,) = place.messages("other")
    assert again["properties"]["delivery_info"]["routing_key"] == "other"


def test_a_letter_of_somebody_else_stays_and_is_counted(place: Place) -> None:
    """A message without a death record cannot go back. It stays in its place."""
    place.put(letter(task_message("a")), sealed(task_message("strange")), letter(task_message("b")))
    done = place.desk().json("dlq", "redrive", LETTERS, "--all")
    assert (done["moved"], done["left"]) == (2, {"it has no death record: somebody else put it here": 1})
    assert place.ids(LETTERS) == ["strange"]


def test_purged_letters_are_archived_first_and_recorded(place: Place, tmp_path: Path) -> None:
    """`dlq purge --archive`: the archive has them whole, and the log has `purged` by an operator. The others stay."""
    ids, desk = put_many(place, 6), place.desk()
    done = desk.json("dlq", "purge", LETTERS, "--exception", "KeyError", "--archive", str(tmp_path), "--yes")
    assert done["purged"] == 3
    assert place.ids(LETTERS) == ids[::2]
    recorded = [(event.task_id, event.outcome, event.reason) for event in place.server.events()]
    assert recorded == [(each, "purged", "operator") for each in ids[1::2]]
    assert {row["task_id"] for row in _archived(tmp_path)} == set(ids[1::2])


def test_an_archived_letter_is_published_again_as_its_document_says(place: Place, tmp_path: Path) -> None:
    """With the function of `docs/dead-letters.md`, the task runs with its arguments and a new id."""
    text = (ROOT / "docs" / "dead-letters.md").read_text()
    block = re.search(r"^<!-- run by tests/conformance/test_letters.py -->\n```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert block is not None
    known: dict[str, Any] = {}
    exec(block[1], known)  # noqa: S102 - as a reader would
    place.put(letter(task_message("a", "tests.support.shop.ok", body=body_of(["ü"]))))
    place.desk().json("dlq", "purge", LETTERS, "--all", "--archive", str(tmp_path), "--yes")
    shop = place.shop()
    shop.start("-Q", QUEUE)
    (row,) = _archived(tmp_path)
    again = known["publish_again"](shop.app, row)
    assert again != row["task_id"]
    assert shop.ended(again, "succeeded").queue == QUEUE


def test_letters_move_to_another_queue_and_the_log_says_who_did_it(place: Place) -> None:
    """`dlq move --create` records two events by an operator: `redriven`, and `dead_lettered` in the new queue."""
    ids, desk = put_many(place, 3), place.desk()
    assert desk.json("dlq", "move", LETTERS, "--to", "graveyard", "--create", "--all", "--yes")["moved"] == 3
    assert place.ids(LETTERS) == []
    assert place.ids("graveyard") == ids
    of_first = [(event.outcome, event.reason) for event in place.server.events() if event.task_id == ids[0]]
    assert sorted(of_first) == [("dead_lettered", "operator"), ("redriven", "")]


def test_letters_are_moved_to_no_queue_that_a_worker_consumes(place: Place) -> None:
    """A worker would run them there. Such a move is refused even if the operator's app does not know the queue."""
    ids, desk = put_many(place, 1), place.desk()
    place.shop().start("-Q", "fast")

    def is_refused() -> bool:  # a worker that is ready may not have asked for messages yet
        done = desk.run("dlq", "move", LETTERS, "--to", "fast", "--create", "--all", "--yes")
        assert done.exit_code == 2, done.output
        return "is consumed by a worker" in done.stderr

    until(is_refused, what="the queue to be one that a worker consumes")
    assert place.ids(LETTERS) == ids


def test_the_same_letter_has_the_same_bytes_in_every_export(place: Place, tmp_path: Path) -> None:
    """Two runs of `dlq export` write the same files with the same names: a file is named after its content."""
    put_many(place, 4)
    desk = place.desk()
    first = desk.json("dlq", "export", LETTERS, "--to", str(tmp_path))
    assert desk.json("dlq", "export", LETTERS, "--to", str(tmp_path))["files"] == first["files"]
    assert len(_archived(tmp_path)) == 4


def test_causes_are_counted(place: Place) -> None:
    """`dlq causes` groups by fingerprint, the most frequent first."""
    put_many(place, 5)
    found = place.desk().json("dlq", "causes")
    assert [(each["fingerprint"], each["count"]) for each in found] == [("f-ValueError", 3), ("f-KeyError", 2)]


def test_a_queue_that_keeps_no_letters_is_refused_by_name(place: Place) -> None:
    """The error names the existing dead-letter queues."""
    done = place.desk().run("dlq", "show", "nowhere")
    assert done.exit_code == 2
    assert LETTERS in done.stderr


def _archived(folder: Path) -> list[dict[str, Any]]:
    dataset = pytest.importorskip("pyarrow.dataset")
    rows: list[dict[str, Any]] = dataset.dataset(folder, partitioning="hive").to_table().to_pylist()
    return rows
