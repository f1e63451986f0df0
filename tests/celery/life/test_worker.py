"""A failing task's way through real workers, on the prefork, threads and solo pools."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import pytest
from celery.exceptions import TaskRevokedError

from redelivery.middleware.messages.envelope import Envelope
from tests.support.lanes import first_quick
from tests.support.running import until

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.running import Shop

POOLS = pytest.mark.parametrize("pool", first_quick(["prefork", "threads", "solo"]))


@POOLS
def test_a_task_that_fails_is_redelivered_until_it_succeeds(shop: Callable[..., Shop], pool: str) -> None:
    """Each attempt runs once, later than its delay, under one task id, and every step is recorded."""
    here = shop()
    here.start(pool=pool)
    task_id = here.send("fails", 2)
    here.ended(task_id, "succeeded")
    assert here.outcomes_of(task_id) == ["published", "redelivery_scheduled", "redelivery_scheduled", "succeeded"]
    assert [run["attempt"] for run in here.runs(task_id)] == [1, 2, 3]
    scheduled = [event for event in here.events_of(task_id) if event.outcome == "redelivery_scheduled"]
    for event, run in zip(scheduled, here.runs(task_id)[1:], strict=True):
        assert event.due_ms is not None
        assert run["at"] * 1000 >= event.due_ms
    assert here.leftovers() == {}


@POOLS
def test_a_task_that_keeps_failing_dies_into_its_dead_letter_queue(shop: Callable[..., Shop], pool: str) -> None:
    """The letter is the original message, with its death record, and can be read by anybody."""
    here = shop()
    here.start(pool=pool)
    task_id = here.send("fails", headers={"tenant": "t1"})
    death = here.ended(task_id, "dead_lettered")
    assert (death.reason, death.attempt, death.exception) == ("exhausted", 3, "RuntimeError")
    (letter,) = here.letters()
    envelope = Envelope.of(letter["headers"])
    assert letter["headers"]["id"] == task_id
    assert letter["headers"]["tenant"] == "t1"
    assert envelope.origin == {"queue": "celery", "exchange": "", "routing_key": "celery"}
    assert [each["exception"] for each in envelope.attempts] == ["RuntimeError: no"] * 3
    assert [(each["queue"], each["reason"], each["count"]) for each in envelope.deaths] == [("celery", "exhausted", 1)]
    assert envelope.failure is not None
    assert "raise RuntimeError(message)" in envelope.failure["traceback"]
    assert len(here.runs(task_id)) == 3
    assert here.leftovers() == {}


def test_only_the_failed_message_waits(shop: Callable[..., Shop]) -> None:
    """Messages that come later flow past it (Artemis A1)."""
    here = shop(settings={"queues": {"#": {"redelivery_delay": 2}}})
    here.start("--prefetch-multiplier", "1", pool="solo")
    failing = here.send("fails", 1)
    here.ended(failing, "redelivery_scheduled")
    later = here.send("ok")
    here.ended(later, "succeeded", 1.5)
    here.ended(failing, "succeeded")


@pytest.mark.parametrize(
    ("what", "outcomes", "reason", "attempts"),
    [
        ("dead_letter", ["published", "dead_lettered"], "non_retryable", 1),
        ("reject", ["published", "dead_lettered"], "rejected", 1),
        ("requeue", ["published", "redelivery_scheduled", "redelivery_scheduled", "dead_lettered"], "rejected", 3),
        ("ignore", ["published", "ignored"], "", 1),
        ("after", ["published", "redelivery_scheduled", "redelivery_scheduled", "dead_lettered"], "exhausted", 3),
    ],
)
def test_what_a_task_raises_decides(shop: Callable[..., Shop], what: str, outcomes: list[str], reason: str, attempts: int) -> None:
    """Our two exceptions, and Celery's exceptions with their usual meaning."""
    here = shop()
    here.start(pool="solo")
    task_id = here.send("raises", what)
    end = here.ended(task_id, outcomes[-1])
    assert here.outcomes_of(task_id) == outcomes
    assert (end.reason, len(here.runs(task_id))) == (reason, attempts)


