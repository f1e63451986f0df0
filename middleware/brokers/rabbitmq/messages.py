"""Converts a py-amqp delivery to the JSON envelope that kombu writes on Redis, and an envelope to a message for publishing.

The conversions lose nothing; `docs/rabbitmq.md` describes the format. Limits: bytes in a header that are valid UTF-8 come back as
text, and a value that nests deeper than `MAX_DEPTH` is kept as bytes.
"""

from __future__ import annotations

import base64
import json
import re
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import amqp

from redelivery.errors import EnvelopeError
from redelivery.settings.names import MAX_BYTES

from ...messages.envelope import COPIES, DELIVERED, EXPIRATION, HEADER, Envelope, mapping
from ...messages.recording import raw_id
from ...messages.steps import opened
from .names import BITS, AmqpNames
from .properties import MARK

if TYPE_CHECKING:
    from collections.abc import Mapping

#: RabbitMQ routes a copy of the message for each routing key in this header.
CC = "CC"
PERSISTENT = 2
#: Bytes. Properties and headers must fit into one frame, which has 128 KiB by default.
MAX_HEADERS = 126_000
#: The most bytes of properties in one frame; fewer for messages of ours, because the delay store adds headers.
MAX_WIDTH, MAX_WITH_OURS = 131_000, 128_000

#: Headers that only the broker writes.
OF_THE_BROKER = re.compile(
    r"x-(death|delivery-count|opt-delivery-count|acquired-count|(first|last)-death-(queue|reason|exchange))\Z"
)
PROPERTIES = ("correlation_id", "reply_to", "message_id", "timestamp", "type", "app_id", "cluster_id")
OUR_DELAYS = AmqpNames().delivery_exchange
OUR_LEVELS = frozenset(map(AmqpNames().level, range(BITS)))
#: The bits of a native delay, ours or Celery's own, before a routing key.
DELAYED = re.compile(rf"(?:[01]\.){{{BITS}}}")


def envelope_of(message: Any, *, queue: str, origin: tuple[str, str] | None = None) -> bytes:
    """A delivery's envelope, as bytes. `origin` (exchange, routing key) is the queue's, for messages that have lost their own."""
    properties = message.properties
    headers = _headers_to_json(properties.get("application_headers") or {})
    names = (*PROPERTIES, "user_id")
    kept: dict[str, Any] = {name: properties[name] for name in names if properties.get(name) is not None}
    expiration = headers.pop(EXPIRATION, None) or properties.get("expiration")
    if expiration is not None:
        kept["expiration"] = expiration
    headers.pop(DELIVERED, None)
    if COPIES in headers:
        headers[CC] = headers.pop(COPIES)
    info = published_to(message, queue=queue, origin=origin)
    kept.update(
        delivery_mode=properties.get("delivery_mode", PERSISTENT),
        delivery_info=info,
        delivery_tag=str(message.delivery_info.get("delivery_tag", "")),
        body_encoding="base64",
    )
    if properties.get("priority") is not None:
        kept["priority"] = properties["priority"]
    if headers.get("redelivered"):
        kept["delivery_info"] = {**info, "redelivered": True}
    envelope = {
        "body": base64.b64encode(_bytes(message.body, properties.get("content_encoding"))).decode(),
        "content-type": properties.get("content_type"),
        "content-encoding": properties.get("content_encoding"),
        "headers": headers,
        "properties": kept,
    }
    return json.dumps(envelope, separators=(",", ":")).encode()


def shown(headers: Mapping[str, Any]) -> Mapping[str, Any]:
    """The headers that a task sees: without those that the broker has added in our delay store."""
    deaths = headers.get("x-death")
    queues = [each.get("queue") for each in deaths if isinstance(each, dict)] if isinstance(deaths, list) else []
    if not any(isinstance(queue, str) and queue in OUR_LEVELS for queue in queues):  # any client may have written it
        return headers
    return {name: value for name, value in headers.items() if not _is_broker(name)}


def published_to(message: Any, *, queue: str, origin: tuple[str, str] | None = None) -> dict[str, Any]:
    """The exchange and routing key that a delivery was first published to, as `envelope_of` writes them."""
    headers = message.properties.get("application_headers") or {}
    delivered = headers.get(DELIVERED)
    if isinstance(delivered, dict):  # any client may have written it
        exchange, routing_key = (delivered.get(name) for name in ("exchange", "routing_key"))
        if _is_name(exchange) and _is_name(routing_key):
            return {"exchange": exchange, "routing_key": routing_key}
    return _delivered(message.delivery_info, headers, queue, origin)


