"""The dashboard and the alert rules of `examples/monitoring/`, answered by a real Prometheus that scrapes a system under load.

Prometheus is Debian's (`./dev package prometheus`). It scrapes `redelivery metrics --listen` and a worker (`metrics_listen`), as
`prometheus.yml` says, and is asked what Grafana would ask: each panel has data, and each selector of each alert matches a series.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import urllib.parse
import urllib.request
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from redelivery.workers.operations.metrics.metrics import METRICS
from tests.support.running import ROOT, Shop, until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.rabbit import Rabbit
    from tests.support.servers import Server

FOLDER = ROOT / "examples" / "monitoring"
OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))
#: What only RabbitMQ has, and what it has of the rest.
ON_RABBITMQ = {"redelivery_queue_consumers", "redelivery_outcome_log_messages"}
COMMON = {
    "redelivery_queue_messages",
    "redelivery_dead_letters",
    "redelivery_worker_outcomes_total",
    "redelivery_worker_run_seconds_bucket",
    "redelivery_worker_run_seconds_sum",
    "redelivery_outcome_log_max_bytes",
}
SELECTOR = re.compile(r"(redelivery_\w+|\bup\b)(\{[^}]*\})?")
#: The labels of a `by`, and the metric that it groups.
GROUPED = re.compile(r"\bby \(([^)]*)\) \((?:\w+\()*(redelivery_\w+)")


def expressions() -> dict[str, str]:
    """Each query of the dashboard, with its variables as Grafana fills them in."""
    dashboard = json.loads((FOLDER / "dashboard.json").read_text())
    targets = [(panel, target) for panel in dashboard["panels"] for target in panel.get("targets", ())]
    return {
        f"{panel['title']} {target['refId']}": target["expr"].replace("$__rate_interval", "1m").replace("$queue", ".*")
        for panel, target in targets
    }


def rules() -> dict[str, str]:
    """Each alert's expression, as `promtool` and Prometheus read it too."""
    text = (FOLDER / "alerts.yml").read_text()
    found = re.findall(r"- alert: (\w+)\n(?:\s+#[^\n]*\n)?\s+expr: (?:>-\n)?(.+?)\n\s+(?:for|labels):", text, re.DOTALL)
    return {name: " ".join(expression.split()) for name, expression in found}


def test_the_files_name_metrics_and_labels_that_there_are() -> None:
    """Whatever Prometheus is there: no query names a metric that is not promised, nor a label that none of its metrics has."""
    page = (ROOT / "docs" / "metrics.md").read_text()
    labels = {"up": {"job"}}  # Prometheus' own
    for name, kind, found in re.findall(r"^\| `(redelivery_\w+)` \| (\w+) \| ([\w, ]*)\|", page, re.MULTILINE):
        has = {each.strip() for each in found.split(",")} - {""}
        names = {name: has} if kind != "histogram" else {f"{name}_bucket": {*has, "le"}, f"{name}_sum": has, f"{name}_count": has}
        labels |= names
    queries = expressions() | rules()
    assert len(expressions()) > 15
    assert len(rules()) >= 6
    for name, query in queries.items():
        metrics = {metric for metric, _ in SELECTOR.findall(query)}
        assert metrics, name
        assert metrics <= labels.keys(), name
        for names, metric in GROUPED.findall(query):
            assert {each.strip() for each in names.split(",")} <= labels[metric] | {"instance"}, name  # Prometheus adds it to all
        for metric, inner in SELECTOR.findall(query):
            assert set(re.findall(r"(\w+)(?:=~|!~|!=|=)", inner)) <= labels[metric], name
    asked = {metric for query in queries.values() for metric, _ in SELECTOR.findall(query)}
    assert asked >= METRICS.keys() - {"redelivery_outcome_log_lost_events"}


def program(name: str) -> str:
    """The program of Debian's package, or a skip; in CI its absence fails."""
    found = shutil.which(name)
    if found is None:
        message = f"there is no {name} on this machine: ./dev package prometheus"
        (pytest.fail if os.environ.get("CI") else pytest.skip)(message)
    return str(found)


