"""`redelivery dlq`: what an operator sees of dead letters, and what is done when they are sent back."""

from __future__ import annotations

import base64
import json
import re
from typing import TYPE_CHECKING

import pytest

from redelivery.workers.cli.terminal import progress
from redelivery.workers.operations.runs.operation import listed
from tests.support.desk import LETTERS, QUEUE, Desk, body_of, harmless, task_message

if TYPE_CHECKING:
    from pathlib import Path


HOSTILE = "\x1b]0;owned\x07\x1b[2J\r\n\u202e\u2066\x9b31m"


def test_list_shows_each_queue_with_its_letters_and_reasons(desk: Desk) -> None:
    """Names, origins, counts, ages, and the most frequent reasons first."""
    for reason in ("exhausted", "exhausted", "worker_lost"):
        desk.die(reason=reason, ago_ms=7_200_000)
    done = desk.run("dlq", "list")
    assert done.exit_code == 0
    heading, line = done.output.splitlines()
    assert heading.split("\t") == ["dead-letter queue", "origin", "dead letters", "oldest", "newest", "reasons"]
    old = r"2h(?: \d+s)? ago"  # the clock advances between the deaths and the look
    assert re.fullmatch(rf"{LETTERS}\t{QUEUE}\t3\t{old}\t{old}\texhausted 2, worker_lost 1", line.strip()), line


@pytest.mark.parametrize("words", [("--json", "dlq", "list"), ("dlq", "list", "--json")])
def test_json_is_asked_for_before_or_after_the_command(desk: Desk, words: tuple[str, ...]) -> None:
    """Both positions of `--json` give the same output."""
    desk.die()
    [found] = json.loads(desk.run(*words).stdout)
    assert (found["name"], found["origin"], found["letters"], found["reasons"]) == (LETTERS, QUEUE, 1, {"exhausted": 1})


def test_show_gives_the_newest_letters_a_line_each(desk: Desk) -> None:
    """The number of the others is on stderr."""
    ids = [desk.die(said=f"no {number}") for number in range(3)]
    done = desk.run("dlq", "show", LETTERS, "--limit", "2")
    lines = done.stdout.splitlines()
    assert [line.split()[0] for line in lines[1:]] == [ids[2], ids[1]]
    assert lines[1].split()[1:4] == ["desk.pack", "exhausted", "1"]
    assert lines[1].endswith("ValueError: no 2")
    assert done.stderr.startswith("2 of 3 dead letters;")


def test_show_by_id_gives_the_whole_letter(desk: Desk) -> None:
    """Arguments, traceback, attempts, origin."""
    task_id = desk.die(task_message(body=body_of(42, "blue")))
    desk.die()
    done = desk.run("dlq", "show", LETTERS, "--id", task_id)
    assert done.exit_code == 0
    for part in (task_id, '[42, "blue"]', "Traceback", "ValueError: no", "f-ValueError", "w@desk", f"origin\t{QUEUE}"):
        assert part in done.stdout
    [letter] = desk.json("dlq", "show", LETTERS, "--id", task_id)
    assert letter["body"][0] == [42, "blue"]
    assert (letter["origin"]["queue"], letter["deaths"][0]["reason"], len(letter["attempts_made"])) == (QUEUE, "exhausted", 1)


def test_show_full_gives_whole_letters_without_ids(desk: Desk) -> None:
    """It shows one page of them."""
    ids = [desk.die() for _ in range(2)]
    done = desk.run("dlq", "show", LETTERS, "--full")
    assert all(f"task id\t{task_id}" in done.stdout for task_id in ids)


def test_an_id_that_is_not_there_is_an_error(desk: Desk) -> None:
    """One line names the id."""
    desk.die()
    done = desk.run("dlq", "show", LETTERS, "--id", "nope")
    assert (done.exit_code, done.stdout, len(done.stderr.splitlines())) == (2, "", 1)
    assert "holds no dead letter of task nope" in done.stderr


