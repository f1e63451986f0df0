"""The sources of settings: a mapping (`app.conf.redelivery`), a TOML file, the environment. All three can set everything.

A mapping and a TOML file hold the general settings (`redelivery.settings.general`) and up to three tables:

- `queues` and `tasks`: a pattern, and the policy fields of that row;
- `override`: its own tables `queues` and `tasks`, which win over everything except what a task raises.

The environment has one variable per general setting (`REDELIVERY_MODE`), one per table, in JSON (`REDELIVERY_QUEUES`,
`REDELIVERY_TASKS`, `REDELIVERY_OVERRIDE`), and one per policy field for the row `#` of `queues`
(`REDELIVERY_DEFAULT_MAX_DELIVERY_ATTEMPTS`). `REDELIVERY_CONFIG` names the TOML file. A value that is not JSON is plain text.

Raises `ConfigurationError` for every unknown setting. Variables that Kubernetes sets for a service called `redelivery` are ignored.
"""

from __future__ import annotations

import dataclasses
import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from redelivery.errors import ConfigurationError

from . import values
from .general import GENERAL, GeneralSettings, read_general
from .matching import AddressPattern
from .policy import FIELDS, RedeliveryPolicy, read_fields

if TYPE_CHECKING:
    from collections.abc import Iterator
    from os import PathLike

QUEUES, TASKS, OVERRIDE = "queues", "tasks", "override"
OVERRIDE_QUEUES, OVERRIDE_TASKS = "override.queues", "override.tasks"
TOP_LEVEL = (*GENERAL, QUEUES, TASKS, OVERRIDE)
#: Settings that are text.
TEXTS = {
    each.name
    for settings in (GeneralSettings, RedeliveryPolicy)
    for each in dataclasses.fields(settings)
    if each.type in {"str", "str | None"}
}