def free_port() -> int:
    """A port that nobody listens at."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


@dataclass
class Prometheus:
    """A real one, of a test's own."""

    port: int

    def ask(self, path: str, **query: str) -> Any:
        """What its API answers."""
        url = f"http://127.0.0.1:{self.port}/api/v1/{path}?{urllib.parse.urlencode(query)}"
        with OPENER.open(url, timeout=30) as answer:
            said = json.load(answer)
        assert said["status"] == "success", said
        return said["data"]

    def value(self, query: str) -> list[Any]:
        """The series of a query, now."""
        found: list[Any] = self.ask("query", query=query)["result"]
        return found


@contextlib.contextmanager
def prometheus(folder: Path, targets: dict[str, str]) -> Iterator[Prometheus]:
    """Scrapes these every second, and knows the alert rules."""
    config = (FOLDER / "prometheus.yml").read_text().replace("15s", "1s").replace("alerts.yml", str(FOLDER / "alerts.yml"))
    for written, address in targets.items():
        assert written in config
        config = config.replace(written, address)
    (folder / "prometheus.yml").write_text(config)
    port = free_port()
    command = [program("prometheus"), f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'tsdb'}"]
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen([*command, f"--web.listen-address=127.0.0.1:{port}"], stdout=log, stderr=log)
    here = Prometheus(port)
    try:

        def is_ready() -> bool:
            assert process.poll() is None, (folder / "prometheus.log").read_text()[-2000:]
            with contextlib.suppress(OSError):
                return all(each["health"] == "up" for each in here.ask("targets")["activeTargets"]) and bool(here.value("up"))
            return False

        until(is_ready, 60, "both targets to be scraped")
        yield here
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)


@contextlib.contextmanager
def page_of(shop: Shop, port: int) -> Iterator[None]:
    """`redelivery metrics --listen`."""
    command = [sys.executable, "-m", "redelivery", "-A", shop.module, "metrics", "--listen", str(port)]
    process = subprocess.Popen(command, env=shop.environment, cwd=shop.folder, stderr=subprocess.PIPE)
    try:
        assert process.stderr is not None
        assert b"http://" in process.stderr.readline()
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)
        if process.stderr is not None:
            process.stderr.close()


def load(shop: Shop) -> None:
    """Tasks that succeed, that fail once, that die, and that wait for an hour; the workers' counters say when they have ended."""
    for _ in range(20):
        shop.send("ok")
    for _ in range(5):
        shop.send("fails", kwargs={"times": 1})
    for _ in range(3):
        shop.send("fails")
    shop.send("ok", countdown=3600)


@contextlib.contextmanager
def watched(server: Any, folder: Path) -> Iterator[tuple[Prometheus, Shop]]:
    """A shop under load, and the Prometheus that watches it, with two scrapes at the least of what it has done."""
    worker, page = free_port(), free_port()
    settings = {
        "queues": {"#": {"redelivery_delay": 0.1, "max_delivery_attempts": 2}},
        "metrics_listen": f"127.0.0.1:{worker}",
        "outcome_export": str(folder / "books"),
        "outcome_export_every": 1,
    }
    shop = Shop(server, folder, settings=settings)
    try:
        shop.start()
        with (
            page_of(shop, page),
            prometheus(folder, {"shop:9540": f"127.0.0.1:{page}", "worker:9541": f"127.0.0.1:{worker}"}) as here,
        ):
            load(shop)
            query = 'sum(redelivery_worker_outcomes_total{outcome="dead_lettered"})'
            until(lambda: any(float(each["value"][1]) >= 3 for each in here.value(query)), 60, "the deaths to be scraped")
            load(shop)  # a rate needs two scrapes of each series
            until(lambda: any(float(each["value"][1]) >= 6 for each in here.value(query)), 60, "more deaths to be scraped")
            yield here, shop
    finally:
        shop.stop()


