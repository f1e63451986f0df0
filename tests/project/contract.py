"""The contract: one document with every name on which users, operators, programs or other versions of this project rely.

`tests/project/contract.json` is the agreed document, and `test_contract.py` compares it with the code. Names may be added. A name
that is removed, or changes its meaning, breaks settings, dashboards, scripts, or workers of the previous version.
`./dev python -m tests.project.contract` writes the document again.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
import tomllib
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import redelivery
import redelivery.settings
import redelivery.testing
import redelivery.web
from redelivery import errors
from redelivery.middleware.brokers.rabbitmq.names import BITS, OUTCOMES, OUTCOMES_EXCHANGE, START, AmqpNames
from redelivery.middleware.brokers.redis.keys import Keys, Own
from redelivery.middleware.messages import envelope as header
from redelivery.middleware.messages.envelope import Attempt, Failed
from redelivery.middleware.messages.events import ENTRY, SCHEMA_VERSION, TERMINAL, Event, Outcome, Reason
from redelivery.middleware.messages.steps import dead, deferred, redelivered, redriven
from redelivery.middleware.messages.ttl import PUBLISHED, TIME_TO_LIVE
from redelivery.middleware.ports import Capability
from redelivery.settings import FIELDS, GENERAL, GeneralSettings, RedeliveryPolicy
from redelivery.workers.cli.main import redelivery as command
from redelivery.workers.operations.doctor.finding import NAMES
from redelivery.workers.operations.metrics.metrics import METRICS, WORKER_METRICS
from redelivery.workers.reconciliation import schema
from redelivery.workers.reconciliation.rules import VERDICTS
from tests.project.settings_reference import described

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["AGREED", "collected"]

AGREED = Path(__file__).with_name("contract.json")
ROOT = Path(__file__).resolve().parents[2]
LOG = re.compile(r"^\| `([a-z_]+\.[a-z_]+)` \| (\w+) \| ([^|]*) \|", re.MULTILINE)
#: The public attributes of `Redelivery(app)`; all others are internal.
INSTALLED = {"settings", "policy_for", "dead_letter_handler", "publishing"}
#: A task's message as a producer writes it. The contract has what each step adds to its header.
MESSAGE: Mapping[str, Any] = {
    "body": "",
    "headers": {"id": "a", "task": "shop.charge", "expires": "2030-01-01T00:00:00+00:00", "retries": 0},
    "properties": {"delivery_info": {"exchange": "", "routing_key": "orders"}, "expiration": "60000"},
}


def collected() -> dict[str, Any]:
    """The document, from the present code."""
    return {
        "api": dict(sorted(_api())),
        "entry_points": _entry_points(),
        "commands": dict(sorted(_commands(command, "redelivery"))),
        "doctor_findings": sorted(NAMES),
        "settings": {each.name: [each.unit, each.default] for each in described(RedeliveryPolicy, FIELDS)},
        "general_settings": {each.name: [each.unit, each.default] for each in described(GeneralSettings, GENERAL)},
        "headers": _headers(),
        "redis_keys": _redis_keys(),
        "rabbitmq_names": _rabbitmq_names(),
        "events": _events(),
        "capabilities": sorted(Capability),
        "log_events": _log_events(),
        "metrics": {name: kind for name, (kind, _) in {**METRICS, **WORKER_METRICS}.items()},
        "books": _books(),
    }


def _api() -> Iterator[tuple[str, str]]:
    for module in (redelivery, redelivery.settings, redelivery.testing, redelivery.web, errors):
        for name in module.__all__:
            offered = getattr(module, name)
            yield f"{module.__name__}.{name}", _signature(offered)
            if inspect.isclass(offered):
                yield from ((f"{module.__name__}.{name}.{member}", said) for member, said in _members(offered))


def _members(owner: type) -> Iterator[tuple[str, str]]:
    """The public members of a class, without those that it inherits from Python or Celery."""
    for each in owner.__mro__:
        if each.__module__.startswith("redelivery"):
            for name, value in vars(each).items():
                if not name.startswith("_") and (owner is not redelivery.Redelivery or name in INSTALLED):
                    yield name, _signature(getattr(value, "__func__", value))


def _signature(offered: Any) -> str:
    """Names, kinds and defaults of parameters, without annotations."""
    if isinstance(offered, type) and issubclass(offered, Enum):
        return ""
    if not callable(offered):
        return type(offered).__name__ if isinstance(offered, (property, dict)) else ""
    try:
        parameters = inspect.signature(offered).parameters.values()
    except (TypeError, ValueError):
        return ""
    plain = [each.replace(annotation=inspect.Parameter.empty) for each in parameters]
    # The text of an object would contain its address.
    return re.sub(r" at 0x[0-9a-f]+", "", str(inspect.Signature(plain)))


def _entry_points() -> dict[str, Any]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    points = {group: sorted(named) for group, named in project["entry-points"].items()}
    return {"scripts": sorted(project["scripts"]), "extras": sorted(project["optional-dependencies"]), **points}


def _commands(found: click.Command, path: str) -> Iterator[tuple[str, list[str]]]:
    parameters = []
    for each in found.params:
        shown = "/".join([*each.opts, *each.secondary_opts]) if isinstance(each, click.Option) else each.name or ""
        kind = "flag" if getattr(each, "is_flag", False) else each.type.name
        is_many = getattr(each, "multiple", False)
        parameters.append(f"{shown} {kind}{' required' if each.required else ''}{' many' if is_many else ''}")
    yield path, sorted(parameters)
    if isinstance(found, click.Group):
        context = click.Context(found)
        for name in found.list_commands(context):
            inner = found.get_command(context, name)
            assert inner is not None, name
            yield from _commands(inner, f"{path} {name}")


def _headers() -> dict[str, Any]:
    """The names of the headers, and what each step writes into the header `redelivery`."""
    failed = Failed(type="ValueError", message="m", traceback="t", fingerprint="f")
    attempt = Attempt(at_ms=1, worker="w", exception="ValueError: m", delay_ms=2, trace=f"00-{'a' * 32}-{'b' * 16}-01")
    first = json.loads(json.dumps(MESSAGE))
    again = redelivered(first, "orders", seen_ms=1, attempt=attempt, crash=True, due_ms=3)
    letter = dead(
        again,
        "orders",
        dead_letter_queue="DLQ.orders",
        reason="exhausted",
        at_ms=4,
        seen_ms=1,
        attempt=attempt,
        failed=failed,
        detail="d",
        parked=True,
    )
    steps = {
        "redelivered": again,
        "deferred": deferred(first, "orders", seen_ms=1, eta="2030-01-01T00:00:00+00:00"),
        "dead": letter,
        "redriven": redriven(letter),
    }
    return {
        "names": sorted(
            [
                *(
                    header.HEADER,
                    header.ANNOUNCED,
                    header.ELIGIBLE,
                    header.EXPIRATION,
                    header.DELIVERED,
                    header.COPIES,
                    header.RELEASED,
                ),
                *(PUBLISHED, TIME_TO_LIVE),
            ],
        ),
        "version": header.VERSION,
        "fields": sorted(header.KNOWN),
        "written_by": {name: _shape(step["headers"][header.HEADER]) for name, step in steps.items()},
    }


def _shape(value: Any) -> Any:
    """The names in a value, and the types of their values."""
    if isinstance(value, dict):
        return {name: _shape(each) for name, each in sorted(value.items())}
    if isinstance(value, list):
        return [_shape(each) for each in value[:1]]
    return type(value).__name__


def _redis_keys() -> dict[str, str]:
    keys = Keys(prefix="p:")
    found = {name: getattr(keys, name) for name, value in inspect.getmembers_static(Keys) if isinstance(value, (property, Own))}
    parts = {"queue": "Q", "list_name": "Q", "token": "T", "exchange": "E", "per_second": 1.5, "priority": 6, "operation_id": "O"}
    parts["day"] = 1
    for name, value in inspect.getmembers_static(Keys):
        if name.startswith("_") or not inspect.isfunction(value):
            continue
        given = {each: parts[each] for each in list(inspect.signature(value).parameters)[1:]}
        found[name] = str(getattr(keys, name)(**given))
    return dict(sorted(found.items()))


def _rabbitmq_names() -> dict[str, str]:
    names = AmqpNames()
    found = {name: getattr(names, name) for name, value in inspect.getmembers_static(AmqpNames) if isinstance(value, property)}
    levels = {"level_3": names.level(3), "first_level": names.level(BITS - 1)}
    return {**found, **levels, "outcomes": OUTCOMES, "outcomes_exchange": OUTCOMES_EXCHANGE, "start": START}


def _events() -> dict[str, Any]:
    return {
        "schema_version": SCHEMA_VERSION,
        "fields": [each.name for each in dataclasses.fields(Event)],
        "entry": list(ENTRY),
        "outcomes": {str(each): "terminal" if each in TERMINAL else "" for each in Outcome},
        "reasons": sorted(Reason),
    }


def _log_events() -> dict[str, list[str]]:
    """The log events of `docs/logging.md`; `test_logs.py` compares that page with the code."""
    rows = LOG.findall((ROOT / "docs" / "logging.md").read_text())
    return {event: [level, *sorted(key.strip() for key in keys.split(",") if key.strip())] for event, level, keys in sorted(rows)}


def _books() -> dict[str, Any]:
    return {
        "verdicts": list(VERDICTS),
        "events": {each.name: each.dataType.simpleString() for each in schema.EVENTS},
        "inventory": {each.name: each.dataType.simpleString() for each in schema.INVENTORY},
        "places": list(schema.PLACES),
    }


if __name__ == "__main__":
    AGREED.write_text(json.dumps(collected(), indent=1, sort_keys=True) + "\n")