def message_of(raw: bytes, *, target: tuple[str, str]) -> amqp.Message:
    """The message to publish to `target` (exchange, routing key). Raises `EnvelopeError` if `raw` is not an envelope."""
    envelope = opened(raw)
    properties, headers = envelope["properties"], _headers_from_json(envelope["headers"])
    if properties.get("expiration") is not None:
        headers[EXPIRATION] = str(properties["expiration"])
    if CC in headers:
        headers[COPIES] = headers.pop(CC)
    info = mapping(properties.get("delivery_info"))
    came = {"exchange": str(info.get("exchange") or ""), "routing_key": str(info.get("routing_key") or "")}
    if (came["exchange"], came["routing_key"]) != target and came["routing_key"] and not _origin(headers):
        headers[DELIVERED] = came
    body = envelope.get("body") or ""
    content = base64.b64decode(body) if properties.get("body_encoding") == "base64" else str(body).encode()
    kept = {name: properties[name] for name in PROPERTIES if properties.get(name) is not None}
    priority = properties.get("priority")
    is_large = len(raw) > MAX_HEADERS // 2
    if is_large:
        headers = _shortened(headers)
    made = amqp.Message(
        content,
        application_headers=headers,
        delivery_mode=PERSISTENT,
        priority=priority if isinstance(priority, int) and 0 <= priority <= 255 else None,  # noqa: PLR2004 - one octet
        content_type=envelope.get("content-type"),
        content_encoding=envelope.get("content-encoding"),
        **kept,
    )
    return _wrapped(raw, headers) if is_large and _width(made) > (MAX_WITH_OURS if HEADER in headers else MAX_WIDTH) else made


def home_of(raw: bytes, queue: str) -> tuple[str, str]:
    """The exchange and routing key that an envelope was first published to; the queue's own if it went directly to the queue."""
    info = opened(raw)["properties"].get("delivery_info") or {}
    exchange, routing_key = str(info.get("exchange") or ""), str(info.get("routing_key") or "")
    return exchange, routing_key if exchange else routing_key or queue


def _wrapped(raw: bytes, headers: Mapping[str, Any]) -> amqp.Message:
    """A message with the whole envelope as its body, because the properties do not fit into one frame.

    It is not a task: when it is consumed, it dies as `undecodable`, and its dead letter has the whole envelope.
    """
    kept = {name: headers[name] for name in ("id", HEADER) if name in headers}
    if not _is_name(kept.get("id")):
        kept["id"] = raw_id(raw)
    return amqp.Message(raw, application_headers=kept, delivery_mode=PERSISTENT, content_type="application/octet-stream")


def _shortened(headers: dict[str, Any]) -> dict[str, Any]:
    """The headers, with a shorter history if they would not fit into one frame. The producer's headers are kept."""
    if _size(headers) <= MAX_HEADERS or HEADER not in headers:
        return headers
    known = replace(Envelope.of(headers), failure=None)
    if _size({**headers, HEADER: known.to_header()}) > MAX_HEADERS:
        known = replace(known, attempts=(), deaths=known.deaths[:1])
    return {**headers, HEADER: known.to_header()}


def _size(headers: dict[str, Any]) -> int:
    return _width(amqp.Message(application_headers=headers))


def _width(message: amqp.Message) -> int:
    return len(message._serialize_properties())  # noqa: SLF001 - only py-amqp can tell


def delivery_count(message: Any) -> int:
    """How often the broker has delivered this message before. A quorum queue counts; a classic queue only marks it (1).

    Without the mark, the count is another queue's: a program that copies messages, such as a shovel, copies the header, too.
    """
    if not message.delivery_info.get("redelivered"):
        return 0
    counted = (message.properties.get("application_headers") or {}).get("x-delivery-count")
    return counted if isinstance(counted, int) and counted > 0 else 1


def _is_name(value: object) -> bool:
    """Whether it is a text that is short enough for AMQP, as a name or routing key."""
    return isinstance(value, str) and len(value.encode("utf-8", "surrogatepass")) <= MAX_BYTES


def _is_broker(name: object) -> bool:
    return isinstance(name, str) and OF_THE_BROKER.match(name) is not None