def test_arguments_are_hidden_where_the_settings_say_so(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the body, and in the headers in which Celery repeats them."""
    monkeypatch.setenv("REDELIVERY_REDACT", "true")
    task_id = desk.die(task_message(body=body_of("secret-word"), argsrepr="('secret-word',)", kwargsrepr="{}"))
    for done in (desk.run("dlq", "show", LETTERS, "--id", task_id), desk.run("dlq", "show", LETTERS, "--full", "--json")):
        assert done.exit_code == 0
        assert "secret-word" not in done.stdout
        assert "hidden" in done.stdout


@pytest.mark.parametrize("words", [(), ("--full",), ("--json",), ("--full", "--json")])
def test_hostile_letters_do_nothing_to_a_terminal(desk: Desk, words: tuple[str, ...]) -> None:
    """Escape sequences in a name, an argument, a message, a traceback or a queue's name are shown as text."""
    desk.die(
        task_message(f"id{HOSTILE}", f"task{HOSTILE}", body=body_of(HOSTILE)), exception=f"E{HOSTILE}", said=HOSTILE, reason=HOSTILE
    )
    done = desk.run("dlq", "show", LETTERS, *words)
    assert done.exit_code == 0
    assert harmless(done.stdout)


def test_bytes_that_are_no_message_are_shown_as_such(desk: Desk) -> None:
    """Both in a line and as a whole dead letter."""
    desk.publish(b"\x1b[2Jgarbage\xff", LETTERS)
    for words in ((), ("--full",)):
        done = desk.run("dlq", "show", LETTERS, *words)
        assert done.exit_code == 0
        assert "raw-" in done.stdout
        assert harmless(done.stdout)


def test_redrive_says_what_went_back(desk: Desk) -> None:
    """In a sentence, and as JSON."""
    desk.die(reason="worker_lost")
    desk.die()
    assert (
        desk.run("dlq", "redrive", LETTERS, "--reason", "worker_lost").output
        == f"1 dead letter of {LETTERS} went back: {QUEUE} 1.\n"
    )
    done = desk.json("dlq", "redrive", LETTERS, "--all")
    assert (done["moved"], done["by_queue"], done["left"], done["dry_run"]) == (1, {QUEUE: 1}, {}, False)
    assert desk.client.llen(LETTERS) == 0


@pytest.mark.parametrize("command", ["redrive", "purge"])
def test_the_progress_of_a_dry_run_says_that_nothing_has_gone(desk: Desk, monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    """On stderr, like any progress."""
    monkeypatch.setattr(progress, "FIRST", 0)
    desk.die()
    went = {"redrive": "1 {}, 1 of 1 looked at\n", "purge": "1 of 1 {}\n"}[command]
    words = {"redrive": ("would go back", "sent back"), "purge": ("would be purged", "purged")}[command]
    said = desk.run("dlq", command, LETTERS, "--all", "--dry-run").stderr
    assert said == went.format(words[0])
    assert desk.run("dlq", command, LETTERS, "--all", "--yes").stderr == went.format(words[1])


def test_redrive_by_id_takes_that_letter_alone(desk: Desk) -> None:
    """Several ids may be given."""
    ids = [desk.die() for _ in range(4)]
    done = desk.run("dlq", "redrive", LETTERS, "--id", ids[2], "--id", ids[0])
    assert done.output == f"2 dead letters of {LETTERS} went back: {QUEUE} 2.\n"
    assert desk.ids() == [ids[0], ids[2]]


def test_redrive_says_what_stays_and_why(desk: Desk) -> None:
    """Dead letters that cannot go back, members of a chord, and a filter that chooses none."""
    desk.publish(b"garbage", LETTERS)
    desk.die(task_message(body=body_of(chord={"task": "x"}), group="g"))
    done = desk.run("dlq", "redrive", LETTERS, "--all")
    assert "1 of them belonged to a chord, which has counted its failure: it runs by itself." in done.output
    assert "1 dead letter cannot go back and stays: its bytes were never a message." in done.output
    assert (
        desk.run("dlq", "redrive", LETTERS, "--reason", "expired").output
        == f"No dead letter of {LETTERS} was chosen; 1 was looked at.\n"
    )


def test_a_dry_run_says_what_would_go_back(desk: Desk) -> None:
    """The dead letters stay."""
    desk.die()
    assert (
        desk.run("dlq", "redrive", LETTERS, "--all", "--dry-run").output
        == f"1 dead letter of {LETTERS} would go back: {QUEUE} 1.\n"
    )
    assert desk.client.llen(LETTERS) == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "which dead letters?"),
        (("--all", "--reason", "expired"), "--all means every dead letter"),
        (("--all", "--rate", "fast"), "'fast' is not a rate"),
        (("--all", "--rate", "0/s"), "'0/s' is not a rate"),
        (("--all", "--rate", "nan"), "'nan' is not a rate"),
        (("--all", "--rate", "1e-300"), "the slowest is 1/h"),
        (("--older-than", "soon"), "'soon' is not a duration"),
        (("--all", "--limit", "0"), "0 is not in the range"),
    ],
)
def test_a_redrive_that_is_not_clear_is_refused(desk: Desk, words: tuple[str, ...], said: str) -> None:
    """Exit code 2, and nothing is changed."""
    desk.die()
    done = desk.run("dlq", "redrive", LETTERS, *words)
    assert done.exit_code == 2
    assert said in done.stderr
    assert desk.client.llen(LETTERS) == 1


