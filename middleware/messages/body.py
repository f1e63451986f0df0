"""Read and write the body of a message, in its own encoding and compression. Nothing in it is run or unpickled."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any

from celery.utils.saferepr import saferepr as safe_repr
from kombu.compression import compress, decompress

from redelivery.errors import EnvelopeError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

JSON = "application/json"
#: Parts of a body of Celery's protocol 2: args, kwargs, embed.
PARTS = 3

Raw = dict[str, Any]


def decoded(message: Raw) -> Any:
    """The decoded body; None if it is not plain JSON, or cannot be read."""
    if message.get("content-type") != JSON:
        return None
    try:
        return json.loads(_bytes_of(message))
    except Exception:  # noqa: BLE001 - any client may have written the bytes, and kombu's codecs have their own errors
        return None


def parts_of(message: Raw) -> list[Any] | None:
    """Args, kwargs and embed; None if the body is not plain JSON of Celery's protocol 2."""
    body = decoded(message)
    is_shaped = isinstance(body, list) and len(body) == PARTS
    return body if is_shaped and all(isinstance(part, kind) for part, kind in zip(body, (list, dict, dict), strict=True)) else None


def with_body(message: Raw, body: Any) -> Raw:
    """The message with this body. Raises `EnvelopeError` if the body cannot be JSON."""
    try:
        encoded = json.dumps(body, separators=(",", ":")).encode()
    except (TypeError, ValueError) as exc:
        msg = f"the arguments are not JSON: {exc}; give JSON values"
        raise EnvelopeError(msg) from exc
    if isinstance(kind := message["headers"].get("compression"), str):
        encoded, _ = compress(encoded, kind)
    is_base64 = message["properties"].get("body_encoding") == "base64"
    return {**message, "body": base64.b64encode(encoded).decode() if is_base64 else encoded.decode()}


def without_chord(message: Raw) -> tuple[Raw, bool]:
    """The message without its chord, and whether it belonged to one."""
    # Decode only the members of a group, which include those of a chord: decoding every body would be slow.
    body = parts_of(message) if message["headers"].get("group") is not None else None
    if body is None or body[2].get("chord") is None:
        return message, False
    return with_body(message, [body[0], body[1], {**body[2], "chord": None}]), True


def embedded(message: Raw) -> dict[str, Any]:
    """The body's third part: chord, chain, callbacks. Empty if the body is not plain JSON of Celery's protocol 2."""
    body = parts_of(message)
    return {} if body is None else dict(body[2])


def edited(
    message: Raw,
    *,
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    task: str | None = None,
) -> Raw:
    """The message with other arguments, or for another task; None keeps what the message has.

    Raises `EnvelopeError` if its body is not JSON of Celery's protocol 2, or the new arguments are not JSON.
    """
    headers = dict(message["headers"])
    if task is not None:
        headers["task"] = task
    if args is None and kwargs is None:
        return {**message, "headers": headers}
    body = parts_of(message)
    if body is None:
        msg = (
            f"its body is {message.get('content-type') or 'of no type'}, not a Celery task in JSON: its arguments cannot be edited"
        )
        raise EnvelopeError(msg)
    given = list(body[0] if args is None else args), dict(body[1] if kwargs is None else kwargs)
    for name, value in zip(("argsrepr", "kwargsrepr"), (tuple(given[0]), given[1]), strict=True):
        if name in headers:
            headers[name] = safe_repr(value)
    return with_body({**message, "headers": headers}, [*given, body[2]])


def _bytes_of(message: Raw) -> bytes:
    body = message.get("body")
    if not isinstance(body, str):
        msg = "the body is not text"
        raise TypeError(msg)
    encoded = base64.b64decode(body) if message["properties"].get("body_encoding") == "base64" else body.encode()
    kind = message["headers"].get("compression")
    return decompress(encoded, kind) if isinstance(kind, str) else encoded