def test_the_detail_of_a_raised_dead_letter_is_kept(shop: Callable[..., Shop]) -> None:
    """The text of `raise DeadLetter("card stolen")` is in the dead letter."""
    here = shop()
    here.start(pool="solo")
    here.ended(here.send("raises", "dead_letter"), "dead_lettered")
    failure = Envelope.of(here.letters()[0]["headers"]).failure
    assert failure is not None
    assert "card stolen" in failure["message"]


@pytest.mark.parametrize("pool", first_quick(["prefork", "solo", "threads"]))
def test_a_raised_dead_letter_is_a_warning_in_one_line(shop: Callable[..., Shop], pool: str) -> None:
    """The task decided that itself, so it is no error; the line names the task, its id and the exception."""
    here = shop()
    worker = here.start(pool=pool)
    task_id = here.send("raises", "dead_letter")
    here.ended(task_id, "dead_lettered")
    name = "tests.support.shop.raises"
    until(lambda: "message.dead_lettered" in worker.text)
    [told] = [line for line in worker.text.splitlines() if "gave up its message" in line]
    assert "WARNING" in told
    assert told.endswith(f"Task {name}[{task_id}] gave up its message: DeadLetter('card stolen')")
    [moved] = [line for line in worker.text.splitlines() if "message.dead_lettered" in line]
    for part in (f"task={name}", f"task_id={task_id}", "exception=redelivery.DeadLetter", "reason=non_retryable"):
        assert part in moved
    assert "Traceback" not in worker.text


def test_a_tasks_own_retry_is_carried_out_as_a_move_and_stops_at_its_own_limit(shop: Callable[..., Shop]) -> None:
    """`self.retry` with `max_retries=2` runs three times; no new message is published."""
    here = shop(settings={"queues": {"#": {"max_delivery_attempts": 10}}})
    here.start(pool="solo")
    task_id = here.send("retries")
    end = here.ended(task_id, "dead_lettered")
    assert here.outcomes_of(task_id) == ["published", "redelivery_scheduled", "redelivery_scheduled", "dead_lettered"]
    assert (end.reason, [run["attempt"] for run in here.runs(task_id)]) == ("exhausted", [1, 2, 3])


def test_autoretry_for_goes_the_same_way(shop: Callable[..., Shop]) -> None:
    """`autoretry_for` keeps Celery's own limits."""
    here = shop(settings={"queues": {"#": {"max_delivery_attempts": 10}}})
    here.start(pool="solo")
    task_id = here.send("autoretries")
    here.ended(task_id, "dead_lettered")
    assert [run["attempt"] for run in here.runs(task_id)] == [1, 2, 3, 4]


def test_a_policy_on_the_task_beats_the_queues(shop: Callable[..., Shop]) -> None:
    """`@redeliver(max_delivery_attempts=2)` under a queue that allows three."""
    here = shop()
    here.start(pool="solo")
    task_id = here.send("decorated")
    here.ended(task_id, "dead_lettered")
    assert len(here.runs(task_id)) == 2


def test_tenacitys_strategies_decide_across_deliveries(shop: Callable[..., Shop]) -> None:
    """A result that `retry_if_result` refuses is delivered again after `wait`, until `stop`; the broker does the waiting."""
    here = shop()
    here.start()
    patient, hopeless = here.send("polls", 2), here.send("polls", 99)
    here.ended(patient, "succeeded")
    assert [run["attempt"] for run in here.runs(patient)] == [1, 2, 3]
    end = here.ended(hopeless, "dead_lettered")
    assert (end.reason, end.exception.rpartition(".")[2], len(here.runs(hopeless))) == ("exhausted", "ResultRefused", 4)
    delays = [event.delay_ms for event in here.events_of(hopeless) if event.outcome == "redelivery_scheduled"]
    assert delays == [100, 200, 400]


def test_a_queue_without_dead_letters_discards_and_says_so(shop: Callable[..., Shop]) -> None:
    """`dead_letter_queue=None` is Artemis's missing address: removed after the last attempt, and recorded."""
    here = shop(settings={"queues": {"#": {"max_delivery_attempts": 1, "dead_letter_queue": None}}})
    here.start(pool="solo")
    end = here.ended(here.send("fails"), "discarded")
    assert end.reason == "exhausted"
    assert here.letters() == []
    assert here.leftovers() == {}


