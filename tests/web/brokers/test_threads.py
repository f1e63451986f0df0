"""Requests that take too long: the answer says whether the change may still happen. No change begins after that answer."""

from __future__ import annotations

import asyncio
import threading

import pytest
from structlog.testing import capture_logs

from redelivery.workers.web.guard import Refused
from redelivery.workers.web.shared import threads
from redelivery.workers.web.shared.threads import UNDONE, UNKNOWN, Threads, Turn
from tests.support.running import until


@pytest.mark.parametrize(("error", "said"), [("", "web.late_done"), ("TimeoutError: no answer", "web.late_failed")])
def test_how_a_change_ended_that_nobody_waits_for_is_logged(monkeypatch: pytest.MonkeyPatch, error: str, said: str) -> None:
    """The visitor was told that the change may still be carried out."""
    monkeypatch.setattr(threads, "SECONDS", 0.05)
    turn, is_given_up = Turn("/letter/redrive", "ada"), threading.Event()

    def act() -> None:
        turn.begin()
        is_given_up.wait(30)
        if error:
            msg = "no answer"
            raise TimeoutError(msg)

    with capture_logs() as lines:
        with pytest.raises(Refused, match=UNKNOWN):
            asyncio.run(Threads().run(turn, act))
        assert lines == []
        is_given_up.set()
        until(lambda: lines, 30, "the end to be logged")
    [line] = lines
    assert (line["event"], line["path"], line["user"], line.get("error", "")) == (said, "/letter/redrive", "ada", error)


@pytest.mark.parametrize(("begins", "said"), [(False, UNDONE), (True, UNKNOWN)])
def test_a_late_answer_says_whether_the_change_had_begun(monkeypatch: pytest.MonkeyPatch, begins: bool, said: str) -> None:
    """A change that has not begun before the answer never begins."""
    monkeypatch.setattr(threads, "SECONDS", 0.05)
    turn, is_given_up, ended = Turn(), threading.Event(), threading.Event()
    refused: list[str] = []

    def act() -> None:
        try:
            if begins:
                turn.begin()
            is_given_up.wait(30)
            turn.begin()
        except Refused as exc:
            refused.append(exc.why)
        finally:
            ended.set()

    with pytest.raises(Refused, match="does not answer in time") as late:
        asyncio.run(Threads().run(turn, act))
    assert late.value.why.endswith(said)
    is_given_up.set()
    assert ended.wait(30)
    assert [each.endswith(UNDONE) for each in refused] == [True]


def test_what_times_out_by_itself_is_no_late_answer() -> None:
    """The timeout of the broker's driver is another error."""

    def act() -> None:
        msg = "the driver's"
        raise TimeoutError(msg)

    with pytest.raises(TimeoutError, match="the driver's"):
        asyncio.run(Threads().run(Turn(), act))