def test_promtool_accepts_the_rules_and_the_configuration() -> None:
    """As an operator checks them before a reload: the commands are those of the example's README.md."""
    commands = re.findall(r"^\$ promtool (.+)$", (FOLDER / "README.md").read_text(), re.MULTILINE)
    assert len(commands) == 2
    for words in commands:
        done = subprocess.run([program("promtool"), *words.split()], cwd=FOLDER, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


@dataclass(frozen=True)
class Case:
    """What happened, as series with one sample a minute, the minute at which somebody asks, and the alerts that fire then."""

    series: dict[str, str]
    fires: dict[str, list[str]]
    minute: int = 5


#: Two apps that one Prometheus watches, and what fires: each alert for what it names, and for nothing else.
CASES = {
    "all workers were killed while they held messages": Case(
        {
            'redelivery_workers{instance="dead"}': "0x9",
            'redelivery_queue_messages{instance="dead",queue="celery"}': "0x9",
            'redelivery_held_messages{instance="dead"}': "5x9",
        },
        {"RedeliveryNobodyWorks": ["dead"]},
    ),
    "one of two apps is dead": Case(
        {
            'redelivery_workers{instance="dead"}': "0x9",
            'redelivery_dispatchers{instance="dead"}': "0x9",
            'redelivery_queue_messages{instance="dead",queue="celery"}': "1x9",
            'redelivery_delayed_messages{instance="dead",queue="celery"}': "1x9",
            'redelivery_workers{instance="alive"}': "1x9",
            'redelivery_dispatchers{instance="alive"}': "1x9",
            'redelivery_queue_messages{instance="alive",queue="celery"}': "1x9",
            'redelivery_delayed_messages{instance="alive",queue="celery"}': "1x9",
        },
        {"RedeliveryNobodyWorks": ["dead"], "RedeliveryNoDispatcher": ["dead"]},
    ),
    "nobody works, and nothing waits": Case(
        {
            'redelivery_workers{instance="idle"}': "0x9",
            'redelivery_dispatchers{instance="idle"}': "0x9",
            'redelivery_queue_messages{instance="idle",queue="celery"}': "0x9",
            'redelivery_held_messages{instance="idle"}': "0x9",
            'redelivery_delayed_messages{instance="idle",queue="celery"}': "0x9",
        },
        {},
    ),
    "RabbitMQ has no leases: a queue without a consumer": Case(
        {
            'redelivery_queue_messages{instance="rabbit",queue="celery"}': "1x9",
            'redelivery_queue_consumers{instance="rabbit",queue="celery"}': "0x9",
            'redelivery_queue_messages{instance="rabbit",queue="mails"}': "1x9",
            'redelivery_queue_consumers{instance="rabbit",queue="mails"}': "2x9",
        },
        {"RedeliveryNobodyWorks": ["rabbit"]},
    ),
    "RabbitMQ tells no ages: a dead-letter queue that has held letters for a day": Case(
        {
            'redelivery_dead_letters{instance="rabbit",dead_letter_queue="DLQ.a",queue="a"}': "3x1500",
            'redelivery_dead_letters{instance="rabbit",dead_letter_queue="DLQ.b",queue="b"}': "3x1000 0 3x499",
            'redelivery_dead_letters{instance="rabbit",dead_letter_queue="DLQ.c",queue="c"}': "_x1000 3x500",
            'redelivery_dead_letters{instance="redis",dead_letter_queue="DLQ.d",queue="d"}': "3x1500",
            'redelivery_oldest_dead_letter_age_seconds{instance="redis",dead_letter_queue="DLQ.d",queue="d"}': "60x1500",
        },
        {"RedeliveryDeadLettersLie": ["DLQ.a"]},
        minute=1480,
    ),
    "the page of figures is away, and one worker": Case(
        {
            'up{job="redelivery",instance="page"}': "1x2 0x9",
            'up{job="redelivery",instance="restarted"}': "1x2 0x1 1x9",
            'up{job="redelivery-workers",instance="worker"}': "0x9",
        },
        {"RedeliveryFiguresMissing": ["page"]},
        minute=9,
    ),
    "an old dead letter": Case(
        {'redelivery_oldest_dead_letter_age_seconds{dead_letter_queue="DLQ.a",queue="a"}': "90000x9"},
        {"RedeliveryDeadLettersLie": ["DLQ.a"]},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_alerts_fire_for_what_they_name(name: str, folder: Path) -> None:
    """Prometheus' own evaluation of `alerts.yml`, over series that are given."""
    case = CASES[name]
    at = f"{case.minute}m"
    # Of each alert that fires, the one series; promtool compares with what it finds.
    series = [{"series": key, "values": values} for key, values in case.series.items()]
    counts = [
        {
            "expr": f'count by (alertname, instance, dead_letter_queue) (ALERTS{{alertname="{alert}",alertstate="firing"}})',
            "eval_time": at,
            "exp_samples": [
                {
                    "labels": f'{{alertname="{alert}",{"dead_letter_queue" if each.startswith("DLQ") else "instance"}="{each}"}}',
                    "value": 1,
                }
                for each in case.fires.get(alert, [])
            ],
        }
        for alert in rules()
    ]
    tests = [{"interval": "1m", "input_series": series, "promql_expr_test": counts}]
    document = {"rule_files": [str(FOLDER / "alerts.yml")], "evaluation_interval": "1m", "tests": tests}
    (folder / "test.yml").write_text(json.dumps(document))
    done = subprocess.run(
        [program("promtool"), "test", "rules", "test.yml"], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def answered(here: Prometheus, query: str) -> bool:
    """Whether a query has data: a number, and not what comes of dividing nothing by nothing."""
    return any(each["value"][1] != "NaN" for each in here.value(query))


def has_labels(here: Prometheus, query: str) -> bool:
    """Whether each selector of an expression matches series, and each of these has all labels that it is grouped by."""
    selectors = [(metric, inner) for metric, inner in SELECTOR.findall(query) if metric not in ON_RABBITMQ]
    series = {metric: here.ask("series", **{"match[]": metric + inner}) for metric, inner in selectors}
    grouped = GROUPED.findall(query)
    assert (len(grouped), "without (" in query) == (len(re.findall(r"\bby \(", query)), False), query
    labels = [(label.strip(), each) for names, metric in grouped for label in names.split(",") for each in series.get(metric, ())]
    return all(series.values()) and all(label in each for label, each in labels)


@pytest.mark.slow
@pytest.mark.full
def test_every_panel_and_alert_is_answered_on_redis(server: Server, folder: Path) -> None:
    """All but what RabbitMQ alone has: every panel has data, every alert is evaluated and its selectors match series."""
    with watched(server, folder) as (here, _):
        panels = {name: query for name, query in expressions().items() if not any(metric in query for metric in ON_RABBITMQ)}
        for name, query in panels.items():
            until(partial(answered, here, query), 30, f"an answer to {name}: {query}")
        for name, query in rules().items():
            until(partial(has_labels, here, query), 30, f"series of {name}: {query}")
        evaluated = {each["name"]: each["health"] for group in here.ask("rules")["groups"] for each in group["rules"]}
        assert evaluated == dict.fromkeys(rules(), "ok")


@pytest.mark.slow
@pytest.mark.full
def test_the_panels_of_rabbitmq_are_answered_on_rabbitmq(rabbit: Rabbit, folder: Path) -> None:
    """What it alone has, and what both have."""
    with watched(rabbit, folder) as (here, _):
        for name, query in expressions().items():
            if {metric for metric, _ in SELECTOR.findall(query)} <= ON_RABBITMQ | COMMON:
                until(partial(answered, here, query), 30, f"an answer to {name}: {query}")


@pytest.mark.slow
@pytest.mark.full
def test_an_alert_fires_when_nobody_works(server: Server, folder: Path) -> None:
    """The worker is killed, and its queue fills: after its lease the alert is pending, and then it would page somebody."""
    with watched(server, folder) as (here, shop):
        shop.workers[0].kill()
        shop.send("ok")

        def state() -> set[str]:
            return {each["labels"]["alertname"] for each in here.ask("alerts")["alerts"]}

        until(lambda: "RedeliveryNobodyWorks" in state(), 60, "the alert")
