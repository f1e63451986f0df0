"""The page: what a run has shown, as `docs/chaos.md` has it, between two marks that are left in place."""

from __future__ import annotations

import re
from collections import defaultdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

__all__ = ["read_kills", "section", "write"]

BEGIN, END = "<!-- figures: written by `./dev chaos --page` -->", "<!-- end of figures -->"


def write(path: Path, figures: Mapping[str, Any]) -> None:
    """Put the figures of a run into a page. Raises `ValueError` where it has no place for them."""
    text = path.read_text("utf-8")
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        msg = f"{path} has no place for figures: put {BEGIN} and {END} where they are to be"
        raise ValueError(msg)
    path.write_text(f"{before}{BEGIN}\n{section(figures)}\n{END}{after}", "utf-8")


def section(figures: Mapping[str, Any]) -> str:
    """The figures of a run as Markdown: what came of it, and how often each process was killed at each of its steps."""
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
        "other faults": f"{sum(figures['other_faults'].values()):,}",
        "lives in the books": f"{figures['lives']:,}",
        "lost": figures["lost"],
        "ended twice": figures["duplicated"],
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


def read_kills(text: str) -> dict[str, int]:
    """The kills at boundaries that a page tells of: `<role>:<boundary>`, and how many."""
    kills: dict[str, int] = {}
    for role, its in re.findall(r"^\| (\w+) \| \d+ \| (`.*) \|$", text, re.MULTILINE):
        for step, before, after in re.findall(r"`(\w+)` (\d+|-) / (\d+|-)", its):
            kills |= {f"{role}:{step}.{side}": int(count) for side, count in (("before", before), ("after", after)) if count != "-"}
    return kills
