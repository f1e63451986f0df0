"""Shells with private brokers, for the runbooks and the page about migrating. `./dev follow --write PAGE` writes a page again."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from webhooks.rabbit_node import PROGRAMS, RabbitNode

from tests.support.documents.walkthrough import Shell, View
from tests.support.servers import Server, binaries

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["BROKERS", "VIEW", "shell_of"]

#: The pages, and the broker of each.
BROKERS = {
    "docs/runbooks/dead-letters.md": "redis",
    "docs/runbooks/dying-worker.md": "redis",
    "docs/runbooks/late-tasks.md": "redis",
    "docs/runbooks/books.md": "redis",
    "docs/runbooks/full-redis.md": "redis",
    "docs/runbooks/rabbitmq-alarm.md": "rabbitmq",
    "docs/runbooks/moving.md": "redis",
    "docs/runbooks/going-back.md": "redis",
    "docs/migrating.md": "redis",
}
#: A screen of 80 columns. Paths, workers, sizes and measured numbers differ from run to run, too.
VIEW = View(
    width=80,
    height=500,
    shows_errors=True,
    variable=(
        (re.compile(r"(/[\w.-]+){2,}"), "PATH"),
        (re.compile(r"\b[\w.-]+@[\w.-]+"), "WORKER"),
        (re.compile(r"\bJob: \d+"), "Job: NUMBER"),
        (re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+)?)?Z?"), "TIME"),
        (re.compile(r"\b\d+(\.\d+)?\s?([kKMG]i?B|[KMG]|bytes|B)\b"), "SIZE"),
        (re.compile(r"\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b"), "UUID"),
        (re.compile(r"\b(?=[0-9a-f]*\d)[0-9a-f]{8,40}\b(…)?"), "ID"),
        (re.compile(r"\b\d+(\.\d+)?\s?(ms|s|m|h|min|d|days?|hours?|minutes?|seconds?)\b(\s\d+(s|m|h|d)\b)*"), "DURATION"),
        (re.compile(r"\b\d{4,}(\.\d+)?\b|\b\d+\.\d+\b|(?<=@user_script:)\d+"), "NUMBER"),
    ),
)


@contextmanager
def shell_of(page: str) -> Iterator[Shell]:
    """A shell in a folder with the shop, this environment's commands, and a private broker for the page."""
    with tempfile.TemporaryDirectory(prefix="rd-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        work, tools = folder / "work", folder / "bin"
        work.mkdir()
        tools.mkdir()
        shutil.copyfile(Path(__file__).with_name("shop.py"), work / "shop.py")
        with _rabbitmq(folder, tools) if BROKERS[page] == "rabbitmq" else _redis(folder, tools) as url:
            shell = Shell(work, _environment(tools, url), VIEW)
            try:
                yield shell
            finally:
                shell.close()


def _environment(tools: Path, url: str) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("REDELIVERY_", "PYTEST", "COLUMNS"))}
    return kept | {
        "PATH": f"{tools}:{Path(sys.executable).parent}:{kept['PATH']}",
        "SHOP_BROKER": url,
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONWARNINGS": "ignore",
        "C_FORCE_ROOT": "true",
        "NO_COLOR": "1",
        "TERM": "dumb",
        "LC_ALL": "C.UTF-8",
    }


@contextmanager
def _redis(folder: Path, tools: Path) -> Iterator[str]:
    server = Server(folder, binaries()["valkey"], {"appendonly": "yes"}).start()
    _tool(tools, "redis-cli", f"{shutil.which('redis-cli') or 'redis-cli'} -s {server.socket}", {})
    try:
        yield server.url
    finally:
        server.stop(9)


@contextmanager
def _rabbitmq(folder: Path, tools: Path) -> Iterator[str]:
    with RabbitNode(folder / "rabbit").running() as node:
        for name in ("rabbitmqctl", "rabbitmq-diagnostics"):
            _tool(tools, name, f"{PROGRAMS / name} -n {node.name}", node.environment)
        yield node.url


def _tool(tools: Path, name: str, command: str, environment: Mapping[str, str]) -> None:
    """Write a command of the broker that talks to the private one."""
    own = {key: value for key, value in environment.items() if os.environ.get(key) != value}
    exports = "".join(f"export {key}={shlex.quote(value)}\n" for key, value in own.items())
    (tools / name).write_text(f'#!/bin/sh\n{exports}exec {command} "$@"\n')
    (tools / name).chmod(0o755)
