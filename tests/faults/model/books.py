"""The model's books: where each message is, without a broker.

Pure: no clock, no randomness, no Redis. A message is in exactly one place: a list, a worker's hands, the delay store, or `ended`.
Each method is one step: it changes the books as the step must change the broker, and returns the expected answer. Lists are kept
in the order in which they are emptied, the oldest first. A due time is known as a window until the broker was looked at
(`Waiting`).
"""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["HOUR", "LISTS", "MAX_ATTEMPTS", "MAX_LENGTH", "Books", "Message", "Owner", "Taken", "Waiting"]

#: Milliseconds; all delays of the model are whole hours, so that the duration of a test does not matter.
HOUR = 3_600_000
MAX_ATTEMPTS, MAX_LENGTH = 3, 3
#: The lists of each queue, the most urgent first.
LISTS = {queue: (queue, f"{queue}\x06\x163", f"{queue}\x06\x166", f"{queue}\x06\x169") for queue in ("orders", "bounded")}


@dataclass(eq=False)
class Message:
    """One message: its task id, the list that it was published to, and the parts of its envelope that decide about it."""

    task_id: str
    queue: str
    list_name: str
    generation: int = 0
    attempt: int = 0


@dataclass(eq=False)
class Taken:
    """A message in a worker's hands. `start` is empty, `started` or `accepted`."""

    message: Message
    list_name: str
    start: str = ""


@dataclass(eq=False)
class Waiting:
    """A message in the delay store: due between these times (ms, the broker's clock), which are equal once it was looked at."""

    message: Message
    list_name: str
    earliest: int
    latest: int


@dataclass(eq=False)
class Owner:
    """A worker's claim: `counter` is None if its lease is gone; its last batch has the tags from `first` to before `next`."""

    counter: int | None = 0
    recovering: bool = False
    number: int = 0
    first: int = 1
    next: int = 1