@pytest.mark.parametrize("rate", ["50", "50/s", "3000/m", "180000/h", " 50 / s "])
def test_rates_are_read(desk: Desk, rate: str) -> None:
    """By the second, minute or hour."""
    desk.die()
    assert desk.json("dlq", "redrive", LETTERS, "--all", "--rate", rate)["moved"] == 1


def test_letters_are_chosen_by_age(desk: Desk) -> None:
    """`--older-than` and `--newer-than` count from the server's time."""
    desk.die(task_message("old"), ago_ms=3_600_000)
    desk.die(task_message("new"))
    assert desk.json("dlq", "redrive", LETTERS, "--older-than", "30m", "--dry-run")["moved"] == 1
    assert desk.json("dlq", "redrive", LETTERS, "--newer-than", "30m", "--dry-run")["moved"] == 1
    assert desk.json("dlq", "redrive", LETTERS, "--newer-than", "2h", "--dry-run")["moved"] == 2


# what changes letters


def test_purge_without_a_terminal_needs_yes_and_says_what_it_did(desk: Desk) -> None:
    """The filters are those of redrive; a choice must be made; `--json` gives the counts."""
    ids = [desk.die(reason=reason) for reason in ("expired", "exhausted", "expired")]
    assert desk.run("dlq", "purge", LETTERS).exit_code == 2
    assert desk.run("dlq", "purge", LETTERS, "--all", "--reason", "expired").exit_code == 2
    assert "say --yes" in desk.run("dlq", "purge", LETTERS, "--reason", "expired").stderr
    assert desk.json("dlq", "purge", LETTERS, "--reason", "expired", "--dry-run")["purged"] == 2
    assert desk.ids(LETTERS) == ids
    done = desk.run("dlq", "purge", LETTERS, "--reason", "expired", "--yes")
    assert (done.exit_code, done.stdout) == (0, f"2 dead letters of {LETTERS} purged.\n")
    assert desk.ids(LETTERS) == ids[1:2]
    assert "No dead letter" in desk.run("dlq", "purge", LETTERS, "--reason", "expired", "--yes").stdout


def test_purge_archives_first_where_it_is_told_to(desk: Desk, tmp_path: Path) -> None:
    """The command prints the place of the archive."""
    desk.die()
    done = desk.run("dlq", "purge", LETTERS, "--all", "--yes", "--archive", str(tmp_path))
    assert (done.exit_code, "1 file." in done.stdout) == (0, True)
    assert len(list(tmp_path.rglob("*.parquet"))) == 1


