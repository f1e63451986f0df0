"""`redelivery policy explain`: values, sources and the delays, for people and as JSON."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import click
import pytest
from celery import Celery
from click.testing import CliRunner, Result
from tenacity import stop_after_attempt, wait_fixed

from redelivery.middleware.policy.decorator import redeliver
from redelivery.settings import FIELDS, RedeliverySettings
from redelivery.workers.cli.main import Root


@dataclass
class Context:
    """The context that the root command passes on."""

    app: Any
    settings: RedeliverySettings


@click.group(cls=Root)
def root() -> None:
    """Stand in for the root command."""


CONF: dict[str, Any] = {
    "queues": {
        "#": {"max_delivery_attempts": 5},
        "orders.*": {"redelivery_delay": 5, "max_redelivery_delay": 60, "redelivery_collision_avoidance_factor": 0.5},
    },
    "tasks": {"shop.charge": {"max_age": 86_400}},
}


def run(*arguments: str, app: Any = None, conf: dict[str, Any] | None = None) -> Result:
    """Run `redelivery policy explain` with these arguments."""
    settings = RedeliverySettings.load(CONF if conf is None else conf, {})
    return CliRunner().invoke(root, ["policy", "explain", *arguments], obj=Context(app, settings))


def row(output: str, name: str) -> list[str]:
    """The cells of the line that begins with this name."""
    (line,) = [line for line in output.splitlines() if line.startswith(name + "\t")]
    return line.split("\t")


def test_each_value_is_shown_with_its_source() -> None:
    """Every field has a line: its value in words, and the row that it came from."""
    result = run("--queue", "orders.eu", "--task", "shop.charge")
    assert result.exit_code == 0
    assert row(result.output, "max_delivery_attempts")[1:] == ["5", 'queues["#"] (app.conf.redelivery)']
    assert row(result.output, "redelivery_delay")[1:] == [
        "5 s",
        'queues["orders.*"] (app.conf.redelivery)',
    ]
    assert row(result.output, "max_age")[1:] == [
        "86400 s (1 d)",
        'tasks["shop.charge"] (app.conf.redelivery)',
    ]
    assert row(result.output, "dead_letter_queue")[1:] == ["default (DLQ.orders.eu)", "built-in"]
    shown = [line.split()[0] for line in result.output.splitlines() if line]
    assert [name for name in shown if name in FIELDS] == list(FIELDS)


def test_the_delays_are_shown_as_ranges_up_to_the_last_attempt() -> None:
    """Each delay with its minimum and maximum; ten at the most."""
    lines = run("--queue", "orders.eu").output.splitlines()
    assert lines[-6:] == [
        "after attempt 1\t2.5 s - 7.5 s",
        "after attempt 2\t5 s - 15 s",
        "after attempt 3\t10 s - 30 s",
        "after attempt 4\t20 s - 60 s",
        "",
        "Attempt 5 is the last: if it fails, the message is dead-lettered into DLQ.orders.eu.",
    ]
    for limit, count in ((1, 0), (2, 1), (10, 9), (11, 10), (12, 10), (-1, 10)):
        output = run("--queue", "q", conf={"queues": {"#": {"max_delivery_attempts": limit}}}).output
        assert output.count("after attempt") == count
        assert ("is the last" in output) == (0 < limit <= 11)


def test_json_holds_the_same() -> None:
    """One object, for machines: every field with value and source, the dead-letter queue, ten delays."""
    found = json.loads(run("--queue", "orders.eu", "--task", "shop.charge", "--json").output)
    assert (found["queue"], found["task"], found["dead_letter_queue"]) == ("orders.eu", "shop.charge", "DLQ.orders.eu")
    assert list(found["policy"]) == list(FIELDS)
    assert found["policy"]["redelivery_delay"] == {"value": 5.0, "source": 'queues["orders.*"] (app.conf.redelivery)'}
    assert [each["attempt"] for each in found["delays"]] == list(range(1, 11))
    assert found["delays"][0] == {"attempt": 1, "least_s": 2.5, "most_s": 7.5, "reached": True}
    assert [each["reached"] for each in found["delays"]] == [True] * 4 + [False] * 6


def test_no_limit_and_no_dead_letter_queue_are_said_in_words() -> None:
    """-1 and None are explained, not only printed."""
    output = run("--queue", "q", conf={"queues": {"#": {"max_delivery_attempts": -1, "dead_letter_queue": None}}}).output
    assert "-1 (no limit)" in output
    assert "none (discard)" in output
    assert "a message that fails for good is discarded" in output


def test_a_decorator_is_seen_through_the_app() -> None:
    """With an app, the task's own decorator is among the sources; a decorator with its own `wait` makes the delays unknown."""
    app = Celery("shop", set_as_current=False)

    @app.task(name="shop.charge", shared=False)
    @redeliver(wait=wait_fixed(3), stop=stop_after_attempt(4), delivery_delay=2)
    def charge() -> None:
        """Do nothing."""

    result = run("--queue", "q", "--task", "shop.charge", app=app)
    assert result.exit_code == 0
    assert row(result.output, "delivery_delay")[1:] == ["2 s", "decorator"]
    assert row(result.output, "max_delivery_attempts")[1:] == ["4", "decorator"]
    assert "wait=wait_fixed of the decorator decides" in result.output
    assert "after attempt" not in result.output
    found = json.loads(run("--queue", "q", "--task", "shop.charge", "--json", app=app).output)
    assert found["strategies"] == {"wait": "wait_fixed", "stop": "stop_after_attempt"}
    assert found["delays"] == []


def test_a_task_that_the_app_does_not_have_is_explained_from_the_settings() -> None:
    """The settings' rows for tasks need no task."""
    app = Celery("shop", set_as_current=False)
    assert "86400 s" in run("--queue", "q", "--task", "shop.charge", app=app).output


@pytest.mark.parametrize("rows", [{"#": {"max_redelivery_delay": 0.5}}, {"#": {"dead_letter_queue": "q"}}])
def test_settings_that_cannot_hold_are_one_line_and_exit_2(rows: dict[str, Any]) -> None:
    """There is no traceback."""
    result = run("--queue", "q", conf={"queues": rows})
    assert result.exit_code == 2
    assert result.output.startswith("redelivery: error: ")
    assert len(result.output.splitlines()) == 1


def test_a_missing_queue_is_a_usage_error() -> None:
    """`--queue` is required."""
    result = run()
    assert result.exit_code == 2
    assert "--queue" in result.output
