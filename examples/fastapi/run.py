#!/usr/bin/env python3
"""Order reports over HTTP, find a failed one among the dead letters, and send it back; see `README.md`."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from private import HERE, broker, until, worker


async def request(calls: list[tuple[str, str]]) -> list[dict[str, str]]:
    """The answers of the application, which runs in this process, without a port."""
    from api import api  # noqa: PLC0415 - the environment must have the broker's URL first
    from httpx import ASGITransport, AsyncClient  # noqa: PLC0415 - as above

    async with AsyncClient(transport=ASGITransport(app=api), base_url="http://reports") as client:
        answers = await asyncio.gather(*(client.request(method, path) for method, path in calls))
    for answer in answers:
        answer.raise_for_status()
    return [answer.json() for answer in answers]


def states(ids: dict[str, str]) -> dict[str, dict[str, str]]:
    """The state of each report."""
    answers = asyncio.run(request([("GET", f"/reports/{task_id}") for task_id in ids.values()]))
    return dict(zip(ids, answers, strict=True))


def redelivery(*words: str) -> str:
    """Run `redelivery -A tasks …`; returns its output."""
    command = [sys.executable, "-m", "redelivery", "-A", "tasks", *words]
    done = subprocess.run(command, cwd=HERE, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(words)} ended with {done.returncode}:\n{done.stderr}")
    return done.stdout


def main(folder: Path) -> None:
    """Order, fail, find, repair, redrive."""
    with broker(folder) as url:
        os.environ.update(REPORTS_BROKER=url, REPORTS_SOURCE=str(folder), PYTHONPATH=str(HERE))
        for name in ("sales", "later"):
            (folder / name).write_text(f"the figures of {name}")
        with worker("tasks", folder / "worker.log", dict(os.environ)) as process:
            names = ["sales", "later", "missing"]
            ordered = asyncio.run(request([("POST", f"/reports/{name}") for name in names]))
            ids = {name: each["id"] for name, each in zip(names, ordered, strict=True)}
            until(lambda: all(each["state"] in {"SUCCESS", "FAILURE"} for each in states(ids).values()), "all to end", process)
            for name, each in states(ids).items():
                print(f"{name:8} {each['state']:8} {each['report']}")
            until(lambda: ids["missing"] in redelivery("dlq", "show", "DLQ.reports", "--json"), "the dead letter", process)
            life = json.loads(redelivery("task", "show", ids["missing"], "--json"))
            print("The events of the missing report:", " -> ".join(event["outcome"] for event in life["events"]))
            (folder / "missing").write_text("found after all")
            print(redelivery("dlq", "redrive", "DLQ.reports", "--id", ids["missing"], "--yes"), end="")
            until(lambda: states(ids)["missing"]["state"] == "SUCCESS", "the redriven report", process)
            found = states(ids)
    wrong = {name: each for name, each in found.items() if each["state"] != "SUCCESS"}
    if wrong or "attempt 2" not in found["later"]["report"]:
        sys.exit(f"these are not as they should be: {wrong or found}")
    print("missing  SUCCESS ", found["missing"]["report"])


if __name__ == "__main__":
    try:
        with tempfile.TemporaryDirectory(prefix="reports-") as name:
            main(Path(name))
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)
