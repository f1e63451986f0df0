"""The demo on RabbitMQ, and its message if RabbitMQ is missing.

`.ci/run` runs it on Redis, where the books balance. Here a message is deleted by hand, as examples/webhooks/README.md says.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from webhooks.rabbit_node import MISSING, is_installed

from tests.support.page.web_page import Visitor
from tests.support.running import ROOT

#: The demo starts Spark, a broker, and two workers.
pytestmark = [pytest.mark.xdist_group("spark-apart"), pytest.mark.timeout(1800)]


def demo(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the demo with 120 webhooks."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("WEBHOOKS_", "REDELIVERY_", "SHOP_"))}
    command = [sys.executable, "examples/webhooks/run.py", "--broker", "rabbitmq", "--count", "120", *words]
    given: dict[str, Any] = {"cwd": ROOT, "env": environment | variables, "stdin": subprocess.DEVNULL, "timeout": 1500}
    return subprocess.run(command, **given, capture_output=True, text=True, check=False)


@pytest.mark.skipif(not is_installed() and not os.environ.get("CI"), reason="there is no RabbitMQ on this machine")
@pytest.mark.full
@pytest.mark.slow
def test_the_demo_on_rabbitmq_names_the_message_that_was_deleted_and_no_other() -> None:
    """Workers are killed and dead letters redriven. The books name only the message that was deleted by hand."""
    done = demo("--sabotage", "--json")
    assert done.returncode == 1, done.stderr
    account = json.loads(done.stdout)
    try:
        assert (account["lost_ids"], account["lost"], account["balanced"]) == (["webhook-00000"], 1, False)
        said = done.stderr + (Path(account["outputs"]) / "commands.log").read_text("utf-8")
        assert (account["disagreements"], account["in_flight"]) == ([], 0), said
        assert (account["published"], account["succeeded"] + account["dead_lettered"]) == (120, 119)
        assert account["deaths"]["worker_lost"] == 1
        assert "SIGKILL to the whole worker" in done.stderr
    finally:
        shutil.rmtree(account["outputs"], ignore_errors=True)


@pytest.mark.full
@pytest.mark.slow
def test_the_demo_ends_with_the_page_of_what_it_did() -> None:
    """The page has the books of the run. A signal ends the page, the broker and the demo."""
    command = [sys.executable, "examples/webhooks/run.py", "--count", "40", "--web"]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            lines.append(line)
            if line.startswith("redelivery web: "):
                break
        address = urlsplit(lines[-1].split()[-1])
        visitor = Visitor(address.port or 0)
        assert visitor.get(f"{address.path}?{address.query}").status == 303, lines
        assert "The books balance" in visitor.get("/books").read
        assert visitor.get("/letters").status == 200
        process.terminate()
        assert process.wait(60) in {0, 130}
    [outputs] = {line.split()[-1] for line in lines if ".demo/" in line}
    shutil.rmtree(outputs, ignore_errors=True)


def test_the_demo_says_what_to_install_where_there_is_no_rabbitmq(tmp_path: Path) -> None:
    """It prints one line, ends with 2, and leaves nothing behind."""
    done = demo(PATH=str(tmp_path), TMPDIR=str(tmp_path))
    assert done.returncode == 2, done.stderr
    assert done.stdout.splitlines()[-1].endswith(f"the demo could not run: {MISSING}")
    assert "Traceback" not in done.stdout + done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("count", ["0", "-1", "abc", "1.5", ""])
def test_a_count_that_is_no_number_of_webhooks_is_refused(count: str) -> None:
    """The error has the given value, and no name from the code."""
    done = demo("--count", count)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.endswith(f"argument --count: {count!r} is not a number of webhooks: give 1 or more\n")
