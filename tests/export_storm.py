"""A storm of kills over a running export: `python -m tests.export_storm --events 1000000 --kills 50`.

A producer records events, an exporter process exports without end and is SIGKILLed again and again, at moments that a seed draws.
After each kill, and at the end, this must hold: every event that was ever recorded is in a whole file or still in the log (the log
was trimmed no further than the files), and no gap was made up. The last line says how many events were written more than once.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyarrow import parquet

from redelivery.workers.export import export_outcomes
from tests.recorded import KEYS, record
from tests.servers import Server, binaries

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Storm"]

CODE = """
import sys
from redis import Redis
from redelivery.middleware.keys import Keys
from redelivery.workers.export import export_outcomes
client = Redis(unix_socket_path=sys.argv[1])
print("ready", flush=True)
while True:
    export_outcomes(client, Keys(), sys.argv[2], batch=int(sys.argv[3]))
"""


@dataclass
class Storm:
    """One storm on one server; `recorded` grows while it goes on."""

    server: Server
    out: Path
    events: int
    batch: int = 500
    seed: int = 1
    recorded: list[str] = field(default_factory=list)
    kills: int = 0

    def rage(self, kills: int, patience: float = 0.4) -> None:
        """Kill so many exporters, each up to `patience` seconds after it has begun, and check after each."""
        chance = random.Random(self.seed)  # noqa: S311 - a seed makes it repeatable
        producer = threading.Thread(target=self._record)
        producer.start()
        try:
            for _ in range(kills):
                with subprocess.Popen(self._command(), stdout=subprocess.PIPE) as process:
                    assert process.stdout is not None
                    assert process.stdout.readline() == b"ready\n"
                    time.sleep(chance.uniform(0, patience))  # any moment will do: that is the test
                    os.kill(process.pid, signal.SIGKILL)
                self.kills += 1
                self.check()
        finally:
            producer.join()

    def finish(self) -> int:
        """Export the rest; how many events are written more than once. Raises `AssertionError` where one is missing."""
        result = export_outcomes(self.server.client, KEYS, str(self.out))
        assert not result.gaps, result.gaps
        assert not (self.out / "_gaps.jsonl").exists(), "a gap was made up"
        written = self.written()
        assert set(written) == set(self.recorded)
        assert len(self.recorded) == self.events
        return len(written) - len(self.recorded)

    def check(self) -> None:
        """What was recorded is in a whole file or in the log."""
        recorded = list(self.recorded)
        raw: Any = self.server.client.xrange(KEYS.outcomes)
        there = {entry_id.decode() for entry_id, _ in raw} | set(self.written())
        assert not [each for each in recorded if each not in there]

    def written(self) -> list[str]:
        """The ids of all events in files that have their name, each as often as it was written."""
        files = sorted(self.out.glob("date=*/hour=*/outcomes-*.parquet"))
        return [event_id for file in files for event_id in parquet.read_table(file, columns=["event_id"])["event_id"].to_pylist()]

    def _record(self) -> None:
        client = self.server.client
        while (left := self.events - len(self.recorded)) > 0:
            self.recorded += record(client, min(left, 500))

    def _command(self) -> list[str]:
        return [sys.executable, "-c", CODE, self.server.socket, str(self.out), str(self.batch)]


def main(words: Sequence[str] | None = None) -> None:
    """One storm, on a server of its own."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in {"events": 1_000_000, "kills": 50, "seed": 1, "batch": 10_000}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    given = parser.parse_args(words)
    with tempfile.TemporaryDirectory(prefix="rd-") as folder:
        server = Server(Path(folder), binaries()["valkey"]).start()
        try:
            storm = Storm(server, Path(folder) / "out", given.events, given.batch, given.seed)
            storm.rage(given.kills, patience=2.0)
            repeated = storm.finish()
        finally:
            server.kill()
    sys.stdout.write(json.dumps({"events": given.events, "kills": storm.kills, "missing": 0, "written_again": repeated}) + "\n")


if __name__ == "__main__":
    main()
