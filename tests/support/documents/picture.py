"""The README's picture: the output of commands as a terminal session in SVG, light and dark."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from rich.console import Console
from rich.terminal_theme import DEFAULT_TERMINAL_THEME, DIMMED_MONOKAI, TerminalTheme
from rich.text import Text

from tests.support.documents.walkthrough import PICTURED, WIDTH

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

__all__ = ["THEMES", "write_pictures"]

THEMES: dict[str, TerminalTheme] = {"light": DEFAULT_TERMINAL_THEME, "dark": DIMMED_MONOKAI}
#: rich's frame without the fonts that it loads from the network.
FRAME = """\
<svg viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg" role="img">
<style>
.{unique_id}-matrix {{ font-family: ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace; font-size: {char_height}px;
    line-height: {line_height}px; font-variant-east-asian: full-width; }}
.{unique_id}-title {{ font-size: 18px; font-weight: bold; font-family: sans-serif; }}
{styles}
</style>
<defs><clipPath id="{unique_id}-clip-terminal"><rect x="0" y="0" width="{terminal_width}" height="{terminal_height}"/></clipPath>
{lines}</defs>
{chrome}<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}<g class="{unique_id}-matrix">
{matrix}
</g></g></svg>
"""


def write_pictures(folder: Path, session: Sequence[tuple[str, str]]) -> None:
    """Write `terminal-light.svg` and `terminal-dark.svg`. `session` has commands and their coloured output."""
    for name, theme in THEMES.items():
        console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True, color_system="truecolor")
        for typed, printed in session:
            if PICTURED.match(typed):
                console.print(Text.assemble(("$ ", "bold green"), (typed, "bold")), soft_wrap=True)
                console.print(Text.from_ansi(printed.rstrip()), no_wrap=True, overflow="ellipsis")
                console.print()
        svg = console.export_svg(title="~/shop", theme=theme, code_format=FRAME, unique_id=f"terminal-{name}")
        svg = svg.replace("rgba(255,255,255,0.35)", "rgba(128,128,128,0.5)")  # a border that is visible on white, too
        (folder / f"terminal-{name}.svg").write_text("".join(f"{line.rstrip()}\n" for line in svg.splitlines()))
