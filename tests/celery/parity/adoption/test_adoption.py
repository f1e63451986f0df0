"""Adoption: explicit options are told from Celery's defaults, coming changes are listed, and contradictions are refused."""

from __future__ import annotations

import json
import subprocess
import sys
import types
from typing import TYPE_CHECKING, Any

import pytest
from celery import Celery, Task

from redelivery import Redelivery, redeliver
from redelivery.middleware.child.task_defaults import UNSET, apply_defaults, explicit_app_setting, explicit_task_option
from redelivery.middleware.worker.startup.contradictions import contradictions
from redelivery.workers.operations.adoption.adoption import Change, adoption_of
from tests.support.running import ROOT, until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.running import Shop


def make(broker: str = "redis://localhost:1/0", **conf: Any) -> Celery:
    """An app that connects to nothing."""
    app = Celery("adoption", broker=broker, set_as_current=False)
    app.conf.update(conf)
    return app


def nothing() -> Callable[[], None]:
    """A new function that does nothing."""

    def nothing() -> None:
        pass

    return nothing


def finished(app: Celery, name: str = "t") -> Any:
    """An app whose tasks are all bound."""
    app.finalize(auto=True)
    return app.tasks[name]


@pytest.mark.parametrize(
    ("broker", "words"),
    [
        ("redis://localhost:1/0", "it runs again"),
        ("amqp://localhost:1", "it runs again"),
        ("memory://", "a worker that is killed loses it, as now"),
    ],
)
def test_what_a_crash_does_to_a_task_is_said_as_the_broker_has_it(broker: str, words: str) -> None:
    """If the broker forgets a message when it delivers it, late acknowledgement cannot bring the message back."""
    app = make(broker)
    app.task(shared=False, name="t")(nothing())
    finished(app)
    (row,) = adoption_of(Redelivery(app)).changes
    assert row.look_at[0].startswith(words)


@pytest.mark.parametrize("said", [True, False])
def test_what_a_task_says_is_told_from_what_celery_writes_into_it(*, said: bool) -> None:
    """An option, an attribute of a base and an annotation are explicit; a default that Celery copied is not."""
    app = make(task_annotations={"annotated": {"acks_late": said}})
    base = type("Base", (Task,), {"abstract": True, "acks_late": said})
    app.task(shared=False, name="t")(nothing())
    app.task(shared=False, name="option", acks_late=said)(nothing())
    app.task(shared=False, name="based", base=base)(nothing())
    app.task(shared=False, name="annotated")(nothing())
    finished(app)
    assert explicit_task_option(app.tasks["t"], "acks_late") is UNSET
    assert [explicit_task_option(app.tasks[name], "acks_late") for name in ("option", "based", "annotated")] == [said] * 3


def test_tasks_that_were_bound_before_redelivery_are_settled_all_the_same() -> None:
    """If the app was finalised first, a default that Celery has copied to a task is still not explicit."""
    app = make()
    app.task(shared=False, name="t")(nothing())
    app.task(shared=False, name="early", acks_late=False)(nothing())
    finished(app)
    Redelivery(app)
    for task in app.tasks.values():
        apply_defaults(task)
    assert app.tasks["t"].acks_late is True
    assert app.tasks["t"].reject_on_worker_lost is True
    assert app.tasks["early"].acks_late is False


def test_what_an_app_says_wins_over_our_needs() -> None:
    """`task_acks_late=False` is found in a configuration object, with a namespace, and in old and new setting names."""
    settings = types.SimpleNamespace(CELERY_TASK_ACKS_LATE=False)
    spaced, plain, old = make(), make(), make()
    spaced.config_from_object(settings, namespace="CELERY")
    plain.config_from_object({"task_acks_late": False})
    old.config_from_object({"CELERY_ACKS_LATE": False})
    for app in (spaced, plain, old):
        Redelivery(app)
        app.task(shared=False, name="t")(nothing())
        assert explicit_app_setting(app, "task_acks_late") is False
        apply_defaults(finished(app))
        assert app.tasks["t"].acks_late is False
    assert explicit_app_setting(make(), "task_acks_late") is UNSET


def test_redelivery_configures_and_finalises_nothing() -> None:
    """Configuration that comes later still counts."""
    app = Celery("lazy", broker="redis://localhost:1/0", set_as_current=False)
    install = Redelivery(app)
    assert not app.configured
    assert not app.finalized
    app.config_from_object({"redelivery": {"queues": {"#": {"max_delivery_attempts": 7}}}})
    assert install.policy_for("celery").max_delivery_attempts == 7
    assert app.conf.task_acks_late is False


