"""The continuous export: in a worker by a setting, and as a process of its own."""

from __future__ import annotations

import signal
import subprocess
import sys
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from pyarrow import dataset
from redis import Redis
from structlog.testing import capture_logs

from redelivery.workers.brokers.redis.audit import RedisAudit
from redelivery.workers.brokers.redis.outcome_log import RedisOutcomeLog
from redelivery.workers.duties.exporter import Exporter
from redelivery.workers.export.tables import EVENTS
from tests.support.books.recorded import KEYS, record
from tests.support.running import until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.desk import Desk
    from tests.support.running import Shop
    from tests.support.servers import Server


def exported(out: Path) -> list[dict[str, Any]]:
    """The rows of all files."""
    return list(dataset.dataset(str(out), schema=EVENTS).to_table().to_pylist()) if out.exists() else []


def test_a_worker_exports_by_a_setting(shop: Callable[..., Shop], folder: Path) -> None:
    """A task's whole life reaches the files while the worker works, and leaves the log."""
    out = folder / "out"
    here = shop(settings={"outcome_export": str(out), "outcome_export_every": 1})
    here.start()
    task_id = here.send("ok")
    until(lambda: {row["outcome"] for row in exported(out) if row["task_id"] == task_id} >= {"published", "succeeded"})
    until(lambda: not here.events)


def test_a_process_exports_until_it_is_asked_to_end(shop: Callable[..., Shop], server: Server, folder: Path) -> None:
    """`outcomes export --every` also exports later events; SIGTERM ends it with 0."""
    out, here = folder / "out", shop()
    command = [
        sys.executable,
        "-m",
        "redelivery",
        "-A",
        "tests.support.shop",
        "outcomes",
        "export",
        "--to",
        str(out),
        "--every",
        "1s",
    ]
    log = folder / "exporter.log"
    with log.open("wb") as sink:
        process = subprocess.Popen(command, env=here.environment, cwd=folder, stdout=sink, stderr=sink)

    def came(count: int) -> bool:
        return len(exported(out)) == count or process.poll() is not None

    try:
        for count in (5, 12):
            record(server.client, count - len(exported(out)))
            until(partial(came, count), what=log.read_text())
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0, log.read_text()
    finally:
        process.kill()
        process.wait()
    assert "exporter: running" in log.read_text()
    assert "outcome_log.exported" in log.read_text()


def test_one_exporter_leads_and_the_others_stand_by(desk: Desk, folder: Path) -> None:
    """The log says where the events were exported to, and how many."""
    record(desk.client, 3)
    first, second = (
        Exporter(RedisOutcomeLog(desk.transport), str(folder / "out"), audit=RedisAudit(desk.transport), every=1) for _ in range(2)
    )
    assert (first.leads(), second.leads(), first.leads()) == (True, False, True)
    with capture_logs() as logs:
        assert first.step() == 3
        assert first.step() == 0
    assert [(line["event"], line["events"], line["to"]) for line in logs] == [("outcome_log.exported", 3, str(folder / "out"))]
    desk.client.delete(desk.keys.exporter)
    assert second.leads(), "the lead ends by itself, in half a minute or three rounds"


def test_a_destination_that_cannot_be_written_is_an_error_line_and_loses_nothing(desk: Desk, folder: Path) -> None:
    """The duty goes on, and writes everything as soon as it can."""
    (folder / "file").write_text("")
    record(desk.client, 3)
    exporter = Exporter(RedisOutcomeLog(desk.transport), str(folder / "file"), audit=RedisAudit(desk.transport), every=0.05)
    with capture_logs() as logs:
        exporter.start()
        until(lambda: len([line for line in logs if line["event"] == "outcome_log.export_failed"]) > 1)
        (folder / "file").unlink()
        until(lambda: desk.client.xlen(KEYS.outcomes) == 0)
        exporter.stop()
    assert all("another destination" in line["error"] for line in logs if line["event"] == "outcome_log.export_failed")
    assert len(exported(folder / "file")) == 3


def test_a_broker_that_does_not_answer_is_a_warning(desk: Desk, server: Server, folder: Path) -> None:
    """The duty asks again."""
    exporter = Exporter(RedisOutcomeLog(desk.transport), str(folder / "out"), audit=RedisAudit(desk.transport), every=0.05)
    server.kill()
    with capture_logs() as logs:
        exporter.start()
        until(lambda: [line for line in logs if line["event"] == "outcome_log.export_waiting"])
        server.start()
        record(Redis(unix_socket_path=server.socket), 2)
        until(lambda: len(exported(folder / "out")) == 2)
        exporter.stop()


@pytest.mark.parametrize("every", ["0s", "0.5", "soon"])
def test_an_interval_that_makes_no_sense_is_refused(desk: Desk, folder: Path, every: str) -> None:
    """Exit code 2, one line."""
    result = desk.run("outcomes", "export", "--to", str(folder / "out"), "--every", every)
    assert result.exit_code == 2
    assert "--every" in result.stderr
