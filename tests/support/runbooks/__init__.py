"""Runs the runbooks on brokers of their own. `./dev python -m tests.support.runbooks [NAME…]` writes their screens anew."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from redelivery.workers.testing.rabbit_node import PROGRAMS, RabbitNode
from tests.support.pages import Shell
from tests.support.running import ROOT
from tests.support.servers import Server, binaries

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["BROKERS", "FOLDER", "shell_for"]

FOLDER = ROOT / "docs" / "runbooks"
#: The pages that are run, and the broker of each.
BROKERS = {
    "dead-letters": "redis",
    "dying-worker": "redis",
    "late-tasks": "redis",
    "books": "redis",
    "full-redis": "redis",
    "rabbitmq-alarm": "rabbitmq",
    "moving": "redis",
    "going-back": "redis",
}


@contextmanager
def shell_for(page: str) -> Iterator[Shell]:
    """A shell in a folder with the shop, the commands of this environment and a private broker of the page's kind."""
    with tempfile.TemporaryDirectory(prefix="rd-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        work, tools = folder / "work", folder / "bin"
        work.mkdir()
        tools.mkdir()
        shutil.copyfile(Path(__file__).with_name("shop.py"), work / "shop.py")
        with _rabbitmq(folder, tools) if BROKERS[page] == "rabbitmq" else _redis(folder, tools) as url:
            shell = Shell(work, _environment(tools, url))
            try:
                yield shell
            finally:
                shell.close()


def _environment(tools: Path, url: str) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("REDELIVERY_", "PYTEST"))}
    return kept | {
        "PATH": f"{tools}:{Path(sys.executable).parent}:{kept['PATH']}",
        "SHOP_BROKER": url,
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONWARNINGS": "ignore",
        "C_FORCE_ROOT": "true",
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
    """A command of the broker's own that reaches the private one."""
    own = {key: value for key, value in environment.items() if os.environ.get(key) != value}
    exports = "".join(f"export {key}={shlex.quote(value)}\n" for key, value in own.items())
    (tools / name).write_text(f'#!/bin/sh\n{exports}exec {command} "$@"\n')
    (tools / name).chmod(0o755)
