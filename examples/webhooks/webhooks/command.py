"""The operator's side: runs the command `redelivery` in other processes.

An unexpected exit code is an error with the output of the command.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from webhooks.worker import HOME

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Command", "CommandError"]

#: Seconds that one command may take. Spark takes 15 s on an idle machine, and minutes on a busy one.
TIMEOUT = 900.0


class CommandError(Exception):
    """A command failed; the message has its output."""


@dataclass(frozen=True, slots=True)
class Command:
    """`redelivery -A webhooks.app` for one run. All output goes to `log`, too."""

    environment: dict[str, str]
    outputs: Path
    log: Path

    def redrive(self, reason: str) -> int:
        """Redrive the dead letters with this reason; returns how many went back."""
        done = self._run("-A", "webhooks.app", "dlq", "redrive", "DLQ.webhooks", "--reason", reason, "--yes", "--json")
        return int(json.loads(done.stdout)["moved"])

    def export(self) -> None:
        """Export the inventory and the outcome log."""
        self._run("-A", "webhooks.app", "inventory", "export", "--to", str(self.inventory))
        self._run("-A", "webhooks.app", "outcomes", "export", "--to", str(self.outcomes))

    def reconcile(self) -> int:
        """Reconcile the books: 0 balanced, 1 not."""
        places = ("--outcomes", str(self.outcomes), "--inventory", str(self.inventory), "--output", str(self.books))
        return self._run("reconcile", *places, "--grace", "0", accepted=(0, 1)).returncode

    def web(self) -> None:
        """Serve the operator's page, with the exported events and the books, until it is interrupted."""
        words = ("-A", "webhooks.app", "web", "--port", "0", "--allow", "all", "--books", str(self.books))
        command = [sys.executable, "-m", "redelivery", *words]
        environment = self.environment | {"REDELIVERY_OUTCOME_ARCHIVE": str(self.outcomes)}
        with subprocess.Popen(command, cwd=HOME, env=environment, stdin=subprocess.DEVNULL) as page:
            try:
                page.wait()
            except BaseException:
                page.terminate()
                raise

    @property
    def outcomes(self) -> Path:
        """The folder of the exported events."""
        return self.outputs / "outcomes"

    @property
    def inventory(self) -> Path:
        """The folder of the inventory."""
        return self.outputs / "inventory"

    @property
    def books(self) -> Path:
        """The folder of the books."""
        return self.outputs / "books"

    def _run(self, *arguments: str, accepted: tuple[int, ...] = (0,)) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "redelivery", *arguments]
        options: dict[str, Any] = {"stdin": subprocess.DEVNULL, "capture_output": True, "text": True, "timeout": TIMEOUT}
        try:
            done = subprocess.run(command, cwd=HOME, env=self.environment, check=False, **options)
        except subprocess.TimeoutExpired as exc:
            msg = f"redelivery {' '.join(arguments)} has not ended after {TIMEOUT:g} s"
            raise CommandError(msg) from exc
        with self.log.open("a", encoding="utf-8") as log:
            log.write(f"$ redelivery {' '.join(arguments)}\n{done.stdout}{done.stderr}(exit code {done.returncode})\n\n")
        if done.returncode not in accepted:
            said = (done.stderr or done.stdout).strip().splitlines()
            msg = f"redelivery {' '.join(arguments)} ended with {done.returncode}: {said[-1] if said else 'it said nothing'}"
            raise CommandError(msg)
        return done