def test_a_producer_may_say_that_a_message_is_not_to_be_kept(shop: Callable[..., Shop]) -> None:
    """The producer's eligibility header (Solace S5) decides."""
    here = shop()
    here.start(pool="solo")
    end = here.ended(here.send("raises", "dead_letter", headers={"redelivery-dead-letter-eligible": False}), "discarded")
    assert end.reason == "not_eligible"
    assert here.letters() == []


def test_early_acknowledgement_stays_the_authors_choice(shop: Callable[..., Shop]) -> None:
    """`acks_late=False` is kept: acknowledged before it runs, its outcome recorded when it ends; a failure is redelivered."""
    here = shop()
    here.start(pool="prefork")
    fine, failing = here.send("early"), here.send("early", kwargs={"fail": True})
    here.ended(fine, "succeeded")
    here.ended(failing, "dead_lettered")
    assert len(here.runs(fine)) == 1
    assert [run["attempt"] for run in here.runs(failing)] == [1, 2, 3]
    assert here.leftovers() == {}


@pytest.mark.parametrize("pool", first_quick(["prefork", "threads"]))
def test_the_caller_sees_what_celery_would_show(shop: Callable[..., Shop], pool: str) -> None:
    """RETRY in between, then the result or the original exception."""
    here = shop(backend=True)
    here.start(pool=pool)
    fine = here.app.AsyncResult(here.send("fails", 1))
    failing = here.app.AsyncResult(here.send("fails"))
    assert fine.get(timeout=120) == "at last"
    with pytest.raises(RuntimeError, match="no"):
        failing.get(timeout=120)


@pytest.mark.parametrize(("settings", "target"), [({}, "DLQ.celery"), ({"expiry_queue": "expired"}, "expired")])
def test_an_expired_message_is_a_death(shop: Callable[..., Shop], settings: dict[str, Any], target: str) -> None:
    """Celery would drop it. Here it is kept, and its caller gets Celery's own error."""
    here = shop(settings={"queues": {"#": settings}}, backend=True)
    task_id = here.send("ok", expires=0.2)
    sent = here.server.now_ms()
    until(lambda: here.server.now_ms() > sent + 200, what="its time to live to pass before a worker looks")
    here.start()
    end = here.ended(task_id, "dead_lettered")
    assert (end.reason, here.runs(task_id)) == ("expired", [])
    assert [letter["headers"]["id"] for letter in here.letters(target)] == [task_id]
    with pytest.raises(TaskRevokedError):
        here.app.AsyncResult(task_id).get(timeout=120)


@POOLS
def test_a_short_countdown_is_waited_for_in_the_worker(shop: Callable[..., Shop], pool: str) -> None:
    """Below the threshold the message stays with its worker, and is not early there either."""
    here = shop()
    here.start(pool=pool)
    sent = time.time()
    task_id = here.send("ok", countdown=0.9)
    here.ended(task_id, "succeeded")
    assert here.runs(task_id)[0]["at"] - sent >= 0.9
    assert "deferred" not in here.outcomes_of(task_id)


def test_an_exception_object_that_many_tasks_raise_decides_for_each_anew(shop: Callable[..., Shop]) -> None:
    """The decision about one task's last attempt must not be applied to another task's first attempt."""
    here = shop()
    here.start(concurrency=1)
    for task_id in [here.send("shares"), here.send("shares")]:
        here.ended(task_id, "dead_lettered")
        assert [run["attempt"] for run in here.runs(task_id)] == [1, 2, 3]


