"""The plots: one of all ratios, and one of each comparison, as SVG for light and dark pages.

Black parts have the page's text colour. The same results give the same bytes.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
from matplotlib.figure import Figure as Canvas

from benchmarks.comparisons import COMPARISONS
from benchmarks.summary import BASE, OURS
from benchmarks.table import number

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from benchmarks.results import Result
    from benchmarks.summary import Ratio, Row

__all__ = ["COLOURS", "OVERVIEW", "SETTINGS", "comparison_plot", "ratio_plot", "svg", "write_plots"]

OVERVIEW = "ratios.svg"
#: The colour that texts are drawn in. `svg` replaces it with `currentColor`, which follows the reader's light or dark mode.
INK = "#010203"
COLOURS = {"plain": "#8c959f", "redelivery": "#2da44e", "dramatiq": "#bf8700", "rq": "#8250df"}
STYLE = "<style>svg{color:#24292f}@media(prefers-color-scheme:dark){svg{color:#d0d7de}}</style>"
SETTINGS: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "benchmarks",
    "font.family": "sans-serif",
    "font.size": 9,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
}


def write_plots(results: Mapping[str, Result], folder: Path) -> None:
    """Draw each result, and all ratios in one plot."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, result in results.items():
        (folder / f"{name}.svg").write_text(comparison_plot(result))
    (folder / OVERVIEW).write_text(ratio_plot(results))


def comparison_plot(result: Result) -> str:
    """A row of bars for each figure: the median of each side, and a dot for each round."""
    rows = result.rows
    with mpl.rc_context(SETTINGS):
        canvas = Canvas(figsize=(7.2, 0.5 + len(rows) * (0.45 + 0.24 * len(result.sides))), layout="constrained")
        canvas.suptitle(result.title)
        for axes, row in zip(canvas.subplots(len(rows), 1, squeeze=False)[:, 0], rows, strict=True):
            _bars(axes, row, result)
        return svg(canvas)


def ratio_plot(results: Mapping[str, Result]) -> str:
    """The ratios to plain Celery of the first figure of each comparison, and of figures with an aim. Above 1 is better."""
    lines = [(f"{results[name].title}: {row.name.replace('_', ' ')}", ratio) for name, row, ratio in _better(results)]
    with mpl.rc_context(SETTINGS):
        canvas = Canvas(figsize=(7.2, 0.9 + 0.3 * len(lines)), layout="constrained")
        axes = canvas.subplots()
        for at, (_, (low, middle, high)) in enumerate(reversed(lines)):
            axes.plot([low, high], [at, at], color=COLOURS[OURS], linewidth=2, alpha=0.6)
            axes.plot([middle], [at], "o", color=COLOURS[OURS], markersize=6)
        axes.axvline(1, color=INK, linewidth=0.8, linestyle="--")
        axes.set_yticks(range(len(lines)), [title for title, _ in reversed(lines)])
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.xaxis.set_minor_formatter("")
        axes.set_xlabel("times as good as plain Celery: median and spread")
        return svg(canvas)


def _bars(axes: Any, row: Row, result: Result) -> None:
    sides = [each for each in result.sides if each in row.medians]
    for at, side in enumerate(reversed(sides)):
        value = row.medians[side]
        axes.barh(at, value, color=COLOURS[side], height=0.7)
        rounds = [pair[side][row.name].value for pair in result.pairs if row.name in pair.get(side, {})]
        axes.plot(rounds, [at] * len(rounds), "o", color=INK, markersize=2.5, alpha=0.7)
        axes.annotate(number(value), (max([*rounds, value, 0]), at), xytext=(5, 0), textcoords="offset points", va="center")
    axes.set_yticks(range(len(sides)), reversed(sides))
    axes.set_title(f"{row.name.replace('_', ' ')}, {row.unit} ({row.better} is better)", loc="left", fontsize=9)
    axes.margins(x=0.15)
    axes.set_xlim(left=min(0, axes.get_xlim()[0]))


def _better(results: Mapping[str, Result]) -> list[tuple[str, Row, tuple[float, float, float]]]:
    """The ratios of the plot (lowest, median, highest), inverted if less is better."""
    found = []
    for name, comparison in COMPARISONS.items():
        rows = results[name].rows if name in results else []
        for at, row in enumerate(rows):
            if row.ratio is not None and BASE in row.medians and (at == 0 or row.name in comparison.aims):
                found.append((name, row, _turned(row.ratio, more=row.better == "more")))
    return found


def _turned(ratio: Ratio, *, more: bool) -> tuple[float, float, float]:
    if more:
        return ratio.lowest, ratio.median, ratio.highest
    return 1 / ratio.highest, 1 / ratio.median, 1 / ratio.lowest


def svg(canvas: Canvas) -> str:
    drawn = io.StringIO()
    canvas.savefig(drawn, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = drawn.getvalue().replace(INK, "currentColor")
    head, _, body = text.partition("<defs>")
    return f"{head}{STYLE}\n <defs>{body}"
