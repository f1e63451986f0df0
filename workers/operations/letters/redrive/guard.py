"""The guard of a redrive: a few dead letters go first, and the redrive stops if they die again.

1. The first `canary` dead letters go back by themselves. No other follows before each of them has ended without dying again.
   The redrive stops at the first that died again, and if they have not all ended after `canary_wait` seconds.
2. With `abort_after`, what became of all letters sent so far is looked at before each batch: the redrive stops when so many of
   them have died again. With `abort_share` it stops when so great a part of those that have ended died again.

What was sent stays sent: a stop leaves the others in the dead-letter queue, each of them whole, and says which letters died of
what. Letters that cannot go back are no part of the canary. Limits: a task that is delivered again and again, with growing delays,
ends late: `canary_wait` must be longer. Without a rate a redrive may be done before the first letter has died again.
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

#: Seconds that the canary has, where nothing else is said.
CANARY_WAIT = 60.0
#: Seconds of one wait for news of the canary.
BEAT = 0.25
#: Lives that must have ended before a share of them says anything.
LEAST_ENDED = 20
#: Letters that a message names, and characters of an id and of what it died of.
MAX_NAMED, MAX_ID, MAX_SAID = 5, 80, 120


@dataclass(slots=True, kw_only=True)
class Guard:
    """Lets letters through, or stops a redrive; for one redrive. `on_wait` is told how far the canary is.

    `sent` counts the letters that went, and `may_follow` says whether the canary ended well: both have what another process knew
    already, where this one goes on.
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
        """Whether it looks at what becomes of all letters, to the end."""
        return self.abort_after is not None or self.abort_share is not None

    @property
    def canaries(self) -> list[Event]:
        """The last event of each letter of the canary, in the order in which they went."""
        return list(self.fates.last.values())[: self.canary]

    @property
    def died_again(self) -> list[Event]:
        """The deaths of letters that were sent back."""
        return list(self.fates.died.values())

    def carry(
        self, moves: list[Any], events: Sequence[Event], send: Callable[[list[Any]], Sequence[Answer | Exception]]
    ) -> list[Answer | Exception]:
        """Send these letters back, as far as they may go; `events` opens the life of each.

        Returns an answer for each. If one may not go, its answer and those behind it are the reason (`RedriveError`). An answer may
        also be the broker's error.
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
        """All letters have gone: hear what became of the canary, where nothing followed it, and who else has died again so far.

        Raises `RedriveError` where the canary died or has not ended, and what the broker raises.
        """
        if self.canary and not self.may_follow:
            self._await_canary()
        self.fates.look()

    def _objection(self) -> Exception | None:
        """Why no further letter may go, or that the broker does not tell."""
        try:
            if self.canary and not self.may_follow and self.sent >= self.canary:
                self._await_canary()
            if self.watches:
                self._count_the_dead()
        except (RedriveError, *BROKER_ERRORS) as exc:
            return exc
        return None

    def _await_canary(self) -> None:
        """Until each letter of the canary has ended. Raises `RedriveError` where one died, or time is up."""
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
        """Raises `RedriveError` where so many letters of this redrive have died again, or so great a part of those that ended."""
        self.fates.look()
        deaths, ended = self.fates.deaths, self.sent - len(self.fates.open)
        is_share = self.abort_share is not None and ended >= LEAST_ENDED and deaths >= self.abort_share * ended
        if is_share or (self.abort_after is not None and deaths >= self.abort_after):
            share = f" of {ended} that ended" if is_share else ""
            msg = f"{deaths} dead letters of this redrive{share} died again: {_named(self.died_again, _death)}"
            raise RedriveError(msg)


def _named(events: Sequence[Event], said: Callable[[Event], str]) -> str:
    """The first few by their ids, each with what is said of it."""
    named = ", ".join(f"{event.task_id[:MAX_ID]} ({said(event)})" for event in events[:MAX_NAMED])
    return named if len(events) <= MAX_NAMED else f"{named} and {len(events) - MAX_NAMED} more"


def _death(event: Event) -> str:
    said = event.exception[:MAX_SAID]
    return f"{event.reason or event.outcome}: {said}" if said else event.reason or event.outcome


def _last(event: Event) -> str:
    return f"{event.outcome}, attempt {event.attempt}" if event.attempt else event.outcome
