"""RabbitMQ's own policies that end messages. The management plugin reports them; AMQP does not.

The plugin's answer may contain anything, so errors are reported in fixed words. A redirection is not followed, because the user and
password would be sent there. Limits: the plugin is asked once, when a worker starts. Patterns are read as Python's.
"""

from __future__ import annotations

import base64
import json
import re
from dataclasses import dataclass
from http.client import HTTPException
from typing import TYPE_CHECKING, Any
from urllib.error import HTTPError
from urllib.parse import quote, unquote, urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from redelivery.errors import BrokerError

from ...logs import log
from .names import BITS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from celery import Celery
    from kombu import Connection

    from .names import AmqpNames

#: Definitions that make a broker end messages.
ENDING = ("dead-letter-exchange", "message-ttl", "expires", "max-length", "max-length-bytes", "delivery-limit")
#: A queue has one policy of each kind: the one with the highest priority.
KINDS = ("policies", "operator-policies")
#: The values of `apply-to` that include queues.
OF_QUEUES = ("all", "queues", "classic_queues", "quorum_queues")
#: The same for exchanges: messages that no queue is bound for go to the alternate exchange.
ENDING_EXCHANGE, OF_EXCHANGES = ("alternate-exchange",), ("all", "exchanges")
#: Seconds that the plugin may take to answer.
TIMEOUT = 5.0
REDIRECTION = 3
#: Arguments of a queue's declaration that make the broker end messages.
BYPASSES = ("x-dead-letter-exchange", "x-message-ttl", "x-expires", "x-max-length", "x-max-length-bytes", "x-delivery-limit")
_DROPPED = "the broker drops messages because of these, without a record: remove them, and use max_time_to_live instead"
_KEPT = "the broker ends messages itself because of these: use `redelivery dlq import`, or max_time_to_live"
_ENDS_OURS = "it ends dead letters, delays or outcome events: change its pattern so that it does not match these"


@dataclass(frozen=True, slots=True)
class Policy:
    """A broker's policy: its name, its definitions that end messages, and the queues or exchange that it applies to."""

    name: str
    definitions: tuple[str, ...]
    queues: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Bypass:
    """A queue whose declaration makes the broker end messages: its arguments that do so, and what to do about it."""

    queue: str
    arguments: tuple[str, ...]
    why: str


class _NoRedirects(HTTPRedirectHandler):
    def redirect_request(self, *_: Any, **__: Any) -> None:
        """Make a redirection an error."""


_OPENER = build_opener(_NoRedirects)


def ending_policies(url: str, connection: Connection, queues: Iterable[str], exchanges: Iterable[str] = ()) -> list[Policy]:
    """The policies of the connection's virtual host that end messages of these queues and exchanges. Raises `BrokerError`."""
    asked = [(each, OF_QUEUES, ENDING) for each in queues] + [(each, OF_EXCHANGES, ENDING_EXCHANGE) for each in exchanges]
    found: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for policies in [_policies(url, connection, kind) for kind in KINDS]:
        for name, targets, definitions in asked:
            policy = _of(name, targets, policies)
            ending = tuple(each for each in definitions if each in policy.get("definition", ()))
            if ending:
                found.setdefault((policy["name"], ending), []).append(name)
    return [Policy(name, ending, tuple(sorted(of))) for (name, ending), of in sorted(found.items())]


def _of(name: str, targets: tuple[str, ...], policies: list[dict[str, Any]]) -> dict[str, Any]:
    """The policy that applies to a queue or an exchange; an empty one if none does."""
    matching = [each for each in policies if each.get("apply-to", "all") in targets and re.search(each["pattern"], name)]
    return max(matching, key=lambda each: each["priority"], default={})


