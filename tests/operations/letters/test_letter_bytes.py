"""An unreadable message is kept for a person to look at: its bytes, escaped for a terminal, and complete in JSON."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from redelivery.middleware.messages.recording import opened_or_wrapped
from redelivery.middleware.messages.steps import dead, sealed
from redelivery.settings import RedeliverySettings
from redelivery.workers.letters import Contents
from tests.support.desk import LETTERS, QUEUE, Desk, task_message

GARBAGE = b"\xff\x00 gar\x1b[31mbage"
PICKLED = b"\x80\x04N."


def letter_of(desk: Desk, message: dict[str, Any]) -> str:
    """Put it into the dead-letter queue as a worker's receive does; its id."""
    facts: dict[str, Any] = {"reason": "undecodable", "at_ms": 5, "seen_ms": 1, "attempt": None, "failed": None}
    desk.client.lpush(LETTERS, sealed(dead(message, QUEUE, dead_letter_queue=LETTERS, **facts)))
    return str(message["headers"]["id"])


def shown(desk: Desk, ident: str) -> dict[str, Any]:
    """The letter as JSON."""
    [letter] = desk.json("dlq", "show", LETTERS, "--id", ident)
    found: dict[str, Any] = letter
    return found


def pickled() -> dict[str, Any]:
    """A task whose body must not be decoded."""
    return {**task_message("p", body=base64.b64encode(PICKLED).decode()), "content-type": "application/x-python-serialize"}


def test_bytes_that_were_no_message_are_shown(desk: Desk) -> None:
    """Text output escapes them; JSON has all of them."""
    ident = letter_of(desk, opened_or_wrapped(GARBAGE))
    done = desk.run("dlq", "show", LETTERS, "--id", ident)
    assert done.exit_code == 0, done.output
    assert f"(no message: {len(GARBAGE)} bytes)" in done.stdout
    assert r"\xff\x00 gar\x1b[31mbage" in done.stdout
    assert "\x1b" not in done.stdout
    assert base64.b64decode(shown(desk, ident)["body_base64"]) == GARBAGE


def test_a_body_that_is_not_decoded_is_shown_as_its_bytes(desk: Desk) -> None:
    """A pickle is not opened; a JSON body is shown as JSON, and its bytes are not repeated."""
    ident, plain = letter_of(desk, pickled()), letter_of(desk, task_message("j"))
    assert r"\x80\x04N." in desk.run("dlq", "show", LETTERS, "--id", ident).stdout
    assert base64.b64decode(shown(desk, ident)["body_base64"]) == PICKLED
    assert "body_base64" not in shown(desk, plain)


def test_bytes_are_hidden_where_arguments_are(desk: Desk) -> None:
    """With `redact`: a pickle contains arguments, too."""
    ident = letter_of(desk, pickled())
    desk.install.policies.__dict__["settings"] = RedeliverySettings.load({"redact": True})
    assert "x80" not in desk.run("dlq", "show", LETTERS, "--id", ident).stdout
    assert "body_base64" not in shown(desk, ident)


@pytest.mark.parametrize("size", [4095, 4096, 4097])
def test_a_long_body_is_cut_in_text_alone(desk: Desk, size: int) -> None:
    """Tested with N-1, N and N+1 bytes."""
    ident = letter_of(desk, opened_or_wrapped(b"\xff" * size))
    assert (f"({size} bytes; all with --json)" in desk.run("dlq", "show", LETTERS, "--id", ident).stdout) is (size > 4096)
    assert len(base64.b64decode(shown(desk, ident)["body_base64"])) == size


@pytest.mark.parametrize(
    ("body", "encoding", "expected"),
    [
        ("W10=", "base64", b"[]"),
        ("W10", "base64", b"W10"),
        ("[]", None, b"[]"),
        (5, "base64", b"5"),
        ("\ud800", None, b"\xed\xa0\x80"),
    ],
)
def test_a_body_of_any_kind_has_bytes(body: Any, encoding: str | None, expected: bytes) -> None:
    """Invalid base64 and values that are not text are shown as they are stored."""
    message = {**task_message("a"), "body": body}
    message["properties"]["body_encoding"] = encoding
    assert Contents.of(sealed(message)).body_bytes() == expected
    assert Contents.of(GARBAGE).body_bytes() == GARBAGE