# what contradicts


@pytest.mark.parametrize(
    ("conf", "words"),
    [
        ({"task_reject_on_worker_lost": False}, ("task_reject_on_worker_lost = False", "remove the setting")),
        ({"task_acks_on_failure_or_timeout": False}, ("task_acks_on_failure_or_timeout = False", "remove the setting")),
        ({"task_acks_on_failure": False}, ("task_acks_on_failure = False", "remove the setting")),
        ({"task_retry_on_worker_lost": True}, ("task_retry_on_worker_lost = True", "run twice")),
        (
            {"worker_cancel_long_running_tasks_on_connection_loss": True},
            ("worker_cancel_long_running_tasks_on_connection_loss", "remove"),
        ),
        ({"task_protocol": 1}, ("task_protocol = 1", "set it to 2")),
        ({"broker_read_url": "redis://localhost:2/0"}, ("broker_read_url and broker_write_url differ", "set broker_url alone")),
        ({"broker_url": "redis://localhost:1/0;redis://localhost:2/0"}, ("several servers", "Sentinel")),
        ({"broker_url": "qpid://"}, ("is not supported by redelivery", "virtual transport")),
        ({"broker_url": "radis://localhost"}, ("broker_url cannot be used", "radis")),
        ({"broker_transport_options": {"ack_emulation": False}}, ("ack_emulation", "remove it")),
        ({"task_queues": {"celery": {}, "fast": {"no_ack": True}}}, ("queue 'fast': no_ack=True", "enabled = false")),
    ],
    ids=lambda each: next(iter(each)) if isinstance(each, dict) else "",
)
def test_a_setting_that_breaks_a_guarantee_is_named_with_its_fix(conf: dict[str, Any], words: tuple[str, ...]) -> None:
    """One line each."""
    app = make(**conf)
    found = contradictions(Redelivery(app))
    assert len(found) == 1
    for word in words:
        assert word in found[0]


@pytest.mark.parametrize(
    "conf",
    [
        {},
        {"task_acks_late": False},
        {"task_acks_late": True, "task_reject_on_worker_lost": True},
        {"broker_transport_options": {"visibility_timeout": 60}},
        {"task_queues": {"all": {"no_ack": True, "exchange": "all", "exchange_type": "fanout"}}},
        {"broker_url": "sentinel://localhost:1;sentinel://localhost:2", "broker_transport_options": {"master_name": "m"}},
    ],
)
def test_a_setting_that_breaks_nothing_is_not_refused(conf: dict[str, Any]) -> None:
    """Only guarantees are a reason to refuse."""
    assert contradictions(Redelivery(make(**conf))) == []


def test_an_option_of_a_task_is_refused_as_the_setting_is_but_where_the_task_is_not_enabled() -> None:
    """The line names the task."""
    app = make()
    app.task(shared=False, name="t", acks_on_failure_or_timeout=False)(nothing())
    app.task(shared=False, name="off", acks_on_failure_or_timeout=False)(nothing())
    install = Redelivery(app, {"tasks": {"off": {"enabled": False}}})
    finished(app)
    assert [line.partition(":")[0] for line in contradictions(install)] == ["task 't'"]


def test_an_observing_worker_refuses_no_setting_of_celerys() -> None:
    """It changes nothing, so nothing contradicts it, except a broker on which it cannot record."""
    app = make(task_reject_on_worker_lost=False, task_acks_on_failure_or_timeout=False)
    assert contradictions(Redelivery(app, mode="observe")) == []
    assert "is not supported by redelivery" in contradictions(Redelivery(make(broker="qpid://"), mode="observe"))[0]


def test_a_worker_says_each_contradiction_in_one_line_and_ends_with_1(shop: Callable[..., Shop]) -> None:
    """There is no traceback, and the messages in the queue stay there."""
    here = shop(conf={"task_reject_on_worker_lost": False, "task_protocol": 1})
    here.server.client.lpush("celery", b"waits")
    worker = here.start(wait=False)
    until(lambda: worker.process.poll() is not None, what="the worker to end")
    lines = [line for line in worker.text.splitlines() if line.startswith("redelivery: error: ")]
    assert worker.process.returncode == 1
    assert len(lines) == 2
    assert "Traceback" not in worker.text
    assert here.server.client.lrange("celery", 0, -1) == [b"waits"]


# what will change


