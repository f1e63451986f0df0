"""The templates, and their filters.

Everything that a template prints is escaped and passes `display.safe`, so that control characters and invisible ones do not reach
the page.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, PackageLoader, StrictUndefined, pass_context
from markupsafe import Markup, escape

from redelivery.display import safe, word

from ..operations.words.numbers import age, duration_text, moment, plain, span

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jinja2.runtime import Context

#: The maximum number of characters of an id, and of a text, in a table.
SHORT_ID, MAX_TEXT = 8, 300
#: The text for a missing value.
NONE = "\N{EN DASH}"
#: Clearer names for options of an operation.
OPTIONS = {
    "canary_wait": "canary waits",
    "abort_after": "stop after deaths",
    "abort_share": "stop after share",
    "limit": "at most",
    "to": "to queue",
    "create": "create the queue",
}
#: The maximum number of characters of one value.
MAX_SHOWN = 65_536


def environment() -> Environment:
    """Return the templates of the page."""
    templates = Environment(
        loader=PackageLoader("redelivery.workers.web", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_harmless,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters |= {
        "ago": _ago,
        "due": _due,
        "moment": _moment,
        "span": span,
        "duration": duration_text,
        "number": _number,
        "short": _short,
        "brief": _brief,
        "block": _block,
        "pretty": _pretty,
        "lines": _lines,
        "command": _command,
        "option": lambda name: OPTIONS.get(name, name),
        "word": word,
        "last_word": lambda name: str(name).rpartition(".")[2],
    }
    templates.globals |= {"counted": _counted, "bars": _bars, "drawn": _delays}
    return templates


def _harmless(value: Any) -> Any:
    return value if isinstance(value, Markup) else safe(value)


def _time(ms: int, text: str) -> Markup:
    iso = datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds") if moment(ms) != "-" else ""
    return Markup('<time datetime="{}" title="{}">{}</time>').format(iso, moment(ms), text)


def _command(text: object) -> Markup:
    """Format a text that has commands between backticks."""
    parts = [escape(safe(each)) for each in str(text).split("`")]
    return Markup().join(Markup("<code>{}</code>").format(part) if at % 2 else part for at, part in enumerate(parts))


@pass_context
def _ago(context: Context, ms: int | None) -> Markup:
    """Return how long ago a time was, with the time itself as its title."""
    if ms is None:
        return escape(NONE)
    now_ms = max(context["now_ms"], ms)
    return _time(ms, age(ms, now_ms) if now_ms - ms >= 1000 else "just now")  # noqa: PLR2004 - a second


def _moment(ms: float | None) -> str:
    text = moment(ms)
    return NONE if text == "-" else text


@pass_context
def _due(context: Context, ms: int) -> Markup:
    left = ms - context["now_ms"]
    return _time(ms, f"in {span(left / 1000)}" if left > 0 else f"overdue by {span(round(-left / 1000))}")


def _number(value: float) -> str:
    return f"{value:,.0f}" if float(value).is_integer() or abs(value) >= 100 else f"{value:,.1f}"  # noqa: PLR2004 - small numbers have tenths


def _counted(count: int, one: str, many: str) -> str:
    return f"{_number(count)} {one if count == 1 else many}"


def _short(task_id: str) -> str:
    return task_id[:SHORT_ID] if len(task_id) == 36 else _brief(task_id, 24)  # noqa: PLR2004 - the length of a UUID


def _brief(text: object, most: int = MAX_TEXT) -> str:
    shown = str(text)
    return shown if len(shown) <= most else f"{shown[: most - 1]}…"


def _block(text: object) -> Markup:
    """Format a text of many lines."""
    shown = str(text)
    cut = f"\n… ({len(shown):,} characters; all of it is in what `redelivery dlq export` writes)" if len(shown) > MAX_SHOWN else ""
    return Markup("\n").join(safe(line) for line in (shown[:MAX_SHOWN] + cut).splitlines())


def _lines(text: object) -> Markup:
    """Format a text of many lines for a form's field, without a limit."""
    return Markup("\n").join(safe(line) for line in str(text).split("\n"))


def _pretty(value: Any) -> Markup:
    return _block(json.dumps(plain(value), indent=2, ensure_ascii=False, default=str))


def _bars(counts: Sequence[int], label: str, *, width: int = 120, height: int = 24) -> Markup:
    """Draw counts as bars. The label says the same in words."""
    top, step = max([1, *counts]), width / max(len(counts), 1)
    drawn = Markup("").join(
        Markup('<rect x="{}" y="{}" width="{}" height="{}"></rect>').format(
            f"{at * step:.1f}", f"{height - each * height / top:.1f}", f"{max(step - 1, 0.5):.1f}", f"{each * height / top:.1f}"
        )
        for at, each in enumerate(counts)
        if each
    )
    size = Markup('viewBox="0 0 {} {}" width="{}" height="{}"').format(width, height, width, height)
    return Markup('<svg class="bars" role="img" aria-label="{}" {} preserveAspectRatio="none">{}</svg>').format(label, size, drawn)


def _delays(rows: Sequence[tuple[int, float, float, bool]], longest: float) -> Markup:
    """Draw the next delays, each as a bar from its least to its greatest value. A table on the screen says the same in words."""
    width, step = 240, 20
    drawn = Markup("").join(
        Markup(
            '<rect class="reach" x="0" y="{}" width="{}" height="8"></rect><rect x="{}" y="{}" width="{}" height="8"></rect>'
        ).format(
            at * step + 6,
            f"{least / longest * width:.1f}",
            f"{least / longest * width:.1f}",
            at * step + 6,
            f"{max((most - least) / longest * width, 2):.1f}",
        )
        for at, (_, least, most, _) in enumerate(rows)
    )
    size = Markup('viewBox="0 0 {} {}" width="{}" height="{}"').format(width + 2, len(rows) * step, width + 2, len(rows) * step)
    return Markup('<svg class="delays" aria-hidden="true" {}>{}</svg>').format(size, drawn)
