"""A storm of kills over a running export: `python -m tests.faults.storm.export_storm --events 1000000 --kills 50 [--to URI]`.

A producer records lives of two events each, an exporter process exports without end and is SIGKILLed again and again: at moments
that a seed draws, or as soon as a file or a commit of its appears. Each round has its share of the events, so that every kill meets
work. After each kill, and at the end, this must hold: every event that was ever recorded is in a committed file or still in the log
(the log was trimmed no further than the files), and no gap was made up. The last line says what the kills left behind, how many
events were written more than once, and what the books say of the files: each event once, and balanced.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyarrow import fs, parquet

from redelivery.middleware.messages.events import Outcome
from redelivery.workers.export import tables
from redelivery.workers.export.batch import order
from redelivery.workers.export.commits import COMMITS
from redelivery.workers.export.export import export_outcomes
from redelivery.workers.export.tables import below, names, read_text, write_rows, write_text
from tests.support.books.recorded import KEYS, record
from tests.support.running import until
from tests.support.servers import Server, binaries

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pyspark.sql import SparkSession

    from redelivery.workers.reconciliation.report.summary import Summary

__all__ = ["Storm"]

CODE = """
import sys
from redis import Redis
from redelivery.middleware.brokers.redis.keys import Keys
from redelivery.workers.export.export import export_outcomes
client = Redis(unix_socket_path=sys.argv[1])
print("ready", flush=True)
while True:
    export_outcomes(client, Keys(), sys.argv[2], batch=int(sys.argv[3]))
