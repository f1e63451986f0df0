"""The log: its events are a promise to users, and the host's own lines can carry our fields."""

from __future__ import annotations

import io
import json
import logging
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import structlog
from structlog.contextvars import bound_contextvars
from structlog.testing import capture_logs

from redelivery.middleware.logs import HIDDEN, TaskContext, error_text, log, redacting
from tests.support.desk import harmless
from tests.support.lanes import first_quick

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.running import Shop

ROOT = Path(__file__).resolve().parents[3]
CALL = re.compile(r"\blog\.(debug|info|warning|error|exception|critical)\(\s*\"([a-z_]+\.[a-z_]+)\"")
#: The lines that the base class of the duties writes.
OF_A_DUTY = re.compile(r"line_if_\w+ = \"(\w+)\", \"([a-z_]+\.[a-z_]+)\"")
ROW = re.compile(r"^\| `([a-z_]+\.[a-z_]+)` \| (\w+) \|", re.MULTILINE)


@pytest.fixture(autouse=True)
def _unconfigured() -> Iterator[None]:
    """Other tests capture logs, which configures structlog: here it starts unconfigured, as in a new process of a host."""
    structlog.reset_defaults()
    yield
    structlog.reset_defaults()


def written() -> Iterator[tuple[str, str]]:
    """Every event that the code writes, with its level."""
    for room in ("middleware", "workers", "settings"):
        for path in (ROOT / room).rglob("*.py"):
            for level, event in CALL.findall(path.read_text()):
                yield event, "error" if level == "exception" else level
            yield from ((event, level) for level, event in OF_A_DUTY.findall(path.read_text()))


def test_every_event_is_documented_with_its_level_and_nothing_else_is() -> None:
    """`docs/logging.md` is the promise."""
    assert set(ROW.findall((ROOT / "docs" / "logging.md").read_text())) == set(written())


def test_our_lines_go_through_the_hosts_processors(caplog: pytest.LogCaptureFixture) -> None:
    """If the host has configured structlog, its processors decide what a line looks like."""
    structlog.configure(processors=[structlog.processors.JSONRenderer(sort_keys=True)])
    with caplog.at_level(logging.INFO, "redelivery"):
        log.info("dispatcher.leads", worker="w")
    with capture_logs() as captured:
        log.info("dispatcher.leads", worker="w")
    assert caplog.messages == ['{"event": "dispatcher.leads", "worker": "w"}']
    assert captured == [{"event": "dispatcher.leads", "worker": "w", "log_level": "info"}]


def test_a_line_is_rendered_once_where_the_hosts_handler_renders_too() -> None:
    """As in Airflow: structlog writes JSON by loggers of its own, and the handlers of standard logging format by structlog."""
    structlog.configure(processors=[structlog.processors.JSONRenderer()], logger_factory=structlog.PrintLoggerFactory())
    out = io.StringIO()
    handler, logger = logging.StreamHandler(out), logging.getLogger("redelivery")
    renderer = structlog.processors.JSONRenderer(sort_keys=True)
    chain: list[Any] = [structlog.stdlib.ProcessorFormatter.remove_processors_meta, structlog.processors.format_exc_info, renderer]
    handler.setFormatter(structlog.stdlib.ProcessorFormatter(processors=chain))
    logger.addHandler(handler)
    try:
        log.warning("owner.fenced", worker="w")
        try:
            raise ValueError("no")  # noqa: EM101, TRY301 - what is logged
        except ValueError:
            log.exception("hook.failed", hook="on_retry")
    finally:
        logger.removeHandler(handler)
    first, second = (json.loads(line) for line in out.getvalue().splitlines())
    assert first == {"event": "owner.fenced", "worker": "w", "level": "warning", "logger": "redelivery"}
    assert (second["event"], second["hook"]) == ("hook.failed", "on_retry")
    assert "ValueError: no" in second["exception"]


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


SECRET = "4111-1111"
HOSTILE = "x\x1b[2J\r\ny\u202ez"


#: How a host may render: values alone, with an exception's text as one of them, or formatted for a terminal.
RENDERINGS: dict[str, list[Any] | None] = {
    "ours": None,
    "values": [structlog.processors.KeyValueRenderer(repr_native_str=False)],
    "exceptions": [structlog.processors.format_exc_info, structlog.processors.KeyValueRenderer(repr_native_str=False)],
    "console": [structlog.dev.ConsoleRenderer(colors=False)],
    "plain console": [structlog.dev.ConsoleRenderer(colors=False, exception_formatter=structlog.dev.plain_traceback)],
}


