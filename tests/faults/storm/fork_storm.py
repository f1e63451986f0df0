"""A storm of kills on RabbitMQ that counts forks: `python -m tests.faults.storm.fork_storm --tasks 2000 [--queue quorum]`.

A worker's whole process group is SIGKILLed again and again, at moments that a seed draws, while a second worker goes on. A crash
between the publication of a message's successor and the acknowledgement of the message leaves two of one task. The last line says,
as JSON, how many tasks lie dead twice, how many ran more often than their limit and one allow, how often one ran at the most, how
many ran an attempt twice, and what the account of a chaos run (`tests.faults.chaos.rabbit.account`) says: each life in a word, and
the faults, which nothing names. With `--kill-node N` the node itself is SIGKILLed as well, N times, between two kills of a worker.
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
from redelivery.workers.letters import Letter
from tests.faults.chaos.rabbit.account import account
from tests.support.rabbit import Node, Rabbit
from tests.support.running import Shop

if TYPE_CHECKING:
    from collections.abc import Sequence

ENDS = {Outcome.SUCCEEDED, Outcome.DEAD_LETTERED}
POLICY: dict[str, Any] = {"redelivery_delay": 0.2, "redelivery_delay_multiplier": 1.0}
QUORUM = {"task_default_queue_type": "quorum", "task_create_missing_queue_type": "quorum"}
#: Seconds without any event after which the storm is over, and the longest wait for that.
QUIET, TIMEOUT = 8.0, 900.0
#: Seconds before the node may die: RabbitMQ 3.10 does not find the leader of a new quorum queue again.
YOUNG = 20.0
#: The most seconds between two kills, besides a worker's start.
MAX_LIFE = 0.6


def storm(
    rabbit: Rabbit,
    folder: Path,
    *,
    tasks: int,
    kills: int,
    seed: int,
    attempts: int = 5,
    is_quorum: bool = False,
    kill_node: int = 0,
) -> dict[str, Any]:
    """Publish, kill, wait until all is quiet, and count. Raises `AssertionError` if a task has no end."""
    chance = random.Random(seed)  # noqa: S311 - a scenario, no secret
    conf: dict[str, Any] = {"broker_transport_options": {"confirm_publish": True}, **(QUORUM if is_quorum else {})}
    here = Shop(cast("Any", rabbit), folder, settings={"queues": {"#": {**POLICY, "max_delivery_attempts": attempts}}}, conf=conf)
    ids = [_publish(here, chance) for _ in range(tasks)]
    try:
        here.start()
        here.start()
        if kill_node:
            time.sleep(YOUNG)
        before = {kills * (number + 1) // (kill_node + 1) for number in range(kill_node)}
        for number in range(kills):
            time.sleep(chance.random() * MAX_LIFE)  # the random moment
            if number in before:
                rabbit.node.kill()
                rabbit.node.start()
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
    """Wait until each task has ended, nothing has happened for a while, and no message is left, not even a second copy."""
    deadline, counted, since = time.monotonic() + TIMEOUT, -1, time.monotonic()
    while time.monotonic() - since < QUIET:
        if len(here.events) != counted or here.leftovers():
            counted, since = len(here.events), time.monotonic()
        missing = len(set(ids) - {event.task_id for event in here.events if event.outcome in ENDS})
        since = time.monotonic() if missing else since
        assert time.monotonic() < deadline, f"{missing} tasks have no end, and this is left: {here.leftovers()}"
        time.sleep(0.5)  # other processes cannot notify us


def _counted(here: Shop, rabbit: Rabbit, attempts: int) -> dict[str, Any]:
    lying = rabbit.letters()
    letters = Counter(letter["headers"]["id"] for letter in lying)
    notes = [run for run in here.runs() if run.get("event") != "end"]
    runs = Counter(run["id"] for run in notes)
    each = Counter((run["id"], run.get("attempt", 1)) for run in notes)
    text = "".join(path.read_text("utf-8", "replace") for path in here.folder.glob("worker-*.log"))
    made = account([event.to_dict() for event in here.events], map(_life, lying), here.runs(), [], {})
    return {
        "letters": len(letters),
        "letters_twice": sum(count > 1 for count in letters.values()),
        "beyond_limit": sum(count > attempts + 1 for count in runs.values()),
        "most_runs": max(runs.values()),
        "attempts_twice": len({task_id for (task_id, _), count in each.items() if count > 1}),
        "words": dict(Counter(made.words.values())),
        "faults": made.faults[:20],
        "moved_already": text.count("message.moved_already"),
        "unread": text.count("journal.unread"),
        "handed_over_again": text.count("message.handed_over_again"),
    }


def _life(letter: dict[str, Any]) -> tuple[str, int, int, str]:
    """The life to which a dead letter belongs."""
    read = Letter.of(json.dumps(letter).encode())
    return read.task_id, read.nesting, read.generation, read.envelope.life_queue("celery")


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.storm.fork_storm")
    for name, default in (("tasks", 2000), ("kills", 20), ("seed", 1), ("attempts", 5), ("kill-node", 0)):
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
            given["kill_node"] = said.kill_node
            made = storm(rabbit, Path(folder), **given, is_quorum=said.queue == "quorum")
        finally:
            node.stop()
    sys.stdout.write(json.dumps({"queue": said.queue, "blind": said.blind, **given, **made}) + "\n")


if __name__ == "__main__":
    main()
