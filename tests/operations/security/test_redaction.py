"""Texts of exceptions: hidden in all output if `redact` is set, and not stored if `store_failure_texts` is off."""

from __future__ import annotations

import json
import logging
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import celery
import pytest
from celery import chord
from pyarrow import dataset

from redelivery.middleware.logs import HIDDEN
from redelivery.middleware.messages.steps import sealed
from redelivery.middleware.worker import celery_lines
from redelivery.middleware.worker.celery_lines import LOGGERS
from redelivery.workers.letters import Letter
from redelivery.workers.operations.words.redaction import redacted
from tests.support.desk import LETTERS, Desk, task_message
from tests.support.lanes import FULL, first_quick
from tests.support.running import until

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.running import Shop

CARD, DLQ = "4111-1111-1111", "DLQ.celery"
TASKS = ("gives_up", "tells", "dies", "exits")
FAST = {"queues": {"#": {"redelivery_delay": 0.1, "max_delivery_attempts": 2}}}
#: Every command that shows a dead letter, or data of a task.
COMMANDS = (
    ("dlq", "list"),
    ("dlq", "show", DLQ),
    ("dlq", "show", DLQ, "--full"),
    ("dlq", "export", DLQ),
    ("dlq", "causes"),
    ("outcomes", "tail"),
    ("metrics",),
    ("audit",),
    ("audit", "--letters"),
    ("ops", "list"),
)