@pytest.fixture
def install() -> Redelivery:
    """An app with a task of each kind."""
    app = make(task_routes={"routed": {"queue": "orders"}}, task_reject_on_worker_lost=False)
    app.task(shared=False, name="plain")(nothing())
    app.task(shared=False, name="early", acks_late=False)(nothing())
    app.task(shared=False, name="routed", acks_late=True)(nothing())
    app.task(shared=False, name="auto", autoretry_for=(KeyError,), max_retries=2)(nothing())
    app.task(shared=False, name="endless", max_retries=None)(nothing())
    app.task(shared=False, name="timed", time_limit=30, soft_time_limit=20)(nothing())
    app.task(shared=False, name="off")(redeliver(enabled=False)(nothing()))
    settings = {"queues": {"#": {"max_delivery_attempts": 5, "redelivery_delay": 2}, "orders": {"max_delivery_attempts": 20}}}
    return Redelivery(app, settings)


def changes(install: Redelivery) -> dict[str, Change]:
    """The listed changes, by the task's name."""
    return {change.task: change for change in adoption_of(install).changes}


def test_each_task_is_listed_with_what_will_change(install: Redelivery) -> None:
    """Celery's own tasks are not listed."""
    found = changes(install)
    assert sorted(found) == ["auto", "early", "endless", "off", "plain", "routed", "timed"]
    assert found["plain"].acks_late == (False, True)
    assert found["early"].acks_late == (False, False)
    assert found["routed"].acks_late == (True, True)
    assert (found["routed"].queue, found["routed"].attempts, found["routed"].dead_letter_queue) == ("orders", 20, "DLQ.orders")
    assert found["plain"].delays == "5 attempts, 2 s x 2 up to 600 s"
    assert found["auto"].autoretry_for == ("KeyError",)
    assert list(found["timed"].time_limits) == [20, 30]
    assert [found["off"].enabled, *found["off"].acks_late, found["off"].dead_letter_queue] == [False, False, False, None]


@pytest.mark.parametrize(
    ("task", "words"),
    [
        ("plain", "make it idempotent"),
        ("early", "acks_late=False is kept"),
        ("auto", "its limit is 3 attempts, and the policy's 5: its own max_retries stops it"),
        ("endless", "until now it retried forever; now it stops after 5 attempts"),
        ("timed", "a hard time limit counts as an attempt"),
    ],
)
def test_what_a_person_must_look_at_is_said(install: Redelivery, task: str, words: str) -> None:
    """Each task has a sentence about what a person must check."""
    assert any(words in line for line in changes(install)[task].look_at)


def test_nothing_changes_where_redelivery_only_observes() -> None:
    """The values before and after are equal."""
    app = make()
    app.task(shared=False, name="t")(nothing())
    found = changes(Redelivery(app, mode="observe"))["t"]
    assert (found.acks_late, found.rejects_when_lost, found.dead_letter_queue, found.look_at) == (
        (False, False),
        (False, False),
        None,
        (),
    )


APP = """
from celery import Celery
from redelivery import Redelivery
app = Celery("shop", broker="redis://localhost:1/0")
app.conf.task_retry_on_worker_lost = True
Redelivery(app)
@app.task(name="shop.charge", autoretry_for=(OSError,), max_retries=2)
def charge(): ...
@app.task(name="shop.mail", acks_late=False)
def mail(): ...
"""


def adopt(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """`redelivery adopt` on an app, as a user runs it; no broker is running."""
    (folder / "adopt_me.py").write_text(APP)
    command = [sys.executable, "-m", "redelivery", "-A", "adopt_me", "adopt", *words]
    return subprocess.run(command, cwd=folder, env={"PYTHONPATH": f"{folder}:{ROOT}"}, capture_output=True, text=True, check=True)


def test_the_command_shows_a_table_and_what_to_look_at(tmp_path: Path) -> None:
    """For a person."""
    shown = adopt(tmp_path).stdout
    assert "1\tcelery\tfalse -> true\t2\t" in shown
    assert "1\tcelery\tfalse\t" in shown
    assert [line.split("\t")[-1] for line in shown.splitlines() if line.startswith("1\t")] == ["shop.charge", "shop.mail"]
    assert "look at  shop.mail: acks_late=False is kept" in shown
    assert "REFUSED  task_retry_on_worker_lost = True" in shown
    assert shown.splitlines()[-1] == "2 tasks; no worker starts before 1 line above is corrected."


def test_the_command_prints_json(tmp_path: Path) -> None:
    """For a program."""
    shown = json.loads(adopt(tmp_path, "--json").stdout)
    assert [each["task"] for each in shown["tasks"]] == ["shop.charge", "shop.mail"]
    assert shown["tasks"][0]["acks_late"] == {"now": False, "then": True}
    assert len(shown["refused"]) == 1
    assert shown["mode"] == "enforce"
