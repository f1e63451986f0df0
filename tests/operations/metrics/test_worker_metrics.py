"""A worker's own counters: they are what the outcome log says, bounded in number, and nothing where nobody asked for them."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import urllib.request
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from redelivery.middleware.messages.events import Event, Outcome
from redelivery.middleware.telemetry.series import OTHER, UNKNOWN
from redelivery.workers.operations.metrics import worker as worker_metrics
from redelivery.workers.operations.metrics.collector import page_of
from redelivery.workers.operations.metrics.worker import WorkerMetrics
from tests.support.running import Shop, until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.rabbit import Rabbit

OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))
Counted = dict[tuple[str, str, str, str], int]


def counted(text: str) -> Counted:
    """By queue, task, outcome and reason."""
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    return {
        (each.labels["queue"], each.labels["task"], each.labels["outcome"], each.labels["reason"]): int(each.value)
        for each in samples
        if each.name == worker_metrics.OUTCOMES
    }


def event(queue: str = "orders", task: str = "shop.pack", outcome: str = Outcome.SUCCEEDED, reason: str = "") -> Event:
    """One that a worker has recorded."""
    return Event(task_id="a", outcome=outcome, task=task, queue=queue, reason=reason)


@pytest.mark.parametrize("more", [-1, 0, 1])
def test_the_number_of_series_is_bounded(more: int) -> None:
    """At N-1, N and N+1 label sets; what is one too many is counted under names that stand for the others."""
    found = WorkerMetrics({"shop.pack"}, most=5)
    for number in range(5 + more):
        found.count(event(queue=f"q{number}"))
    found.count(event(queue="q0"))
    counts = counted(page_of(found.registry)[0].decode())
    assert counts["q0", "shop.pack", "succeeded", ""] == 2
    assert sum(counts.values()) == 6 + more
    assert ((OTHER, OTHER, "succeeded", "") in counts) == (more > 0)


def test_names_of_strangers_make_no_series_and_move_no_cursor() -> None:
    """A task that the app does not know has one series, whatever it is called; a queue's name is shown as `safe` shows it."""
    found = WorkerMetrics({"shop.pack"})
    for name in ("a", "b\x1b[2J", "c" * 1000):
        found.count(event(task=name))
    found.count(event(queue="q\n\x1b"))
    assert counted(page_of(found.registry)[0].decode()) == {
        ("orders", UNKNOWN, "succeeded", ""): 3,
        ("q\\n\\x1b", "shop.pack", "succeeded", ""): 1,
    }


def test_a_scrape_that_speaks_openmetrics_is_answered_in_it() -> None:
    """By the library; plain text is for whoever says nothing, or names a version that is no number."""
    found = WorkerMetrics(())
    found.count(event())
    page, kind = page_of(found.registry, "application/openmetrics-text;version=1.0.0,text/plain;q=0.5")
    assert kind.startswith("application/openmetrics-text; version=1.0.0")
    assert page.endswith(b"# EOF\n")
    for accept in ("", "application/openmetrics-text;version=1.x", "text/plain;version=,;=;;q=a"):
        assert page_of(found.registry, accept)[1] == "text/plain; version=0.0.4; charset=utf-8", accept


