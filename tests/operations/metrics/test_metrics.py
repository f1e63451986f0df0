"""`redelivery metrics`: output that Prometheus reads, the documented names, and a page that survives its broker."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from redelivery.workers.operations.metrics.collector import Families, page_of
from redelivery.workers.operations.metrics.metrics import METRICS, WORKER_METRICS, Family, Living, families, measured
from redelivery.workers.ports import Gauge
from tests.conformance.brokers import Place, letter
from tests.support.desk import LETTERS, QUEUE, Desk, task_message
from tests.support.running import ROOT, Shop, until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.rabbit import Rabbit
    from tests.support.servers import Server

DOCUMENT = Path(ROOT) / "docs" / "metrics.md"
#: Straight to the loopback, whatever proxies this machine has.
OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))
Figures = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def read(text: str) -> Figures:
    """What Prometheus' own parser reads."""
    families = list(text_string_to_metric_families(text))
    assert all(family.documentation and family.type in {"gauge", "counter"} for family in families)
    return {(sample.name, tuple(sorted(sample.labels.items()))): sample.value for family in families for sample in family.samples}


def figures(desk: Desk) -> Figures:
    """What the command prints now."""
    done = desk.run("metrics")
    assert done.exit_code == 0, done.output
    return read(done.stdout)


def of(found: Figures, name: str, **labels: str) -> float:
    """One figure."""
    return found[f"redelivery_{name}", tuple(sorted(labels.items()))]


def test_the_figures_are_those_of_the_broker(desk: Desk) -> None:
    """Queues with their priorities, held, delayed, overdue and dead messages, leases, and the outcome log."""
    empty = figures(desk)
    assert (of(empty, "queue_messages", queue=QUEUE), of(empty, "dead_letters", dead_letter_queue=LETTERS, queue=QUEUE)) == (0, 0)
    assert (of(empty, "outcome_log_events"), of(empty, "outcomes_recorded_total"), of(empty, "workers")) == (0, 0, 0)
    desk.die(ago_ms=7_200_000)
    desk.die()
    desk.delay(task_message("soon"), 1)
    until(lambda: of(figures(desk), "overdue_seconds", queue=QUEUE) > 0, what="a message to be overdue")
    desk.delay(task_message("urgent"))
    for priority in (0, 9):
        desk.publish(priority=priority)
    desk.publish()
    desk.hold()
    found = figures(desk)
    assert of(found, "queue_messages", queue=QUEUE) == 2
    assert of(found, "delayed_messages", queue=QUEUE) == 2
    assert of(found, "dead_letters", dead_letter_queue=LETTERS, queue=QUEUE) == 2
    assert 7200 <= of(found, "oldest_dead_letter_age_seconds", dead_letter_queue=LETTERS, queue=QUEUE) < 7200 + 3600
    assert (of(found, "held_messages"), of(found, "workers"), of(found, "dispatchers")) == (1, 1, 0)
    assert of(found, "outcome_log_events") == len(desk.events) == of(found, "outcomes_recorded_total")
    assert 0 < of(found, "outcome_log_bytes") < of(found, "outcome_log_max_bytes") == 256 * 1024 * 1024
    assert ("redelivery_outcome_log_exported_timestamp_seconds", ()) not in found
    desk.transport.leases.lead(desk.keys.dispatcher, "a dispatcher", 60)
    desk.transport.stores.promote(10)
    found = figures(desk)
    assert (of(found, "dispatchers"), of(found, "overdue_seconds", queue=QUEUE)) == (1, 0)


def test_what_was_exported_is_counted_no_more(desk: Desk, tmp_path: Path) -> None:
    """The log's length is what is not exported yet; the counter goes on; the export has a time."""
    desk.die()
    recorded = len(desk.events)
    desk.json("outcomes", "export", "--to", str(tmp_path))
    found = figures(desk)
    assert (of(found, "outcome_log_events"), of(found, "outcomes_recorded_total")) == (0, recorded)
    assert abs(of(found, "outcome_log_exported_timestamp_seconds") - desk.transport.now_ms() / 1000) < 3600
    desk.client.hset(desk.keys.trimmed, "entries", 7)
    assert of(figures(desk), "outcome_log_lost_events") == 7


def test_a_look_costs_as_much_for_ten_messages_as_for_ten_thousand(desk: Desk) -> None:
    """The server counts the commands and its output: no list is read element by element."""

    def cost() -> tuple[int, int]:
        before: Any = desk.server.client.info("stats")
        measured(desk.install)
        after: Any = desk.server.client.info("stats")
        return tuple(after[name] - before[name] for name in ("total_commands_processed", "total_net_output_bytes"))

    for task_id in ("a", "b"):
        desk.die(task_message(task_id))
        desk.delay(task_message())
        desk.publish()
    measured(desk.install)
    commands, size = cost()
    raw: Any = desk.client.lindex(LETTERS, 0)
    desk.client.lpush(LETTERS, *[raw] * 10_000)
    desk.client.lpush(QUEUE, *[raw] * 10_000)
    desk.client.zadd(desk.keys.due(QUEUE), {f"x{number}": 4e12 for number in range(10_000)})
    more_commands, more_size = cost()
    assert more_commands == commands
    assert more_size < size + 1000


