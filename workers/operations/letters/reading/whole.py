"""Shows a whole dead letter: its history, the failure, the arguments.

Arguments are decoded only if they are JSON; any other body is given in base64. The setting `redact` hides texts and the body.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

from redelivery.display import safe
from redelivery.middleware.logs import HIDDEN
from redelivery.middleware.messages.envelope import HEADER

from ...words.redaction import redacted

if TYPE_CHECKING:
    from ....letters import Letter


def as_json(letter: Letter, *, redact: bool) -> dict[str, Any]:
    """Return the whole letter for JSON."""
    letter = redacted(letter) if redact else letter
    envelope = letter.envelope
    headers = {key: value for key, value in letter.headers.items() if key != HEADER}
    return {
        **letter.to_row(),
        "origin": dict(envelope.origin),
        "first_seen_ms": envelope.first_seen_ms,
        "failure": dict(letter.failure),
        "attempts_made": [dict(each) for each in envelope.attempts],
        "deaths": [dict(each) for each in envelope.deaths],
        "first_death": None if envelope.first_death is None else dict(envelope.first_death),
        "parked": envelope.parked,
        "unreadable": letter.unreadable,
        "headers": headers,
        "properties": {} if letter.message is None else letter.message["properties"],
        "body": HIDDEN if redact else body_of(letter),
        **({} if redact or letter.body() is not None else {"body_base64": base64.b64encode(letter.body_bytes()).decode()}),
        "bytes": len(letter.raw),
    }


def as_editable(letter: Letter, *, redact: bool) -> dict[str, Any]:
    """Return the letter for `dlq redrive --with`: as `as_json`, with `args` and `kwargs` if they can be read."""
    call = None if redact else letter.call()
    return {**as_json(letter, redact=redact), **({} if call is None else {"args": call[0], "kwargs": call[1]})}


def body_of(letter: Letter) -> Any:
    """Return the decoded body, or the reason why it is not shown."""
    body = letter.body()
    return why_not(letter) if body is None else body


def why_not(letter: Letter) -> str:
    """Return why the body is not shown."""
    message = letter.message
    if message is None or not letter.is_message:
        return f"(no message: {len(letter.body_bytes())} bytes)"
    return f"(not shown: {safe(message.get('content-type') or 'no content type')}, not decoded)"