@POOLS
def test_a_message_with_a_countdown_waits_on_the_broker(shop: Callable[..., Shop], pool: str) -> None:
    """The worker holds nothing meanwhile, and the task runs on time, by the server's clock."""
    here = shop()
    here.start(pool=pool)
    task_id = here.send("ok", countdown=2)
    deferred = here.ended(task_id, "deferred")
    assert here.leftovers() == {"delayed": 1}
    here.ended(task_id, "succeeded")
    (run,) = here.runs(task_id)
    assert deferred.due_ms is not None
    assert deferred.due_ms <= run["at"] * 1000 <= deferred.due_ms + 1000


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"\xff\xfe garbage", "undecodable"),
        (b'{"body": "e30=", "headers": null, "properties": null}', "undecodable"),
        (b'["a", "list"]', "undecodable"),
        (
            json.dumps(
                {
                    "body": "bm90IGpzb24=",
                    "content-type": "application/json",
                    "content-encoding": "utf-8",
                    "headers": {"task": "tests.support.shop.ok", "id": "x1"},
                    "properties": {"delivery_tag": "t", "body_encoding": "base64", "delivery_info": {}},
                }
            ).encode(),
            "undecodable",
        ),
        (
            json.dumps(
                {
                    "body": "e30=",
                    "content-type": "application/json",
                    "content-encoding": "utf-8",
                    "headers": {"task": "tests.support.shop.ok"},
                    "properties": {"delivery_tag": "t", "body_encoding": "base64", "delivery_info": {}},
                }
            ).encode(),
            "invalid",
        ),
        (
            json.dumps(
                {
                    "body": "W10=",
                    "content-type": "application/json",
                    "content-encoding": "utf-8",
                    "headers": {"task": "tests.support.shop.ok", "id": "x2"},
                    "properties": {"delivery_tag": "t", "body_encoding": "base64", "delivery_info": {}},
                }
            ).encode(),
            "invalid",
        ),
        (
            json.dumps(
                {
                    "body": "W1tdLCB7fSwge31d",
                    "content-type": "application/json",
                    "content-encoding": "utf-8",
                    "headers": {"task": "no.such.task", "id": "x3"},
                    "properties": {"delivery_tag": "t", "body_encoding": "base64", "delivery_info": {}},
                }
            ).encode(),
            "unknown_task",
        ),
    ],
    ids=["garbage", "null-headers", "list", "body-no-json", "no-id", "body-no-triple", "unknown-task"],
)
def test_what_cannot_be_run_goes_to_the_dead_letter_queue_and_the_worker_lives(
    shop: Callable[..., Shop], raw: bytes, reason: str
) -> None:
    """Celery would drop it, loop on it, or die of it."""
    here = shop()
    worker = here.start()
    here.server.client.lpush("celery", raw)
    letters = until(here.letters, 20, f"a letter; the worker says {worker.text[-2000:]}")
    (death,) = Envelope.of(letters[0]["headers"]).deaths
    assert death["reason"] == reason
    assert [(event.outcome, event.reason) for event in here.events] == [("received", "unannounced"), ("dead_lettered", reason)]
    assert len({event.task_id for event in here.events}) == 1
    here.ended(here.send("ok"), "succeeded")
    assert here.leftovers() == {}


def test_lines_that_a_task_writes_carry_its_attempt(shop: Callable[..., Shop]) -> None:
    """Task id, attempt, queue and generation are bound while a task runs, and gone after it."""
    here = shop()
    worker = here.start(pool="threads")
    task_id = here.send("logs")
    here.ended(task_id, "succeeded")
    line = next(line for line in worker.text.splitlines() if "written by a task" in line)
    for word in (task_id, "attempt=1", "queue=celery", "generation=0"):
        assert word in line, line


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_a_task_that_is_loaded_into_a_running_worker_is_redelivered_and_dies(shop: Callable[..., Shop], pool: str) -> None:
    """`pool_restart` imports a module: its tasks have the same guarantees as those that were there at the start."""
    here = shop(conf={"worker_pool_restarts": True})
    here.start(pool=pool, concurrency=1)
    ask = here.app.control.inspect(timeout=2, limit=1)

    def processes() -> Any:
        """Those of the pool; a worker answers when it listens."""
        return until(lambda: [each["pool"].get("processes") for each in (ask.stats() or {}).values()], what="an answer")

    before = processes()
    (here.folder / "loaded.py").write_text(
        "from tests.support.shop import app\n"
        '@app.task(name="tests.support.shop.loaded")\n'
        "def loaded():\n"
        '    raise RuntimeError("no")\n'
    )
    (answer,) = here.app.control.broadcast("pool_restart", arguments={"modules": ["loaded"]}, reply=True, timeout=30, limit=1)
    assert list(answer.values()) == [{"ok": "reload started"}]
    if pool == "prefork":  # the old process does not know the task
        until(lambda: processes() != before, what="a new process")
    task_id = here.send("loaded")
    assert here.ended(task_id, "dead_lettered").reason == "exhausted"
    assert here.outcomes_of(task_id) == ["published", "redelivery_scheduled", "redelivery_scheduled", "dead_lettered"]
    assert len(here.letters()) == 1