PREFIX = "REDELIVERY_"
DEFAULT = "DEFAULT_"
ENVIRONMENT = "environment"
#: The variable that names the TOML file.
CONFIG = "REDELIVERY_CONFIG"
#: Variables that Kubernetes sets for a service of this name: REDELIVERY_SERVICE_HOST, REDELIVERY_PORT_6379_TCP and others.
KUBERNETES = re.compile(r"REDELIVERY_(SERVICE_HOST|SERVICE_PORT(_.+)?|PORT(_\d+_.+)?)")


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a table: the addresses to which it applies, and its fields."""

    table: str
    pattern: AddressPattern
    fields: Mapping[str, Any]
    source: str

    def __str__(self) -> str:
        return f'{self.table}["{self.pattern.text}"] ({self.source})'


@dataclass(frozen=True, slots=True)
class Source:
    """The contents of one source: general settings, and rows in the order written."""

    name: str
    general: Mapping[str, Any]
    rows: tuple[Row, ...]


def mapping(raw: Any, name: str) -> Source:
    """Read a mapping, called `name` in errors and explanations. Raises `ConfigurationError`."""
    table = _table(raw, name)
    general = {}
    for key, value in table.items():
        if key in GENERAL:
            general[key] = read_general(key, value, name)
        elif key in FIELDS:
            msg = f"{name}: {key} belongs to queues or tasks: write queues = {{'#': {{'{key}': ...}}}}"
            raise ConfigurationError(msg)
        elif key not in TOP_LEVEL:
            raise values.unknown(name, key, TOP_LEVEL)
    return Source(name, general, tuple(_rows(table, name)))


def _rows(table: Mapping[Any, Any], name: str) -> Iterator[Row]:
    for each in (QUEUES, TASKS):
        yield from _rows_of(each, table.get(each, {}), name)
    override = _table(table.get(OVERRIDE, {}), f"{name}: {OVERRIDE}")
    for key in override:
        if key not in {QUEUES, TASKS}:
            hint = values.suggestion(key, (QUEUES, TASKS)) or f"; write override = {{'queues': {{'{key}': ...}}}}"
            msg = f"{name}: override takes the tables queues and tasks, not {key!r}{hint}"
            raise ConfigurationError(msg)
    yield from _rows_of(OVERRIDE_QUEUES, override.get(QUEUES, {}), name)
    yield from _rows_of(OVERRIDE_TASKS, override.get(TASKS, {}), name)


def _rows_of(table: str, raw: Any, name: str) -> Iterator[Row]:
    for written, given in _table(raw, f"{name}: {table}").items():
        try:
            pattern = AddressPattern(written)
        except ConfigurationError as error:
            msg = f"{name}: {table}: {error}"
            raise ConfigurationError(msg) from None
        where = f'{table}["{written}"] ({name})'
        row = _table(given, where)
        for key, value in row.items():
            if key not in FIELDS and isinstance(value, Mapping):
                msg = f'{where}: {key!r} is a table, not a setting; a pattern with dots is quoted: {table}."{written}.{key}"'
                raise ConfigurationError(msg)
        yield Row(table, pattern, read_fields(row, where), name)


def _table(raw: Any, where: str) -> Mapping[Any, Any]:
    if isinstance(raw, Mapping):
        return raw
    msg = f"{where} must be a table of settings, not {raw!r}"
    raise ConfigurationError(msg)


def toml_file(path: str | PathLike[str]) -> Source:
    """Read a TOML file. Raises `ConfigurationError` with the file, and the line where its syntax is broken."""
    file = Path(path)
    try:
        content = file.read_bytes()
    except OSError as error:
        msg = f"{file}: cannot be read ({error.strerror}): correct the path in {CONFIG}, or unset it"
        raise ConfigurationError(msg) from None
    try:
        raw = tomllib.loads(content.decode())
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        msg = f"{file}, line {line}: is not UTF-8: save the file in that encoding"
        raise ConfigurationError(msg) from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigurationError(_broken(file, content, str(error))) from None
    return mapping(raw, file.name)


def _broken(file: Path, content: bytes, error: str) -> str:
    place = re.search(r" \(at line (\d+), column \d+\)$", error)
    line = int(place[1]) if place else content.count(b"\n") + 1
    return f"{file}, line {line}: is not valid TOML: {re.sub(r' [(]at .*[)]$', '', error)}"


def environment(environ: Mapping[str, str]) -> Source:
    """Read the `REDELIVERY_` variables. Raises `ConfigurationError`."""
    raw: dict[str, Any] = {}
    default: dict[str, Any] = {}
    for variable in sorted(environ):
        if not variable.startswith(PREFIX) or variable == CONFIG or KUBERNETES.fullmatch(variable):
            continue
        key = variable.removeprefix(PREFIX).lower()
        field = key.removeprefix(DEFAULT.lower())
        if key in TOP_LEVEL:
            raw[key] = _value(variable, environ[variable], is_text=key in TEXTS)
        elif field != key and field in FIELDS:
            default[field] = _value(variable, environ[variable], is_text=field in TEXTS)
        else:
            named = [CONFIG, *(PREFIX + each.upper() for each in TOP_LEVEL), *(PREFIX + DEFAULT + each.upper() for each in FIELDS)]
            raise values.unknown(ENVIRONMENT, variable, named)
    if default:
        _add_default(raw, default)
    return mapping(raw, ENVIRONMENT)


def _add_default(raw: dict[str, Any], default: dict[str, Any]) -> None:
    queues = _table(raw.get(QUEUES, {}), "environment: queues")
    row = _table(queues.get("#", {}), 'queues["#"] (environment)')
    twice = sorted(default.keys() & row.keys())
    if twice:
        msg = f"environment: {PREFIX}{DEFAULT}{twice[0].upper()} and {PREFIX}QUEUES both set {twice[0]} for '#': keep one"
        raise ConfigurationError(msg)
    raw[QUEUES] = {**queues, "#": {**row, **default}}


def _value(variable: str, text: str, *, is_text: bool) -> Any:
    """The value as JSON, or the text itself if it is not JSON. A broken table is refused.

    With `is_text`, numbers, true and false are text: the release of an app may be called 4711.
    """
    lowered = text.strip().lower()
    if lowered in {"true", "false"} and not is_text:
        return lowered == "true"
    try:
        read = json.loads(text, object_pairs_hook=_each_key_once)
        return text.strip() if is_text and isinstance(read, (int, float)) else read
    except json.JSONDecodeError as error:
        if lowered.startswith(("{", "[")) or variable.removeprefix(PREFIX).lower() in {QUEUES, TASKS, OVERRIDE}:
            msg = f"environment: {variable} is not valid JSON (line {error.lineno}, column {error.colno}): {error.msg}"
            raise ConfigurationError(msg) from None
        return text.strip()
    except ValueError as error:
        msg = f"environment: {variable}: {error}"
        raise ConfigurationError(msg) from None


def _each_key_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    read = dict(pairs)
    if len(read) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        msg = f"{twice!r} is written twice: keep one"
        raise ValueError(msg)
    return read