@pytest.mark.parametrize(("answer", "left"), [("n\n", 1), ("y\n", 0)])
@pytest.mark.parametrize("words", [("purge",), ("move", "--to", "DLQ.b", "--create"), ("redrive",)])
def test_a_terminal_is_asked_first(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], answer: str, left: int
) -> None:
    """The answer "no" changes nothing; dead letters named by `--id` are purged without a question."""
    monkeypatch.setattr("redelivery.workers.cli.dlq.changes.is_terminal", lambda: True)
    desk.die()
    command, *more = words
    done = desk.run("dlq", command, LETTERS, "--all", *more, input=answer)
    assert (done.exit_code, "1 of 1 dead letter" in done.output) == (0, True)
    assert desk.client.llen(LETTERS) == left
    named = desk.die(task_message("named"))
    assert "?" not in desk.run("dlq", command, LETTERS, "--id", named, *more).output


@pytest.mark.parametrize("origin", ["celery.pidbox", "other_app", "redelivery:delayed"])
def test_who_is_asked_is_told_where_letters_would_go(desk: Desk, monkeypatch: pytest.MonkeyPatch, origin: str) -> None:
    """Only targets that the app itself knows are shown; a target that only a dead letter names is not."""
    monkeypatch.setattr("redelivery.workers.cli.dlq.changes.is_terminal", lambda: True)
    desk.client.lpush("other_app", b"theirs")
    desk.die(task_message("honest"))
    for number, queue in enumerate((origin, "orders")):
        header = {"origin": {"queue": queue, "exchange": origin, "routing_key": origin}}
        forged = task_message(f"forged-{number}", redelivery=header)
        forged["properties"]["delivery_info"] = {"exchange": origin, "routing_key": origin}
        desk.die(forged)
    done = desk.run("dlq", "redrive", LETTERS, "--all", input="n\n")
    assert "They would go to: orders 2.\nSend 2 of 3 dead letters of DLQ.orders back?" in done.stderr, done.stderr
    assert (origin in done.output, desk.client.llen(LETTERS)) == (False, 3)


def test_move_to_another_dead_letter_queue_or_to_a_queue(desk: Desk) -> None:
    """It stays dead in a dead-letter queue, or is redriven to a queue. Any other target is refused, and so is its own queue."""
    for task_id in "abc":
        desk.die(task_message(task_id))
    assert "there is no queue 'nowhere'" in desk.run("dlq", "move", LETTERS, "--all", "--to", "nowhere").stderr
    assert "already in" in desk.run("dlq", "move", LETTERS, "--all", "--to", LETTERS).stderr
    assert desk.json("dlq", "move", LETTERS, "--id", "a", "--to", "DLQ.new", "--create")["moved"] == 1
    done = desk.run("dlq", "move", LETTERS, "--id", "b", "--to", "DLQ.new")
    assert done.stdout == f"1 dead letter of {LETTERS} moved to DLQ.new.\n"
    assert desk.run("dlq", "move", LETTERS, "--id", "c", "--to", QUEUE).exit_code == 0
    assert (desk.ids("DLQ.new"), desk.ids(), desk.ids(LETTERS)) == (["a", "b"], ["c"], [])
    assert [event.outcome for event in desk.events][-5:] == ["redriven", "dead_lettered"] * 2 + ["redriven"]


@pytest.mark.parametrize("how", ["declared", "routed", "consumed", "there", "used"])
def test_a_command_moves_letters_to_no_queue_where_they_would_run(desk: Desk, how: str) -> None:
    """A move keeps them dead. If a worker consumes the target, only a redrive may put them there, and the error says so."""
    desk.die(task_message("a"))
    if how == "declared":
        desk.app.amqp.queues.add("fast")
    elif how == "routed":
        desk.app.conf.task_routes = {"desk.*": {"queue": "fast"}}
    elif how == "consumed":
        desk.client.hset(desk.keys.watch("fast"), "watcher", "w")
    elif how == "there":
        desk.publish(queue="fast")
    else:  # a client had recorded it as a dead-letter queue
        desk.app.amqp.queues.add("fast")
        desk.client.hset(desk.keys.dead_letter_queues, "fast", QUEUE)
    for more in ((), ("--dry-run",), ("--detach",)):
        done = desk.run("dlq", "move", LETTERS, "--all", "--to", "fast", "--create", *more)
        assert (done.exit_code, "redelivery dlq redrive … --to fast" in done.stderr) == (2, True), done.output
    assert (desk.ids(LETTERS), len(desk.messages("fast")), listed(desk.install)) == (["a"], int(how == "there"), [])
    assert desk.json("dlq", "redrive", LETTERS, "--all", "--to", "fast", "--create")["moved"] == 1


