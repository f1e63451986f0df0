"""The figures of a run in `docs/chaos.md`, between two marks that stay in the page."""

from __future__ import annotations

import re
from collections import defaultdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

__all__ = ["RABBITMQ", "read_kills", "section", "write"]

BEGIN, END = "<!-- figures: written by `./dev chaos --page` -->", "<!-- end of figures -->"
RABBITMQ = BEGIN.replace("chaos", "chaos --broker rabbitmq")


def write(path: Path, figures: Mapping[str, Any]) -> None:
    """Put the figures of a run into a page, between the marks of its broker. Raises `ValueError` if the marks are missing."""
    mark = RABBITMQ if figures.get("broker") == "rabbitmq" else BEGIN
    text = path.read_text("utf-8")
    before, begin, rest = text.partition(mark)
    _, end, after = rest.partition(END)
    if not begin or not end:
        msg = f"{path} has no place for figures: put {mark} and {END} where they are to be"
        raise ValueError(msg)
    path.write_text(f"{before}{mark}\n{section(figures)}\n{END}{after}", "utf-8")


def section(figures: Mapping[str, Any]) -> str:
    """The figures of a run as Markdown: its result, and how often each process was killed at each of its steps."""
    steps: dict[str, dict[str, dict[str, int]]] = defaultdict(lambda: defaultdict(dict))
    elsewhere: dict[str, int] = defaultdict(int)
    for name, count in figures["by_boundary"].items():
        role, _, boundary = name.partition(":")
        step, _, side = boundary.partition(".")
        if side:
            steps[role][step][side] = count
        else:
            elsewhere[role] += count
    at_boundaries = sum(count for its in steps.values() for sides in its.values() for count in sides.values())
    verdicts = figures["verdicts"] or {}
    facts = {
        "seed": figures["seed"],
        "minutes, to rest and with the books": f"{figures['seconds'] / 60:.0f}",
        "kills": f"{figures['kills']:,}",
        "of these at a boundary, with a message in hand": f"{at_boundaries:,}",
        "boundaries hit less often than asked for": len(figures["missing"]),
        "other faults": _by_kind(figures["other_faults"]),
        "lives in the books": f"{figures['lives']:,}",
        "lost": figures["lost"],
        **_ended_twice(figures),
        "ran twice": f"{figures['repeats']:,}, of these {figures['unnamed_repeats']} not named",
        "balanced, by `redelivery reconcile`": f"{verdicts.get('balanced', 0):,}",
    }
    lines = ["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in facts.items()), ""]
    lines += ["| process | killed elsewhere | killed at its steps, before / after |", "|---|---|---|"]
    for role in sorted({*steps, *elsewhere}):
        its = ", ".join(
            f"`{step}` {sides.get('before', '-')} / {sides.get('after', '-')}" for step, sides in sorted(steps[role].items())
        )
        lines.append(f"| {role} | {elsewhere.get(role, 0)} | {its} |")
    return "\n".join(lines)


def _by_kind(faults: Mapping[str, int]) -> str:
    kinds = ", ".join(f"`{name}` {count}" for name, count in sorted(faults.items()))
    return f"{sum(faults.values()):,}" + (f": {kinds}" if kinds else "")


def _ended_twice(figures: Mapping[str, Any]) -> dict[str, Any]:
    """The lives that did not end exactly once; if a transition has several steps, the books must have a word for each."""
    if "named" not in figures:
        return {"ended twice": figures["duplicated"]}
    return {
        "not ended exactly once, with the same word for it in the books": ", ".join(
            f"`{word}` {count}" for word, count in figures["named"].items()
        ),
        "announced by a producer that died before it sent (`lost` in the books)": figures["never_sent"],
        "dead letters that lie in their queue twice": figures["letters_twice"],
    }


def read_kills(text: str, mark: str = BEGIN) -> dict[str, int]:
    """The kills at boundaries in a page after this mark: `<role>:<boundary>`, and how many."""
    kills: dict[str, int] = {}
    figures = text.partition(mark)[2].partition(END)[0]
    for role, its in re.findall(r"^\| (\w+) \| \d+ \| (`.*) \|$", figures, re.MULTILINE):
        for step, before, after in re.findall(r"`(\w+)` (\d+|-) / (\d+|-)", its):
            kills |= {f"{role}:{step}.{side}": int(count) for side, count in (("before", before), ("after", after)) if count != "-"}
    return kills
