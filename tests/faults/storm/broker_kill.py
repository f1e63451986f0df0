"""What a SIGKILL of the RabbitMQ node undoes: `python -m tests.faults.storm.broker_kill --way tx --queue quorum --rounds 8`.

Messages are moved from one queue to another, 64 at a time: in AMQP transactions, each with an event (`tx`), or published,
confirmed and then acknowledged (`confirm`), in the product's order. The node dies at a moment that a seed draws, and is started
again. The command counts messages in neither queue (lost), and messages in both, which were moved and came back.

`--way new --age 0` asks something else: how many of 30 confirmed messages are lost in a durable queue that is so many seconds old.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import threading
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import amqp
from kombu.exceptions import OperationalError

from tests.support.rabbit import Node
from tests.support.running import until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.rabbit import Rabbit

#: Messages of a round, and of a group that moves together.
MESSAGES, TOGETHER = 3000, 64
#: Seconds from the first move to the kill.
SOONEST, LATEST = 0.15, 0.6
BODY, EVENT = b"x" * 900, b"e" * 300


@contextmanager
def channels(rabbit: Rabbit) -> Iterator[tuple[Any, Any, set[int]]]:
    """A channel that receives, one that publishes with confirms, and the set of its unconfirmed messages."""
    with rabbit.connection() as kombu:
        kombu.connect()
        connection = kombu.connection
        publishing, opened = connection.channel(), set[int]()
        publishing.confirm_select()

        def confirmed(number: int, multiple: bool) -> None:
            opened.difference_update([each for each in opened if each == number or (multiple and each < number)])

        publishing.events["basic_ack"].add(confirmed)
        yield connection.channel(), publishing, opened


def publish(channel: Any, bodies: dict[str, bytes], queue: str, opened: set[int], first: int) -> None:
    """Publish these, and wait for their confirmations."""
    opened.update(range(first, first + len(bodies)))
    for name, body in bodies.items():
        channel.basic_publish(amqp.Message(body, delivery_mode=2, message_id=name), routing_key=queue)
    while opened:
        channel.connection.drain_events(timeout=5)


def move(rabbit: Rabbit, way: str, queues: tuple[str, str, str]) -> int:
    """Move all until the node dies; returns how many were moved, as far as the mover knows."""
    source, target, events = queues
    moved = 0
    with suppress(amqp.AMQPError, OSError), channels(rabbit) as (receiving, publishing, opened):
        receiving.basic_qos(0, 256, a_global=False)
        got: list[Any] = []
        receiving.basic_consume(source, callback=got.append)
        if way == "tx":
            receiving.tx_select()
        while moved < MESSAGES - TOGETHER:
            while len(got) < TOGETHER:
                receiving.connection.drain_events(timeout=5)
            part, got[:] = got[:TOGETHER], got[TOGETHER:]
            if way == "tx":
                for each in part:
                    name = each.properties["message_id"]
                    receiving.basic_publish(amqp.Message(BODY, delivery_mode=2, message_id=name), routing_key=target)
                    receiving.basic_publish(amqp.Message(EVENT, delivery_mode=2), routing_key=events)
                    receiving.basic_ack(each.delivery_tag)
                receiving.tx_commit()
            else:
                publish(publishing, {each.properties["message_id"]: BODY for each in part}, target, opened, moved + 1)
                for each in part:
                    receiving.basic_ack(each.delivery_tag)
            moved += TOGETHER
    return moved


def ids(rabbit: Rabbit, queue: str) -> set[str]:
    """The ids of the messages in a queue."""
    with rabbit.connection() as connection:
        channel, found = connection.default_channel, set()
        while (message := channel.basic_get(queue, no_ack=True)) is not None:
            found.add(str(message.properties["message_id"]))
        return found


def answers(rabbit: Rabbit, queues: tuple[str, ...]) -> bool:
    """Whether the node and these queues answer again."""
    try:
        return all(rabbit.depth(queue) is not None for queue in queues)
    except (OperationalError, amqp.AMQPError, OSError):
        return False


def killed(rabbit: Rabbit, way: str, kind: str, number: int, seconds: float) -> dict[str, int]:
    """One round."""
    source, target, events = queues = f"a{number}", f"b{number}", f"e{number}"
    names = [str(each) for each in range(MESSAGES)]
    with channels(rabbit) as (_, publishing, opened):
        for queue, its in ((source, kind), (target, kind), (events, "classic")):
            publishing.queue_declare(queue, durable=True, auto_delete=False, arguments={"x-queue-type": its})
        publish(publishing, dict.fromkeys(names, BODY), source, opened, 1)
    death = threading.Timer(seconds, rabbit.node.kill)
    death.start()
    moved = move(rabbit, way, queues)
    death.join()
    rabbit.node.start()
    until(lambda: answers(rabbit, queues), 120, "the queues to be back")
    left, there = ids(rabbit, source), ids(rabbit, target)
    return {"moved": moved, "lost": len(set(names) - left - there), "in_both": len(left & there)}


def forgotten(rabbit: Rabbit, number: int, age: float) -> dict[str, int]:
    """A round with a new queue: how many of its confirmed messages are lost."""
    queue, names = f"n{number}", [str(each) for each in range(30)]
    with channels(rabbit) as (_, publishing, opened):
        publishing.queue_declare(queue, durable=True, auto_delete=False)
        publish(publishing, dict.fromkeys(names, BODY), queue, opened, 1)
        time.sleep(age)  # the command line
        rabbit.node.kill()
    rabbit.node.start()
    return {"lost": len(names) - (rabbit.depth(queue) or 0)}


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.storm.broker_kill")
    parser.add_argument("--way", choices=["tx", "confirm", "new"], default="confirm")
    parser.add_argument("--queue", choices=["classic", "quorum"], default="classic")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--age", type=float, default=0.0, help="seconds from the making of a new queue to the kill")
    said = parser.parse_args()
    chance = random.Random(said.seed)  # noqa: S311 - moments are no secrets
    with tempfile.TemporaryDirectory(prefix="kills-", ignore_cleanup_errors=True) as folder:
        node = Node(Path(folder) / "rabbit")
        try:
            rabbit = node.start().vhost()
            for number in range(said.rounds):
                if said.way == "new":
                    made = forgotten(rabbit, number, said.age)
                else:
                    made = killed(rabbit, said.way, said.queue, number, chance.uniform(SOONEST, LATEST))
                sys.stdout.write(json.dumps({"way": said.way, "queue": said.queue, "round": number, **made}) + "\n")
                sys.stdout.flush()
        finally:
            node.stop()


if __name__ == "__main__":
    main()
