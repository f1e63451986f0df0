"""The word of a message in the journal of moves (`journal`): a digest of one delivery of one message, from one queue.

It is made of the message's id, its body and our header. What the broker writes when it hands a message over again is not in it.
"""

from __future__ import annotations

import hashlib
import json

from ...messages.envelope import HEADER
from ...messages.steps import opened

#: Bytes of a word.
WORD = 16


def word_of(message: bytes, queue: str) -> bytes:
    """The word of a message (an envelope's bytes) as it is delivered from this queue."""
    raw = opened(message)
    headers = raw["headers"]
    known = [queue, headers.get("id"), headers.get("replaced_task_nesting"), headers.get(HEADER), raw.get("body")]
    return hashlib.sha256(json.dumps(known, sort_keys=True).encode()).digest()[:WORD]
