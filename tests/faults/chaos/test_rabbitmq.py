"""One bounded chaos run on RabbitMQ, and tests that its account detects each kind of fault."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pytest

from redelivery.middleware.brokers.rabbitmq.names import OUTCOMES
from tests.faults.chaos.plans.plan import Plan
from tests.faults.chaos.rabbit.account import Account, account
from tests.faults.chaos.rabbit.harness import RabbitRun
from tests.faults.chaos.rabbit.plan import BOUNDARIES
from tests.support.lanes import seed
from tests.support.running import Shop

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.rabbit import Node, Rabbit

SEED = seed()
#: Between all steps of a transition, and in each kind of process; `./dev chaos --broker rabbitmq` has the other boundaries.
CHOSEN = {
    *("worker:receive.after", "worker:confirm.before", "worker:defer.after", "worker:dead_letter.after", "worker:record.after"),
    *("worker:acknowledge.before", "worker:acknowledge.after", "worker:recover.after"),
    *("child:run.after", "producer:announce.after", "producer:publish.after", "redrive:redrive.after", "exporter:write.after"),
}
LIFE = ("t", 0, 0, "celery")


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_kill_between_any_two_steps_on_rabbitmq_loses_nothing_and_is_named(folder: Path, rabbit_node: Node) -> None:
    """Nothing is lost; each life that ended twice has a word in the account, and each repeated run an event in the log."""
    plan = Plan(SEED, 1, CHOSEN, BOUNDARIES)
    faults = ("cut", "swallow", "kill_group")
    run = RabbitRun(folder, SEED, plan, node=rabbit_node, faults=faults, pools=("threads", "prefork"))
    run.open()
    try:
        run.go(seconds=300)
        run.settle(300)
        made = run.judge()
    finally:
        run.close()
    again = f"again with: ./dev chaos --broker rabbitmq --seed {SEED}"
    assert not run.plan.missing, f"{run.plan.missing} were not hit; {again}"
    assert not made.faults, f"{made.faults[:10]}; {again}"
    assert made.lives > 40


def test_what_came_after_the_export_is_told_from_what_is_lost(folder: Path, rabbit: Rabbit) -> None:
    """Both were recorded and are in no export, but one is still in the log."""
    run = RabbitRun(folder, SEED, Plan(SEED, 0, ()), node=rabbit.node)
    run.fleet.rabbit = rabbit
    shop = Shop(cast("Any", rabbit), folder, conf={"broker_transport_options": {"confirm_publish": True}})
    task_id = shop.send("ok")
    (late,) = run._unexported(set())
    assert late.startswith(f"{task_id}: published was recorded, and is still in the log")
    with rabbit.connection() as connection:
        connection.default_channel.queue_purge(OUTCOMES)
    assert run._unexported(set()) == [f"{task_id}: published was recorded, and no export has it"]
    assert run._unexported({event.event_id for event in rabbit.events()}) == []


# the account


def recorded(*outcomes: str, **facts: Any) -> list[dict[str, Any]]:
    """These events of one life."""
    life = {"task_id": "t", "generation": 0, "queue": "celery", "reason": "", "delivery": 1}
    return [{**life, "event_id": str(at), "at_ms": at, "outcome": outcome, **facts} for at, outcome in enumerate(outcomes)]


def made_of(*outcomes: str, letters: int = 0, said: str = "published", died: str = "", runs: int = 1) -> Account:
    """The account of a task whose producer has noted this in its ledger, and died at that boundary."""
    ledger = [{"id": "t", "said": "asked", "pid": 7}, {"id": "t", "said": said, "pid": 7}]
    notes = [{"id": "t", "attempt": 1}] * runs
    return account(recorded(*outcomes), [LIFE] * letters, notes, ledger, {7: died} if died else {})


@pytest.mark.parametrize(
    ("outcomes", "facts"),
    [
        (["published", "succeeded"], {}),
        (["published", "dead_lettered"], {"letters": 1}),
        (["published", "dead_lettered", "purged"], {}),
        (["published", "dead_lettered"], {"letters": 2}),
        (["received", "succeeded"], {}),
    ],
)
def test_a_life_that_balances_has_no_word(outcomes: list[str], facts: dict[str, Any]) -> None:
    """It has one end, and a dead letter if it died; a dead letter that is in its queue twice is counted."""
    made = made_of(*outcomes, **facts)
    assert (made.words, made.faults, made.lives) == ({}, [], 1)
    assert made.twice == (facts.get("letters", 0) > 1)


def test_an_earlier_delivery_that_is_handed_over_again_is_no_resurrection() -> None:
    """The message died at its second delivery and its dead letter was purged; the first delivery is a copy that does not run."""
    events = recorded("published", "dead_lettered", "purged", "redelivery_scheduled")
    for event, delivery in zip(events, (0, 2, 0, 1), strict=True):
        event["delivery"] = delivery
    assert account(events, [], [], [], {}).words == {}


@pytest.mark.parametrize(
    ("word", "outcomes", "facts"),
    [
        ("duplicated", ["published", "succeeded", "succeeded"], {"runs": 2}),
        ("duplicated", ["published", "dead_lettered", "succeeded"], {"letters": 1}),
        ("orphaned", ["succeeded"], {}),
        ("phantom_dead_letter", ["published", "succeeded"], {"letters": 1}),
        ("phantom_dead_letter", ["published", "dead_lettered", "purged"], {"letters": 1}),
        ("never_sent", ["published"], {"said": "failed"}),
        ("never_sent", ["published"], {"said": "failed", "died": "announce.after"}),
    ],
)
def test_what_a_crash_may_leave_is_named_and_no_fault(word: str, outcomes: list[str], facts: dict[str, Any]) -> None:
    """The books must have the same word."""
    made = made_of(*outcomes, **facts)
    assert (made.words, made.faults) == ({LIFE: word}, [])
    made.compare({LIFE: "lost" if word == "never_sent" else word})
    assert made.faults == []
    made.compare({})
    assert made.faults == [f"{LIFE}: {'lost' if word == 'never_sent' else word} by this account, balanced in the books"]


@pytest.mark.parametrize(
    ("word", "outcomes", "facts"),
    [
        ("lost", ["published"], {}),
        ("lost", ["published"], {"said": "failed", "died": "publish.after"}),
        ("lost", ["published", "redelivery_scheduled"], {"said": "failed"}),
        ("missing_dead_letter", ["published", "dead_lettered"], {}),
        ("resurrected", ["published", "succeeded", "redelivery_scheduled"], {}),
    ],
)
def test_what_must_not_be_is_a_fault(word: str, outcomes: list[str], facts: dict[str, Any]) -> None:
    """Each publication that was answered must end; a message that went back after its end must end again."""
    made = made_of(*outcomes, **facts)
    assert made.words == {LIFE: word}
    assert len(made.faults) == 1
    assert word in made.faults[0]


def test_what_a_crash_put_back_after_its_end_is_named() -> None:
    """It has not ended again, but the history has the crash."""
    made = account(recorded("published", "succeeded", "redelivery_scheduled", reason="worker_lost"), [], [], [], {})
    assert (made.words, made.faults) == ({LIFE: "resurrected"}, [])


def test_the_original_of_what_has_ended_may_be_acknowledged_after_that() -> None:
    """It is recorded as delivered again under its own number; the delivery that ended is the next one."""
    ended = recorded("published", "redelivery_scheduled", "succeeded", delivery=2)
    known = [*ended, {**ended[1], "event_id": "late", "at_ms": 9, "delivery": 1, "reason": "worker_lost"}]
    assert account(known, [], [], [], {}).words == {}


def test_a_letter_of_a_life_that_nobody_recorded_is_named() -> None:
    """A command moved it and died before it recorded that."""
    made = account([], [LIFE], [], [], {})
    assert (made.words, made.faults) == ({LIFE: "phantom_dead_letter"}, [])


def test_a_repeat_that_nobody_names_is_a_fault() -> None:
    """It ran twice in one attempt, and neither the log nor the books say so."""
    (fault,) = made_of("published", "succeeded", runs=2).faults
    assert "nothing names it" in fault


def test_a_publication_that_was_answered_and_left_no_trace_is_a_fault() -> None:
    """Its event is recorded before the publication, so the books must know it."""
    made = account([], [], [], [{"id": "t", "said": "published", "pid": 7}], {})
    assert "the books do not know it" in made.faults[0]
