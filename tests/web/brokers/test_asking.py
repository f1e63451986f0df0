"""Questions that take too long: the answer says whether what was asked for may still be done, and it is never begun after that."""

from __future__ import annotations

import asyncio
import threading

import pytest

from redelivery.workers.web.guard import Refused
from redelivery.workers.web.shared import asking
from redelivery.workers.web.shared.asking import UNDONE, UNKNOWN, Asking, Turn


@pytest.mark.parametrize(("begins", "said"), [(False, UNDONE), (True, UNKNOWN)])
def test_a_late_answer_says_whether_the_change_had_begun(monkeypatch: pytest.MonkeyPatch, begins: bool, said: str) -> None:
    """What had not begun by then does not begin."""
    monkeypatch.setattr(asking, "SECONDS", 0.05)
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
        asyncio.run(Asking().run(turn, act))
    assert late.value.why.endswith(said)
    is_given_up.set()
    assert ended.wait(30)
    assert [each.endswith(UNDONE) for each in refused] == [True]


def test_what_times_out_by_itself_is_no_late_answer() -> None:
    """The broker's driver has a patience of its own."""

    def act() -> None:
        msg = "the driver's"
        raise TimeoutError(msg)

    with pytest.raises(TimeoutError, match="the driver's"):
        asyncio.run(Asking().run(Turn(), act))
