"""Print the reference of all settings, `docs/settings.md`: `python -m tests.project.settings_reference`.

It comes from the docstrings of `RedeliveryPolicy` and `GeneralSettings`.
"""

from __future__ import annotations

import inspect
import re
import sys
from dataclasses import MISSING, dataclass, fields
from typing import TYPE_CHECKING, Any

from redelivery.settings.general import GENERAL, GeneralSettings
from redelivery.settings.policy import FIELDS, RedeliveryPolicy
from redelivery.settings.sources import CONFIG, DEFAULT, PREFIX

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["Described", "described", "reference"]

LINE = re.compile(r"- `(\w+)` \(([^;]+); ([^)]+)\): (.+)")

INTRODUCTION = f"""# Settings

Every setting, with its unit, its default and the variable that sets it.

Durations are seconds, or a `timedelta` in Python. More than 100 years, such as `timedelta.max`, count as 100 years.
0 is a value and never means "unset". If None is a value, write `"none"` for it in TOML and in the environment.
An unknown name is an error, which names the nearest known one.

Settings come from four sources, and a later one overrides an earlier one: the built-in defaults; the TOML file that `{CONFIG}`
names; the app, by `app.conf.redelivery` or by `Redelivery(app, {{...}})`, which replaces it; the environment. A variable's value is
JSON, or plain text. This is an example of the TOML file:

```toml
lease = 10

[queues."orders.*"]
max_delivery_attempts = 20

[tasks."shop.newsletter"]
dead_letter_queue = "none"
```

## Policy fields

You can set them in four places. A later place overrides an earlier one, field by field:

1. a row of `queues`, named by a pattern (`{PREFIX}QUEUES` is the whole table, in JSON). The variable of a
   field, below, sets it for all queues (the row `#`);
2. a row of `tasks`, named by a pattern (`{PREFIX}TASKS`);
3. `@redeliver(...)` on the task;
4. `override` (`{PREFIX}OVERRIDE`), which has tables `queues` and `tasks` of its own. Only what a task raises overrides it.

In a pattern, words are divided by dots; `*` is one word, and `#` is any number of words. If several patterns match, the more exact
one wins.

If a meaning ends with *Artemis*, *Solace* or *RabbitMQ*, the setting works as in that broker ([parity](parity.md)).
RabbitMQ does not have all of them: [a worker refuses the others at its start](rabbitmq.md#refused-at-start).
"""

GENERAL_INTRODUCTION = """## General settings

They belong to the whole app. Write them at the top level, beside `queues` and `tasks`.
"""


@dataclass(frozen=True, slots=True)
class Described:
    """One setting in a docstring."""

    name: str
    unit: str
    default: str
    meaning: str


def described(owner: type, names: Sequence[str]) -> list[Described]:
    """The settings of a docstring, one for each name, in order. Raises `ValueError`."""
    lines = {each.name: each for each in _lines(owner)}
    defaults = {each.name: _shown(each.default if each.default is not MISSING else None) for each in fields(owner)}
    if set(lines) != set(names):
        msg = f"{owner.__name__}: its docstring lacks, or should not have, {', '.join(sorted(set(lines) ^ set(names)))}"
        raise ValueError(msg)
    for name in names:
        if lines[name].default not in {defaults[name], "none"}:
            msg = f"{owner.__name__}: {name} is {defaults[name]} by default, and its docstring says {lines[name].default}"
            raise ValueError(msg)
    return [lines[name] for name in names]


def reference() -> str:
    """The text of the page."""
    policy = _table(described(RedeliveryPolicy, FIELDS), f"{PREFIX}{DEFAULT}")
    general = _table(described(GeneralSettings, GENERAL), PREFIX)
    return f"{INTRODUCTION}\n{policy}\n{GENERAL_INTRODUCTION}\n{general}"


def _lines(owner: type) -> Iterator[Described]:
    text = inspect.getdoc(owner) or ""
    for paragraph in re.split(r"\n(?=- )|\n\n", text):
        found = LINE.match(" ".join(paragraph.split()))
        if found is not None:
            yield Described(*found.groups())


def _shown(default: Any) -> str:
    if isinstance(default, bool):
        return str(default).lower()
    if isinstance(default, str):
        return f'"{default}"'
    if isinstance(default, (int, float)):
        return f"{default:g}" if isinstance(default, float) else str(default)
    return "none" if default == () else str(default)


def _table(rows: Sequence[Described], prefix: str) -> str:
    head = "| setting | unit | default | variable | meaning |\n|---|---|---|---|---|\n"
    return head + "".join(
        f"| `{each.name}` | {each.unit} | {each.default} | `{prefix}{each.name.upper()}` | {each.meaning} |\n" for each in rows
    )


if __name__ == "__main__":
    sys.stdout.write(reference())
