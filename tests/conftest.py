"""Fixtures: private brokers, and shops on them."""

from __future__ import annotations

import os
import signal
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from celery import _state
from celery.result import AsyncResult

from redelivery.middleware.logs import redacting
from tests.support.built import built
from tests.support.control.pooled import control_shops, on
from tests.support.desk import desk
from tests.support.documents.proofs import pytest_runtest_logreport, pytest_sessionfinish, pytest_terminal_summary
from tests.support.lanes import first_quick
from tests.support.rabbit import managed_node, private_rabbit, rabbit, rabbit_node
from tests.support.rabbitmq.amqp_taking import opened
from tests.support.running import LAST_STARTED, Shop
from tests.support.servers import Server, binaries
from tests.support.trials.trial import forked, stored, trial, trials

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

# A result unsubscribes when it is collected. Where that happens while an older redis-py subscribes, the process waits for itself.
result_class: Any = AsyncResult
result_class.__del__ = lambda _: None

#: The fixtures of trials, of pools, of RabbitMQ and of desks are every module's, and the hooks of proofs are the whole run's.
__all__ = [
    "built",
    "control_shops",
    "desk",
    "forked",
    "managed_node",
    "on",
    "opened",
    "private_rabbit",
    "pytest_runtest_logreport",
    "pytest_sessionfinish",
    "pytest_terminal_summary",
    "rabbit",
    "rabbit_node",
    "stored",
    "trial",
    "trials",
]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(call: pytest.CallInfo[None]) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Below a test that fails stands the end of what its workers have logged, with what their threads were doing."""
    report = yield
    if call.when == "call" and report.failed:
        for worker in (each for each in LAST_STARTED if each.log.exists()):
            worker.dump_stacks()
            report.sections.append((f"{worker.log} (exit code {worker.process.poll()})", worker.text[-30_000:]))
    return report


@pytest.fixture(autouse=True)
def _unredacted() -> Iterator[None]:
    """One app that hides texts hides those of its whole process: the next test's app has its own will."""
    yield
    redacting.clear()


def pytest_configure() -> None:
    """Hear SIGINT, and let the commands that tests start hear it: a shell ignores it for what it runs in the background."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the tests of an `xdist_group` in one process.

    pytest-xdist 3.8 appends the group's name to an attribute of the test that pytest 9.2 does not read any more.
    """
    if not getattr(config.option, "loadgroup", False):
        return
    for item in items:
        groups = sorted({str(mark.args[0]) for mark in item.iter_markers("xdist_group")})
        if groups and not item.nodeid.endswith(f"@{'_'.join(groups)}"):
            item._id = type(item.id).parse(f"{item.nodeid}@{'_'.join(groups)}")


@pytest.fixture(autouse=True)
def no_tasks_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Celery gives every app that is made the tasks of all others in the process: here, of all tests that ran in it before."""
    own = {each for each in _state._on_app_finalizers if each.__module__ == "celery.app.builtins"}
    monkeypatch.setattr(_state, "_on_app_finalizers", own)


@pytest.fixture
def folder() -> Iterator[Path]:
    """A temporary folder with a path short enough for a socket."""
    with tempfile.TemporaryDirectory(prefix="rd-", ignore_cleanup_errors=True) as name:
        yield Path(name)


@pytest.fixture
def server(folder: Path) -> Iterator[Server]:
    """A private Valkey that keeps its data over a restart."""
    server = Server(folder, binaries()["valkey"], {"appendonly": "yes"}).start()
    yield server
    server.stop(9)


@pytest.fixture
def shop(server: Server, folder: Path) -> Iterator[Callable[..., Shop]]:
    """Makes shops on the private broker."""
    made: list[Shop] = []

    def make(**options: Any) -> Shop:
        options.setdefault("settings", {"queues": {"#": {"redelivery_delay": 0.2, "max_delivery_attempts": 3}}})
        made.append(Shop(server, folder, **options))
        return made[-1]

    yield make
    for each in made:
        each.stop()


@pytest.fixture(params=first_quick(["valkey", "redis"]))
def any_server(request: pytest.FixtureRequest, folder: Path) -> Iterator[Server]:
    """Each kind of server that the transitions must work on; Debian's Redis may be missing, but not in CI."""
    binary = binaries().get(request.param)
    if binary is None:
        message = f"there is no {request.param} on this machine: ./dev test installs it where it may"
        (pytest.fail if os.environ.get("CI") else pytest.skip)(message)
    server = Server(folder, binary).start()
    yield server
    server.stop(9)
