"""The guard of a redrive: a few dead letters go first, and the redrive stops if they die again.

1. The first `canary` dead letters go back alone. No other letter follows before all of them have ended and none has died again.
   The redrive stops as soon as one of them dies again, or if they have not all ended after `canary_wait` seconds.
2. With `abort_after`, the redrive looks before each batch at the letters sent so far, and stops when so many of them have died
   again. With `abort_share` it stops when so great a part of the ended ones has died again.

Letters that were sent stay sent. A stop leaves the others in the dead-letter queue, unchanged, and says which letters died again,
and why. Letters that cannot go back do not count as canary. Limits: a task that is retried many times, with growing delays, ends
late: `canary_wait` must be longer. Without a rate, a redrive may have sent all letters before the first has died again.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from redelivery.errors import RedriveError
from redelivery.middleware.brokers.errors import BROKER_ERRORS
from redelivery.middleware.ports import Answer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from redelivery.middleware.messages.events import Event

    from .fates import Fates

#: The default of `canary_wait`, in seconds.
CANARY_WAIT = 60.0
#: Seconds of one wait for news of the canary.
BEAT = 0.25
#: Lives that must have ended before `abort_share` is applied.
LEAST_ENDED = 20
#: Letters that an error text names, and characters of an id and of an exception.
MAX_NAMED, MAX_ID, MAX_SAID = 5, 80, 120


@dataclass(slots=True, kw_only=True)
class Guard:
    """Lets the letters of one redrive go, or stops it. `on_wait` gets a text about how far the canary is.

    `sent` counts the letters that were sent; `may_follow`: the canary has ended well. Both begin with the values of the process
    that this one continues, if any.
    """

    fates: Fates
    canary: int = 0
    canary_wait: float = CANARY_WAIT
    abort_after: int | None = None
    abort_share: float | None = None
    on_wait: Callable[[str], None] = lambda _: None
    sent: int = 0
    may_follow: bool = False

    @property
    def watches(self) -> bool:
        """Whether it watches all letters until they end, and not only the canary."""
        return self.abort_after is not None or self.abort_share is not None

    @property
    def canaries(self) -> list[Event]:
        """The last event of each letter of the canary, in the order in which they were sent."""
        return list(self.fates.last.values())[: self.canary]

    @property
    def died_again(self) -> list[Event]:
        """The deaths of letters that were sent back."""
        return list(self.fates.died.values())

    def carry(
        self, moves: list[Any], events: Sequence[Event], send: Callable[[list[Any]], Sequence[Answer | Exception]]
    ) -> list[Answer | Exception]:
        """Send these letters back, as far as they may go; `events` has the event that opens the life of each.

        Returns an answer for each letter. If a letter may not go, its answer and all later ones are the reason (`RedriveError`).
        An answer may also be the broker's error.
        """
        answers: list[Answer | Exception] = []
        while (at := len(answers)) < len(moves):
            why = self._objection()
            if why is None:
                room = self.canary - self.sent
                end = at + room if room > 0 and not self.may_follow else len(moves)
                answered = send(moves[at:end])
                for event, answer in zip(events[at:end], answered, strict=True):
                    if answer is Answer.DONE:
                        self.sent += 1
                        self.fates.sent(event)
                answers += answered
                why = next((answer for answer in answered if isinstance(answer, Exception)), None)
            if why is not None:
                return [*answers, *[why] * (len(moves) - len(answers))]
        return answers

    def end(self) -> None:
        """All letters were sent: wait for the canary, if nothing followed it, and look once more which letters have died again.

        Raises `RedriveError` if the canary died again or has not ended, and what the broker's driver raises.
        """
        if self.canary and not self.may_follow:
            self._await_canary()
        self.fates.look()

    def _objection(self) -> Exception | None:
        """Why no further letter may go, or the broker's error; None if one may."""
        try:
            if self.canary and not self.may_follow and self.sent >= self.canary:
                self._await_canary()
            if self.watches:
                self._count_the_dead()
        except (RedriveError, *BROKER_ERRORS) as exc:
            return exc
        return None

    def _await_canary(self) -> None:
        """Wait until each letter of the canary has ended. Raises `RedriveError` if one died again, or after `canary_wait`."""
        deadline, sent = time.monotonic() + self.canary_wait, self.sent
        while True:
            self.fates.look(min(BEAT, max(deadline - time.monotonic(), 0.0)))
            waiting = self.fates.open
            self.on_wait(f"canary: {sent - len(waiting)} of {sent} ended, {self.fates.deaths} died again")
            if self.fates.deaths:
                msg = f"the canary died again: {_named(self.died_again, _death)}; repair the cause first"
                raise RedriveError(msg)
            if not waiting:
                self.may_follow = True
                return
            if time.monotonic() >= deadline:
                msg = (
                    f"the canary has not ended within {self.canary_wait:g} s: {_named(waiting, _last)}; give it longer with "
                    "--canary-wait, and see `redelivery task show`"
                )
                raise RedriveError(msg)

    def _count_the_dead(self) -> None:
        """Raise `RedriveError` if `abort_after` or `abort_share` of this redrive is reached."""
        self.fates.look()
        deaths, ended = self.fates.deaths, self.sent - len(self.fates.open)
        is_share = self.abort_share is not None and ended >= LEAST_ENDED and deaths >= self.abort_share * ended
        if is_share or (self.abort_after is not None and deaths >= self.abort_after):
            share = f" of {ended} that ended" if is_share else ""
            msg = f"{deaths} dead letters of this redrive{share} died again: {_named(self.died_again, _death)}"
            raise RedriveError(msg)


def _named(events: Sequence[Event], said: Callable[[Event], str]) -> str:
    """The ids of the first few, each with the text that `said` has for it."""
    named = ", ".join(f"{event.task_id[:MAX_ID]} ({said(event)})" for event in events[:MAX_NAMED])
    return named if len(events) <= MAX_NAMED else f"{named} and {len(events) - MAX_NAMED} more"


def _death(event: Event) -> str:
    said = event.exception[:MAX_SAID]
    return f"{event.reason or event.outcome}: {said}" if said else event.reason or event.outcome


def _last(event: Event) -> str:
    return f"{event.outcome}, attempt {event.attempt}" if event.attempt else event.outcome