def listening(folder: Path, server: Any) -> tuple[Shop, str]:
    """A shop whose worker serves its counters, and where."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    settings = {"queues": {"#": {"redelivery_delay": 0.1, "max_delivery_attempts": 2}}, "metrics_listen": address}
    return Shop(server, folder, settings=settings), address


def scraped(address: str) -> Counted:
    """What the worker says now."""
    with OPENER.open(f"http://{address}/metrics", timeout=30) as answer:
        return counted(answer.read().decode())


def recorded(shop: Shop) -> Counted:
    """What the outcome log says that workers did."""
    events = [each for each in shop.events if each.worker]
    return dict(Counter((each.queue, each.task, str(each.outcome), str(each.reason)) for each in events))


def work(shop: Shop, address: str) -> None:
    """Successes, redeliveries, a death by the limit, one at once, a killed child, an ETA: counted as recorded."""
    ended = {
        shop.send("ok"): "succeeded",
        shop.send("fails", kwargs={"times": 1}): "succeeded",
        shop.send("fails"): "dead_lettered",
    }
    ended |= {shop.send("raises", "dead_letter"): "dead_lettered", shop.send("raises", "ignore"): "ignored"}
    ended |= {shop.send("kills"): "dead_lettered", shop.send("early"): "succeeded", shop.send("ok", countdown=2): "succeeded"}
    ended |= {shop.send("nobody_knows_this"): "dead_lettered"}
    for task_id, outcome in ended.items():
        shop.ended(task_id, outcome)

    def known(found: Counted) -> Counted:
        return {(queue, UNKNOWN if "nobody" in task else task, *rest): count for (queue, task, *rest), count in found.items()}  # type: ignore[misc]

    until(lambda: scraped(address) == known(recorded(shop)), 30, f"{scraped(address)} to be {known(recorded(shop))}")
    assert {outcome for _, _, outcome, _ in scraped(address)} >= {
        "succeeded",
        "redelivery_scheduled",
        "dead_lettered",
        "ignored",
        "deferred",
    }


def test_a_worker_counts_what_it_records(server: Any, folder: Path) -> None:
    """On Valkey: every series is the number of such events in the log, and none is missing."""
    shop, address = listening(folder, server)
    try:
        shop.start()
        work(shop, address)
        assert re.search(r"metrics\.served.*http://127", shop.workers[0].text)
    finally:
        shop.stop()


@pytest.mark.full
def test_a_worker_counts_what_it_records_on_rabbitmq(rabbit: Rabbit, folder: Path) -> None:
    """The same there."""
    shop, address = listening(folder, rabbit)
    try:
        shop.start()
        work(shop, address)
    finally:
        shop.stop()


@pytest.mark.full
def test_an_address_that_is_taken_ends_no_worker(server: Any, folder: Path) -> None:
    """The second worker of a machine says so, and works."""
    shop, address = listening(folder, server)
    try:
        shop.start()
        shop.start()
        assert "metrics.not_served" in shop.workers[1].text
        shop.workers[0].stop()
        shop.ended(shop.send("ok"), "succeeded")
        with pytest.raises(OSError, match="refused"):
            scraped(address)
    finally:
        shop.stop()


@pytest.mark.parametrize("name", ["missing", "file"])
def test_a_shared_folder_that_cannot_be_written_is_one_warning(
    server: Any, folder: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """prometheus_client would raise for each count."""
    (folder / "file").write_text("")
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(folder / name))
    shop, _ = listening(folder, server)
    try:
        shop.start()
        shop.ended(shop.send("ok"), "succeeded")
        shop.workers[0].stop()
        text = shop.workers[0].text
        assert text.count("metrics.not_served") == 1
        assert "make it, or unset the variable" in text
        assert "Traceback" not in text
    finally:
        shop.stop()


WITHOUT = """
import importlib.util, sys
sys.modules["prometheus_client"] = None
real = importlib.util.find_spec
importlib.util.find_spec = lambda name, *more: None if name == "prometheus_client" else real(name, *more)
from redelivery.workers.cli.main import main
sys.argv = ["redelivery", *sys.argv[1:]]
main()
"""


def test_without_the_extra_the_command_says_what_to_install(shop: Callable[..., Shop]) -> None:
    """`--json` needs no extra; a worker that is to serve its counters does not start, as `doctor` and `adopt` say."""
    here = shop(settings={"metrics_listen": "9541"})

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", WITHOUT, "-A", here.module, *words]
        return subprocess.run(
            command, env=here.environment, cwd=here.folder, capture_output=True, text=True, check=False, timeout=120
        )

    done = run("metrics")
    assert (done.returncode, "install redelivery[metrics]" in done.stderr, len(done.stderr.splitlines())) == (2, True, 1)
    assert run("metrics", "--json").returncode == 0
    assert "prometheus_client is not installed" in run("adopt").stdout