def _origin(headers: Mapping[str, Any]) -> Mapping[str, Any]:
    """The target of the first publication, from our header; empty if it is not there."""
    origin = Envelope.origin_of(headers) if HEADER in headers else {}
    return origin if origin.get("queue") else {}


def _delivered(info: Mapping[str, Any], headers: Mapping[str, Any], queue: str, origin: tuple[str, str] | None) -> dict[str, Any]:
    """The target of the first publication: from our header, or the delivery, or (after a delay) the key or the queue."""
    known = _origin(headers)
    if known.get("queue") == queue:
        return {"exchange": known.get("exchange", ""), "routing_key": known.get("routing_key", queue)}
    exchange, routing_key = str(info.get("exchange") or ""), str(info.get("routing_key") or "")
    if DELAYED.match(routing_key):
        key = routing_key if exchange == OUR_DELAYS else DELAYED.sub("", routing_key, count=1)  # Celery's own keeps the key
        exchange, own = origin or ("", queue)
        routing_key = own if key == routing_key or not exchange else key
    elif not exchange:
        routing_key = queue  # the key of a copy (`CC`) is another queue's
    return {"exchange": exchange, "routing_key": routing_key}


def _bytes(body: Any, encoding: Any) -> bytes:
    """The body as it was sent; py-amqp decodes it if it can."""
    if isinstance(body, str):
        return body.encode(encoding or "utf-8")
    return bytes(body)


def _headers_to_json(headers: Mapping[Any, Any]) -> dict[str, Any]:
    """The headers for JSON: names that are not text, or equal our mark, go under the mark. Our own header keeps only text keys."""
    named, others = {}, {}
    for name, value in headers.items():
        if not isinstance(name, str) or name == MARK:
            others[name] = value
        elif name == HEADER:
            if isinstance(value, dict):
                named[name] = {key: _to_json(each) for key, each in value.items() if isinstance(key, str) and key != MARK}
        elif not _is_broker(name):
            named[name] = _to_json(value)
    return {**named, MARK: _to_json(others)} if others else named


def _headers_from_json(headers: Mapping[str, Any]) -> dict[Any, Any]:
    """The inverse of `_headers_to_json`. Raises `EnvelopeError` for a value that AMQP cannot represent."""
    try:
        named = {name: _from_json(value) for name, value in headers.items()}
    except (ArithmeticError, OSError, RecursionError, TypeError, ValueError) as exc:
        msg = f"the headers cannot be written for AMQP: {exc}"
        raise EnvelopeError(msg) from exc
    others = named.get(MARK)
    if isinstance(others, dict):
        del named[MARK]
        named.update(others)
    return named


def _to_json(value: Any) -> Any:  # noqa: PLR0911 - one for each type
    """A header's value for JSON."""
    if value is None or isinstance(value, (str, bool, int, float)):
        return value
    if isinstance(value, dict):
        if all(isinstance(name, str) for name in value) and MARK not in value:
            return {name: _to_json(each) for name, each in value.items()}
        return {MARK: "table", "of": [[_to_json(name), _to_json(each)] for name, each in value.items()]}
    if isinstance(value, (list, tuple)):
        return [_to_json(each) for each in value]
    if isinstance(value, (bytes, bytearray, memoryview)):
        return {MARK: "bytes", "of": base64.b64encode(bytes(value)).decode()}
    if isinstance(value, datetime):
        return {MARK: "time", "of": value.replace(tzinfo=UTC).timestamp()}
    if isinstance(value, Decimal):
        return {MARK: "decimal", "of": str(value)}
    return str(value)


def _from_json(value: Any) -> Any:  # noqa: PLR0911 - one for each type
    """The inverse of `_to_json`."""
    if isinstance(value, list):
        return [_from_json(each) for each in value]
    if not isinstance(value, dict):
        return value
    kind, of = value.get(MARK), value.get("of", "")
    if kind is None:
        return {name: _from_json(each) for name, each in value.items()}
    if kind == "bytes":
        return base64.b64decode(str(of))
    if kind == "time":
        return datetime.fromtimestamp(float(of), UTC).replace(tzinfo=None)
    if kind == "decimal":
        return Decimal(str(of))
    return {_from_json(name): _from_json(each) for name, each in of} if isinstance(of, list) else str(of)
