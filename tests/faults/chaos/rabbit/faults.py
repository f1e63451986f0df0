"""The faults on RabbitMQ: those of processes and connections, an alarm, and SIGKILL of the node."""

from __future__ import annotations

import time
from contextlib import suppress
from subprocess import SubprocessError
from typing import TYPE_CHECKING

from tests.faults.chaos.run.faults import Faults

if TYPE_CHECKING:
    from tests.faults.chaos.rabbit.fleet import RabbitFleet

__all__ = ["FAULTS", "RabbitFaults"]

#: It is done less often: it takes ten seconds, and messages between two delay levels come three minutes later.
FAULTS = (
    *("kill", "kill_group", "kill_child", "stall", "cut", "swallow", "delay", "silence", "outage", "alarm") * 3,
    "restart",
)
#: Seconds before the first restart: on RabbitMQ 3.10, new quorum queues do not find their leader again.
YOUNG = 20.0


class RabbitFaults(Faults):
    """Does one of the faults at intervals, and undoes it in time."""

    def __init__(self, fleet: RabbitFleet, seed: int, names: tuple[str, ...], every: float) -> None:
        super().__init__(fleet, seed, names, every)
        self._rabbit = fleet
        self._since = time.monotonic()

    def _alarm(self) -> None:
        """Memory runs short: publishers are blocked for a second. The node ends it by itself, because the harness publishes too."""
        what = "{resource_limit, memory, node()}"
        clear = f"spawn(fun() -> timer:sleep(1000), rabbit_alarm:clear_alarm({what}) end)"
        with suppress(AssertionError, SubprocessError):
            self._rabbit.node.evaluate(f"rabbit_alarm:set_alarm({{{what}, []}}), {clear}, ok.")

    def may(self, name: str) -> bool:
        """The node is not restarted soon after its start."""
        return name != "restart" or time.monotonic() > self._since + YOUNG