def test_every_metric_is_documented_and_nothing_else_is() -> None:
    """By its name and its kind; names end as Prometheus has it."""
    rows = dict(re.findall(r"^\| `(redelivery_\w+)` \| (\w+) \|", DOCUMENT.read_text(), re.MULTILINE))
    assert rows == {name: kind for name, (kind, _) in {**METRICS, **WORKER_METRICS}.items()}
    assert {name for name in rows if name.endswith("_total")} == {name for name, kind in rows.items() if kind == "counter"}
    assert not [name for name in rows if re.search(r"_(ms|milliseconds|minutes|kilobytes|count)$", name)]


def test_the_alarms_of_the_document_are_of_metrics_that_there_are() -> None:
    """Each rule of `examples/monitoring/alerts.yml` is explained in the document, and no other; `test_monitoring.py` asks more."""
    text = DOCUMENT.read_text()
    rules = set(re.findall(r"- alert: (\w+)", (Path(ROOT) / "examples" / "monitoring" / "alerts.yml").read_text()))
    assert len(rules) >= 4
    assert set(re.findall(r"^\| `(Redelivery\w+)` \|", text, re.MULTILINE)) == rules


def test_labels_come_out_as_they_went_in() -> None:
    """Quotes and backslashes are escaped; control characters and line breaks are shown as escapes."""
    queues = ('a"b', "back\\slash", "line\nend", "täglich", "\x1b[2J")
    found = families(Gauge.of("queue_messages", 1, queue=queue) for queue in queues)
    text = page_of(Families(lambda: found))[0].decode()
    assert [dict(labels)["queue"] for _, labels in read(text)] == ['a"b', "back\\slash", "line\\nend", "täglich", "\\x1b[2J"]
    assert text.isprintable() or text.replace("\n", "").isprintable()
    family = Family("redelivery_x", "gauge", "two\nlines \\", [Gauge.of("x", 0.5)])
    text = page_of(Families(lambda: [family]))[0].decode()
    assert text == "# HELP redelivery_x two\\nlines \\\\\n# TYPE redelivery_x gauge\nredelivery_x 0.5\n"


def test_a_queue_of_a_hostile_name_is_told(desk: Desk) -> None:
    """Any client may have put such a name into the broker, even bytes that are not text."""
    desk.client.hset(desk.keys.dead_letter_queues, b'DLQ."\xff\n', "x\x1b")
    found = figures(desk)
    assert of(found, "dead_letters", dead_letter_queue='DLQ."�\\n', queue="x\\x1b") == 0
    rows = {family["name"]: family for family in desk.json("metrics")}
    assert {"labels": {"dead_letter_queue": 'DLQ."�\n', "queue": "x\x1b"}, "value": 0} in rows["redelivery_dead_letters"]["samples"]
    assert rows["redelivery_dead_letters"]["type"] == "gauge"


def test_a_prefix_is_kept_to(server: Server) -> None:
    """Two applications on one broker do not count each other's messages."""
    one, other = Desk(server, prefix="one:"), Desk(server, prefix="other:")
    one.die()
    assert of(figures(one), "dead_letters", dead_letter_queue=LETTERS, queue=QUEUE) == 1
    assert of(figures(other), "dead_letters", dead_letter_queue=LETTERS, queue=QUEUE) == 0
    for desk in (one, other):
        desk.transport.close()


def test_a_lease_that_stands_still_is_no_living_workers() -> None:
    """A lease that is not renewed between two looks, for as long as a lease lasts, is not counted; the first look counts all."""
    now = 0.0
    living = Living(10.0, lambda: now)
    assert living.count({b"a": b"1", b"b": b"1"}) == 2
    now = 9.9
    assert living.count({b"a": b"9", b"b": b"1"}) == 2
    now = 10.0
    assert living.count({b"a": b"9", b"b": b"1"}) == 1
    assert living.count({b"a": b"9", b"b": b"2"}) == 2
    now = 30.0
    assert living.count({b"c": b"5"}) == 1
    assert living.count({}) == 0


# the server


