"""The exposition: metrics in Prometheus' text format, version 0.0.4.

A label's value is what `safe` makes of it, for a queue's name may be a stranger's; then the backslash, the quote and the line's end
are escaped.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from redelivery.display import safe

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ..operations.metrics import Family

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def exposition(families: Iterable[Family]) -> str:
    """The families as text."""
    lines = []
    for family in families:
        lines += [f"# HELP {family.name} {_escaped(family.help)}", f"# TYPE {family.name} {family.kind}"]
        lines += [f"{family.name}{_labels(sample.labels)} {sample.value}" for sample in family.samples]
    return "".join(f"{line}\n" for line in lines)


def _labels(labels: Mapping[str, str]) -> str:
    pairs = [f'{name}="{_value(value)}"' for name, value in labels.items()]
    return f"{{{','.join(pairs)}}}" if pairs else ""


def _value(text: str) -> str:
    return _escaped(safe(text)).replace('"', '\\"')


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")
