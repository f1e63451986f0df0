"""On RabbitMQ a worker may die after it published a message's successor and before it acknowledged the message: one goes on."""

from __future__ import annotations

import signal
import time
from collections import Counter
from typing import TYPE_CHECKING, Any, cast

import amqp
import pytest
from structlog.testing import capture_logs
from webhooks.rabbit_node import USER

from redelivery.middleware.brokers.rabbitmq.journal import reader as amqp_journal
from redelivery.middleware.brokers.rabbitmq.journal.entries import (
    HAS_ENDED,
    HAS_MOVED,
    IS_MOVING,
    IS_TURNING,
    IS_UNRECORDED,
    Moved,
    digest_of,
    entry,
    moved_of,
)
from redelivery.middleware.brokers.rabbitmq.journal.reader import Journal
from redelivery.middleware.brokers.rabbitmq.messages import message_of
from redelivery.middleware.brokers.rabbitmq.names import JOURNAL
from redelivery.middleware.brokers.rabbitmq.topology import declare_journal
from redelivery.middleware.messages.events import Outcome
from redelivery.middleware.messages.recording import about
from redelivery.middleware.messages.steps import dead, deferred, redelivered, redriven, released, sealed
from redelivery.middleware.ports import Successor
from tests.support.desk import task_message
from tests.support.lanes import first_quick
from tests.support.rabbit import TAP
from tests.support.running import Shop, until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from redelivery.middleware.messages.events import Event
    from tests.support.rabbit import Rabbit

POLICY = {"redelivery_delay": 0.1, "redelivery_delay_multiplier": 1.0, "max_delivery_attempts": 2}
QUORUM = {"task_default_queue_type": "quorum", "task_create_missing_queue_type": "quorum"}
KNOWN = "event=message.moved_already"


@pytest.fixture(params=first_quick(["classic", "quorum"]))
def here(request: pytest.FixtureRequest, rabbit: Rabbit, folder: Path) -> Iterator[Shop]:
    """A shop on each type of queue."""
    conf: dict[str, Any] = {"broker_transport_options": {"confirm_publish": True}}
    conf |= QUORUM if request.param == "quorum" else {}
    shop = Shop(
        cast("Any", rabbit), folder, settings={"queues": {"#": POLICY}}, conf=conf, module="tests.support.rabbitmq.fork_shop"
    )
    yield shop
    shop.stop()