@pytest.mark.parametrize("processors", RENDERINGS.values(), ids=RENDERINGS)
def test_what_strangers_wrote_moves_no_cursor(caplog: pytest.LogCaptureFixture, processors: list[Any] | None) -> None:
    """In a value, a list or an exception's text, control characters are escaped, whether or not the host renders the line."""
    if processors is not None:
        structlog.configure(processors=processors)
    caplog.handler.setFormatter(logging.Formatter("%(message)s"))
    try:
        raise ValueError(f"{HOSTILE} s3://KEY:SECRET@bucket/x")  # noqa: EM102, TRY003, TRY301 - what is logged was raised
    except ValueError:
        log.exception("message.invalid", queue=HOSTILE, tags=[HOSTILE], facts={HOSTILE: HOSTILE})
    assert harmless(caplog.text)
    assert "SECRET" not in caplog.text
    assert "x\\x1b[2J\\r" in caplog.text.replace("\\\\", "\\")
    assert caplog.records[0].exc_info is not None  # for a host that wants the exception itself
    with bound_contextvars(task_id=HOSTILE):
        record = logging.LogRecord("host", logging.INFO, "", 0, "", None, None)
        TaskContext().filter(record)
    assert harmless(record.task_id)  # type: ignore[attr-defined]


@pytest.mark.parametrize("pool", first_quick(["prefork", "threads"]))
def test_celerys_lines_of_a_strangers_task_move_no_cursor(shop: Callable[..., Shop], pool: str) -> None:
    """Its id, its name, its exception and the traceback are escaped; the line breaks of the traceback stay."""
    here = shop(module="tests.support.apps.secret_shop", settings={"queues": {"#": {"max_delivery_attempts": 1}}})
    worker = here.start("-l", "DEBUG", pool=pool)
    task_id, shadow = f"id-{HOSTILE}\nforged", f"name-{HOSTILE}\nforged"
    here.app.signature("tests.support.apps.secret_shop.tells", (HOSTILE,)).apply_async(task_id=task_id, shadow=shadow)
    here.ended(task_id, "dead_lettered")
    for said in ("received", "raised unexpected", "Traceback"):
        assert said in worker.text
    lines = worker.text.split("\n")
    assert [line for line in lines if not harmless(line)] == []
    assert [line for line in lines if line.startswith("forged")] == []


@pytest.mark.parametrize("given", [True, "exception", "tuple"])
def test_an_exception_that_is_harmless_is_left_to_the_host(given: Any) -> None:
    """In each form in which it can be passed; an exception with control characters is replaced by its text."""
    seen: list[Any] = []

    def see(_logger: Any, _method: str, event: Any) -> str:
        seen.append(dict(event))
        return "line"

    structlog.configure(processors=[see])
    for text in ("fine", HOSTILE):
        try:
            raise ValueError(text)  # noqa: TRY301 - what is logged was raised
        except ValueError as exc:
            info = {"exception": exc, "tuple": (type(exc), exc, exc.__traceback__)}.get(given, given)
            log.error("message.invalid", exc_info=info)
    assert ("exc_info" in seen[0], "exception" in seen[0]) == (True, False)
    assert ("exc_info" in seen[1], "ValueError: x\\x1b[2J" in seen[1]["exception"]) == (False, True)


def test_no_line_has_credentials(caplog: pytest.LogCaptureFixture) -> None:
    """Neither in a destination, nor in an error that repeats it, nor in a traceback."""
    try:
        raise OSError("no s3://KEY:SECRET@bucket/x")  # noqa: EM101, TRY003, TRY301 - as pyarrow's
    except OSError as exc:
        log.exception("outcome_log.export_failed", to="s3://KEY:SECRET@bucket/x?secret_key=SECRET", error=str(exc))
    assert ("SECRET" in caplog.text, "s3://**@bucket/x" in caplog.text) == (False, True)


@pytest.mark.parametrize("given", [True, "exception", "tuple"])
def test_texts_of_exceptions_are_hidden_where_an_app_asks_for_it(caplog: pytest.LogCaptureFixture, given: Any) -> None:
    """Places and types stay, for the whole chain of exceptions."""

    class App:
        pass

    app = App()
    redacting.add(app)
    with pytest.raises(ValueError, match=SECRET) as caught:
        fail()
    exc = caught.value
    info = {"exception": exc, "tuple": (type(exc), exc, exc.__traceback__)}.get(given, given)
    try:
        raise exc
    except ValueError:
        log.error("hook.failed", exc_info=info, detail=SECRET)
        log.exception("hook.failed")
    assert error_text(exc) == "ValueError"
    assert SECRET not in caplog.text
    assert all(part in caplog.text for part in (f"KeyError: {HIDDEN}", f"ValueError: {HIDDEN}", "test_logs.py"))


def fail() -> None:
    """Raise an exception from another one."""
    try:
        raise KeyError(SECRET)  # noqa: TRY301 - what is chained was raised
    except KeyError as exc:
        raise ValueError(SECRET) from exc
