"""The setup of the doctor's tests: a healthy app with broker and workers, and the command `redelivery doctor`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import amqp
from kombu import Queue

from redelivery.middleware.brokers.rabbitmq.events import packed
from redelivery.middleware.brokers.rabbitmq.messages import message_of
from redelivery.middleware.brokers.rabbitmq.names import OUTCOMES, AmqpNames
from redelivery.middleware.brokers.rabbitmq.topology import declare_outcomes
from redelivery.middleware.messages.events import ENTRY, Event, Outcome
from tests.conformance.brokers import letter
from tests.support.running import ROOT, Shop
from tests.support.servers import Server

if TYPE_CHECKING:
    from celery import Celery

__all__ = ["HOUR_MS", "Clinic", "Diagnosis"]

HOUR_MS = 3_600_000
#: An old version in the image of a worker.
OLD_VERSION = "0.0.9"


@dataclass(frozen=True)
class Diagnosis:
    """The answer of the command."""

    code: int
    said: dict[str, Any]

    @property
    def names(self) -> list[str]:
        """The names of the findings, without duplicates."""
        return sorted({each["name"] for each in self.said["findings"]})

    @property
    def not_known(self) -> list[str]:
        """The questions that the doctor could not answer."""
        return [each["what"] for each in self.said["not_known"]]


@dataclass
class Clinic(Shop):
    """A shop with options for its queue and its task, and `more` variables for its processes."""

    module: str = "tests.support.operators.clinic_shop"
    task: dict[str, Any] = field(default_factory=dict)
    queue: dict[str, Any] = field(default_factory=dict)
    more: dict[str, str] = field(default_factory=dict)
    management_url: str = ""

    def __post_init__(self) -> None:
        self.settings = {"outcome_export": str(self.folder / "books"), "outcome_export_every": 1}
        if not self.is_redis:
            self.conf = {"broker_transport_options": {"confirm_publish": True}}
            self.settings["management_url"] = self.management_url

    @property
    def is_redis(self) -> bool:
        return isinstance(self.server, Server)

    @property
    def environment(self) -> dict[str, str]:
        """The environment of a process, with the options of the queue and the task."""
        said = {"SHOP_TASK": json.dumps(self.task), "SHOP_QUEUE": json.dumps(self.queue)}
        return {**super().environment, **said, **self.more}

    def examined(self, *words: str) -> Diagnosis:
        """The answer of `redelivery doctor --json`. Raises `AssertionError` if it ends with an error."""
        done = self.command("doctor", "--json", *words)
        assert done.returncode in {0, 1}, done.stderr
        assert done.stdout, done.stderr
        return Diagnosis(done.returncode, json.loads(done.stdout))

    def command(self, *words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "redelivery", "-A", self.module, *words]
        options: dict[str, Any] = {"cwd": self.folder, "env": self.environment, "stdin": subprocess.DEVNULL}
        return subprocess.run(command, **options, capture_output=True, text=True, timeout=120, check=False)

    # other processes, next to the healthy ones

    def start_plain(self, **conf: Any) -> None:
        before, self.plain, self.conf = self.conf, True, self.conf | conf
        try:
            self.start(concurrency=1)
        finally:
            self.plain, self.conf = False, before

    def start_skewed(self, seconds: float) -> None:
        """Start a worker whose clock is fast by `seconds`."""
        with_skew = os.pathsep.join([str(ROOT / "tests/support/skewed"), str(ROOT)])
        self.more = {"PYTHONPATH": with_skew, "CLOCK_SKEW": str(seconds)}
        try:
            self.start(concurrency=1)
        finally:
            self.more = {}

    def start_old(self) -> None:
        """Start a worker that reports another version of redelivery."""
        installed = self.folder / "old" / f"redelivery-{OLD_VERSION}.dist-info"
        installed.mkdir(parents=True)
        (installed / "METADATA").write_text(f"Metadata-Version: 2.1\nName: redelivery\nVersion: {OLD_VERSION}\n")
        self.more = {"PYTHONPATH": os.pathsep.join([str(self.folder / "old"), str(ROOT)])}
        try:
            self.start(concurrency=1)
        finally:
            self.more = {}

    def publish_skewed(self, seconds: float) -> None:
        """Publish a task from a producer whose clock is fast by `seconds`."""
        path = os.pathsep.join([str(ROOT / "tests/support/skewed"), str(ROOT)])
        environment = {**self.environment, "PYTHONPATH": path, "CLOCK_SKEW": str(seconds)}
        script = "from tests.support.operators.clinic_shop import pack; pack.delay()"
        subprocess.run([sys.executable, "-c", script], env=environment, cwd=self.folder, check=True, timeout=60)

    # the messages on the broker

    @property
    def producer(self) -> Celery:
        """A producer that knows the queue."""
        app = self.app
        app.conf.task_default_queue = "orders"
        app.conf.task_queues = [Queue("orders", **self.queue)]
        return app

    def declare(self, name: str = "orders") -> None:
        with self.producer.connection_for_write() as connection:
            Queue(name).bind(connection.default_channel).declare()

    def publish(self) -> None:
        self.declare()
        self.producer.send_task("shop.pack")

    def record_long_ago(self) -> None:
        """Record an event that is two hours old, before the first worker starts."""
        event = Event(task_id="a", outcome=Outcome.SUCCEEDED, task="shop.pack", queue="orders")
        server: Any = self.server
        if self.is_redis:
            ident = f"{server.now_ms() - 2 * HOUR_MS}-1"
            server.client.xadd("redelivery:outcomes", dict(zip(ENTRY, event.to_entry(), strict=True)), id=ident)
            return
        with server.connection() as connection:
            made = connection.connection
            declare_outcomes(made, AmqpNames(), 2**28)
            body = packed([(f"{int(time.time() * 1000) - 2 * HOUR_MS}-tests-1", event)])
            channel = made.channel()
            channel.confirm_select()
            channel.basic_publish_confirm(amqp.Message(body, delivery_mode=2), "", OUTCOMES)

    def put_letter(self, ago_ms: int = 3 * 24 * HOUR_MS) -> None:
        """Put a dead letter that died `ago_ms` ago."""
        raw = letter(died_ms=int(time.time() * 1000) - ago_ms, into="DLQ.orders")
        server: Any = self.server
        if self.is_redis:
            server.client.lpush("DLQ.orders", raw)
            server.client.hset("redelivery:dead_letter_queues", "DLQ.orders", "orders")
            return
        with server.connection() as connection:
            channel = connection.connection.channel()
            channel.confirm_select()
            channel.queue_declare("DLQ.orders", durable=True, auto_delete=False)
            channel.basic_publish_confirm(message_of(raw, target=("", "DLQ.orders")), "", "DLQ.orders")