"""
#: What a kill waits for: a moment by chance, a file with its name, or a commit.
MOMENTS = ("any", "file", "commit")
#: Lives whose events are recorded in one round trip.
CHUNK = 250


@dataclass
class Storm:
    """One storm on one server; `recorded` grows while it goes on. `code` is the exporter's program.

    `left` counts what the kills left: files without their name (`unfinished`), files that no commit names (`uncommitted`), and
    commits whose batch the log still held (`untrimmed`).
    """

    server: Server
    to: str
    events: int
    batch: int = 500
    seed: int = 1
    code: str = CODE
    recorded: list[str] = field(default_factory=list)
    kills: int = 0
    left: dict[str, int] = field(default_factory=lambda: dict.fromkeys(("unfinished", "uncommitted", "untrimmed"), 0))

    def rage(self, kills: int, patience: float = 0.4) -> None:
        """Kill so many exporters, each while it works or up to `patience` seconds later, and check after each."""
        chance = random.Random(self.seed)  # noqa: S311 - a seed makes it repeatable
        known: dict[str, list[str]] = {}
        seen: set[str] = set()
        for number in range(kills):
            with self._recording(self.events * (number + 1) // kills):
                until(lambda: self.server.client.exists(KEYS.outcomes))
                with subprocess.Popen(self._command(chance), stdout=subprocess.PIPE) as process:
                    try:
                        assert process.stdout is not None
                        assert process.stdout.readline() == b"ready\n"
                        self._wait(chance.randint(0, 2), chance.choice(MOMENTS), chance.uniform(0, patience))
                    finally:
                        process.kill()
                self.kills += 1
            self._look(seen)
            self.check(known)

    def finish(self) -> int:
        """Export the rest; how many events are written more than once. Raises `AssertionError` where one is missing."""
        result = export_outcomes(self.server.client, KEYS, self.to)
        assert not result.gaps, result.gaps
        assert "_gaps.jsonl" not in names(self.to), "a gap was made up"
        written = self.written({})
        assert set(written) == set(self.recorded)
        assert len(self.recorded) == self.events
        return len(written) - len(self.recorded)

    def check(self, known: dict[str, list[str]]) -> None:
        """What was recorded is in a committed file or in the log; `known` are files that were read before."""
        client, there = self.server.client, set(self.written(known))
        oldest: Any = client.xrange(KEYS.outcomes, count=1)
        behind = [each for each in self.recorded if oldest and order(each) >= order(oldest[0][0].decode())]
        assert len(behind) == client.xlen(KEYS.outcomes), "the log has a hole"
        assert not set(self.recorded) - there - set(behind)

    def written(self, known: dict[str, list[str]]) -> list[str]:
        """The ids of all events in committed files, each as often as it was written."""
        for file in self.committed():
            if file not in known:
                filesystem, path = tables.resolve(below(self.to, file))
                known[file] = parquet.read_table(path, filesystem=filesystem, columns=["event_id"])["event_id"].to_pylist()
        return [event_id for events in known.values() for event_id in events]

    def committed(self) -> list[str]:
        """The files that commits name."""
        return sorted({str(each["file"]) for commit in self.commits() for each in self._commit(commit)["files"]})

    def commits(self) -> list[str]:
        """The commits that have their name."""
        folder = below(self.to, COMMITS)
        found = [f"{date}/{name}" for date in names(folder) for name in names(below(folder, date))]
        return [each for each in found if not each.partition("/")[2].startswith(".")]

    def files(self) -> list[str]:
        """The files of events, also those without their name."""
        hours = [f"{date}/{hour}" for date in names(self.to) if date.startswith("date=") for hour in names(below(self.to, date))]
        return [f"{hour}/{name}" for hour in hours for name in names(below(self.to, hour))]

    def books(self, spark: SparkSession, folder: Path) -> Summary:
        """Reconcile the exported events with an empty inventory; `folder` is for the outputs."""
        from redelivery.workers.reconciliation.job import Books, reconcile  # noqa: PLC0415 - few storms end in the books

        filesystem, path = tables.resolve(self.to)
        if not isinstance(filesystem, fs.LocalFileSystem):  # Spark reads other stores by connectors of its own
            path, source = str(folder / "copy"), path
            fs.copy_files(source, path, source_filesystem=filesystem, destination_filesystem=fs.LocalFileSystem())
        write_rows([], str(folder / "inventory"), tables.INVENTORY, name="inventory")
        write_text(json.dumps({"seen_ms": self.server.now_ms() + 3_600_000}), str(folder / "inventory"), "_taken.json")
        return reconcile(spark, Books(outcomes=path, inventory=str(folder / "inventory"), output=str(folder / "books")))

    def _commit(self, name: str) -> dict[str, Any]:
        return dict(json.loads(read_text(below(self.to, COMMITS), name)))

    def _look(self, seen: set[str]) -> None:
        """Count what this kill left behind."""
        commits, files, committed = self.commits(), self.files(), set(self.committed())
        cursor: Any = self.server.client.hget(KEYS.exported, "id") or b"0-0"
        ahead = [each for each in commits if order(self._commit(each)["last"]) > order(cursor.decode())]
        unfinished = [each for each in files if each.rpartition("/")[2].startswith(".")]
        found = {"unfinished": unfinished, "uncommitted": set(files) - set(unfinished) - committed, "untrimmed": ahead}
        for name, those in found.items():
            self.left[name] += len({f"{name} {each}" for each in those} - seen)
            seen |= {f"{name} {each}" for each in those}

    def _wait(self, commits: int, moment: str, seconds: float) -> None:
        """Wait for so many commits and then so long, or for the given moment."""
        for _ in range(commits):
            self._until_there_is_more(self.commits)
        if moment == "any":
            time.sleep(seconds)  # any moment will do: that is the test
        else:
            self._until_there_is_more(self.files if moment == "file" else self.commits)

    def _until_there_is_more(self, look: Callable[[], list[str]], seconds: float = 20) -> None:
        """Wait until the exporter works, so that the kill meets work; ends also if the log is empty."""
        before, deadline = set(look()), time.monotonic() + seconds
        while not set(look()) - before and time.monotonic() < deadline and self.server.client.xlen(KEYS.outcomes):
            pass

    @contextmanager
    def _recording(self, target: int) -> Iterator[None]:
        """Record until there are so many, in another thread."""
        producer = threading.Thread(target=self._record, args=(target,))
        producer.start()
        try:
            yield
        finally:
            producer.join()

    def _record(self, target: int) -> None:
        client = self.server.client
        while (left := target - len(self.recorded)) > 1:
            first, lives = len(self.recorded) // 2, min(left // 2, CHUNK)
            published = record(client, lives, first=first, outcome=Outcome.PUBLISHED, attempt=0)
            self.recorded += [*published, *record(client, lives, first=first, delivery=1)]

    def _command(self, chance: random.Random) -> list[str]:
        batch = chance.randint(self.batch // 2, self.batch)
        return [sys.executable, "-c", self.code, self.server.socket, self.to, str(batch)]


def main(words: Sequence[str] | None = None) -> None:
    """One storm, on a server of its own."""
    from redelivery.workers.reconciliation.spark.session import session  # noqa: PLC0415 - a storm in a test has a session already

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in {"events": 1_000_000, "kills": 50, "seed": 1, "batch": 10_000}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--to", metavar="URI", help="an empty folder or prefix (a temporary folder by default)")
    given = parser.parse_args(words)
    given.events += given.events % 2
    with tempfile.TemporaryDirectory(prefix="rd-") as name:
        folder = Path(name)
        server = Server(folder, binaries()["valkey"]).start()
        try:
            storm = Storm(server, given.to or str(folder / "out"), given.events, given.batch, given.seed)
            storm.rage(given.kills)
            report = {"events": given.events, "kills": storm.kills, "left": storm.left, "written_again": storm.finish()}
            with session() as spark:
                books = storm.books(spark, folder)
        finally:
            server.kill()
    report["books"] = {"events": books.events, "lives": books.lives, "balanced": books.balanced}
    report["missing"] = given.events - books.events
    sys.stdout.write(json.dumps(report) + "\n")
    sys.exit(0 if books.balanced and books.events == given.events else 1)


if __name__ == "__main__":
    main()
