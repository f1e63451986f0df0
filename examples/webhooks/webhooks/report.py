"""The output of the demo: its progress, and a table or one JSON object at the end.

On a terminal the progress is one line that changes. Elsewhere it is a plain line now and then.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from pathlib import Path

    from webhooks.account import Account

__all__ = ["Progress", "as_json", "table"]

#: Seconds between two plain lines of progress.
PLAIN_EVERY = 3.0
CLEAR = "\r\x1b[2K"
MAX_DISAGREEMENTS = 20


class Progress:
    """Shows the progress to people."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._changes = stream.isatty()
        self._next = 0.0
        self._started = time.monotonic()

    def say(self, text: str) -> None:
        """Print one event."""
        self._write(f"{CLEAR if self._changes else ''}{self._elapsed()}  {text}\n")

    def update(self, text: str) -> None:
        """Show the progress."""
        now = time.monotonic()
        if self._changes:
            self._write(f"{CLEAR}{self._elapsed()}  {text}")
        elif now >= self._next:
            self._next = now + PLAIN_EVERY
            self._write(f"{self._elapsed()}  {text}\n")

    @property
    def seconds(self) -> float:
        """The time since the start."""
        return time.monotonic() - self._started

    def _elapsed(self) -> str:
        return f"{self.seconds:5.1f} s"

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


def table(account: Account, *, balanced: bool, seconds: float, outputs: Path) -> str:
    """The figures for people."""
    reasons = ", ".join(f"{reason} {count}" for reason, count in account.deaths.items())
    agreement = "agrees on every id" if not account.disagreements else f"DISAGREES on {len(account.disagreements)} points"
    rows = [
        ("published", account.published, ""),
        ("succeeded the first time", account.first_time, ""),
        ("succeeded after redelivery", account.after_redelivery, ""),
        ("dead-lettered", sum(account.deaths.values()), reasons),
        ("redriven", account.redriven, ""),
        ("redriven, then succeeded", account.redriven_succeeded, ""),
        ("still dead-lettered", account.dead_lettered, "not repairable"),
        ("in flight", account.in_flight, ""),
        ("duplicated", account.duplicated, f"{account.possible_repeats} may have run twice, and are named in books/repeats"),
        ("lost", account.lost, ", ".join(account.lost_ids)),
    ]
    lines = ["", *(f"  {name:<28}{count:>6}   {note}".rstrip() for name, count, note in rows), ""]
    lines.append(f"  books        {_books(account, balanced=balanced)}")
    lines.append(f"  receiver     {agreement}: {account.requests} requests, {account.processed} webhooks processed,")
    lines.append(f"               {account.repeated} times one that it had processed before, and did not do again")
    lines += [f"                 {each}" for each in account.disagreements[:MAX_DISAGREEMENTS]]
    lines.append(f"  outputs      {outputs}")
    lines.append(f"  took         {seconds:.1f} s")
    return "\n".join(lines)


def _books(account: Account, *, balanced: bool) -> str:
    if balanced:
        return "balanced"
    if account.only_doubled:
        return f"balanced, but for {account.duplicated} whose end a killed worker recorded and did not acknowledge, all named"
    return "NOT BALANCED"


def as_json(account: Account, *, balanced: bool, seconds: float, outputs: Path) -> str:
    """The figures for programs, in one line."""
    facts = asdict(account) | {"balanced": balanced, "seconds": round(seconds, 1), "outputs": str(outputs)}
    return json.dumps(facts)
