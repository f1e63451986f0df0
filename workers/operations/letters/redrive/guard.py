"""The guard of a redrive: stops it if dead letters die again.

1. The first `canary` dead letters are sent alone. The others follow when all of these have ended and none has died again. The
   redrive stops as soon as one dies again, or if they have not all ended after `canary_wait` seconds.
2. With `abort_after`, the redrive stops before a batch if that number of sent letters have died again. With `abort_share` it stops
   if that part of the ended letters has died again.

A stop leaves the other letters in the dead-letter queue, and says which letters died again, and why. Letters that cannot be sent do
not count as canary. Limits: `canary_wait` must be longer than a task's retries take. Without a rate, a redrive may have sent all
letters before the first one dies again.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from redelivery.errors import RedriveError
from redelivery.middleware.brokers.errors import BROKER_ERRORS
from redelivery.middleware.ports import Answer

from ...words.numbers import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from redelivery.middleware.messages.events import Event

    from .fates import Fates

#: The default of `canary_wait`, in seconds.
CANARY_WAIT = 60.0
#: Seconds of one wait for events of the canary.
BEAT = 0.25
#: Lives that must have ended before `abort_share` is applied.
MIN_ENDED = 20
#: The maximum number of letters in an error text, and of characters of an id and of an exception.
MAX_NAMED, MAX_ID, MAX_EXCEPTION = 5, 80, 120


@dataclass(slots=True, kw_only=True)
class Guard:
    """The guard of one redrive. `on_wait` gets a text about the canary's progress.

    `sent` counts the sent letters; `may_follow` says that the canary has ended without a death. A process that continues a redrive
    begins with the earlier values of both.
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
        """Whether the guard follows all letters until they end, not only the canary."""
        return self.abort_after is not None or self.abort_share is not None

    @property
    def canaries(self) -> list[Event]:
        """The last event of each letter of the canary, in the order of sending."""
        return list(self.fates.last.values())[: self.canary]

    @property
    def died_again(self) -> list[Event]:
        """The deaths of redriven letters."""
        return list(self.fates.died.values())

    def carry(
        self, moves: list[Any], events: Sequence[Event], send: Callable[[list[Any]], Sequence[Answer | Exception]]
    ) -> list[Answer | Exception]:
        """Send these letters, until the guard stops the redrive. `events` has the event that opens the life of each.

        Returns an answer for each letter, which may be the broker's error. After a stop, the answers are the reason
        (`RedriveError`).
        """
        answers: list[Answer | Exception] = []
        while (at := len(answers)) < len(moves):
            why = self._objection()
            if why is None:
                canary_left = self.canary - self.sent
                end = at + canary_left if canary_left > 0 and not self.may_follow else len(moves)
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
        """Wait for the canary if no letter followed it, and read once more which letters have died again.

        Raises `RedriveError` if the canary died again or has not ended, and the errors of the broker's driver.
        """
        if self.canary and not self.may_follow:
            self._await_canary()
        self.fates.look()

    def _objection(self) -> Exception | None:
        """Return why no more letters may be sent, or the broker's error; None if they may."""
        try:
            if self.canary and not self.may_follow and self.sent >= self.canary:
                self._await_canary()
            if self.watches:
                self._check_deaths()
        except (RedriveError, *BROKER_ERRORS) as exc:
            return exc
        return None

    def _await_canary(self) -> None:
        """Wait until each letter of the canary has ended. Raises `RedriveError` if one dies again, or after `canary_wait`."""
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

    def _check_deaths(self) -> None:
        """Raise `RedriveError` if `abort_after` or `abort_share` is reached."""
        self.fates.look()
        deaths, ended = self.fates.deaths, self.sent - len(self.fates.open)
        is_share = self.abort_share is not None and ended >= MIN_ENDED and deaths >= self.abort_share * ended
        if is_share or (self.abort_after is not None and deaths >= self.abort_after):
            share = f" of {ended} that ended" if is_share else ""
            letters = counted(deaths, "dead letter", "dead letters")
            msg = f"{letters} of this redrive{share} died again: {_named(self.died_again, _death)}"
            raise RedriveError(msg)


def _named(events: Sequence[Event], describe: Callable[[Event], str]) -> str:
    """Return the task ids of the first few events, each with its description."""
    named = ", ".join(f"{event.task_id[:MAX_ID]} ({describe(event)})" for event in events[:MAX_NAMED])
    return named if len(events) <= MAX_NAMED else f"{named} and {len(events) - MAX_NAMED} more"


def _death(event: Event) -> str:
    exception = event.exception[:MAX_EXCEPTION]
    return f"{event.reason or event.outcome}: {exception}" if exception else event.reason or event.outcome


def _last(event: Event) -> str:
    return f"{event.outcome}, attempt {event.attempt}" if event.attempt else event.outcome
