"""Redaction: hides texts of a dead letter if the setting `redact` is on. Nothing that is stored is changed.

Arguments, the texts of exceptions and handlers, and tracebacks are hidden; types, fingerprints, reasons, places and times stay.
Harmless fields are listed here, and all other fields of a record are hidden, also those of a newer version or another client.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from redelivery.middleware.logs import HIDDEN

if TYPE_CHECKING:
    from collections.abc import Mapping

    from redelivery.middleware.runtime import Runtime

    from ...letters import Letter

#: Headers in which Celery repeats the arguments.
ARGUMENTS = frozenset({"argsrepr", "kwargsrepr"})
FAILURE = frozenset({"type", "fingerprint"})
ATTEMPT = frozenset({"at", "worker", "delay", "exception"})
DEATH = frozenset(
    {
        *("queue", "reason", "count", "first", "last", "at", "generation", "exchange", "routing_keys"),
        *("expires", "time_to_live", "expiration", "published"),
    }
)
#: The dotted name of a class; the class may be local to a function.
_CLASS = re.compile(r"[\w.<>]{1,256}")


def seen(runtime: Runtime, letter: Letter) -> Letter:
    """Return the dead letter for operators, redacted if the settings say so."""
    return redacted(letter) if runtime.settings.redact else letter


def redacted(letter: Letter) -> Letter:
    """Return the dead letter without arguments and texts. The caller must hide its body."""
    envelope, failure = letter.envelope, letter.envelope.failure
    hidden = replace(
        envelope,
        failure=None if failure is None else _named(_kept(failure, FAILURE), "type"),
        attempts=tuple(_named(_kept(each, ATTEMPT), "exception") for each in envelope.attempts),
        deaths=tuple(_kept(each, DEATH) for each in envelope.deaths),
        first_death=None if envelope.first_death is None else _kept(envelope.first_death, DEATH),
    )
    message = letter.message
    if message is not None:
        headers = {name: HIDDEN if name in ARGUMENTS and value else value for name, value in message["headers"].items()}
        message = {**message, "headers": headers}
    return replace(letter, envelope=hidden, message=message)


def _kept(record: Mapping[str, Any], names: frozenset[str]) -> dict[str, Any]:
    return {name: value if name in names or value in (None, "") else HIDDEN for name, value in record.items()}


def _named(record: dict[str, Any], field: str) -> dict[str, Any]:
    """Keep only the class name in this field, which may be a class followed by a text."""
    kind = str(record.get(field) or "").partition(": ")[0]
    return {**record, field: kind if not kind or _CLASS.fullmatch(kind) else HIDDEN}
