"""Our worker answers every command of remote control as a plain one does.

The effects of the commands are tested in `test_control.py`, and on each pool in `test_pools.py` and `test_shutdown.py`. Here the
two workers of a trial, each on its own broker, get the same commands.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

from celery.worker.control import Panel

from tests.support.running import until
from tests.support.trials.trial import answer, step

if TYPE_CHECKING:
    from tests.support.trials.trial import Side, Trial

TASK = "tests.support.trials.celery_app.play"
#: Command, arguments, and the form of the answer that is compared: all of it, or the names of what a mapping holds.
ASKED: list[tuple[str, dict[str, Any], str]] = [
    ("ping", {}, "all"),
    ("clock", {}, "names"),
    ("report", {}, "names"),
    ("stats", {}, "names"),
    ("registered", {}, "all"),
    ("registered", {"taskinfoitems": ["rate_limit", "max_retries"]}, "all"),
    ("active_queues", {}, "all"),
    ("active", {}, "all"),
    ("reserved", {}, "all"),
    ("query_task", {"ids": ["nobody"]}, "all"),
    ("conf", {}, "names"),
    ("hello", {"from_node": "other@shop"}, "names"),
    ("heartbeat", {}, "all"),
    ("enable_events", {}, "all"),
    ("enable_events", {}, "all"),
    ("disable_events", {}, "all"),
    ("disable_events", {}, "all"),
    ("rate_limit", {"task_name": TASK, "rate_limit": "1000/s"}, "all"),
    ("rate_limit", {"task_name": TASK, "rate_limit": "often"}, "all"),
    ("rate_limit", {"task_name": "nothing", "rate_limit": "1/s"}, "all"),
    ("rate_limit", {"task_name": TASK, "rate_limit": None}, "all"),
    ("time_limit", {"task_name": TASK, "hard": 100, "soft": 90}, "all"),
    ("time_limit", {"task_name": TASK}, "all"),
    ("time_limit", {"task_name": "nothing", "hard": 1}, "all"),
    ("pool_grow", {"n": 1}, "all"),
    ("pool_shrink", {"n": 1}, "all"),
    ("pool_restart", {}, "all"),
    ("autoscale", {"max": 3, "min": 1}, "all"),
    ("add_consumer", {"queue": "also", "exchange": "also", "exchange_type": "direct", "routing_key": "too"}, "all"),
    ("add_consumer", {"queue": "also"}, "all"),
    ("active_queues", {}, "all"),
    ("cancel_consumer", {"queue": "also"}, "all"),
    ("election", {"id": "e", "topic": "t"}, "all"),
    ("revoke", {"task_id": "revoked-elsewhere"}, "all"),
    ("terminate", {"task_id": "revoked-elsewhere", "signal": "KILL"}, "all"),
    ("revoke_by_stamped_headers", {"headers": {"customer": ["nobody"]}}, "all"),
    ("memsample", {}, "type"),
]
#: Of the worker's own life, shown elsewhere with its effect: `scheduled`, `revoked` and `shutdown`; `objgraph` and `memdump` look
#: at the memory of a worker with tools that are not installed.
ELSEWHERE = {"scheduled", "revoked", "shutdown", "objgraph", "memdump"}


def form(said: Any, kind: str) -> Any:
    """The part of an answer that must be the same on two workers."""
    if kind == "names":
        return sorted(said) if isinstance(said, dict) else said
    return type(said).__name__ if kind == "type" else said


def is_idle(side: Side) -> None:
    """Wait until nothing runs on the side's worker."""
    until(lambda: answer(side, "active", {}) == [], what="nothing to run")


def test_every_command_of_celerys_is_asked_somewhere() -> None:
    """A command that a later Celery adds makes this test fail."""
    known = {name for name, handler in Panel.data.items() if handler.__module__ == "celery.worker.control"}
    aliases = {
        "dump_active",
        "dump_conf",
        "dump_reserved",
        "dump_revoked",
        "dump_schedule",
        "dump_tasks",
        "list_registered",
        "meminfo",
    }
    assert {command for command, *_ in ASKED} | ELSEWHERE >= known - aliases


def test_our_worker_answers_as_a_plain_one(stored: Trial) -> None:
    """Each command on each pool, with valid and invalid arguments, gets the same answer in Celery's own words."""
    for command, arguments, kind in ASKED:
        if command in {"pool_shrink", "active"}:
            for side in stored.sides:
                is_idle(side)
        plain, ours = (form(answer(side, command, arguments), kind) for side in stored.sides)
        if command == "conf":
            plain = sorted({*plain, "redelivery"} - {"task_acks_late", "task_reject_on_worker_lost"})
            ours = sorted({*ours} - {"task_acks_late", "task_reject_on_worker_lost"})
        assert ours == plain, f"{command} {arguments}"
        if command == "add_consumer":  # it says so before it consumes
            until(lambda: all("also" in str(answer(side, "active_queues", {})) for side in stored.sides), what="the new queue")


def test_a_running_task_is_shown_as_on_a_plain_worker(stored: Trial) -> None:
    """`query_task` and `active`: the same fields, the same values where the message is the same. Solo answers between two tasks."""
    gates = [f"shown-{uuid.uuid4()}" for _ in stored.sides]
    ids = [side.play(step("wait", gate=gate), task="hooked", priority=6) for side, gate in zip(stored.sides, gates, strict=True)]
    shown = []
    for side, task_id, gate in zip(stored.sides, ids, gates, strict=True):
        side.noted(task_id, "run")
        if stored.pool == "solo":
            (side.folder / f"gate-{gate}").touch()
            shown.append((answer(side, "query_task", {"ids": [task_id]}), answer(side, "active", {})))
            continue
        state, entry = answer(side, "query_task", {"ids": [task_id]})[task_id]
        assert state == "active"
        assert [each["id"] for each in answer(side, "active", {})] == [task_id]
        own = {"id", "time_start", "worker_pid", "args"}
        shown.append((sorted(entry), {key: value for key, value in entry.items() if key not in own}))
        (side.folder / f"gate-{gate}").touch()
    assert shown[0] == shown[1]
    for side, task_id in zip(stored.sides, ids, strict=True):
        side.state(task_id, "SUCCESS")
