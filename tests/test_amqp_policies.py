"""Policies of the broker that end messages: seen at start through RabbitMQ's management plugin, where the settings name it."""

from __future__ import annotations

import json
import socket
from typing import TYPE_CHECKING, Any

import pytest
from celery import Celery
from kombu import Queue
from structlog.testing import capture_logs

from redelivery import Redelivery
from redelivery.errors import ConfigurationError
from redelivery.middleware.startup import warn_of_policies
from redelivery.settings import RedeliverySettings
from tests.rabbit import Node, need_rabbit

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.rabbit import Rabbit

OF_USERS: dict[str, tuple[str, dict[str, Any], int]] = {
    "short lives": ("^(prices|other)$", {"message-ttl": 1000}, 0),
    "buried": ("^orders$", {"dead-letter-exchange": "dead", "max-length": 5}, 0),
    "harmless": ("^calm$", {"queue-master-locator": "min-masters"}, 0),
    "letters": ("^DLQ\\.", {"expires": 60_000}, 0),
    "weaker": ("^(orders|DLQ.*)$", {"message-ttl": 5}, -1),
    "everything of ours": ("^redelivery", {"delivery-limit": 3}, 0),
}


@pytest.fixture(scope="module")
def managed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Rabbit, str]]:
    """A node of its own with the management plugin, and its address."""
    need_rabbit()
    node = Node(tmp_path_factory.mktemp("managed"))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    node.prepare()
    (node.folder / "plugins").write_text("[rabbitmq_management].\n")
    with (node.folder / "rabbitmq.conf").open("a") as conf:
        conf.write(f"management.tcp.ip = 127.0.0.1\nmanagement.tcp.port = {port}\n")
    with node.running():
        yield node.vhost(), f"http://127.0.0.1:{port}"


def said(rabbit_url: str, management_url: str) -> list[Any]:
    """What a worker of this app says of the policies."""
    app = Celery("governed", broker=rabbit_url, set_as_current=False)
    app.conf.task_queues = [Queue(name) for name in ("orders", "prices", "calm")]
    install = Redelivery(app, {"management_url": management_url, "queues": {"prices": {"expiry_queue": "gone"}}})
    with capture_logs() as logs:
        warn_of_policies(install)
    return logs


def test_a_worker_names_the_brokers_policies_that_end_messages(managed: tuple[Rabbit, str]) -> None:
    """Those of its own queues, of its dead letters, delays and events, be they there yet or not; a line each, with what to do."""
    rabbit, url = managed
    assert said(rabbit.url, url) == []
    for name, (pattern, definition, priority) in OF_USERS.items():
        rabbit.ctl("set_policy", "--priority", str(priority), "--", name, pattern, json.dumps(definition))
    lines = {line["policy"]: line for line in said(rabbit.url, url)}
    assert {line["event"] for line in lines.values()} == {"broker.policy_bypasses"}
    assert {name: line["definitions"] for name, line in lines.items()} == {
        "short lives": "message-ttl",
        "buried": "dead-letter-exchange,max-length",
        "letters": "expires",
        "everything of ours": "delivery-limit",
    }
    assert (lines["short lives"]["queues"], lines["letters"]["queues"]) == ("prices", "DLQ.calm,DLQ.orders,DLQ.prices")
    assert len(lines["everything of ours"]["queues"].split(",")) == 28 + 1
    assert "dlq import" in lines["buried"]["why"]
    assert "leaves these queues out" in lines["letters"]["why"]


def test_a_plugin_that_does_not_tell_is_one_line_and_no_end(managed: tuple[Rabbit, str]) -> None:
    """Nobody there, or a password that is refused: the worker starts all the same, and its log has no password."""
    rabbit, url = managed
    for wrong in ("http://127.0.0.1:1", url.replace("http://", "http://guest:secret@")):
        (line,) = said(rabbit.url, wrong)
        assert line["event"] == "broker.policies_unknown"
        assert "127.0.0.1" in line["error"]
        assert "secret" not in str(line)


def test_what_is_no_address_is_refused() -> None:
    """By the settings, with what is expected."""
    with pytest.raises(ConfigurationError, match=r"management_url.*http://"):
        RedeliverySettings.load({"management_url": "localhost:15672"})
