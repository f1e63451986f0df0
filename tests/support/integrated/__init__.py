"""Applications that use the libraries of `docs/integrations.md`, each in one module, on a private broker."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from tests.support.running import Shop, until
from tests.support.servers import Server, binaries

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Place", "place"]

#: Three attempts with short delays.
SETTINGS: dict[str, Any] = {"queues": {"#": {"redelivery_delay": 0.3, "max_delivery_attempts": 3}}}


@dataclass
class Place(Shop):
    """An application of `tests.support.integrated` on a private broker, with its workers and other programs."""

    imports_early: ClassVar[bool] = False  # libraries patch what is imported after them

    variables: dict[str, str] = field(default_factory=dict)
    programs: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def environment(self) -> dict[str, str]:
        return {**super().environment, **self.variables}

    def publish(self, task: str, *args: Any, **options: Any) -> str:
        return str(self.app.send_task(f"tests.support.shop.{task}", args, **options).id)

    def lines(self, name: str) -> list[dict[str, Any]]:
        """The JSON lines that a library wrote to this file."""
        path = self.folder / name
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def run(self, *words: str) -> subprocess.Popen[bytes]:
        """Start a Python program. It ends with this place."""
        with (self.folder / "programs.log").open("ab") as log:
            program = subprocess.Popen(
                [sys.executable, *words],
                env=self.environment,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.programs.append(program)
        return program

    def does(self, *words: str) -> None:
        """Run a Python program, which must succeed."""
        assert self.run(*words).wait(60) == 0, (self.folder / "programs.log").read_text()[-3000:]

    def over(self, *task_ids: str) -> None:
        """Wait until each of these tasks has succeeded or died."""
        ends = {"succeeded", "dead_lettered", "discarded", "ignored"}
        until(lambda: set(task_ids) <= {each.task_id for each in self.events if each.outcome in ends}, what=f"{task_ids} to end")

    def stop(self) -> None:
        for program in self.programs:
            if program.poll() is None:
                os.killpg(program.pid, signal.SIGKILL)
            program.wait(30)
        super().stop()


@contextmanager
def place(module: str, **options: Any) -> Iterator[Place]:
    """The application `tests.support.integrated.<module>` on a private broker, without a worker."""
    options.setdefault("settings", SETTINGS)
    options.setdefault("backend", True)
    with tempfile.TemporaryDirectory(prefix="rd-", ignore_cleanup_errors=True) as name:
        server = Server(Path(name), binaries()["valkey"]).start()
        made = Place(server, Path(name), module=f"tests.support.integrated.{module}", **options)
        try:
            yield made
        finally:
            made.stop()
            server.stop(9)
