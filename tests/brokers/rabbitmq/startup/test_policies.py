"""Policies of the broker that end messages: seen at start through RabbitMQ's management plugin, where the settings name it."""

from __future__ import annotations

import json
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest
from celery import Celery
from kombu import Connection, Queue
from structlog.testing import capture_logs

from redelivery import Redelivery
from redelivery.errors import BrokerError, ConfigurationError
from redelivery.middleware.brokers.rabbitmq.names import AmqpNames
from redelivery.middleware.brokers.rabbitmq.policies import ending_policies
from redelivery.settings import RedeliverySettings

if TYPE_CHECKING:
    from tests.support.rabbit import Node, Rabbit

OF_USERS: dict[str, tuple[str, dict[str, Any], int]] = {
    "short lives": ("^(prices|other)$", {"message-ttl": 1000}, 0),
    "buried": ("^orders$", {"dead-letter-exchange": "dead", "max-length": 5}, 0),
    "harmless": ("^calm$", {"queue-master-locator": "min-masters"}, 0),
    "letters": ("^DLQ\\.", {"expires": 60_000}, 0),
    "weaker": ("^(orders|DLQ.*)$", {"message-ttl": 5}, -1),
    "everything of ours": ("^redelivery", {"delivery-limit": 3}, 0),
}


@pytest.fixture
def managed(managed_node: tuple[Node, str]) -> tuple[Rabbit, str]:
    """A virtual host of a node with the management plugin, and the plugin's address."""
    node, url = managed_node
    return node.vhost(), url


def said(rabbit_url: str, management_url: str) -> list[Any]:
    """What a worker of this app says of the policies."""
    app = Celery("governed", broker=rabbit_url, set_as_current=False)
    app.conf.task_queues = [Queue(name) for name in ("orders", "prices", "calm")]
    install = Redelivery(app, {"management_url": management_url, "queues": {"prices": {"expiry_queue": "gone"}}})
    with capture_logs() as logs:
        letters = {target for queue in app.amqp.queues.consume_from for target in install.policies.targets_of(queue)}
        install.transport.warn(list(app.amqp.queues.consume_from), letters, management_url)
    return logs


@pytest.mark.slow
@pytest.mark.full
def test_a_worker_names_the_brokers_policies_that_end_messages(managed: tuple[Rabbit, str]) -> None:
    """Policies on its own queues, dead letters, delays and events, existing or not: one line each, with what to do."""
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
    assert "does not match these" in lines["letters"]["why"]


@pytest.mark.full
def test_an_alternate_exchange_of_the_delay_store_is_named(managed: tuple[Rabbit, str]) -> None:
    """A delayed message whose queue is away would go there, and not wait; one for queues alone is no exchange's."""
    rabbit, url = managed
    rabbit.ctl("set_policy", "--apply-to", "queues", "harmless", ".*", '{"alternate-exchange": "unrouted"}')
    assert said(rabbit.url, url) == []
    rabbit.ctl("set_policy", "--apply-to", "exchanges", "unrouted", ".*", '{"alternate-exchange": "unrouted"}')
    (line,) = said(rabbit.url, url)
    assert (line["event"], line["policy"], line["definitions"]) == ("broker.policy_bypasses", "unrouted", "alternate-exchange")
    assert line["queues"] == AmqpNames().delivery_exchange
    assert "it ends dead letters, delays or outcome events" in line["why"]


def test_a_plugin_that_does_not_tell_is_one_line_and_no_end(managed: tuple[Rabbit, str]) -> None:
    """If the plugin does not answer or refuses the password, the worker starts, and logs one line without the password."""
    rabbit, url = managed
    for wrong in ("http://127.0.0.1:1", url.replace("http://", "http://guest:secret@")):
        (line,) = said(rabbit.url, wrong)
        assert line["event"] == "broker.policies_unknown"
        assert "127.0.0.1" in line["error"]
        assert "does not answer (ConnectionRefusedError)" in line["error"] or "status 401" in line["error"]
        assert "secret" not in str(line)


class Elsewhere(BaseHTTPRequestHandler):
    """Answers with a redirection to itself, and notes the credentials of each request."""

    asked: list[tuple[str, str | None]]

    def do_GET(self) -> None:
        """Send them elsewhere, or answer with what is no policy."""
        self.asked.append((self.path, self.headers["Authorization"]))
        is_first = self.path.startswith("/api")
        self.send_response(302 if is_first else 200)
        self.send_header("Location", f"http://{self.headers['Host']}/elsewhere")
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"[]")

    def log_message(self, *_: Any) -> None:
        """Nothing."""


def test_a_redirection_is_not_followed() -> None:
    """Otherwise the user and the password would be sent to that address."""
    Elsewhere.asked = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), Elsewhere)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        with pytest.raises(BrokerError, match=r"status 302 \(a redirection is not followed") as refused:
            ending_policies(f"http://me:secret@127.0.0.1:{server.server_address[1]}", Connection("amqp://"), ["orders"])
    finally:
        server.shutdown()
        server.server_close()
    assert [path for path, _ in Elsewhere.asked] == ["/api/policies/%2F"]
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    "answer", [b"", b"secret\r\n\r\n", b"HTTP/1.1 200 secret\r\n\r\n{secret", b"HTTP/1.1 200 OK\r\n\r\n" + b"[" * 100_000]
)
def test_whatever_answers_is_one_error_that_repeats_nothing(answer: bytes) -> None:
    """An answer that is not HTTP, not JSON, not a policy, or endless JSON; the error does not quote it."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            client, _ = listening.accept()
            with client:
                client.recv(65_536)
                client.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        with pytest.raises(BrokerError, match="does not report") as refused:
            ending_policies(f"http://127.0.0.1:{listening.getsockname()[1]}", Connection("amqp://"), ["orders"])
        thread.join(60)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    "url",
    [
        "localhost:15672",
        "me:secret@localhost:15672",
        "htp://me:secret@localhost:15672",
        "http://me:1/secret@localhost:15672",
        "http://me:secret#1@localhost:15672",
        "http://:1#secret@localhost:15672",
        "http://",
        15672,
    ],
)
def test_what_is_no_address_is_refused(url: Any) -> None:
    """The settings refuse it, say what is expected, and show no part of a password."""
    with pytest.raises(ConfigurationError, match=r"management_url.*http://host:15672.*%2F") as refused:
        RedeliverySettings.load({"management_url": url})
    assert "secret" not in str(refused.value)


def test_a_setting_that_is_refused_shows_no_credentials() -> None:
    """This holds for each setting that could contain them."""
    with pytest.raises(ConfigurationError) as refused:
        RedeliverySettings.load({"dead_letter_archive": ["s3://KEY:SECRET@bucket/x"]})
    assert ("SECRET" in str(refused.value), "bucket" in str(refused.value)) == (False, True)
