"""The guard of a redrive: what it lets through, what it stops, and how it learns what happened to the dead letters."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from redelivery.errors import BrokerError, RedriveError
from redelivery.middleware.messages.events import Event, Outcome
from redelivery.middleware.ports import Answer
from redelivery.workers.operations.letters.filter import Filter
from redelivery.workers.operations.letters.redrive.fates import Fates, watched
from redelivery.workers.operations.letters.redrive.guard import Guard
from redelivery.workers.operations.letters.redrive.redrive import redrive
from redelivery.workers.operations.letters.walk import BATCH
from tests.support.desk import LETTERS, QUEUE, Desk, copies, task_message

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


EVERYTHING = Filter()


def event(task_id: str, outcome: Outcome, **facts: Any) -> Event:
    """The event of the next life of a dead letter."""
    return Event(task_id=task_id, outcome=outcome, queue=QUEUE, **{"generation": 1, **facts})


class Broker:
    """Sends dead letters by their ids, and at the next look reports the end of each, as `fate` says."""

    def __init__(self, fate: Callable[[str], Event | None]) -> None:
        self.sent: list[str] = []
        self._fate, self._told = fate, 0

    def send(self, ids: list[str]) -> list[Answer | Exception]:
        """Everything goes."""
        self.sent += ids
        return [Answer.DONE] * len(ids)

    def heard(self, _: float) -> list[Event]:
        """The ends that were not reported yet."""
        new, self._told = self.sent[self._told :], len(self.sent)
        return [found for each in new if (found := self._fate(each)) is not None]


def succeeds(task_id: str) -> Event:
    """A good end."""
    return event(task_id, Outcome.SUCCEEDED)


def dies(task_id: str) -> Event:
    """A bad one."""
    return event(task_id, Outcome.DEAD_LETTERED, reason="exhausted", exception="ValueError")


def carried(guard: Guard, broker: Broker, *batches: range) -> list[Answer | Exception]:
    """The answers for batches of letters that are named by numbers."""
    answers: list[Answer | Exception] = []
    for batch in batches:
        ids = [str(number) for number in batch]
        answers += guard.carry(ids, [event(each, Outcome.REDRIVEN) for each in ids], broker.send)
    return answers


# what it lets through, and what it stops


@pytest.mark.parametrize("canary", [1, 2, 3, 4, 5, 6, 7])
def test_the_others_follow_a_canary_that_ended_well(canary: int) -> None:
    """Wherever the canary ends in the batches: at the end of one, across two, or after all."""
    broker = Broker(succeeds)
    guard = Guard(fates=Fates(broker.heard), canary=canary)
    assert carried(guard, broker, range(3), range(3, 6)) == [Answer.DONE] * 6
    guard.end()
    assert broker.sent == list("012345")
    assert [each.task_id for each in guard.canaries] == list("012345")[:canary]
    assert {each.outcome for each in guard.canaries} == {Outcome.SUCCEEDED}


@pytest.mark.parametrize("dead", [0, 1])
def test_nothing_follows_a_canary_that_died(dead: int) -> None:
    """The answer for each other dead letter of the batch says which task died, and of what."""
    broker = Broker(lambda each: dies(each) if each == str(dead) else succeeds(each))
    guard = Guard(fates=Fates(broker.heard), canary=2)
    answers = carried(guard, broker, range(5))
    assert answers[:2] == [Answer.DONE] * 2
    assert broker.sent == ["0", "1"]
    for answer in answers[2:]:
        assert isinstance(answer, RedriveError)
        assert f"the canary died again: {dead} (exhausted: ValueError)" in str(answer)


def test_a_canary_that_does_not_end_is_waited_for_and_not_for_ever() -> None:
    """The error has the last event that was recorded of it; while it waits, the progress is shown."""
    broker, said = Broker(lambda each: event(each, Outcome.REDELIVERY_SCHEDULED, attempt=2)), list[str]()
    guard = Guard(fates=Fates(broker.heard), canary=1, canary_wait=0.05, on_wait=said.append)
    answer = carried(guard, broker, range(2))[1]
    assert "has not ended within 0.05 s: 0 (redelivery_scheduled, attempt 2); give it longer with --canary-wait" in str(answer)
    assert set(said) == {"canary: 0 of 1 ended, 0 died again"}
    assert broker.sent == ["0"]


@pytest.mark.parametrize("fate", [dies, lambda _: None])
def test_a_canary_that_nothing_follows_is_waited_for_at_the_end(fate: Callable[[str], Event | None]) -> None:
    """A redrive of fewer dead letters than the canary's size waits for them to end."""
    broker = Broker(fate)
    guard = Guard(fates=Fates(broker.heard), canary=9, canary_wait=0.05)
    carried(guard, broker, range(3))
    with pytest.raises(RedriveError, match="the canary"):
        guard.end()