@pytest.fixture
def dying(here: Shop, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Starts a worker that dies at a step, the `times`-th time, after it was given a named task, if any; returns the task's id."""

    def die(order: str, task: str = "", *args: Any, times: int = 1, queues: str = "celery") -> str:
        with monkeypatch.context() as patch:
            patch.setenv("CHAOS_KILLS", str(here.folder / "kills"))
            patch.setenv("CHAOS_ORDER", f"{order}:{times}")
            worker = here.start("-Q", queues, pool="threads")
        task_id = str(here.app.send_task(f"tests.support.shop.{task}", args).id) if task else ""
        assert worker.process.wait(60) == -signal.SIGKILL, worker.text[-3000:]
        return task_id

    return die


def quiet(shop: Shop) -> None:
    """Wait until the broker has been empty for so long that no message can still be in transit."""
    since, deadline = time.monotonic(), time.monotonic() + 90
    while time.monotonic() < since + 2:
        since = time.monotonic() if shop.leftovers() else since
        assert since < deadline, shop.leftovers()
        time.sleep(0.1)  # the broker cannot notify us


@pytest.mark.parametrize("order", first_quick(["moved.after", "record.after", "acknowledge.before"]))
def test_what_was_moved_when_its_worker_died_is_only_acknowledged(here: Shop, dying: Callable[..., str], order: str) -> None:
    """The successor runs once. The original is delivered to a worker that knows of the move, and only acknowledges it."""
    task_id = dying(order, "fails", 1)
    worker = here.start(pool="threads")
    here.ended(task_id, "succeeded")
    quiet(here)
    assert [run["attempt"] for run in here.runs(task_id)] == [1, 2], worker.text[-3000:]
    assert worker.text.count(KNOWN) == 1
    assert here.letters() == []


@pytest.mark.parametrize("order", first_quick(["confirm.before", "defer.after", "record.before"]))
@pytest.mark.parametrize("times", first_quick([1, 10]))
def test_what_was_being_moved_is_known_by_its_successor(here: Shop, dying: Callable[..., str], order: str, times: int) -> None:
    """The worker died before its successor was confirmed: once a worker has received the successor, the original only ends.

    It is not known whether the dead worker had recorded the move. The worker that gets the original records it, perhaps once more,
    so that the repeat has a name in the books. A broker that has not confirmed may also have dropped the successor with the
    connection. Then no worker gets one, and the original goes on, as in
    `test_what_was_to_be_moved_and_was_not_is_delivered_again`.
    """
    task_id = dying(order, "fails", times)
    worker = here.start(pool="threads")
    here.ended(task_id, "succeeded" if times == 1 else "dead_lettered")
    quiet(here)
    attempts = [run["attempt"] for run in here.runs(task_id)]
    is_dropped = order == "confirm.before" and attempts == [1, 1, 2]
    assert is_dropped or attempts == [1, 2], worker.text[-3000:]
    assert worker.text.count(KNOWN) == (0 if is_dropped else 1)
    assert here.outcomes_of(task_id).count("redelivery_scheduled") == (2 if is_dropped or order == "record.after" else 1)
    assert len(here.letters()) == (times > 1)


@pytest.mark.parametrize("order", first_quick(["had.after", "acknowledge.before"]))
def test_what_ended_after_a_move_when_its_worker_died_is_only_acknowledged(
    here: Shop, dying: Callable[..., str], order: str
) -> None:
    """The second delivery has succeeded, and that is recorded, when the worker dies: the task does not run a third time."""
    task_id = dying(order, "fails", 1, times=2 if order == "acknowledge.before" else 1)
    worker = here.start(pool="threads")
    until(lambda: KNOWN in worker.text, what="the message to be known")
    quiet(here)
    assert [run["attempt"] for run in here.runs(task_id)] == [1, 2], worker.text[-3000:]
    assert here.outcomes_of(task_id) == ["published", "redelivery_scheduled", "succeeded"]


@pytest.mark.full
@pytest.mark.parametrize("order", first_quick(["moving.before", "moving.after"]))
def test_what_was_to_be_moved_and_was_not_is_delivered_again(here: Shop, dying: Callable[..., str], order: str) -> None:
    """The journal says that a move began, but no worker ever gets a successor: the original goes on."""
    task_id = dying(order, "fails", 1)
    worker = here.start(pool="threads")
    here.ended(task_id, "succeeded", 120)
    quiet(here)
    assert [run["attempt"] for run in here.runs(task_id)] == [1, 1, 2]
    assert here.outcomes_of(task_id) == ["published", "redelivery_scheduled", "redelivery_scheduled", "succeeded"]
    assert KNOWN not in worker.text


@pytest.mark.full
@pytest.mark.parametrize("order", first_quick(["moving.before", "moving.after"]))
def test_an_attempt_that_ran_counts_though_its_move_was_lost_a_second_time(
    here: Shop, dying: Callable[..., str], order: str
) -> None:
    """The first crash is not counted. The second worker records the start and dies before it moves the message: this is counted."""
    task_id = dying(order, "fails")
    dying(order, times=2)  # its first step is to redeliver the message
    here.start(pool="threads")
    here.ended(task_id, "dead_lettered", 120)
    quiet(here)
    assert len(here.runs(task_id)) == POLICY["max_delivery_attempts"] + 1


@pytest.mark.parametrize("order", first_quick(["moved.after", "record.after", "acknowledge.before"]))
def test_what_was_dead_when_its_worker_died_is_one_letter(here: Shop, dying: Callable[..., str], order: str) -> None:
    """The death is recorded once, too."""
    task_id = dying(order, "raises", "dead_letter")
    worker = here.start(pool="threads")
    until(lambda: KNOWN in worker.text, what="the original to be known")
    quiet(here)
    assert [letter["headers"]["id"] for letter in here.letters()] == [task_id]
    assert here.outcomes_of(task_id).count("dead_lettered") == len(here.runs(task_id)) == 1


@pytest.mark.parametrize("order", first_quick(["confirm.before", "dead_letter.after", "record.before"]))
def test_what_was_dying_when_its_worker_died_is_one_letter(here: Shop, dying: Callable[..., str], order: str) -> None:
    """The worker died before the dead letter was confirmed, or before it was recorded: the next worker finds it in its queue."""
    others = [str(here.app.send_task("tests.support.shop.raises", ("dead_letter",)).id) for _ in range(3)]
    first = here.start(pool="threads")
    for each in others:
        here.ended(each, "dead_lettered")
    first.stop()
    task_id = dying(order, "raises", "dead_letter")
    worker = here.start(pool="threads")
    until(lambda: KNOWN in worker.text, what="the original to be known")
    quiet(here)
    assert Counter(letter["headers"]["id"] for letter in here.letters()) == Counter([*others, task_id])
    assert here.outcomes_of(task_id) == ["published", "dead_lettered"]
    assert here.events_of(task_id)[-1].reason == here.events_of(others[0])[-1].reason
    assert len(here.runs(task_id)) == 1


@pytest.mark.parametrize("here", ["classic"], indirect=True)
@pytest.mark.parametrize("order", first_quick(["confirm.before", "redrive.after", "record.before", "acknowledge.before"]))
def test_what_was_redriven_when_its_worker_died_lives_once_more_once(here: Shop, dying: Callable[..., str], order: str) -> None:
    """A worker consumes the dead-letter queue, redrives a dead letter, and dies before it has recorded or acknowledged that.

    A broker that has not confirmed may have dropped the redriven message with the connection. Then the dead letter is redriven
    again.
    """
    task_id = str(here.app.send_task("tests.support.shop.raises", ("dead_letter",)).id)
    first = here.start(pool="threads")
    here.ended(task_id, "dead_lettered")
    first.stop()
    dying(order, queues="DLQ.celery")
    worker = here.start("-Q", "celery,DLQ.celery", pool="threads")
    ends = (KNOWN, "event=message.handed_over_again") if order == "confirm.before" else (KNOWN,)
    until(lambda: any(end in worker.text for end in ends), what="the letter to be known")
    until(lambda: here.outcomes_of(task_id).count("dead_lettered") == 2, what="its second death")
    quiet(here)
    said = [
        outcome for outcome in here.outcomes_of(task_id) if outcome != "redelivery_scheduled"
    ]  # the dead worker may have run it
    assert said == ["published", "dead_lettered", "redriven", "dead_lettered"]
    assert len(here.letters("DLQ.DLQ.celery")) + len(here.letters()) == 1


@pytest.mark.full
@pytest.mark.parametrize("order", first_quick(["moving.before", "moving.after", "dead_letter.before"]))
def test_what_died_before_its_letter_was_there_is_delivered_again(here: Shop, dying: Callable[..., str], order: str) -> None:
    """The journal says that it was dying, but there is no dead letter: the message goes on, and dies."""
    task_id = dying(order, "raises", "dead_letter")
    assert here.letters() == []
    worker = here.start(pool="threads")
    here.ended(task_id, "dead_lettered")
    quiet(here)
    assert [letter["headers"]["id"] for letter in here.letters()] == [task_id]
    assert KNOWN not in worker.text


@pytest.mark.parametrize("order", first_quick(["", "confirm.before:3"]), ids=["any", "second-try"])
def test_what_was_moved_and_not_recorded_is_delivered_again(
    here: Shop, rabbit: Rabbit, order: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log refuses the event, and the worker dies. An acknowledgement would leave the task without an end in the books.

    The worker dies while the log refuses, or after it has published the event once more and before the answer comes.
    """
    task_id = str(here.app.send_task("tests.support.shop.raises", ("dead_letter",)).id)
    assert here.outcomes_of(task_id) == ["published"]
    with rabbit.connection() as connection:
        connection.default_channel.queue_delete(TAP)  # otherwise the tests' own queue would receive an event that the log refuses
    rabbit.ctl(
        "set_policy", "full", "redelivery.outcomes", '{"max-length": 1, "overflow": "reject-publish"}', "--apply-to", "queues"
    )
    with monkeypatch.context() as patch:
        if order:
            patch.setenv("CHAOS_KILLS", str(here.folder / "kills"))
            patch.setenv("CHAOS_ORDER", order)
        worker = here.start(pool="threads")
    if order:
        assert worker.process.wait(60) == -signal.SIGKILL, worker.text[-3000:]
    else:
        until(lambda: "takes no events" in worker.text, what="the refusal to be told")
        worker.kill()
    rabbit.ctl("clear_policy", "full")
    rabbit.tap()
    here.start(pool="threads")
    here.ended(task_id, "dead_lettered")
    quiet(here)


@pytest.mark.full
def test_a_letter_that_was_refused_has_no_word(here: Shop, rabbit: Rabbit) -> None:
    """The worker dies while the dead-letter queue is full. The message is delivered again, and dies when there is room."""
    with rabbit.connection() as connection:
        channel = connection.default_channel
        full = {"x-max-length": 1, "x-overflow": "reject-publish"}
        channel.queue_declare("DLQ.celery", durable=True, auto_delete=False, arguments=full)
        channel.basic_publish(message_of(sealed(task_message("filler")), target=("", "DLQ.celery")), "", "DLQ.celery")
    first = here.start(pool="threads")
    task_id = str(here.app.send_task("tests.support.shop.raises", ("dead_letter",)).id)
    until(lambda: "transition.unroutable" in first.text, what="the refusal to be told")
    first.kill()
    second = here.start(pool="threads")
    until(lambda: "transition.unroutable" in second.text, what="it to be refused again")
    with rabbit.connection() as connection:
        connection.default_channel.queue_purge("DLQ.celery")
    here.ended(task_id, "dead_lettered")
    assert [letter["headers"]["id"] for letter in here.letters()] == [task_id]
    assert KNOWN not in second.text


@pytest.mark.full
def test_what_went_back_without_having_run_is_run_however_often_it_comes_again(here: Shop) -> None:
    """A stopping worker gives it back unchanged. The journal must not name it, or the next crash would end it without a run."""
    running = str(here.app.send_task("tests.support.shop.naps", (2,)).id)
    waiting = str(here.app.send_task("tests.support.shop.ok").id)
    first = here.start(pool="threads", concurrency=1)
    until(lambda: here.runs(running), what="the first to run")
    first.stop()
    assert not here.runs(waiting)
    blocking = str(here.app.send_task("tests.support.shop.naps", (3600,)).id)
    second = here.start("--prefetch-multiplier=10", pool="threads", concurrency=1)
    until(lambda: here.runs(blocking) or here.runs(waiting), what="the second to have them")
    second.kill()
    third = here.start(pool="threads", concurrency=2)
    here.ended(waiting, "succeeded")
    assert KNOWN not in third.text


@pytest.mark.parametrize("order", first_quick(["confirm.before:2", "release.after:1", "moved.after:1", "acknowledge.before:2"]))
def test_what_was_given_back_when_its_worker_died_runs_once(
    here: Shop, rabbit: Rabbit, monkeypatch: pytest.MonkeyPatch, order: str
) -> None:
    """A stopping worker publishes again what it has not begun, and dies before it acknowledges the originals.

    A rate limit keeps the tasks from running meanwhile, so that the broker confirms nothing else.
    """
    first, *waiting = [str(here.app.send_task("tests.support.shop.ok").id) for _ in range(4)]
    with monkeypatch.context() as patch:
        patch.setenv("CHAOS_KILLS", str(here.folder / "kills"))
        patch.setenv("CHAOS_ORDER", order)
        patch.setitem(here.conf, "task_annotations", {"tests.support.shop.ok": {"rate_limit": "1/h"}})
        dying = here.start(pool="threads")
    here.ended(first, "succeeded")
    until(lambda: rabbit.depths()["celery"] == (0, 3), what="the others to be held")
    dying.process.terminate()
    assert dying.process.wait(60) == -signal.SIGKILL, dying.text[-3000:]
    second = here.start(pool="threads")
    for each in waiting:
        here.ended(each, "succeeded", 120)
    quiet(here)
    assert [len(here.runs(each)) for each in waiting] == [1] * 3
    known = second.text.count(KNOWN)
    fewest = {"acknowledge.before:2": 3, "confirm.before:2": 0}.get(order, 1)  # what a dying connection has sent may not arrive
    assert fewest <= known <= 3


@pytest.mark.full
def test_without_a_right_to_a_journal_all_goes_on_as_without_one(here: Shop, rabbit: Rabbit, dying: Callable[..., str]) -> None:
    """The worker warns once; messages that it was moving when it died run twice, and nothing is lost."""
    rabbit.ctl("set_permissions", USER, f"^(?!{JOURNAL})", ".*", ".*")
    task_id = dying("acknowledge.before", "raises", "dead_letter")
    worker = here.start(pool="threads")
    until(lambda: len(here.letters()) == 2, what="the second letter")
    assert {letter["headers"]["id"] for letter in here.letters()} == {task_id}
    assert worker.text.count("event=journal.missing") == 1


def test_what_succeeds_at_once_writes_nothing_into_the_journal(here: Shop, rabbit: Rabbit) -> None:
    """The usual case pays nothing for crash safety; only messages that are moved write into the journal."""
    here.start(pool="threads")
    for task_id in [str(here.app.send_task("tests.support.shop.ok").id) for _ in range(20)]:
        here.ended(task_id, "succeeded")
    assert rabbit.depth(JOURNAL) == 0
    here.ended(str(here.app.send_task("tests.support.shop.fails", (1,)).id), "succeeded")
    assert until(lambda: rabbit.depth(JOURNAL), what="the entries of a move") >= 2


# the journal itself


@pytest.fixture
def journal(rabbit: Rabbit) -> Iterator[Journal]:
    """A journal, declared, on the test's virtual host."""
    with rabbit.connection() as connection:
        connection.connect()
        assert declare_journal(connection.connection, JOURNAL)
    made = Journal(lambda: opened(rabbit), JOURNAL)
    yield made
    made.close()


def opened(rabbit: Rabbit) -> Any:
    """A connection that is open."""
    connection = rabbit.connection()
    connection.connect()
    return connection


def write(rabbit: Rabbit, *messages: amqp.Message) -> None:
    """Write into the journal, as any user with the right to publish can."""
    with rabbit.connection() as connection:
        for message in messages:
            connection.default_channel.basic_publish(message, routing_key=JOURNAL)


def answers(journal: Journal, digests: list[bytes]) -> dict[bytes, Successor]:
    """Ask the journal for these digests; the returned mapping fills as the answers come."""
    answered: dict[bytes, Successor] = {}
    for digest in digests:
        journal.ask(digest, "celery", frozenset(), lambda known, _, digest=digest: answered.update({digest: known}))  # type: ignore[misc]
    return answered


def test_each_word_is_found_and_no_other(rabbit: Rabbit, journal: Journal) -> None:
    """Other entries do not matter. A digest that arrives during the reader's second is found; one that was taken back is not."""
    digests = [bytes([number]) * 16 for number in range(101)]
    nonsense = [
        amqp.Message("no digest"),
        amqp.Message(b"\xff" * 100_001),
        amqp.Message(HAS_MOVED + b"short"),
        amqp.Message(IS_MOVING + b"x" * 37),
    ]
    write(rabbit, entry(HAS_MOVED, digests[:50]), *nonsense, entry(HAS_MOVED, digests[50:98]), entry(HAS_ENDED, digests[99:100]))
    write(rabbit, entry(HAS_MOVED, digests[100:]), entry(IS_UNRECORDED, digests[100:]))
    answered = answers(journal, digests)
    write(rabbit, entry(HAS_MOVED, [digests[98]]))
    until(lambda: len(answered) == len(digests), what="the answers")
    assert [answered[digest] for digest in digests] == [Successor.RECORDED] * 100 + [Successor.UNKNOWN]


@pytest.mark.full
@pytest.mark.parametrize("kind", [HAS_ENDED, HAS_MOVED])
def test_what_became_of_a_successor_tells_that_it_was_there(
    rabbit: Rabbit, journal: Journal, monkeypatch: pytest.MonkeyPatch, kind: bytes
) -> None:
    """An entry about the successor's own end proves it, however late it comes; one that is only being moved proves nothing."""
    monkeypatch.setattr(amqp_journal, "MARGIN", 8.0)
    known, unknown, successor, other, third = (bytes([number]) * 16 for number in range(5))
    moves = [Moved(known, successor), Moved(unknown, other), Moved(other, third)]
    write(rabbit, entry(IS_MOVING, [move.moving for move in moves]))
    answered = answers(journal, [known, unknown])
    time.sleep(4)  # longer than a reader waits for a digest: there must be no answer yet
    assert answered == {}
    write(rabbit, entry(kind, [successor]))
    until(lambda: len(answered) == 2, 30, "the answers")
    assert answered == {known: Successor.SEEN, unknown: Successor.UNKNOWN}


def test_a_successor_is_waited_for_as_long_as_messages_wait_in_its_queue(
    rabbit: Rabbit, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The successor may be one of them. Without such a queue, or if the message was never being moved, the answer comes at once."""
    monkeypatch.setattr(amqp_journal, "MARGIN", 0.0)
    seen, lost, none, successor = (bytes([number]) * 16 for number in range(4))
    with rabbit.connection() as connection:
        channel = connection.default_channel
        channel.queue_declare("celery", durable=True, auto_delete=False)
        channel.basic_publish(amqp.Message("another"), routing_key="celery")
        write(rabbit, entry(IS_MOVING, [Moved(seen, successor).moving, Moved(lost, none).moving]))
        answered = answers(journal, [seen, lost, b"never moved" + b"." * 5])
        until(lambda: answered, what="the first answer")
        later = answers(journal, [b"nor was this" + b"." * 4])
        until(lambda: later, what="the reader to have looked again")
        assert list(answered) == [b"never moved" + b"." * 5]
        write(rabbit, entry(HAS_ENDED, [successor]))
        until(lambda: len(answered) == 2, 30, "the answer")
        channel.queue_purge("celery")
        until(lambda: len(answered) == 3, 30, "the last answer")
    assert (answered[seen], answered[lost]) == (Successor.SEEN, Successor.UNKNOWN)
    gone: list[Successor] = []
    journal.ask(lost, "no queue", frozenset(), lambda known, _: gone.append(known))
    until(lambda: gone, what="the answer of a queue that is not there")


@pytest.mark.full
def test_a_letter_is_looked_for_in_no_queue_but_those_of_its_policy(rabbit: Rabbit, journal: Journal) -> None:
    """Any user may write into the journal. If the policy names the queue, the dead letter is found, and its event is returned."""
    first = task_message("a")
    letter = dead(first, "celery", dead_letter_queue="theirs", reason="rejected", at_ms=1, seen_ms=1, attempt=None, failed=None)
    event = about(first["headers"], "celery", b"", Outcome.DEAD_LETTERED, reason="rejected")
    moved = moved_of(sealed(first), sealed(letter), "celery", 0, target="theirs", events=[event], now_ms=7)
    assert moved is not None
    with rabbit.connection() as connection:
        connection.default_channel.queue_declare("theirs", durable=True, auto_delete=False)
        connection.default_channel.basic_publish(message_of(sealed(letter), target=("", "theirs")), "", "theirs")
    write(rabbit, entry(IS_TURNING, [moved.turning]))
    answered: dict[str, tuple[Successor, Sequence[Event]]] = {}
    for name in ("DLQ.celery", "theirs"):
        asked = moved.digest, "celery", frozenset({name})
        journal.ask(*asked, lambda known, events, name=name: answered.update({name: (known, events)}))  # type: ignore[misc]
        until(lambda name=name: name in answered, what="the answer")  # type: ignore[misc]
        with rabbit.connection() as connection:
            found = connection.default_channel.basic_get("theirs")
            assert found.delivery_info["redelivered"] == (name == "theirs")
            connection.default_channel.basic_reject(found.delivery_tag, requeue=True)
        with rabbit.connection() as connection:
            connection.default_channel.queue_purge("theirs")
            connection.default_channel.basic_publish(message_of(sealed(letter), target=("", "theirs")), "", "theirs")
    assert answered["DLQ.celery"] == (Successor.UNKNOWN, ())
    known, (told_of,) = answered["theirs"]
    assert known is Successor.SEEN
    assert (told_of.task_id, told_of.outcome, told_of.reason, told_of.at_ms) == ("a", "dead_lettered", "rejected", 7)


def test_a_successor_that_is_long_in_coming_is_not_waited_for() -> None:
    """A successor that is due after more than 60 s is not waited for, nor a dead letter, which no worker receives."""
    assert Moved(b"w" * 16, b"s" * 16, 60).moving
    assert not Moved(b"w" * 16, b"s" * 16, 61).moving
    assert not Moved(b"w" * 16, b"s" * 16, dead_letter_queue="DLQ.celery").moving


def test_a_journal_that_cannot_be_read_holds_nobody_up(rabbit: Rabbit) -> None:
    """The answer is then "unknown", and the log says so."""
    answered: list[Successor] = []
    made = Journal(lambda: opened(rabbit), JOURNAL)  # never declared
    with capture_logs() as lines:
        made.ask(b"w" * 16, "celery", frozenset(), lambda known, _: answered.append(known))
        until(lambda: answered, what="the answer")
    assert answered == [Successor.UNKNOWN]
    assert [line["event"] for line in lines] == ["journal.unread"]
    made.close()


@pytest.mark.full
@pytest.mark.slow
def test_a_journal_is_read_after_an_alarm(private_rabbit: Rabbit, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker starts while the broker has an alarm. A message that was moved is not delivered again: its answer comes later.

    A reader that is closed meanwhile, or that may not wait, ends.
    """
    monkeypatch.setattr(amqp_journal, "TIMEOUT", 1.0)
    with private_rabbit.connection() as connection:
        connection.connect()
        assert declare_journal(connection.connection, JOURNAL)
    write(private_rabbit, entry(HAS_MOVED, [b"m" * 16]))
    alarm = "{resource_limit, memory, node()}"
    private_rabbit.node.evaluate(f"rabbit_alarm:set_alarm({{{alarm}, []}}).")
    first, second = (Journal(lambda: opened(private_rabbit), JOURNAL) for _ in range(2))
    with capture_logs() as lines:
        answered, closed = answers(first, [b"m" * 16, b"n" * 16]), answers(second, [b"m" * 16])
        until(lambda: [line["event"] for line in lines] == ["broker.blocked"] * 2, what="both to wait")
        with pytest.raises(TimeoutError):
            amqp_journal.Reading(opened(private_rabbit), JOURNAL).catch_up()
        assert not answered
        second.close()
        until(lambda: second._thread is None, what="the second to end")
        private_rabbit.node.evaluate(f"rabbit_alarm:clear_alarm({alarm}).")
        until(lambda: len(answered) == 2, what="the answers")
    assert answered == {b"m" * 16: Successor.RECORDED, b"n" * 16: Successor.UNKNOWN}
    assert not closed
    assert [line["event"] for line in lines] == ["broker.blocked", "broker.blocked", "broker.unblocked"]
    first.close()


def test_a_word_is_of_one_delivery_of_one_message() -> None:
    """Any other field of the message changes its digest; the fields that the broker adds to a delivery do not."""
    first = task_message("a")
    again = redelivered(first, "celery", seen_ms=1, attempt=None)
    waiting = deferred(first, "celery", seen_ms=1, eta="2026-01-01T00:00:00+00:00")
    alive = redriven(again, ("", "celery"))
    raws = [sealed(each) for each in (first, task_message("b"), {**first, "body": "YQ=="}, again, waiting, alive)]
    assert len({digest_of(each, "celery") for each in raws} | {digest_of(raws[0], "other")}) == len(raws) + 1
    handed = {**first, "properties": {**first["properties"], "delivery_tag": "7"}}
    assert digest_of(sealed(handed), "celery") == digest_of(raws[0], "celery")
    put_back = released(first)
    assert digest_of(sealed(put_back), "celery") != digest_of(raws[0], "celery")
    for before, after in (
        (first, put_back),
        (put_back, released(put_back)),
        (first, again),
        (first, waiting),
        (waiting, again),
        (again, alive),
    ):
        made = moved_of(sealed(before), sealed(after), "celery", 3, target="other")
        assert made == Moved(digest_of(sealed(before), "celery"), digest_of(sealed(after), "other"), 3)
        assert moved_of(sealed(after), sealed(before), "celery", 3, target="other") is None
    assert moved_of(raws[0], raws[0], "celery", 0, target="celery") is None
