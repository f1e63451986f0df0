"""The books on a real cluster: `python -m tests.support.books.cluster` submits the job to a master with two workers.

It builds the wheel, passes it with `--py-files`, and reconciles two days with a state. It checks the exit codes, the sums, that
both workers had executors, and that the job's code came from the wheel. All servers listen on the loopback, and are ended by
process id.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyspark

from redelivery.workers.reconciliation.spark.java import ensure_java
from tests.support.books.spark_session import NOON, Histories, write_lines
from tests.support.running import until

__all__ = ["main"]

ROOT = Path(__file__).resolve().parents[3]
SPARK = Path(pyspark.__file__).parent
DAY = 86_400_000
SUCCEEDED = ("succeeded", {"delivery": 1, "attempt": 1})
#: The submitted program. It prints where the job's code came from, and runs the job.
APPLICATION = """
import sys, redelivery.workers.cli.reconcile as command
print("code from", command.__file__, file=sys.stderr)
command.reconcile()
"""


def main() -> None:
    """Run all, and print a report. Raises `AssertionError` on a fault."""
    ensure_java()
    with tempfile.TemporaryDirectory(prefix="rd-cluster-", ignore_cleanup_errors=True) as name, ExitStack() as stack:
        folder = Path(name)
        wheel = _wheel(folder)
        master = f"spark://127.0.0.1:{_free_port()}"
        _serve(stack, folder, "master", "org.apache.spark.deploy.master.Master", "--port", master.rpartition(":")[2])
        for number in range(2):
            words = ("-c", "1", "-m", "1g", "-d", str(folder / f"work{number}"), master)
            _serve(stack, folder, f"worker{number}", "org.apache.spark.deploy.worker.Worker", *words)
        for number in range(2):
            _wait_for(folder / f"worker{number}.log", "Successfully registered with master")
        first = _day(folder, 1, [("a", "published"), ("b", "published", SUCCEEDED)], NOON + 60_000)
        said = [_submit(folder, wheel, master, first, expected=0)]
        second = _day(folder, 2, [("a", SUCCEEDED), ("c", "published")], NOON + 2 * DAY)
        said.append(_submit(folder, wheel, master, second, expected=1))
        assert [each["events"] for each in said] == [3, 2]
        assert said[0]["verdicts"]["in_flight"] == 1
        assert (said[1]["verdicts"]["lost"], said[1]["verdicts"]["balanced"]) == (1, 1)
        executors = {each.parents[2].name for each in folder.glob("work*/app-*/*/stderr")}
        assert executors == {"work0", "work1"}, executors
        sys.stdout.write(json.dumps({"runs": len(said), "workers": sorted(executors), "verdicts": said[1]["verdicts"]}) + "\n")


def _wheel(folder: Path) -> Path:
    """Build the wheel from a copy of the repository: a build writes into its source tree."""
    tree = folder / "tree"
    ignored = shutil.ignore_patterns(".*", "__pycache__", "*.egg-info", "build", "dist", "benchmarks", "tests")
    shutil.copytree(ROOT, tree, symlinks=True, ignore=ignored)
    command = [sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", str(folder / "dist"), str(tree)]
    subprocess.run(command, check=True, capture_output=True)
    return next((folder / "dist").glob("*.whl"))


def _serve(stack: ExitStack, folder: Path, name: str, kind: str, *words: str) -> None:
    """Start a process of the cluster. It ends with the stack."""
    log = stack.enter_context((folder / f"{name}.log").open("wb"))
    command = [str(SPARK / "bin" / "spark-class"), kind, "--host", "127.0.0.1", "--webui-port", "0", *words]
    environment = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_HOME": str(SPARK), "SPARK_DAEMON_MEMORY": "256m"}
    process = subprocess.Popen(command, stdout=log, stderr=log, env=environment, cwd=folder)
    stack.callback(process.wait, 60)
    stack.callback(process.terminate)


def _wait_for(log: Path, words: str) -> None:
    until(lambda: words in log.read_text("utf-8", "replace"), 900, f"{words!r} in {log}")


def _day(folder: Path, day: int, lives: list[Any], as_of_ms: int) -> int:
    """Write a day's events and an empty inventory. Returns `as_of_ms`."""
    histories = Histories()
    for task_id, *steps in lives:
        histories.add(task_id, *steps, start_ms=NOON + (day - 1) * DAY)
    write_lines(folder / "outcomes" / f"date=2026-01-{30 + day}" / "hour=12" / "outcomes.jsonl", histories.events)
    write_lines(folder / "inventory" / "inventory.jsonl", [])
    return as_of_ms


def _submit(folder: Path, wheel: Path, master: str, as_of_ms: int, *, expected: int) -> dict[str, Any]:
    """Run spark-submit. Returns the summary that it prints."""
    application = folder / "books.py"
    application.write_text(APPLICATION)
    places = [word for name in ("outcomes", "inventory", "state") for word in (f"--{name}", str(folder / name))]
    settings = {"spark.driver.host": "127.0.0.1", "spark.executor.memory": "512m", "spark.sql.shuffle.partitions": "4"}
    command = [str(SPARK / "bin" / "spark-submit"), "--master", master, "--py-files", str(wheel)]
    command += [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    command += [str(application), *places, "--output", str(folder / "books"), "--as-of", str(as_of_ms), "--json"]
    environment = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_HOME": str(SPARK), "PYSPARK_PYTHON": sys.executable}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=folder)
    assert done.returncode == expected, done.stdout[-3000:] + done.stderr[-3000:]
    # spark-submit writes both streams of the driver's Python to its stdout.
    assert wheel.name in done.stdout.partition("code from ")[2].partition("\n")[0], done.stdout[-3000:]
    summary: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return summary


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


if __name__ == "__main__":
    main()