@pytest.mark.parametrize(("most", "sent"), [(1, 1), (2, 4), (3, 5), (4, 6)])
def test_it_stops_when_so_many_died_again(most: int, sent: int) -> None:
    """N-1 are not enough, N are; checked before each batch. All dead letters but two and three die."""
    broker = Broker(lambda each: succeeds(each) if each in "12" else dies(each))
    guard = Guard(fates=Fates(broker.heard), abort_after=most)
    answers = carried(guard, broker, *(range(number, number + 1) for number in range(6)))
    assert len(broker.sent) == sent
    assert answers.count(Answer.DONE) == sent
    said = f"{most} dead letter{'s' if most > 1 else ''} of this redrive died again"
    assert all(said in str(answer) for answer in answers[sent:])


@pytest.mark.parametrize(("every", "stopped_at"), [(1, 20), (2, 20), (4, 20), (5, None)])
def test_it_stops_when_so_great_a_share_died_again(every: int, stopped_at: int | None) -> None:
    """A quarter of those that ended; with fewer than twenty ends no share counts. Each `every`th dead letter dies."""
    broker = Broker(lambda each: succeeds(each) if (int(each) + 1) % every else dies(each))
    guard = Guard(fates=Fates(broker.heard), abort_share=0.25)
    answers = carried(guard, broker, *(range(number, number + 1) for number in range(60)))
    assert answers.count(Answer.DONE) == len(broker.sent) == (60 if stopped_at is None else stopped_at)
    assert all("of 20 that ended died again" in str(answer) for answer in answers[len(broker.sent) :])


def test_lives_that_have_not_ended_are_no_part_of_a_share() -> None:
    """However many still run: nineteen ends are too few."""
    broker = Broker(lambda each: dies(each) if int(each) < 19 else None)
    guard = Guard(fates=Fates(broker.heard), abort_share=0.01)
    assert carried(guard, broker, *(range(number, number + 1) for number in range(60))) == [Answer.DONE] * 60


def test_a_guard_goes_on_with_what_another_process_has_seen() -> None:
    """The canary is not sent twice, and earlier deaths count."""
    broker = Broker(succeeds)
    guard = Guard(fates=Fates(broker.heard), canary=3, sent=3)
    guard.fates.sent(event("before", Outcome.REDRIVEN))
    broker.sent.append("before")
    assert carried(guard, broker, range(4)) == [Answer.DONE] * 4
    assert broker.sent == ["before", "0", "1", "2", "3"]
    dead = Guard(fates=Fates(broker.heard, died_before=2), abort_after=2)
    (answer,) = carried(dead, broker, range(1))
    assert "2 dead letters of this redrive died again" in str(answer)


def test_only_what_died_for_good_in_a_life_that_was_sent_counts() -> None:
    """Other tasks, generations and queues, and failed attempts, do not count; each death counts once."""
    others = [
        event("x", Outcome.DEAD_LETTERED),
        event("0", Outcome.DEAD_LETTERED, generation=0),
        event("0", Outcome.DEAD_LETTERED, generation=2),
        Event(task_id="0", outcome=Outcome.DEAD_LETTERED, queue="other", generation=1),
        event("0", Outcome.REDELIVERY_SCHEDULED),
    ]
    own = [event("0", Outcome.DISCARDED), event("0", Outcome.DISCARDED), event("1", Outcome.EXPIRED), event("2", Outcome.REVOKED)]
    batches = [others, own]
    fates = Fates(lambda _: batches.pop(0))
    for task_id in "012":
        fates.sent(event(task_id, Outcome.REDRIVEN))
    fates.look()
    assert (fates.died, len(fates.open)) == ({}, 3)
    fates.look()
    assert [each.task_id for each in fates.died.values()] == ["0", "1"]
    assert fates.open == []


def test_a_message_names_a_few_and_counts_the_rest() -> None:
    """Five ids, and a readable part of what they died of."""
    broker = Broker(lambda each: event(each, Outcome.DISCARDED, reason="", exception="E" + "x" * 1000))
    guard = Guard(fates=Fates(broker.heard), abort_after=8)
    said = str(carried(guard, broker, range(8), range(8, 9))[-1])
    assert said.endswith(" and 3 more")
    assert [f"{number} (discarded: Exxx" in said for number in range(6)] == [True] * 5 + [False]
    assert len(said) < 1000


def test_letters_that_do_not_go_are_no_part_of_the_canary() -> None:
    """If one has left the queue or cannot be routed, the next one is part of the canary instead."""
    broker, answers = Broker(succeeds), itertools.chain([Answer.ALREADY, Answer.MISSING], itertools.repeat(Answer.DONE))
    guard = Guard(fates=Fates(broker.heard), canary=2)

    def send(ids: list[str]) -> list[Answer | Exception]:
        broker.send(ids)
        return [next(answers) for _ in ids]

    ids = list("012345")
    assert guard.carry(ids, [event(each, Outcome.REDRIVEN) for each in ids], send)[2:] == [Answer.DONE] * 4
    assert [each.task_id for each in guard.canaries] == ["2", "3"]


# on a broker