def test_letters_are_moved_to_a_queue_whose_handler_decides(desk: Desk) -> None:
    """They stay dead there until the handler decides; a worker without a handler would run them."""
    desk.die(task_message("a"))
    for name in ("old", "DLQ.old"):
        desk.app.amqp.queues.add(name)
    refused = desk.run("dlq", "move", LETTERS, "--all", "--to", "DLQ.old")
    assert (refused.exit_code, "workers would run the dead letters" in refused.stderr) == (2, True)
    desk.install.dead_letter_handler("old")(lambda letter: letter.park())
    assert desk.json("dlq", "move", LETTERS, "--all", "--to", "DLQ.old")["moved"] == 1
    assert "dlq move" in desk.run("dlq", "redrive", "DLQ.old", "--all", "--to", "DLQ.old").stderr


def test_redrive_to_another_queue(desk: Desk) -> None:
    """The task goes there, but its life belongs to its origin queue; a dead-letter queue is no allowed target."""
    desk.die(task_message("a"))
    assert "dlq move" in desk.run("dlq", "redrive", LETTERS, "--all", "--to", LETTERS).stderr
    assert desk.run("dlq", "redrive", LETTERS, "--all", "--to", "elsewhere", "--create").exit_code == 0
    [message] = desk.messages("elsewhere")
    assert message["properties"]["delivery_info"] == {"exchange": "", "routing_key": "elsewhere"}
    assert message["headers"]["redelivery"]["origin"]["queue"] == QUEUE
    assert desk.events[-1].queue == QUEUE


def test_a_letter_is_edited_before_it_goes_back(desk: Desk, tmp_path: Path) -> None:
    """The output of `export --id`, after a change, is the input of `redrive --with`."""
    body = body_of(1, "wrong")
    task_id = desk.die(task_message("a", body=body, argsrepr="(1, 'wrong')"))
    letter = json.loads(desk.run("dlq", "export", LETTERS, "--id", task_id).stdout)
    assert (letter["args"], letter["kwargs"], letter["deaths"][0]["reason"]) == ([1, "wrong"], {}, "exhausted")
    file = tmp_path / "letter.json"
    changed = json.dumps({**letter, "args": [1, "right"], "kwargs": {"more": True}})
    file.write_text(f"\ufeff{changed}", "utf-8")  # as some editors write it
    assert desk.run("dlq", "redrive", LETTERS, "--id", task_id, "--with", str(file)).exit_code == 0
    [message] = desk.messages()
    args, kwargs, embed = json.loads(base64.b64decode(message["body"]))
    assert (args, kwargs, embed) == ([1, "right"], {"more": True}, json.loads(base64.b64decode(body))[2])
    assert message["headers"]["argsrepr"] == "(1, 'right')"
    assert message["headers"]["redelivery"]["generation"] == 1


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("no json", "is not JSON"),
        ("[]", "holds no object"),
        ('{"queue": "x"}', "holds no object"),
        ('{"args": {}}', "args must be a list"),
        ('{"kwargs": []}', "kwargs must be an object"),
        ('{"task": ""}', "task must be text"),
        ('{"task_id": "b", "args": []}', "is the dead letter of task b, not of a"),
    ],
)
def test_a_change_that_cannot_be_meant_is_refused(desk: Desk, tmp_path: Path, given: str, said: str) -> None:
    """The dead letter stays where it is."""
    desk.die(task_message("a"))
    (tmp_path / "f").write_text(given)
    done = desk.run("dlq", "redrive", LETTERS, "--id", "a", "--with", str(tmp_path / "f"))
    assert (done.exit_code, said in done.stderr, desk.ids(LETTERS)) == (2, True, ["a"])


