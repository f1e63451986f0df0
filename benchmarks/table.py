"""The table of results in the README, between two markers, made from the result files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.comparisons import COMPARISONS
from benchmarks.summary import meets

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from benchmarks.results import Result
    from benchmarks.summary import Row

__all__ = ["BEGIN", "END", "fill", "number", "table"]

BEGIN, END = "<!-- results: made by ./dev bench -->", "<!-- end of results -->"
HEAD = "| figure | plain | redelivery | ratio (spread) | aim | Dramatiq | RQ |\n|---|--:|--:|--:|--:|--:|--:|"
SIDES = ("dramatiq", "rq")
PICTURE = "Above 1 redelivery is better:\n\n![ratios](plots/ratios.svg)\n"


def fill(readme: Path, results: Mapping[str, Result]) -> None:
    """Write the table into the README. Raises `ValueError` without the markers."""
    text = readme.read_text()
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        msg = f"{readme.name} has no place for the table: put {BEGIN!r} and {END!r} where it belongs"
        raise ValueError(msg)
    readme.write_text(f"{before}{BEGIN}\n\n{table(results)}\n{END}{after}")


def table(results: Mapping[str, Result]) -> str:
    """All results, in the order of the comparisons. A result names its machine if the last result has another one."""
    parts, said = [PICTURE], ""
    for name in COMPARISONS:
        if name in results:
            where = _where(results[name])
            parts += [] if where == said else [where, ""]
            parts += [_section(results[name])]
            said = where
    return "\n".join(parts) if said else "Nothing has been measured yet.\n"


def _section(result: Result) -> str:
    aims = COMPARISONS[result.name].aims
    rows = "\n".join(_row(row, aims.get(row.name)) for row in result.rows)
    busy = "" if result.load.get("calm") is not False else ", on a machine that was busy"
    note = f"{result.rounds} round{'s' if result.rounds > 1 else ''}, load {result.load['before']} before{busy}"
    amounts = "".join(f"{amount:,} {name}, " for name, amount in result.amounts.items())
    return f"**{result.title}** (`{result.name}`: {amounts}{note}) · [plot](plots/{result.name}.svg)\n\n{HEAD}\n{rows}\n"


def _row(row: Row, aim: float | None) -> str:
    ratio = "" if row.ratio is None else f"{row.ratio.median:.2f} ({row.ratio.lowest:.2f} to {row.ratio.highest:.2f})"
    cells = [_cell(row, each) for each in ("plain", "redelivery")]
    peers = [_cell(row, each) for each in SIDES]
    return f"| {' | '.join([_named(row), *cells, ratio, _aim(row, aim), *peers])} |"


def _named(row: Row) -> str:
    return f"{row.name.replace('_', ' ')}, {row.unit}"


def _cell(row: Row, side: str) -> str:
    return number(row.medians[side]) if side in row.medians else ""


def _aim(row: Row, aim: float | None) -> str:
    if aim is None:
        return ""
    met = {True: "✓", False: "✗", None: "?"}[meets(row, aim)]
    return f"{'≥' if row.better == 'more' else '≤'} {number(aim)} {met}"


def number(value: float) -> str:
    """A number with three digits, and commas for thousands."""
    if abs(value) >= 100:  # noqa: PLR2004 - no decimals from here on
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}".removesuffix(".00")  # noqa: PLR2004 - one decimal from here on


def _where(result: Result) -> str:
    machine, versions = result.machine, dict(result.versions)
    named = ", ".join(f"{name} {number}" for name, number in versions.items())
    facts = f"{machine['processor']}, {machine['cores']} cores, {machine['memory_gb']} GB, {machine['system']}"
    return f"{result.day}: {facts}; {named}."