def test_what_stays_lies_as_it_lay(desk: Desk) -> None:
    """A stopped redrive has moved whole dead letters; its result says what stays, and why."""
    ids = copies(desk, BATCH + 10)
    with watched(desk.transport, LETTERS) as fates:
        done = redrive(desk.transport, LETTERS, EVERYTHING, guard=Guard(fates=fates, canary=3, canary_wait=0.1))
    assert (done.moved, desk.ids(), desk.ids(LETTERS)) == (3, ids[:3], ids[3:])
    assert [(each["task_id"], each["outcome"], each["generation"]) for each in done.canary] == [
        (each, "redriven", 1) for each in ids[:3]
    ]
    assert "has not ended within 0.1 s: task-00000 (redriven)" in done.stopped


def test_without_news_the_error_says_what_had_gone(desk: Desk) -> None:
    """The broker stops answering while the canary is waited for: the message names the dead letters that had gone."""
    ids = copies(desk, 5)

    def silent(_: float) -> Iterable[Event]:
        message = "gone"
        raise RedisConnectionError(message)

    with pytest.raises(BrokerError, match="stopped when 2 dead letters had gone back: gone"):
        redrive(desk.transport, LETTERS, EVERYTHING, guard=Guard(fates=Fates(silent), canary=2))
    assert (desk.ids(), desk.ids(LETTERS)) == (ids[:2], ids[2:])
    with pytest.raises(BrokerError, match="when 3 dead letters had gone back: gone"):
        redrive(desk.transport, LETTERS, EVERYTHING, guard=Guard(fates=Fates(silent), canary=9))


def test_a_death_is_seen_in_the_log_or_in_the_queue(desk: Desk) -> None:
    """In another dead-letter queue, by the log; if an export took the events from the log, by the dead letter itself."""
    for task_id in ("old", "a", "b", "c"):
        desk.die(task_message(task_id))
    with watched(desk.transport, LETTERS) as fates:
        ids = frozenset({"a", "b", "c"})
        assert redrive(desk.transport, LETTERS, Filter(task_ids=ids), guard=Guard(fates=fates)).moved == 3
        fates.look()
        assert (len(fates.open), fates.died) == (3, {})
        again = {message["headers"]["id"]: message for message in desk.messages()}
        desk.client.delete(QUEUE)
        desk.die(again["a"], into="DLQ.elsewhere")
        fates.look()
        assert [life[0] for life in fates.died] == ["a"]
        desk.die(again["b"])
        desk.client.xtrim(desk.keys.outcomes, 0)
        fates.look()
        assert [life[0] for life in fates.died] == ["a", "b"]
        desk.publish(again["c"])
        success = Event(task_id="c", outcome=Outcome.SUCCEEDED, queue=QUEUE, generation=1)
        assert desk.transport.acknowledge(desk.hold(), success) is Answer.DONE
        desk.client.xtrim(desk.keys.outcomes, 0)
        fates.look()
    assert [each.task_id for each in fates.open] == ["c"]


# the command


def test_a_redrive_that_stopped_is_an_error_with_its_figures(desk: Desk) -> None:
    """Exit code 2 and one line on stderr; stdout says what went back, as text or as JSON."""
    copies(desk, 4)
    words = ("dlq", "redrive", LETTERS, "--all", "--canary", "1", "--canary-wait", "50ms")
    done = desk.run(*words)
    assert (done.exit_code, done.stdout) == (2, f"1 dead letter of {LETTERS} went back: {QUEUE} 1.\n")
    (line,) = done.stderr.splitlines()
    assert line.startswith(
        f"redelivery: error: the redrive of '{LETTERS}' stopped when 1 dead letter had gone back: the canary has not ended"
    )
    again = desk.run(*words, "--json")
    assert (again.exit_code, len(again.stderr.splitlines())) == (2, 1)
    assert '"task_id": "task-00001"' in again.stdout
    assert desk.ids(LETTERS) == ["task-00002", "task-00003"]


def test_a_dry_run_of_a_guarded_redrive_waits_for_nothing(desk: Desk) -> None:
    """It counts as without a guard."""
    ids = copies(desk, 4)
    guard = ("--canary", "2", "--canary-wait", "1w", "--abort-after", "1", "--rate", "50/s")
    done = desk.json("dlq", "redrive", LETTERS, "--all", *guard, "--dry-run")
    assert (done["moved"], done["canary"], done["stopped"], desk.ids(LETTERS)) == (4, [], "", ids)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--canary", "0"), "0 is not in the range"),
        (("--abort-after", "0"), "0 is not in the range"),
        (("--abort-after", "5"), "--abort-after needs a --rate"),
        (("--canary-wait", "5m"), "say how many dead letters go first"),
        (("--canary", "1", "--canary-wait", "soon"), "'soon' is not a duration"),
    ],
)
def test_a_guard_that_is_not_clear_is_refused(desk: Desk, words: tuple[str, ...], said: str) -> None:
    """Exit code 2, and nothing is changed."""
    desk.die()
    done = desk.run("dlq", "redrive", LETTERS, "--all", *words)
    assert (done.exit_code, said in done.stderr, desk.client.llen(LETTERS)) == (2, True, 1), done.output
