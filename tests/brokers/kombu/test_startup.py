"""What a worker logs and refuses at start on a broker of which only kombu's transport is known."""

from __future__ import annotations

import sys
import types
import uuid
from typing import TYPE_CHECKING, Any

import pytest
from celery import Celery
from click.testing import CliRunner
from kombu.transport import filesystem, memory, virtual

from redelivery import Redelivery
from redelivery.middleware.brokers.kombu.generic import GenericTransport, capabilities_of, limits
from redelivery.middleware.ports import Capability
from redelivery.middleware.worker.startup.contradictions import contradictions
from redelivery.workers.cli.main import redelivery
from tests.support.files import Files
from tests.support.running import Shop, until

if TYPE_CHECKING:
    from pathlib import Path

POLICY = {"redelivery_delay": 0.2, "max_delivery_attempts": 3}


def test_the_start_up_line_says_what_this_broker_cannot_do(folder: Path) -> None:
    """The guarantees in words, and what is lacking by name."""
    server: Any = Files(folder)
    shop = Shop(server, folder, conf=server.conf)
    try:
        worker = shop.start(pool="solo")
        line = until(lambda: next((line for line in worker.text.splitlines() if "event=worker.started" in line), ""))
    finally:
        shop.stop()
    assert "published, then acknowledged; messages of a killed worker are lost" in line
    for lacking in ("broker_delays", "outcome_log", "starts", "server_time", "kept_until_acknowledged"):
        assert lacking in line.partition("broker_lacks=")[2]
    assert "dead_letter_queues" not in line.partition("broker_lacks=")[2]


def test_what_kombus_transports_keep_is_read_from_their_channels() -> None:
    """Some transports acknowledge at the broker, and so it keeps held messages; others only forget the message in memory."""

    class Telling(virtual.Channel):
        def basic_ack(self, delivery_tag: Any, multiple: bool = False) -> None:
            raise NotImplementedError

    class TellingQos(virtual.QoS):
        def ack(self, delivery_tag: Any) -> None:
            raise NotImplementedError

    class Noting(virtual.Channel):
        QoS = TellingQos

    for channel, keeps in ((memory.Channel, False), (filesystem.Channel, False), (Telling, True), (Noting, True)):
        assert (Capability.KEPT_UNTIL_ACKNOWLEDGED in capabilities_of(channel)) is keeps


def test_a_broker_that_keeps_what_is_held_says_for_how_long() -> None:
    """The time is the transport's default or the app's setting; a broker that keeps nothing needs no such line."""

    def said(broker: str, **options: Any) -> str:
        app = Celery("said", broker=broker, set_as_current=False)
        app.conf.broker_transport_options = options
        return "; ".join(limits(GenericTransport(app)))

    assert "visibility_timeout (1800 s) is delivered twice" in said("pgmq://nowhere")
    assert "visibility_timeout (60 s) is delivered twice" in said("pgmq://nowhere", visibility_timeout=60)
    assert "is delivered again by the broker, uncounted" in said("pgmq://nowhere")
    assert "visibility_timeout" not in said("memory://", visibility_timeout=60)


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"queues": {"orders": {"max_length": 5}}}, "broker's own means"),
        ({"queues": {"#": {"dead_letter_time_to_live": 60}}}, "dead_letter_handler"),
        ({"queues": {"#": {"max_dead_letters": 60}}}, "dead_letter_handler"),
        ({"queues": {"#": {"redeliveries_per_second": 5}}}, "longer delays"),
        ({"queues": {"#": {"auto_delete_dead_letter_resources": True}}}, "delete empty queues"),
        ({"queues": {"#": {"auto_create_dead_letter_resources": False}}}, "nobody can see"),
        ({"tasks": {"#": {"persist_delivery_count": "always"}}}, "record a start"),
        ({"wait_replicas": 1}, "remove it"),
        ({"outcome_export": "outcomes"}, "outcome.recorded"),
    ],
    ids=str,
)
def test_what_cannot_be_kept_is_refused_with_what_to_do(settings: dict[str, Any], word: str) -> None:
    """A setting that this broker cannot keep is refused and not silently ignored; without such a setting nothing is refused."""
    (line,) = contradictions(Redelivery(Celery("refused", broker="memory://", set_as_current=False), settings))
    assert word in line
    assert "memory://" in line
    assert contradictions(Redelivery(Celery("kept", broker="memory://", set_as_current=False), {"queues": {"#": POLICY}})) == []


@pytest.mark.parametrize(
    "words",
    [
        ("dlq", "list"),
        ("dlq", "show", "DLQ.celery"),
        ("dlq", "redrive", "DLQ.celery", "--all"),
        ("delayed", "list"),
        ("outcomes", "tail"),
        ("outcomes", "export", "--to", "out"),
        ("inventory", "export", "--to", "out"),
        ("task", "show", "some-id"),
        ("dispatcher",),
    ],
    ids=" ".join,
)
def test_a_command_that_cannot_work_says_what_there_is_instead(words: tuple[str, ...]) -> None:
    """One line, exit code 2, and no traceback."""
    module = types.ModuleType(f"operator_{uuid.uuid4().hex}")
    module.app = Celery("memory", broker="memory://", set_as_current=False)  # type: ignore[attr-defined]
    Redelivery(module.app)
    sys.modules[module.__name__] = module
    try:
        done = CliRunner().invoke(redelivery, ["-A", module.__name__, *words])
    finally:
        del sys.modules[module.__name__]
    assert done.exit_code == 2, done.output
    assert "dead_letter_handler" in done.stderr
    assert "outcome.recorded" in done.stderr
