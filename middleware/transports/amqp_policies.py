"""The policies of a RabbitMQ broker that end messages by themselves, as its management plugin tells them: AMQP does not.

Enters: the plugin's address (`management_url`), and the names of queues, be they there or not. Leaves: the policies whose
definitions let the broker throw away, expire or dead-letter what lies in one of them. Raises `BrokerError` where the plugin does
not answer, or something else does; it says what it was in fixed words, for an answer may hold anything. A redirection is not
followed, for the user and the password would go with it. Limits: it is asked once, when a worker starts; what a policy is changed
to later is not seen. Patterns are read as Python reads them.
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

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from kombu import Connection

__all__ = ["Policy", "ending_policies"]

#: Definitions by which a broker ends messages itself.
ENDING = ("dead-letter-exchange", "message-ttl", "expires", "max-length", "max-length-bytes", "delivery-limit")
#: A user's policy and an operator's hold for a queue together; of each kind, the one of the highest priority.
KINDS = ("policies", "operator-policies")
#: What a policy may be for, where it is for queues.
OF_QUEUES = ("all", "queues", "classic_queues", "quorum_queues")
#: Seconds that the plugin may take.
PATIENCE = 5.0
REDIRECTION = 3


@dataclass(frozen=True, slots=True)
class Policy:
    """A policy: its name, what of it ends messages, and the queues that it holds for."""

    name: str
    definitions: tuple[str, ...]
    queues: tuple[str, ...]


class _NoRedirects(HTTPRedirectHandler):
    """Leaves a redirection as what it is: no answer."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        """None is followed."""


_OPENER = build_opener(_NoRedirects)


def ending_policies(url: str, connection: Connection, queues: Iterable[str]) -> list[Policy]:
    """The policies of the connection's virtual host that end messages of these queues. Raises `BrokerError`."""
    found: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for policies in [_policies(url, connection, kind) for kind in KINDS]:
        for queue in queues:
            policy = _of(queue, policies)
            ending = tuple(each for each in ENDING if each in policy.get("definition", ()))
            if ending:
                found.setdefault((policy["name"], ending), []).append(queue)
    return [Policy(name, ending, tuple(sorted(of))) for (name, ending), of in sorted(found.items())]


def _of(queue: str, policies: list[dict[str, Any]]) -> dict[str, Any]:
    """The one of these policies that holds for a queue; an empty one where none does."""
    matching = [each for each in policies if each.get("apply-to", "all") in OF_QUEUES and re.search(each["pattern"], queue)]
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
        with _OPENER.open(request, timeout=PATIENCE) as answer:
            return list(_checked(json.load(answer)))
    except (OSError, HTTPException, ValueError, LookupError, TypeError, RecursionError, re.error) as exc:
        msg = f"the management plugin at {address} does not tell the broker's policies: {_why_not(exc)}"
        raise BrokerError(msg) from exc


def _why_not(exc: Exception) -> str:
    if isinstance(exc, HTTPError):
        hint = " (a redirection is not followed: name its target in management_url)" if exc.code // 100 == REDIRECTION else ""
        return f"it answered with status {exc.code}{hint}"
    if isinstance(exc, (OSError, HTTPException)):
        return f"it does not answer ({type(getattr(exc, 'reason', exc)).__name__})"
    return "what it answered are no policies"


def _checked(rows: Any) -> Iterator[dict[str, Any]]:
    """The policies of an answer. Raises `LookupError`, `TypeError`, `ValueError`, `re.error` for what is none."""
    for row in rows:
        re.compile(row["pattern"])
        yield {**row, "name": str(row["name"]), "priority": int(row["priority"]), "definition": dict(row["definition"])}