def test_what_cannot_be_edited_stays(desk: Desk, tmp_path: Path) -> None:
    """A pickled body is never opened, so its arguments cannot be changed; nor can many dead letters be changed at once."""
    message = {**task_message("a"), "content-type": "application/x-python-serialize"}
    desk.die(message)
    (tmp_path / "f").write_text('{"args": [1]}')
    done = desk.run("dlq", "redrive", LETTERS, "--id", "a", "--with", str(tmp_path / "f"))
    assert (done.exit_code, "cannot be edited" in done.stdout, desk.ids(LETTERS)) == (0, True, ["a"])
    assert "--with changes one dead letter" in desk.run("dlq", "redrive", LETTERS, "--all", "--with", str(tmp_path / "f")).stderr


def test_export_writes_files_or_prints_lines(desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a filter it takes all; printed lines are redacted if the settings say so; the queue keeps its dead letters."""
    ids = [desk.die(task_message(body=body_of("secret-word"))) for _ in range(3)]
    done = desk.run("dlq", "export", LETTERS)
    assert [json.loads(line)["task_id"] for line in done.stdout.splitlines()] == ids
    assert desk.json("dlq", "export", LETTERS, "--to", str(tmp_path))["letters"] == 3
    assert desk.run("dlq", "export", LETTERS, "--id", ids[0], "--to", str(tmp_path)).stdout.startswith("1 dead letter of")
    assert desk.run("dlq", "export", LETTERS, "--id", "nope").exit_code == 2
    none = desk.run("dlq", "export", LETTERS, "--reason", "expired")
    assert (none.exit_code, none.stdout, none.stderr) == (0, "", f"No dead letter of {LETTERS} was chosen.\n")
    monkeypatch.setenv("REDELIVERY_REDACT", "true")
    assert "secret-word" not in Desk(desk.server).run("dlq", "export", LETTERS).stdout
    assert desk.ids(LETTERS) == ids


def test_causes_are_told_with_an_example(desk: Desk) -> None:
    """For one queue or for all, as a table and as JSON."""
    assert desk.run("dlq", "causes").stdout == "There are no dead letters.\n"
    for number in range(2):
        desk.die(task_message(f"v{number}"), said=f"no {number}", ago_ms=7_200_000)
    desk.die(task_message("t"), exception="http.TimeoutError", into="DLQ.other")
    done = desk.run("dlq", "causes")
    assert [line.split("\t")[:3] for line in done.stdout.splitlines()[1:]] == [
        ["2", "f-ValueError", "exhausted"],
        ["1", "f-http.TimeoutError", "exhausted"],
    ]
    assert "ValueError: no 1" in done.stdout
    [only] = desk.json("dlq", "causes", LETTERS)
    assert (only["count"], only["task_id"], only["tasks"], only["dead_letter_queues"]) == (2, "v1", {"desk.pack": 2}, {LETTERS: 2})
    assert "1 of 2 causes" in desk.run("dlq", "causes", "--limit", "1").stderr
    assert desk.run("dlq", "causes", "nope").exit_code == 2


@pytest.mark.parametrize("command", [("export",), ("causes",)])
def test_hostile_letters_do_nothing_to_a_terminal_in_other_listings(desk: Desk, command: tuple[str, ...]) -> None:
    """Their control characters are escaped."""
    desk.die(task_message(f"id{HOSTILE}", f"task{HOSTILE}"), exception=f"E{HOSTILE}", said=HOSTILE, reason=HOSTILE)
    done = desk.run("dlq", *command, LETTERS)
    assert (done.exit_code, harmless(done.stdout)) == (0, True)