class Page:
    """`redelivery metrics --listen`, as a process."""

    def __init__(self, shop: Shop, *words: str) -> None:
        command = [sys.executable, "-m", "redelivery", "-A", shop.module, "metrics", "--listen", *words]
        self.process = subprocess.Popen(command, env=shop.environment, cwd=shop.folder, stderr=subprocess.PIPE, text=True)
        assert self.process.stderr is not None
        self.said = self.process.stderr.readline()
        found = re.match(r"metrics: (http://\S+);", self.said)
        assert found is not None, self.said
        self.url = found[1]

    def get(self, path: str = "", method: str = "GET") -> tuple[int, str, str]:
        """Status, content type, text."""
        request = urllib.request.Request(self.url + path, method=method)  # noqa: S310 - the loopback's
        try:
            with OPENER.open(request, timeout=60) as answer:
                return answer.status, answer.headers["Content-Type"], answer.read().decode()
        except urllib.error.HTTPError as exc:
            with exc:
                return exc.code, exc.headers["Content-Type"], exc.read().decode()

    def end(self, number: int) -> int:
        """End it with this signal, and read what else it said; its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        code = self.process.wait(60)
        if self.process.stderr is not None and not self.process.stderr.closed:
            with self.process.stderr as said:  # its first line was read: the rest may be in the reader's buffer
                self.said = said.read()
        return code


@pytest.fixture
def page(shop: Callable[..., Shop]) -> Iterator[Callable[..., Page]]:
    """Starts pages."""
    made: list[Page] = []

    def make(*words: str) -> Page:
        made.append(Page(shop(), *words))
        return made[-1]

    yield make
    for each in made:
        each.end(signal.SIGKILL)


def test_a_page_is_scraped_and_outlives_its_broker(page: Callable[..., Page], server: Server) -> None:
    """200 with the format's content type; 503 while the broker is away; then 200 again; other paths and methods do not exist."""
    here = page("0")
    assert here.url.startswith("http://127.0.0.1:")
    status, kind, text = here.get()
    assert (status, kind) == (200, "text/plain; version=0.0.4; charset=utf-8")
    assert of(read(text), "queue_messages", queue="celery") == 0
    assert here.get(method="HEAD") == (200, kind, "")
    assert [here.get(path)[0] for path in ("/more", "?a=b")] == [404, 200]
    assert here.get(method="POST")[0] == 501
    server.client.lpush("celery", b"{}")
    assert of(read(here.get()[2]), "queue_messages", queue="celery") == 1
    server.kill()
    assert here.get()[:2] == (503, "text/plain; charset=utf-8")
    server.start()
    assert of(read(here.get()[2]), "queue_messages", queue="celery") == 1
    assert here.end(signal.SIGTERM) == 0
    assert "metrics.not_seen" in here.said


def test_a_page_that_others_may_read_says_so(page: Callable[..., Page]) -> None:
    """Plain http without a password: by default on the loopback; any other address gives a warning. Ctrl-C ends with 130."""
    here = page("0.0.0.0:0")
    port = here.url.rpartition(":")[2]
    with OPENER.open(f"http://127.0.0.1:{port}", timeout=60) as answer:
        assert answer.status == 200
    assert here.end(signal.SIGINT) == 130
    assert "there is no password" in here.said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--listen", "here"), "'here' is not an address"),
        (("--listen", "127.0.0.1:70000"), "is not an address"),
        (("--listen", "127.0.0.1:-1"), "is not an address"),
        (("--listen", "192.0.2.1:9540"), "cannot listen on 192.0.2.1:9540"),
        (("--listen", "9540", "--json"), "leave out --json"),
    ],
)
def test_what_cannot_be_listened_to_is_refused(desk: Desk, words: tuple[str, ...], said: str) -> None:
    """One line, exit code 2."""
    done = desk.run("metrics", *words)
    assert (done.exit_code, said in done.stderr) == (2, True), done.output


def test_a_broker_that_is_not_there_is_one_line(server: Server) -> None:
    """Exit code 2, and no traceback."""
    server.kill()
    done = Desk(server).run("metrics")
    assert (done.exit_code, "does not answer" in done.stderr, len(done.stderr.splitlines())) == (2, True, 1)


# RabbitMQ


def test_on_rabbitmq_there_is_what_passive_declares_tell(rabbit: Rabbit, tmp_path: Path) -> None:
    """Depths of queues, dead letters and the log; a queue that does not exist yet has no sample; no message is read."""
    place = Place("rabbit-classic", rabbit, tmp_path)
    desk = place.desk()
    assert of(figures(desk), "queue_messages", queue=QUEUE) == 0
    place.put(*(letter(task_message(str(number))) for number in range(3)))
    desk.app.send_task("desk.pack")
    until(lambda: of(figures(desk), "queue_messages", queue=QUEUE) == 1, what="the message to be there")
    found = figures(desk)
    assert of(found, "dead_letters", dead_letter_queue=LETTERS, queue=QUEUE) == 3
    assert of(found, "queue_consumers", queue=QUEUE) == 0
    assert not [name for name, _ in found if "_age_" in name or "workers" in name or ("bytes" in name and "max" not in name)]
    desk.json("dlq", "redrive", LETTERS, "--all")
    until(lambda: of(figures(desk), "outcome_log_messages") >= 1, what="the events to be in the log")
    until(lambda: of(figures(desk), "dead_letters", dead_letter_queue=LETTERS, queue=QUEUE) == 0, what="the letters to be gone")
    assert json.loads(desk.run("metrics", "--json").stdout)[0]["name"] == "redelivery_queue_messages"
