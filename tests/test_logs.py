"""The log: its events are a promise, and a host's own lines can carry what ours do."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import structlog
from structlog.contextvars import bound_contextvars
from structlog.testing import capture_logs

from redelivery.middleware.logs import TaskContext, log

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parent.parent
CALL = re.compile(r"\blog\.(debug|info|warning|error|exception|critical)\(\s*\"([a-z_]+\.[a-z_]+)\"")
ROW = re.compile(r"^\| `([a-z_]+\.[a-z_]+)` \| (\w+) \|", re.MULTILINE)


@pytest.fixture(autouse=True)
def _unconfigured() -> Iterator[None]:
    """Other tests capture logs, which configures structlog: here it begins as a host finds it."""
    structlog.reset_defaults()
    yield
    structlog.reset_defaults()


def written() -> Iterator[tuple[str, str]]:
    """Every event that the code writes, with its level."""
    for room in ("middleware", "workers", "settings"):
        for path in (ROOT / room).rglob("*.py"):
            for level, event in CALL.findall(path.read_text()):
                yield event, "error" if level == "exception" else level


def test_every_event_is_documented_with_its_level_and_nothing_else_is() -> None:
    """`docs/logging.md` is the promise."""
    assert set(ROW.findall((ROOT / "docs" / "logging.md").read_text())) == set(written())


def test_our_lines_go_through_the_hosts_processors(caplog: pytest.LogCaptureFixture) -> None:
    """Where the host has configured structlog, it decides what a line looks like."""
    structlog.configure(processors=[structlog.processors.JSONRenderer(sort_keys=True)])
    with caplog.at_level(logging.INFO, "redelivery"):
        log.info("dispatcher.leads", worker="w")
    with capture_logs() as captured:
        log.info("dispatcher.leads", worker="w")
    assert caplog.messages == ['{"event": "dispatcher.leads", "worker": "w"}']
    assert captured == [{"event": "dispatcher.leads", "worker": "w", "log_level": "info"}]


def test_without_a_hosts_configuration_a_line_is_keys_and_values(caplog: pytest.LogCaptureFixture) -> None:
    """It is written to the standard logger `redelivery`, at its level."""
    with caplog.at_level(logging.INFO, "redelivery"):
        log.warning("owner.fenced", worker="w", why="two words")
    assert caplog.messages == ['event=owner.fenced worker=w why="two words"']
    assert caplog.records[0].levelno == logging.WARNING


def test_the_filter_puts_a_tasks_values_on_standard_records() -> None:
    """Outside a task they are empty, so that a format may name them always."""
    seen: list[dict[str, Any]] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            seen.append({name: getattr(record, name) for name in ("task_id", "attempt", "queue", "generation")})

    logger, handler = logging.getLogger("tests.host"), Keep()
    handler.addFilter(TaskContext())
    logger.addHandler(handler)
    with bound_contextvars(task_id="a", attempt=2, queue="orders", generation=0):
        logger.warning("inside")
    logger.warning("outside")
    assert seen == [
        {"task_id": "a", "attempt": 2, "queue": "orders", "generation": 0},
        {"task_id": "", "attempt": "", "queue": "", "generation": ""},
    ]
