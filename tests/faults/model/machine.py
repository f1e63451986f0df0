"""The state machine: Hypothesis draws steps; each is done on the broker and in the books, which must agree after it."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from redelivery.errors import QueueFull
from redelivery.middleware.brokers.redis.keys import SEPARATOR
from redelivery.middleware.messages.envelope import Attempt
from redelivery.middleware.messages.events import Event, Outcome, Reason
from redelivery.middleware.messages.steps import dead, opened, redriven, sealed
from redelivery.middleware.policy.resolver import Pace
from redelivery.middleware.ports import Held
from redelivery.middleware.transitions.recovery import recover
from redelivery.workers.brokers.redis.delay_store import RedisDelayStore
from redelivery.workers.duties.recoverer import Recoverer
from tests.faults.model.books import HOUR, LISTS, MAX_LENGTH, Books, Message, Owner, Waiting
from tests.faults.model.broker import A_SLOT_AN_HOUR, LETTERS, Broker, event_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tests.support.servers import Server

__all__ = ["Machine"]

QUEUES = st.sampled_from(sorted(LISTS))
PRIORITIES = st.sampled_from([0, 0, 9])
#: An index into the existing things: the steps take it modulo their number.
WHICH = st.integers(0, 30)
HOURS = st.integers(1, 4)
MAX_LIVING = 3
#: What `advance` adds, so that a message that is due in an hour is overdue afterwards (ms).
MARGIN = 10_000


class Machine(RuleBasedStateMachine):
    """One run: an empty broker, empty books."""

    server: Server

    def __init__(self) -> None:
        super().__init__()
        self.broker = Broker(self.server)
        self.books = Books()
        self.transport = self.broker.transport
        self.raws: dict[str, bytes] = {}
        self.stored: list[tuple[str, str, Message]] = []
        self.letters: list[tuple[str, bytes, Message]] = []

    def teardown(self) -> None:
        """Leave no connection behind."""
        self.transport.close()

    # choosing

    def _tag(self, which: int) -> str:
        """A tag that was ever created; every second time one that is held."""
        tags = list(self.raws) if which % 2 else list(self.books.held) or list(self.raws)
        return tags[which // 2 % len(tags)]

    def _living(self) -> list[str]:
        return [token for token, owner in self.books.owners.items() if owner.counter is not None]

    def _message_of(self, tag: str) -> Message:
        task_id = json.loads(self.raws[tag])["headers"]["id"]
        return next(each for each in self.books.messages if each.task_id == task_id)

    def _letter(self, which: int) -> tuple[str, bytes, Message]:
        """A dead letter in the queue, as an operator sees it; or one that was seen before, and is perhaps gone."""
        lying = [(name, message) for name in LETTERS for message in self.books.at(name)]
        if lying and (which % 4 or not self.letters):
            name, message = lying[which % len(lying)]
            self.letters.append((name, self.broker.raw_of(name, message.task_id), message))
            return self.letters[-1]
        return self.letters[which % len(self.letters)]

    def _letter_is_there(self, name: str, raw: bytes, message: Message) -> bool:
        return message in self.books.at(name) and self.broker.raw_of(name, message.task_id) == raw

    # what comes in

    @rule(queue=QUEUES, priority=PRIORITIES, announced=st.booleans())
    def publish(self, queue: str, priority: int, *, announced: bool) -> None:
        """Publish, by one of our producers, or by a plain one, which knows no bounds."""
        message = self._new(queue, priority)
        (self.broker.publish if announced else self.broker.push)(message, priority)
        self.books.publish(message, announced=announced)

    @rule(priority=PRIORITIES, refuses=st.booleans(), is_dated=st.booleans())
    def publish_within(self, priority: int, *, refuses: bool, is_dated: bool) -> None:
        """Publish to a queue with a maximum length: the oldest makes room, or nothing happens."""
        message, full = self._new("bounded", priority), self.books.length("bounded") >= MAX_LENGTH
        if full and refuses:
            with pytest.raises(QueueFull):
                self.broker.publish_within(message, priority, refuses=refuses, is_dated=is_dated)
            return
        oldest = self.books.oldest("bounded") if full else None
        announced = oldest is not None and self._is_announced(oldest)
        self.broker.publish_within(message, priority, refuses=refuses, is_dated=is_dated)
        self.books.publish(message)
        if oldest is not None:
            self.books.evict(oldest, announced=announced)

    @rule(most=st.integers(0, 4))
    def evict(self, most: int) -> None:
        """The keeper of a queue evicts exactly what is too much, the oldest first."""
        count = max(self.books.length("bounded") - most, 0)
        announced = {each: self._is_announced(each) for name in LISTS["bounded"] for each in self.books.at(name)}
        assert self.broker.evict("bounded", most) == count
        for _ in range(count):
            oldest = self.books.oldest("bounded")
            self.books.evict(oldest, announced=announced[oldest])

    @precondition(lambda self: self.books.length("bounded") > 1)
    @rule(which=WHICH)
    def evict_another(self, which: int) -> None:
        """Only the oldest is ever evicted, even if the keeper asks for another one."""
        found = [(place, each) for place, name in enumerate(LISTS["bounded"]) for each in self.books.at(name)]
        place, message = found[which % len(found)]
        if message is not self.books.oldest("bounded"):
            raw = self.broker.raw_of(message.list_name, message.task_id)
            assert self.broker.evict_wrongly("bounded", place, raw) == "oldest"

    def _new(self, queue: str, priority: int) -> Message:
        name = LISTS[queue][3 if priority == 9 else 0]
        return Message(f"m{len(self.books.messages)}", queue, name)

    def _is_announced(self, message: Message) -> bool:
        """Whether its arrival is in the books, or its envelope says that it was received before."""
        return _is_announced(self.broker.raw_of(message.list_name, message.task_id))

    def _note_arrival(self, tag: str) -> None:
        """A recoverer records a message's arrival if it is not known whether the dead worker has."""
        if not _is_announced(self.raws[tag]):
            self.books.note(self._message_of(tag), "received", "unannounced")

    # owners

    @precondition(lambda self: len(self._living()) < MAX_LIVING)
    @rule()
    def register(self) -> None:
        """A worker begins."""
        token = f"w{len(self.books.owners)}"
        self.transport.leases.register(token, {"worker": f"{token}@model"})
        self.books.owners[token] = Owner()

    @precondition(lambda self: self.books.owners)
    @rule(which=WHICH)
    def renew(self, which: int) -> None:
        """A worker renews its lease; a fenced one learns of that."""
        token = self._any(list(self.books.owners), which)
        owner = self.books.owners[token]
        assert (self.transport.leases.renew(token) is not None) == (owner.counter is not None)
        if owner.counter is not None:
            owner.counter += 1

    @precondition(lambda self: self.books.owners)
    @rule(which=WHICH, back=st.sampled_from([0, 0, 1]))
    def fence(self, which: int, back: int) -> None:
        """A worker is fenced because of its last seen counter, which may have moved since."""
        token = self._any(self._living() or list(self.books.owners), which)
        counter = (self.books.owners[token].counter or 0) - back
        assert self.transport.leases.fence(token, str(counter).encode()) == self.books.fence(token, counter)

    @precondition(lambda self: self.books.owners)
    @rule(which=WHICH)
    def unregister(self, which: int) -> None:
        """A worker that holds nothing ends; its token is free."""
        token = self._any(list(self.books.owners), which)
        if not self.books.held_by(token) and which % 3 == 0:
            self.transport.leases.unregister(token)
            self.books.owners[token].counter, self.books.owners[token].recovering = None, False

    @precondition(lambda self: self.books.owners)
    @rule(
        which=WHICH,
        ahead=st.sampled_from([1, 1, 1, 1, 0, -1, 2]),
        budget=st.integers(1, 5),
        turn=st.sampled_from([1, 2, 64]),
        queues=st.sampled_from([("orders",), ("bounded",), ("orders", "bounded"), ("bounded", "orders")]),
        room=st.sampled_from([1, 10**6, 10**6]),
        token=st.just(""),
    )
    def receive(self, *, which: int, ahead: int, budget: int, turn: int, queues: tuple[str, ...], room: int, token: str) -> None:
        """A worker asks for messages, living or fenced: its next call, a repeat, or one that was overtaken."""
        if not token:
            token = self._any((which % 5 and self._living()) or list(self.books.owners), which)
        number = self.books.owners[token].number + ahead
        if number < 1:
            return
        expected = self.books.receive(token, number, min(budget, 1) if room == 1 else budget, turn, queues)
        state, batch = self.broker.receive(token, number, budget=budget, turn=turn, queues=queues, room=room)
        assert (state, list(batch)) == expected
        self.raws.update(batch)

    # what a worker does with messages that it holds, or held before

    @precondition(lambda self: self.raws)
    @rule(which=WHICH, outcome=st.sampled_from([Outcome.SUCCEEDED, Outcome.IGNORED]), twice=st.booleans())
    def acknowledge(self, which: int, outcome: Outcome, *, twice: bool) -> None:
        """The message ends."""
        tag = self._tag(which)
        event = event_of(self._message_of(tag), outcome)
        self._carry_out(tag, lambda: self.transport.acknowledge(tag, event), lambda: self.books.end(tag, outcome), twice=twice)

    @rule()
    def record(self) -> None:
        """Record an event without a message."""
        self.transport.acknowledge("", Event(task_id="none", outcome=Outcome.RECEIVED))
        self.books.events.append(("none", "received", ""))

    @precondition(lambda self: self.raws)
    @rule(which=WHICH, hours=HOURS, twice=st.booleans(), until=st.booleans())
    def delay(self, which: int, hours: int, *, twice: bool, until: bool) -> None:
        """The message waits for a duration, or until a time."""
        self._delay(self._tag(which), hours, until=until, twice=twice)

    def _delay(self, tag: str, hours: int, *, until: bool, twice: bool) -> None:
        message, now = self._message_of(tag), self.transport.now_ms()
        when: dict[str, Any] = {"due_ms": now + hours * HOUR} if until else {"delay_ms": hours * HOUR}
        event = event_of(message, Outcome.DEFERRED)

        def after() -> None:
            del self.books.held[tag]
            latest = now if until else self.transport.now_ms()
            self.books.wait(message, message.list_name, now + hours * HOUR, latest + hours * HOUR)
            self.books.note(message, "deferred")

        def asked() -> str:
            return self.transport.defer(tag, message.list_name, self.raws[tag], task_id=message.task_id, event=event, **when)

        self._carry_out(tag, asked, after, twice=twice)

    @precondition(lambda self: self.raws)
    @rule(which=WHICH, quarters=st.integers(1, 16), twice=st.booleans())
    def pace(self, which: int, quarters: int, *, twice: bool) -> None:
        """The message is delivered again by its queue's budget: in the first free slot from its own due time on."""
        tag = self._tag(which)
        message, own = self._message_of(tag), self.broker.began_ms + HOUR + quarters * HOUR // 4
        event = event_of(message, Outcome.REDELIVERY_SCHEDULED)

        def after() -> None:
            del self.books.held[tag]
            due = self.books.take_slot(message.queue, own)
            self.books.wait(message, message.list_name, due, due)
            self.books.note(message, "redelivery_scheduled")

        def asked() -> str:
            name, raw, pace = message.list_name, self.raws[tag], Pace(message.queue, A_SLOT_AN_HOUR)
            return self.transport.defer(tag, name, raw, task_id=message.task_id, event=event, due_ms=own, pace=pace)

        self._carry_out(tag, asked, after, twice=twice)

    @precondition(lambda self: self.raws)
    @rule(which=WHICH, first=st.booleans(), over=st.booleans(), twice=st.booleans())
    def requeue(self, which: int, *, first: bool, over: bool, twice: bool) -> None:
        """The message goes back at once: it has no delay, or is due already."""
        tag = self._tag(which)
        message = self._message_of(tag)
        when: dict[str, Any] = {"due_ms": self.transport.now_ms()} if over else {"delay_ms": 0}

        def asked() -> str:
            name, raw = message.list_name, self.raws[tag]
            return self.transport.defer(tag, name, raw, task_id=message.task_id, event=None, first=first, **when)

        self._carry_out(tag, asked, lambda: self.books.put_back(tag, first=first), twice=twice)

    @precondition(lambda self: self.raws)
    @rule(which=WHICH, away=st.booleans(), must_exist=st.booleans(), twice=st.booleans())
    def dead_letter(self, which: int, *, away: bool, must_exist: bool, twice: bool) -> None:
        """The message dies, into its own dead-letter queue or another; it stays if that queue must exist and does not."""
        tag = self._tag(which)
        message = self._message_of(tag)
        target = "DLQ.away" if away else f"DLQ.{message.queue}"
        raw = self._death(tag, message, target)
        event = event_of(message, Outcome.DEAD_LETTERED, Reason.REJECTED)

        def asked() -> str:
            return self.transport.dead_letter(
                tag, raw, dead_letter_queue=target, queue=message.queue, event=event, must_exist=must_exist
            )

        if must_exist and not self.books.at(target) and tag in self.books.held:
            assert asked() == "missing"
            return
        self._carry_out(tag, asked, lambda: self.books.die(tag, target, "rejected"), twice=twice)

    @precondition(lambda self: self.raws)
    @rule(which=WHICH, accepted=st.booleans(), twice=st.booleans())
    def start(self, which: int, *, accepted: bool, twice: bool) -> None:
        """A start, or an early acknowledgement, is recorded: only if the message is held; repeats change nothing."""
        tag = self._tag(which)
        for _ in range(1 + twice):
            answer = (self.transport.accept if accepted else self.transport.start)(tag)
            assert answer == ("done" if tag in self.books.held else "refused")
        if tag in self.books.held:
            self.books.held[tag].start = "accepted" if accepted else "started"

    @precondition(lambda self: self.raws)
    @rule(which=st.lists(WHICH, min_size=1, max_size=4, unique=True), twice=st.booleans())
    def release(self, which: Sequence[int], *, twice: bool) -> None:
        """Several messages go back unchanged, in their order; messages that are no longer held are skipped."""
        tags = {self._tag(each) for each in which}
        held = [self._held(tag) for tag in tags]
        going = sorted(tags & self.books.held.keys(), key=_number, reverse=True)
        assert self.transport.release(held) == len(going)
        for tag in going:
            self.books.put_back(tag, first=True)
        if twice:
            assert self.transport.release(held) == 0

    def _carry_out(self, tag: str, asked: Callable[[], Any], after: Callable[[], None], *, twice: bool) -> None:
        expected = self.books.answer(tag)
        assert asked() == expected
        if expected == "done":
            after()
        if twice:
            assert asked() == self.books.answer(tag)

    def _death(self, tag: str, message: Message, target: str) -> bytes:
        letter = dead(
            opened(self.raws[tag]),
            message.queue,
            dead_letter_queue=target,
            reason=Reason.REJECTED,
            at_ms=1,
            seen_ms=1,
            attempt=Attempt(at_ms=1, worker="w", exception="no"),
            failed=None,
        )
        return sealed(letter)

    def _held(self, tag: str) -> Held:
        message = self._message_of(tag)
        return Held(tag, message.queue, message.list_name, self.raws[tag], 0)

    # dead workers

    @rule()
    def recover_all(self) -> None:
        """The recoverer decides about all messages of fenced workers, and forgets their tokens."""
        before = self.transport.now_ms()
        Recoverer(self.broker.install).step()
        for token, owner in self.books.owners.items():
            if owner.recovering:
                for tag in reversed(self.books.held_by(token)):
                    self._note_arrival(tag)
                    self.books.recover(tag, before, self.transport.now_ms())
                owner.recovering = False

    @precondition(lambda self: any(owner.recovering for owner in self.books.owners.values()) and self.raws)
    @rule(which=WHICH)
    def recover_one(self, which: int) -> None:
        """A recoverer ends half-way, or a second one comes when the message was recovered already."""
        fenced = [token for token, owner in self.books.owners.items() if owner.recovering]
        tags = [tag for tag in self.raws if tag.partition(":")[0] in fenced]
        if not tags:
            return
        tag, now = tags[which % len(tags)], self.transport.now_ms()
        started = self.transport.leases.started([tag])[0]
        self._note_arrival(tag)
        answer = recover(self.broker.install, self._held(tag), started=started, worker="w", now_ms=now)
        assert answer == self.books.answer(tag)
        if answer == "done":
            self.books.recover(tag, now, self.transport.now_ms())

    # the delay store

    @rule(limit=st.integers(1, 4))
    def promote(self, limit: int) -> None:
        """The dispatcher moves due messages to their lists, the earliest first, so many for each list; none is early."""
        moved, missing, wait = self.transport.stores.promote(limit)
        seen, now, count = self.broker.look(), self.transport.now_ms(), 0
        for name in (each for names in LISTS.values() for each in names):
            due = self.books.due(name, now)[:limit]
            behind = seen.lists[name][len(self.books.at(name)) :]
            dues = {each.message.task_id: each for each in self.books.due(name, now)}
            assert [dues[task_id].earliest for task_id in behind] == [each.earliest for each in due]  # equal due times in any order
            for task_id in behind:
                self.books.promote(dues[task_id])
            count += len(due)
        assert (moved, missing) == (count, 0)
        assert (wait is None) == (not self.books.waiting)

    @rule(hours=st.lists(HOURS, min_size=2, max_size=3), behind=st.booleans())
    def several_wait(self, hours: list[int], *, behind: bool) -> None:
        """A new worker takes several messages and delays each; perhaps another message follows them."""
        token = f"v{len(self.books.owners)}"
        self.transport.leases.register(token, {"worker": f"{token}@model"})
        self.books.owners[token] = Owner()
        for _ in hours:
            self.publish("orders", 0, announced=True)
        self.receive(which=0, ahead=1, budget=len(hours), turn=1, queues=("orders",), room=10**6, token=token)
        for each, tag in zip(hours, self.books.held_by(token), strict=True):
            self._delay(tag, each, until=False, twice=False)
        if behind:
            self.publish("orders", 0, announced=False)

    @rule(hours=HOURS, limit=st.integers(0, 3))
    def advance(self, hours: int, limit: int) -> None:
        """Time advances; perhaps the dispatcher runs at once."""
        self._advance(hours)
        if limit:
            self.promote(limit)

    def _advance(self, hours: int) -> None:
        assert self.transport.stores.advance(hours * HOUR + MARGIN, lambda raw: raw) == len(self.books.waiting)
        for each in self.books.waiting.values():
            each.earliest -= hours * HOUR + MARGIN
            each.latest -= hours * HOUR + MARGIN

    @precondition(lambda self: self.stored)
    @rule(which=WHICH, twice=st.booleans())
    def cancel(self, which: int, *, twice: bool) -> None:
        """An operator cancels a message in the delay store, which perhaps has left already."""
        name, ident, message = self._any(self.stored, which)
        for _ in range(1 + twice):
            waits = self._waits(ident)
            answer = self.transport.stores.cancel(name, ident, event_of(message, Outcome.CANCELLED))
            assert answer == ("done" if waits else "already")
            if answer == "done":
                del self.books.waiting[message.task_id]
                self.books.ended.append(message)
                self.books.note(message, "cancelled")

    @precondition(lambda self: self.stored)
    @rule(which=WHICH, hours=st.integers(0, 4))
    def reschedule(self, which: int, hours: int) -> None:
        """An operator gives a message another due time, or none."""
        name, ident, message = self._any(self.stored, which)
        now, waits = self.transport.now_ms(), self._waits(ident)
        raw: Any = self.broker.client.hget(self.broker.keys.waiting(name), ident) or b""
        due_ms = now + hours * HOUR if hours else None
        answer = self.transport.stores.reschedule(name, ident, raw, event_of(message, Outcome.DEFERRED), due_ms=due_ms)
        assert answer == ("done" if waits else "already")
        if waits:
            latest = self.transport.now_ms() if due_ms is None else due_ms
            self.books.wait(message, name, due_ms or now, latest)
            self.books.note(message, "deferred")

    @precondition(lambda self: self.stored)
    @rule(which=WHICH)
    def hand_back(self, which: int) -> None:
        """The delayed messages go back to plain workers, which wait for the ETA themselves."""
        name, ident, message = self._any(self.stored, which)
        waits = self._waits(ident)
        raw: Any = self.broker.client.hget(self.broker.keys.waiting(name), ident) or b""
        assert self.transport.stores.hand_back(name, ident, raw) == ("done" if waits else "already")
        if waits:
            self.books.promote(self.books.waiting[message.task_id])

    @precondition(lambda self: self.stored)
    @rule(which=WHICH)
    def find(self, which: int) -> None:
        """An operator asks in which list's delay store a task waits, if any."""
        name, ident, message = self._any(self.stored, which)
        found = [(each.list_name, each.ident) for each in RedisDelayStore(self.transport).of_task(message.task_id)]
        assert len(found) == (message.task_id in self.books.waiting)
        assert ((name, ident) in found) == self._waits(ident)

    def _waits(self, ident: str) -> bool:
        return ident in self.broker.look().idents.values()

    # dead letters

    @precondition(lambda self: self.letters or any(self.books.at(name) for name in LETTERS))
    @rule(which=WHICH, twice=st.booleans(), crowded=st.booleans())
    def redrive(self, which: int, *, twice: bool, crowded: bool) -> None:
        """A dead letter goes back to its origin for another life, once, behind all waiting messages."""
        name, raw, message = self._letter(which)
        if crowded:
            self.publish(message.queue, 0 if message.list_name == message.queue else 9, announced=True)
        again = sealed(redriven(opened(raw)))
        event = event_of(message, Outcome.REDRIVEN)
        is_there = self._letter_is_there(name, raw, message)
        for at in range(1 + twice):
            (answer,) = self.transport.stores.redrive_many(name, [(raw, message.list_name, again, event)])
            assert answer == ("done" if is_there and not at else "already")
        if is_there:
            self.books.at(name).remove(message)
            message.generation, message.attempt = message.generation + 1, 0
            self.books.at(message.list_name).append(message)
            self.books.note(message, "redriven")

    @precondition(lambda self: self.letters or any(self.books.at(name) for name in LETTERS))
    @rule(which=WHICH, down_to=st.sampled_from([None, 0, 1, 2]))
    def purge(self, which: int, down_to: int | None) -> None:
        """A dead letter is purged, unless its queue is short enough."""
        name, raw, message = self._letter(which)
        is_there = self._letter_is_there(name, raw, message) and (down_to is None or len(self.books.at(name)) > down_to)
        event = event_of(message, Outcome.PURGED)
        assert self.transport.stores.purge_many(name, [(raw, event)], down_to=down_to) == ["done" if is_there else "already"]
        if is_there:
            self.books.at(name).remove(message)
            self.books.ended.append(message)
            self.books.note(message, "purged")

    @precondition(lambda self: self.letters or any(self.books.at(name) for name in LETTERS))
    @rule(which=WHICH, into=st.sampled_from(LETTERS))
    def move(self, which: int, into: str) -> None:
        """A dead letter goes to another dead-letter queue: two events, for its leaving and its death there."""
        name, raw, message = self._letter(which)
        if name == into:
            return
        is_there = self._letter_is_there(name, raw, message)
        events = event_of(message, Outcome.REDRIVEN), event_of(message, Outcome.DEAD_LETTERED, Reason.OPERATOR)
        answers = self.transport.stores.move_many(name, into, [(raw, raw, message.queue, events)])
        assert answers == ["done" if is_there else "already"]
        if is_there:
            self.books.at(name).remove(message)
            self.books.at(into).append(message)
            self.books.note(message, "redriven")
            self.books.note(message, "dead_lettered", "operator")

    @staticmethod
    def _any(members: Any, which: int) -> Any:
        return members[which % len(members)]

    # after every step

    @invariant()
    def the_broker_agrees(self) -> None:
        """Each message is in the one place that the books say, in order; and the log has one event for each step."""
        books, seen = self.books, self.broker.look()
        assert seen.lists == {name: [each.task_id for each in books.lists.get(name, [])] for name in seen.lists}
        assert seen.held == {tag: taken.message.task_id for tag, taken in books.held.items()}
        self._waiting_agrees(seen.waiting, seen.idents)
        assert seen.events == books.events, (seen.events[-3:], books.events[-3:])
        owners = books.owners.items()
        assert seen.leases == {token: owner.counter for token, owner in owners if owner.counter is not None}
        assert seen.recovering == {token for token, owner in owners if owner.recovering}
        assert seen.index <= seen.held.keys()  # a move that was refused has taken it from there already
        assert seen.starts == {tag for tag, taken in books.held.items() if taken.start}
        assert seen.tasks == {f"{seen.idents[task_id]}{SEPARATOR}{name}" for task_id, (name, _) in seen.waiting.items()}
        first: dict[str, int] = {}
        for name, due in seen.waiting.values():
            first[name] = min(due, first.get(name, due))
        assert seen.destinations == first
        assert seen.slots == {queue: books.taken(queue) for queue in seen.slots}

    @invariant()
    def nothing_is_lost_or_doubled(self) -> None:
        """Each published message is in exactly one place."""
        places = Counter(self.books.places())
        assert places == Counter(message.task_id for message in self.books.messages)

    def _waiting_agrees(self, seen: dict[str, tuple[str, int]], idents: dict[str, str]) -> None:
        waiting: dict[str, Waiting] = self.books.waiting
        assert {task_id: name for task_id, (name, _) in seen.items()} == {key: each.list_name for key, each in waiting.items()}
        for task_id, (name, due) in seen.items():
            each = waiting[task_id]
            assert each.earliest <= due <= each.latest
            each.earliest = each.latest = due
            place = (name, idents[task_id], each.message)
            if place not in self.stored:
                self.stored.append(place)


def _is_announced(raw: bytes) -> bool:
    headers = json.loads(raw)["headers"]
    return "redelivery-announced" in headers or "redelivery" in headers


def _number(tag: str) -> int:
    return int(tag.rpartition(":")[2])
