"""The faults on RabbitMQ: those of processes and connections, an alarm of the broker's, and its end by SIGKILL."""

from __future__ import annotations

import time
from contextlib import suppress
from subprocess import SubprocessError
from typing import TYPE_CHECKING

from tests.faults.chaos.run.faults import Faults

if TYPE_CHECKING:
    from tests.faults.chaos.rabbit.fleet import RabbitFleet

__all__ = ["FAULTS", "RabbitFaults"]

#: A restart takes ten seconds, and what was between two levels of a delay comes three minutes later: it is done less often.
FAULTS = (
    *("kill", "kill_group", "kill_child", "stall", "cut", "swallow", "delay", "silence", "outage", "alarm") * 3,
    "restart",
)
#: Seconds before the first restart: quorum queues that are just made do not find their leader again, with RabbitMQ 3.10.
YOUNG = 20.0


class RabbitFaults(Faults):
    """Does one of the faults now and then, and undoes it in time."""

    def __init__(self, fleet: RabbitFleet, seed: int, names: tuple[str, ...], every: float) -> None:
        super().__init__(fleet, seed, names, every)
        self._rabbit = fleet
        self._since = time.monotonic()

    def _alarm(self) -> None:
        """Memory is short: whoever publishes is blocked for a second. The node ends it by itself, for the harness publishes too."""
        what = "{resource_limit, memory, node()}"
        clear = f"spawn(fun() -> timer:sleep(1000), rabbit_alarm:clear_alarm({what}) end)"
        with suppress(AssertionError, SubprocessError):
            self._rabbit.node.evaluate(f"rabbit_alarm:set_alarm({{{what}, []}}), {clear}, ok.")

    def may(self, name: str) -> bool:
        """The node is not restarted while it is young."""
        return name != "restart" or time.monotonic() > self._since + YOUNG
