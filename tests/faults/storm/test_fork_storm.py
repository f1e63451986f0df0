"""A small storm of kills on RabbitMQ: the journal of moves keeps each task to one message."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.faults.storm.fork_storm import storm
from tests.support.lanes import seed

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.rabbit import Rabbit

KILLS = 5


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("is_quorum", [False, True], ids=["classic", "quorum"])
def test_a_worker_that_is_killed_leaves_no_task_two_lives(rabbit: Rabbit, folder: Path, *, is_quorum: bool) -> None:
    """400 tasks: each has an end, none runs more often than its limit and one more, and the journal was always readable.

    Two dead letters remain if a worker dies before the event of the first is published: one batch at a kill, in few kills.
    """
    made = storm(rabbit, folder, tasks=400, kills=KILLS, seed=seed(), is_quorum=is_quorum)
    assert (made["beyond_limit"], made["unread"]) == (0, 0), made
    assert made["letters_twice"] <= made["letters"] // 10, made