def said(shop: Shop, *words: str) -> str:
    """The output of a command of this shop's operator, on both streams."""
    command = [sys.executable, "-m", "redelivery", "-A", shop.module, *words]
    done = subprocess.run(command, env=shop.environment, cwd=shop.folder, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode in ({0, 1} if "doctor" in words else {0}), done.stderr  # 1 means that it found something
    return done.stdout + done.stderr


def died(shop: Shop) -> dict[str, str]:
    """Let every task die, and an unknown one; their ids."""
    ids = {name: shop.send(name, CARD) for name in (*TASKS, "nobody_knows")}
    for task_id in ids.values():
        shop.ended(task_id, "dead_lettered")
    return ids


def headers(shop: Shop) -> dict[str, dict[str, Any]]:
    """The header of each letter, by the last word of its task's name."""
    return {each["headers"]["task"].rpartition(".")[2]: each["headers"]["redelivery"] for each in shop.letters()}


@FULL
def test_nothing_that_is_shown_or_logged_says_an_argument(shop: Callable[..., Shop]) -> None:
    """Neither in a table, a whole dead letter, an example, a task's life, nor a line of the worker's log or of Celery's own."""
    here = shop(module="tests.support.apps.secret_shop", settings={**FAST, "redact": True})
    worker = here.start()
    ids = died(here)
    assert all(CARD in json.dumps(headers(here)[name]) for name in TASKS[:3])  # it is stored, so it must be hidden
    waiting = here.send("dies", CARD, countdown=3600)
    here.ended(waiting, "deferred")
    said(here, "dlq", "redrive", DLQ, "--id", ids["dies"])
    until(lambda: here.outcomes_of(ids["dies"]).count("dead_lettered") == 2, what="it to die again")
    begun = json.loads(said(here, "dlq", "redrive", DLQ, "--id", ids["tells"], "--detach", "--json"))["id"]
    words = [*COMMANDS, ("delayed", "list"), ("delayed", "show", waiting), ("task", "show", ids["tells"]), ("ops", "show", begun)]
    words += [("doctor",), ("policy", "explain", "--queue", "celery")]
    for each in words:
        for found in (said(here, *each), said(here, *each, "--json")):
            assert CARD not in found, each
    assert "ValueError: (hidden: redact is set)" in said(here, "dlq", "show", DLQ)
    for name in ("inventory", "outcomes"):  # all data of the books' report
        said(here, name, "export", "--to", str(here.folder / name))
        files = [str(each) for each in (here.folder / name).rglob("*.parquet")]
        assert (rows := dataset.dataset(files).to_table().to_pylist())
        assert CARD not in json.dumps(rows, default=str)
    shown = until(lambda: here.app.control.inspect(timeout=5).scheduled(), what="the worker to answer")
    assert (CARD in str(shown), HIDDEN in str(shown), waiting in str(shown)) == (False, True, True)
    assert CARD not in worker.text
    assert "raised unexpected" in worker.text
    assert "event=hook.failed" in worker.text
    assert "secret_shop.py" in worker.text  # the places of a traceback stay


@pytest.mark.parametrize("pool", first_quick(["prefork", "threads"]))
def test_celerys_own_lines_say_no_argument(shop: Callable[..., Shop], pool: str) -> None:
    """The pool's lines at DEBUG, those of a chord with a failing member, and those of a receiver that raises its arguments."""
    here = shop(module="tests.support.apps.secret_shop", settings={**FAST, "redact": True}, backend=True)
    worker = here.start("-l", "DEBUG", pool=pool)
    names = [f"tests.support.apps.secret_shop.{name}" for name in ("tells", "total")]
    member = here.app.signature(names[0], (CARD,))
    whole = chord([member, here.app.signature(names[0], (CARD,))])(here.app.signature(names[1]))
    here.ended(whole.parent.results[0].id, "dead_lettered")
    here.ended(whole.parent.results[1].id, "dead_lettered")
    until(lambda: whole.state == "FAILURE", what="the chord to fail")
    lines = worker.text.splitlines()
    assert [line for line in lines if CARD in line] == []
    for said in ("TaskPool: Apply", "Signal handler", "ValueError"):
        assert any(said in line for line in lines), said


def test_none_of_celerys_loggers_is_left_out() -> None:
    """Except the parent of an application's own task loggers, and the logger for printed text."""
    root = Path(celery.__file__).parent
    names = set()
    for file in root.rglob("*.py"):
        module = ".".join(file.relative_to(root.parent).with_suffix("").parts).removesuffix(".__init__")
        found = re.findall(r"get_logger\((?:(__name__)|'([^']+)')\)", file.read_text("utf-8"))
        names |= {module if own else given for own, given in found}
    assert len(names) > 30
    assert names - {"celery.task", "celery.redirected"} <= set(LOGGERS)


def test_a_warning_of_celerys_is_hidden_and_others_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """Celery warns with the exception that was raised around a task's body."""
    monkeypatch.setattr(celery_lines, "redacting", [1])
    hiding = celery_lines._Hiding()
    for text, is_hidden in ((f"RuntimeWarning: Exception raised outside body: ValueError('{CARD}')", True), ("another", False)):
        record = logging.LogRecord("py.warnings", logging.WARNING, "x", 1, "%s", (text,), None)
        assert hiding.filter(record)
        assert (record.getMessage() == HIDDEN, CARD in record.getMessage()) == (is_hidden, False)


def test_without_it_all_is_shown(shop: Callable[..., Shop]) -> None:
    """This shows that the test above can fail."""
    here = shop(module="tests.support.apps.secret_shop", settings=FAST)
    worker = here.start()
    here.ended(here.send("tells", CARD), "dead_lettered")
    assert CARD in said(here, "dlq", "show", DLQ)
    assert CARD in worker.text


@pytest.mark.parametrize("pool", first_quick(["prefork", "threads"]))
def test_texts_of_exceptions_need_not_be_stored(shop: Callable[..., Shop], pool: str) -> None:
    """Types and fingerprints are stored, in the dead letter and in the history of each earlier attempt."""
    here = shop(module="tests.support.apps.secret_shop", settings={**FAST, "store_failure_texts": False})
    here.start(pool=pool)
    died(here)
    for name, header in headers(here).items():
        assert CARD not in json.dumps(header), name
        assert not header["failure"]["message"] + header["failure"]["traceback"], name
        assert header["failure"]["fingerprint"], name
    types = {name: header["failure"]["type"].rpartition(".")[2] for name, header in headers(here).items()}
    assert (types["gives_up"], types["tells"], types["dies"]) == ("MaxRetriesExceededError", "ValueError", "DeadLetter")
    assert [each["exception"] for each in headers(here)["tells"]["attempts"]] == ["ValueError", "ValueError"]


def test_what_is_not_known_to_be_harmless_is_hidden(desk: Desk) -> None:
    """A field of a newer version or of a stranger, or an invalid class name."""
    desk.die(task_message("a", argsrepr="(1,)"), exception="E with words")
    [message] = desk.messages(LETTERS)
    header = message["headers"]["redelivery"]
    header["failure"]["notes"] = header["deaths"][0]["detail"] = header["attempts"][0]["text"] = "a word"
    letter = redacted(Letter.of(sealed(message)))
    envelope = letter.envelope
    assert envelope.failure == {
        "type": HIDDEN,
        "message": HIDDEN,
        "traceback": HIDDEN,
        "fingerprint": "f-E with words",
        "notes": HIDDEN,
    }
    assert (letter.death["detail"], envelope.attempts[0]["text"], envelope.attempts[0]["exception"]) == (HIDDEN, HIDDEN, HIDDEN)
    assert letter.headers["argsrepr"] == HIDDEN
    assert (letter.death["reason"], letter.reason, letter.died_ms) == ("exhausted", "exhausted", header["deaths"][0]["last"])


def test_filters_choose_by_what_is_hidden(desk: Desk, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Only the output is redacted, not the data: an exported dead letter is complete."""
    monkeypatch.setenv("REDELIVERY_REDACT", "true")
    task_id = desk.die(exception="shop.Declined", said="secret-word")
    desk.die()
    assert task_id in desk.run("dlq", "export", LETTERS, "--exception", "Declined").stdout
    desk.json("dlq", "export", LETTERS, "--exception", "Declined", "--to", str(tmp_path))
    assert desk.json("dlq", "redrive", LETTERS, "--exception", "Declined")["moved"] == 1
