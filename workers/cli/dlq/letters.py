"""Dead letters as text: tables, and one letter in full with its history, the failure and the arguments.

A body that is not JSON is shown as escaped bytes. The setting `redact` hides the body and the texts of a letter (`redaction`).
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from redelivery.middleware.logs import HIDDEN

from ...operations.letters.reading.whole import why_not
from ...operations.words.numbers import age, moment, plain, span
from ...operations.words.redaction import redacted
from ..terminal.output import INDENT, Column, facts, lines, sentence, table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ...letters import Letter

#: The name of a letter's time of death in `unreadable`.
DIED = "deaths.last"
LETTERS = (
    Column("task id", is_id=True),
    Column("task", 2, 14, keeps_end=True),
    Column("reason", 1, 9, is_coloured=True),
    Column("attempts", leaves=2),
    Column("died", leaves=1),
    Column("exception", 3, 20),
)
ATTEMPTS = ("when", Column("worker", 2, leaves=1), Column("then waited", leaves=2), Column("exception", 3, 20))
DEATHS = ("last", Column("queue", 2, 12, keeps_end=True), Column("reason", 3, 9, is_coloured=True), "times")
#: The maximum number of characters of one value as text. JSON has all of them.
MAX_SHOWN = 4096


def as_table(letters: Sequence[Letter], now_ms: int) -> str:
    """One line for each letter. The caller redacts the letters first if necessary."""
    rows = []
    for letter in letters:
        row = letter.to_row()
        said = exception_of(row["exception"], row["message"])
        died = "unreadable" if DIED in letter.unreadable else age(row["died_ms"], now_ms)
        rows.append((row["task_id"], row["task"], row["reason"], row["attempts"], died, said))
    return table(rows, LETTERS)


def exception_of(kind: str, message: str) -> str:
    """An exception on one line: its class without the module, and its message."""
    return f"{kind.rpartition('.')[2]}: {message}" if message else kind


def as_text(letter: Letter, *, redact: bool) -> str:
    """The whole letter, for a person to read."""
    letter = redacted(letter) if redact else letter
    envelope = letter.envelope
    first, last = letter.death.get("first"), letter.died_ms
    parts = [
        facts(
            {
                "task id": letter.task_id,
                "task": letter.task or "-",
                "reason": letter.reason or "none: it has no death record",
                "died": moment(last),
                "in queue": letter.queue,
                "origin": f"{letter.origin_queue or '-'} (exchange {envelope.origin.get('exchange') or '-'})",
                "generation": letter.generation,
                "parked": "yes: held here, so that it does not go round" if envelope.parked else "",
                "first death": _first(envelope.first_death) if len(envelope.deaths) > 1 else "",
                "attempts": envelope.attempt,
                "first seen": moment(envelope.first_seen_ms),
                "unreadable": ", ".join(letter.unreadable),
                "fingerprint": letter.failure.get("fingerprint"),
                "bytes": len(letter.raw),
            }
        ),
        "arguments\n" + lines(arguments(letter, redact=redact)),
    ]
    if letter.failure:
        said = f"{letter.failure.get('type')}: {letter.failure.get('message')}"
        parts.append(f"failure\n{sentence(said)}\n{lines(str(letter.failure.get('traceback') or ''))}".rstrip())
    if envelope.attempts:
        parts.append("attempts\n" + table(list(map(_attempt, envelope.attempts)), ATTEMPTS, indent=INDENT))
    if len(envelope.deaths) > 1 or (first is not None and first != last):
        parts.append("deaths\n" + table(list(map(_death, envelope.deaths)), DEATHS, indent=INDENT))
    return "\n\n".join(parts)


def _attempt(each: Mapping[str, Any]) -> tuple[str, ...]:
    waited = each.get("delay")
    then = "-" if waited is None else span(waited / 1000)
    return moment(each.get("at")), _text(each.get("worker")), then, _text(each.get("exception"))


def _first(death: Mapping[str, Any] | None) -> str:
    said = {} if death is None else death
    return f"{moment(said.get('at'))} in {_text(said.get('queue'))}: {_text(said.get('reason'))}"


def _death(each: Mapping[str, Any]) -> tuple[str, ...]:
    return (moment(each.get("last")), _text(each.get("queue")), _text(each.get("reason")), _text(each.get("count")))


def arguments(letter: Letter, *, redact: bool) -> str:
    """The arguments as JSON, one line each, or the reason why they are not shown."""
    if redact:
        return HIDDEN
    body = letter.body()
    if body is None:
        return f"{why_not(letter)}\n{_escaped(letter.body_bytes())}"
    call = letter.call()
    shown = [json.dumps(plain(part)) for part in ([body] if call is None else call[:2])]
    return "\n".join(
        each if len(each) <= MAX_SHOWN else f"{each[:MAX_SHOWN]}… ({len(each)} characters; all with --json)" for each in shown
    )


def _escaped(data: bytes) -> str:
    """Bytes as a Python literal, so that no control character reaches the terminal."""
    shown = repr(data[:MAX_SHOWN])[2:-1]
    return shown if len(data) <= MAX_SHOWN else f"{shown}… ({len(data)} bytes; all with --json)"


def _text(value: object) -> str:
    return "-" if value is None or value == "" else str(value)
