"""The command line in its own processes, with its own app and a private broker."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.running import ROOT

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.servers import Server

__all__ = ["Command", "command", "refused"]

APP = """
import os
from celery import Celery
from redelivery import Redelivery
app = Celery("shop", broker=os.environ["SHOP_BROKER"])
app.conf.task_default_queue = "orders"
Redelivery(app)
plain = Celery("plain", broker=os.environ["SHOP_BROKER"])
"""


class Command:
    """`python -m redelivery` in a folder that has an app `shopfront`."""

    def __init__(self, folder: Path, broker: str = "redis+socket:///nowhere/at/all") -> None:
        (folder / "shopfront.py").write_text(APP)
        (folder / "broken.py").write_text("def f():\n    import nosuch\nf()\n")
        (folder / "ending.py").write_text("import sys\nsys.exit(0)\n")
        self.folder, self.broker = folder, broker

    def environment(self, **more: str) -> dict[str, str]:
        """The environment, without settings of this machine."""
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("REDELIVERY_", "CELERY_"))}
        return {**kept, "PYTHONPATH": str(ROOT), "SHOP_BROKER": self.broker, "PYTHONDONTWRITEBYTECODE": "1", **more}

    def start(self, *words: str, module: str = "redelivery", **options: Any) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", module, *words]
        return subprocess.Popen(
            command, cwd=self.folder, env=self.environment(), stdout=-1, stderr=-1, stdin=subprocess.DEVNULL, text=True, **options
        )

    def run(self, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "redelivery", *words]
        return subprocess.run(
            command,
            cwd=self.folder,
            env=self.environment(**environment),
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            stdin=subprocess.DEVNULL,
        )


@pytest.fixture
def command(server: Server, folder: Path) -> Command:
    return Command(folder, server.url)


def refused(done: subprocess.CompletedProcess[str], said: str) -> None:
    """Check that the command ended with 2, and wrote only one line to stderr, which has `said`."""
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert done.stderr.startswith("redelivery: error: ")
    assert said in done.stderr
