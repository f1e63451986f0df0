"""A few rounds of the storm of stops, and tests that it detects failures."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.faults.storm import stop_storm
from tests.faults.storm.stop_storm import SIGNALS, Storm
from tests.support.lanes import seed

if TYPE_CHECKING:
    from tests.support.rabbit import Rabbit
    from tests.support.servers import Server

ROUNDS = 3


def assert_all_well(storm: Storm) -> None:
    """Each round ran, and ended in time; nothing is lost, nothing is left on the broker, and no error was logged."""
    assert (storm.failed, len(storm.took), storm.lost, storm.broker.leftovers()) == ([], ROUNDS, set(), {})
    assert storm.errors == {}


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.parametrize("size", [1_000, 1_500_000])
@pytest.mark.parametrize("sent", SIGNALS)
def test_a_stop_ends_within_its_tasks_time_and_five_seconds(server: Server, sent: str, size: int) -> None:
    """Whatever the signal interrupts, with a pool of processes."""
    storm = Storm(server, sent, "prefork", size, seed())
    storm.rage(ROUNDS, 1, 10)
    assert_all_well(storm)


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_a_stop_on_rabbitmq_ends_within_its_tasks_time_and_five_seconds(rabbit: Rabbit, pool: str) -> None:
    """The bound is the same as on Redis."""
    storm = Storm(rabbit, "term-quit", pool, 1_500_000, seed())
    storm.rage(ROUNDS, 1, 10)
    assert_all_well(storm)


def test_a_lane_that_fails_and_rounds_that_do_not_run_are_no_success(
    server: Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both kinds of failure must be reported and not pass unnoticed."""
    storm = Storm(server, "quit", "prefork", 1_000, 1)
    monkeypatch.setattr(Storm, "round", lambda *_: 1 / 0)
    storm.rage(2, 2, 1)
    assert [("ZeroDivisionError" in each) for each in storm.failed] == [True, True]
    with pytest.raises(SystemExit) as ended:
        stop_storm.main(["--broker", "valkey", "--rounds", "2", "--lanes", "1", "--load", "0", "--minutes", "0"])
    assert ended.value.code == 1
    assert "2 of 2 rounds did not run" in capsys.readouterr().out