@dataclass
class Books:
    """All of it."""

    lists: dict[str, list[Message]] = field(default_factory=dict)
    held: dict[str, Taken] = field(default_factory=dict)
    waiting: dict[str, Waiting] = field(default_factory=dict)
    ended: list[Message] = field(default_factory=list)
    owners: dict[str, Owner] = field(default_factory=dict)
    #: Task id, outcome, reason, in the order of the outcome log.
    events: list[tuple[str, str, str]] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)
    #: The slots that were taken of each queue's retry budget, an hour each (ms, the broker's clock).
    slots: dict[str, list[int]] = field(default_factory=dict)

    def at(self, list_name: str) -> list[Message]:
        """A list, the oldest first."""
        return self.lists.setdefault(list_name, [])

    def note(self, message: Message, outcome: str, reason: str = "") -> None:
        """One event."""
        self.events.append((message.task_id, outcome, reason))

    # what comes in

    def publish(self, message: Message, *, announced: bool = True) -> None:
        """Publish, by one of our producers, or by a plain one, which records nothing."""
        self.messages.append(message)
        self.at(message.list_name).append(message)
        if announced:
            self.note(message, "published")

    def oldest(self, queue: str) -> Message:
        """The message that an eviction takes: the oldest of the least urgent list."""
        return next(self.at(name)[0] for name in reversed(LISTS[queue]) if self.at(name))

    def length(self, queue: str) -> int:
        """The messages that wait in a queue, all priorities together."""
        return sum(len(self.at(name)) for name in LISTS[queue])

    def evict(self, message: Message, *, announced: bool) -> None:
        """It dies because its queue is too long; if it has no event yet, it is first recorded as received."""
        self.at(message.list_name).remove(message)
        self.at(f"DLQ.{message.queue}").append(message)
        if not announced:
            self.note(message, "received", "unannounced")
        self.note(message, "dead_lettered", "max_length")

    # owners

    def fence(self, token: str, counter: int) -> bool:
        """End a lease that was not renewed."""
        owner = self.owners[token]
        if owner.counter != counter:
            return False
        owner.counter, owner.recovering = None, True
        return True

    def held_by(self, token: str) -> list[str]:
        """The tags of an owner, the oldest first."""
        return sorted((tag for tag in self.held if tag.startswith(f"{token}:")), key=_number)

    def receive(self, token: str, number: int, budget: int, turn: int, queues: tuple[str, ...]) -> tuple[str, list[str]]:
        """The expected state of a call's answer, and the tags that it delivers."""
        owner = self.owners[token]
        if owner.counter is None:
            return "fenced", []
        if number == owner.number:
            return "ok", [tag for at in range(owner.first, owner.next) if (tag := f"{token}:{at}") in self.held]
        if number != owner.number + 1:
            return "stale", []
        owner.number, owner.first = number, owner.next
        for step in range(4):
            still = list(queues)
            while still and budget:
                for queue in list(still):
                    taken = min(turn, budget, len(self.at(LISTS[queue][step])))
                    self._hand_over(token, LISTS[queue][step], taken)
                    budget -= taken
                    if not self.at(LISTS[queue][step]):
                        still.remove(queue)
        return "ok", [f"{token}:{at}" for at in range(owner.first, owner.next)]

    def _hand_over(self, token: str, list_name: str, count: int) -> None:
        owner = self.owners[token]
        for _ in range(count):
            self.held[f"{token}:{owner.next}"] = Taken(self.at(list_name).pop(0), list_name)
            owner.next += 1

    # what a worker does with what it holds

    def answer(self, tag: str) -> str:
        """The expected answer to a transition of this tag."""
        if tag in self.held:
            return "done"
        return "already" if self.owners[tag.partition(":")[0]].counter is not None else "refused"

    def end(self, tag: str, outcome: str) -> None:
        """The message is acknowledged."""
        message = self.held.pop(tag).message
        self.ended.append(message)
        self.note(message, outcome)

    def wait(self, message: Message, list_name: str, earliest: int, latest: int) -> None:
        """The message waits in the delay store."""
        self.waiting[message.task_id] = Waiting(message, list_name, earliest, latest)

    def take_slot(self, queue: str, due: int) -> int:
        """Take the first time from `due` on that is a whole slot away from all taken ones."""
        taken = self.slots.setdefault(queue, [])
        found = [due, *(each + HOUR for each in taken)]
        taken.append(min(at for at in found if at >= due and all(abs(at - each) >= HOUR for each in taken)))
        return taken[-1]

    def taken(self, queue: str) -> list[tuple[int, int]]:
        """The taken stretches of time, the earliest first; a gap that is too short for a slot counts as taken."""
        found: list[tuple[int, int]] = []
        for at in sorted(self.slots.get(queue, [])):
            if found and at - found[-1][1] < HOUR:
                found[-1] = (found[-1][0], at + HOUR)
            else:
                found.append((at, at + HOUR))
        return found

    def put_back(self, tag: str, *, first: bool) -> None:
        """The message goes straight back to its list."""
        taken = self.held.pop(tag)
        self.at(taken.list_name).insert(0 if first else len(self.at(taken.list_name)), taken.message)

    def die(self, tag: str, target: str, reason: str) -> None:
        """The message is moved to a dead-letter queue."""
        message = self.held.pop(tag).message
        self.at(target).append(message)
        self.note(message, "dead_lettered", reason)

    def recover(self, tag: str, earliest: int, latest: int) -> None:
        """A dead worker's message: a suspect goes back, a started task is counted, an early acknowledged one has died."""
        taken = self.held[tag]
        message = taken.message
        if taken.start == "accepted" or (taken.start and message.attempt + 1 >= MAX_ATTEMPTS):
            message.attempt += 1
            self.die(tag, f"DLQ.{message.queue}", "worker_lost")
            return
        self.note(message, "redelivery_scheduled", "worker_lost")
        if not taken.start:
            self.put_back(tag, first=True)
            return
        message.attempt += 1
        del self.held[tag]
        self.wait(message, taken.list_name, earliest + HOUR, latest + HOUR)

    # the delay store

    def due(self, list_name: str, now: int) -> list[Waiting]:
        """What must be promoted into this list now, the earliest first."""
        return sorted(
            (each for each in self.waiting.values() if each.list_name == list_name and each.earliest <= now),
            key=lambda each: each.earliest,
        )

    def promote(self, waiting: Waiting) -> None:
        """One message moves from the delay store to its list."""
        del self.waiting[waiting.message.task_id]
        self.at(waiting.list_name).append(waiting.message)

    def places(self) -> list[str]:
        """The task ids of all places together, each as often as it is somewhere."""
        found = [*self.ended, *(each.message for each in self.held.values()), *(each.message for each in self.waiting.values())]
        found += [message for members in self.lists.values() for message in members]
        return sorted(message.task_id for message in found)


def _number(tag: str) -> int:
    return int(tag.rpartition(":")[2])
