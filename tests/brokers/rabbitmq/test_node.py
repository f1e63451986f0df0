"""The private RabbitMQ node: no process of it is left when it was ended, or when the process that started it was killed."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from webhooks.rabbit_node import EPMD

from tests.support.rabbit import Node, need_rabbit
from tests.support.running import ROOT, until

if TYPE_CHECKING:
    from pathlib import Path

#: An epmd that starts slowly, as on a loaded machine, so that a node finds none at first.
SLOW = """\
#!/bin/sh
sleep 3
exec {epmd} "$@"
"""

STARTS = """
import json, sys, time
from pathlib import Path
from tests.support.rabbit import Node

node = Node(Path(sys.argv[1])).start()
print(json.dumps(node.ports), flush=True)
time.sleep(600)
"""


@pytest.fixture(autouse=True)
def _needed() -> None:
    need_rabbit()


def listening(ports: tuple[int, ...]) -> list[int]:
    """The given ports on which a process listens."""
    found = []
    for port in ports:
        with socket.socket() as asking:
            if asking.connect_ex(("127.0.0.1", port)) == 0:
                found.append(port)
    return found


@pytest.mark.full
@pytest.mark.slow
def test_a_node_that_ends_leaves_no_epmd_even_where_its_own_was_slow(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If Erlang finds no epmd, it starts one, and that process is no child of ours."""
    slow = folder / "bin" / EPMD
    slow.parent.mkdir()
    slow.write_text(SLOW.format(epmd=shutil.which(EPMD)))
    slow.chmod(0o755)
    monkeypatch.setenv("PATH", f"{slow.parent}{os.pathsep}{os.environ['PATH']}")
    node = Node(folder / "node")
    with node.running():
        assert listening(node.ports) == list(node.ports)
    until(lambda: not listening(node.ports), what="nobody to listen")


def test_a_killed_process_takes_its_node_and_epmd_with_it(folder: Path) -> None:
    """A killed process cannot clean up: the node and epmd that it started end by themselves."""
    command = [sys.executable, "-c", STARTS, str(folder / "node")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as starting:
        assert starting.stdout is not None
        ports = tuple(json.loads(starting.stdout.readline()))
        try:
            assert listening(ports) == list(ports)
        finally:
            starting.kill()
    until(lambda: not listening(ports), what="nobody to listen")
