"""A storm of kills on RabbitMQ that counts forks: `python -m tests.faults.storm.fork_storm --tasks 2000 [--queue quorum]`.

A worker's whole process group is SIGKILLed again and again, at moments that a seed draws, while a second worker goes on. A crash
between the publication of a message's successor and the acknowledgement of the message leaves two of one task. The last line says,
as JSON, how many tasks lie dead twice, how many ran more often than their limit and one allow, and how often one ran at the most.
With `--blind` the workers may not have the journal of moves: that is how much it is worth.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from webhooks.rabbit_node import USER

from redelivery.middleware.brokers.rabbitmq.names import JOURNAL
from redelivery.middleware.messages.events import Outcome
from tests.support.rabbit import Node, Rabbit
from tests.support.running import Shop, until

if TYPE_CHECKING:
    from collections.abc import Sequence

ENDS = {Outcome.SUCCEEDED, Outcome.DEAD_LETTERED}
POLICY: dict[str, Any] = {"redelivery_delay": 0.2, "redelivery_delay_multiplier": 1.0}
QUORUM = {"task_default_queue_type": "quorum", "task_create_missing_queue_type": "quorum"}
#: Seconds that nothing may happen in before the storm is over, and that this is waited for.
QUIET, TIMEOUT = 8.0, 900.0
#: Seconds between two kills at the most, a worker's start besides.
MAX_LIFE = 0.6


def storm(
    rabbit: Rabbit, folder: Path, *, tasks: int, kills: int, seed: int, attempts: int = 5, is_quorum: bool = False
) -> dict[str, Any]:
    """Publish, kill, wait until all is quiet, count. Raises `AssertionError` where a task has no end."""
    chance = random.Random(seed)  # noqa: S311 - a scenario, no secret
    conf: dict[str, Any] = {"broker_transport_options": {"confirm_publish": True}, **(QUORUM if is_quorum else {})}
    here = Shop(cast("Any", rabbit), folder, settings={"queues": {"#": {**POLICY, "max_delivery_attempts": attempts}}}, conf=conf)
    ids = [_publish(here, chance) for _ in range(tasks)]
    try:
        here.start()
        here.start()
        for number in range(kills):
            time.sleep(chance.random() * MAX_LIFE)  # the random moment
            here.workers[number].kill()
            here.start()
        _wait_for_quiet(here, ids)
    finally:
        here.stop()
    return _counted(here, rabbit, attempts)


def _publish(here: Shop, chance: random.Random) -> str:
    """One task: two fifths succeed, some take a moment, some fail once, two fifths fail for good."""
    draw = chance.random()
    if draw < 0.5:
        return here.send("ok") if draw < 0.4 else here.send("naps", 0.01)
    return here.send("fails", 1) if draw < 0.6 else here.send("fails")


def _wait_for_quiet(here: Shop, ids: Sequence[str]) -> None:
    """Until each task has ended, and what a fork left of it as well."""
    deadline, counted, since = time.monotonic() + TIMEOUT, -1, time.monotonic()
    while time.monotonic() - since < QUIET:
        assert time.monotonic() < deadline, "the storm does not end"
        if len(here.events) != counted:
            counted, since = len(here.events), time.monotonic()
        time.sleep(0.5)  # other processes' doing can only be looked for
    ended = {event.task_id for event in here.events if event.outcome in ENDS}
    assert ended.issuperset(ids), f"{len(set(ids) - ended)} tasks have no end"
    until(lambda: not here.leftovers(), what=f"nothing to be left: {here.leftovers()}")


def _counted(here: Shop, rabbit: Rabbit, attempts: int) -> dict[str, Any]:
    letters = Counter(letter["headers"]["id"] for letter in rabbit.letters())
    runs = Counter(run["id"] for run in here.runs() if run.get("event") != "end")
    text = "".join(path.read_text("utf-8", "replace") for path in here.folder.glob("worker-*.log"))
    return {
        "letters": len(letters),
        "letters_twice": sum(count > 1 for count in letters.values()),
        "beyond_limit": sum(count > attempts + 1 for count in runs.values()),
        "most_runs": max(runs.values()),
        "moved_already": text.count("message.moved_already"),
        "unread": text.count("journal.unread"),
        "handed_over_again": text.count("message.handed_over_again"),
    }


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.storm.fork_storm")
    for name, default in (("tasks", 2000), ("kills", 20), ("seed", 1), ("attempts", 5)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--queue", choices=["classic", "quorum"], default="classic")
    parser.add_argument("--blind", action="store_true", help="the workers may not declare the journal")
    said = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="forks-") as folder:
        node = Node(Path(folder) / "rabbit")
        try:
            rabbit = node.start().vhost()
            if said.blind:
                rabbit.ctl("set_permissions", USER, f"^(?!{JOURNAL})", ".*", ".*")
            given: dict[str, int] = {"tasks": said.tasks, "kills": said.kills, "seed": said.seed, "attempts": said.attempts}
            made = storm(rabbit, Path(folder), **given, is_quorum=said.queue == "quorum")
        finally:
            node.stop()
    sys.stdout.write(json.dumps({"queue": said.queue, "blind": said.blind, **given, **made}) + "\n")


if __name__ == "__main__":
    main()