def _policies(url: str, connection: Connection, kind: str) -> list[dict[str, Any]]:
    parts = urlsplit(url)
    address = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path.rstrip('/')}"
    user, password = connection.userid, connection.password
    if parts.username is not None:
        user, password = unquote(parts.username), unquote(parts.password or "")
    credentials = base64.b64encode(f"{user or ''}:{password or ''}".encode()).decode()
    path = f"{address}/api/{kind}/{quote(connection.virtual_host or '/', safe='')}"
    request = Request(path, headers={"Authorization": f"Basic {credentials}"})  # noqa: S310 - the setting takes http and https
    try:
        with _OPENER.open(request, timeout=TIMEOUT) as answer:
            return list(_checked(json.load(answer)))
    except (OSError, HTTPException, ValueError, LookupError, TypeError, RecursionError, re.error) as exc:
        msg = f"the management plugin at {address} does not report the broker's policies: {_why_not(exc)}"
        raise BrokerError(msg) from exc


def _why_not(exc: Exception) -> str:
    if isinstance(exc, HTTPError):
        hint = " (a redirection is not followed: name its target in management_url)" if exc.code // 100 == REDIRECTION else ""
        return f"it answered with status {exc.code}{hint}"
    if isinstance(exc, (OSError, HTTPException)):
        return f"it does not answer ({type(getattr(exc, 'reason', exc)).__name__})"
    return "its answer is not a list of policies"


def _checked(rows: Any) -> Iterator[dict[str, Any]]:
    """The policies of an answer. Raises `LookupError`, `TypeError`, `ValueError` or `re.error` if a row is not a policy."""
    for row in rows:
        re.compile(row["pattern"])
        yield {**row, "name": str(row["name"]), "priority": int(row["priority"]), "definition": dict(row["definition"])}


def bypasses_of(app: Celery, queues: Iterable[str]) -> Iterator[Bypass]:
    """The queues whose own declarations make RabbitMQ end messages."""
    for name in queues:
        queue = app.amqp.queues[name]
        options = {
            "x-message-ttl": queue.message_ttl,
            "x-expires": queue.expires,
            "x-max-length": queue.max_length,
            "x-max-length-bytes": queue.max_length_bytes,
        }
        given = {*(queue.queue_arguments or {}), *(name for name, value in options.items() if value is not None)}
        found = tuple(argument for argument in BYPASSES if argument in given)
        if found:
            yield Bypass(name, found, _KEPT if BYPASSES[0] in found else _DROPPED)


def bypassing_policies(
    url: str, app: Celery, consumed: Sequence[str], letters: Iterable[str], names: AmqpNames
) -> list[tuple[Policy, str]]:
    """The policies that end messages in consumed queues or our own, each with what to do about it. Raises `BrokerError`."""
    ours = {*letters, names.outcomes, *map(names.level, range(BITS))} - {*consumed}
    found = ending_policies(url, app.connection_for_write(), [*consumed, *ours], [names.delivery_exchange])
    ours.add(names.delivery_exchange)
    whys = [_ENDS_OURS if ours & {*each.queues} else _KEPT if each.definitions[0] == ENDING[0] else _DROPPED for each in found]
    return list(zip(found, whys, strict=True))


def warn_of_bypasses(app: Celery, queues: Iterable[str]) -> None:
    """Log a warning for each queue whose own declaration makes RabbitMQ end messages."""
    for each in bypasses_of(app, queues):
        log.warning("broker.bypasses", queue=each.queue, arguments=",".join(each.arguments), why=each.why)


def warn_of_policies(url: str, app: Celery, consumed: Sequence[str], letters: Iterable[str], names: AmqpNames) -> None:
    """Log a warning for each of the broker's policies that ends messages in consumed queues or in redelivery's own."""
    try:
        found = bypassing_policies(url, app, consumed, letters, names)
    except BrokerError as exc:
        log.warning("broker.policies_unknown", error=str(exc), why="look with `rabbitmqctl list_policies`")
        return
    for policy, why in found:
        facts = {"queues": ",".join(policy.queues), "definitions": ",".join(policy.definitions)}
        log.warning("broker.policy_bypasses", policy=policy.name, **facts, why=why)
