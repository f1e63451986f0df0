"""The options that choose among dead letters, for every command that takes some of them.

Refuses no choice at all, and `--all` beside a filter.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import click

from ..operations.letters.filter import Filter
from .output import SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["choosing", "filter_of", "has_choice", "require_choice"]


def choosing(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options that choose among letters, in the order in which the help shows them."""
    options = (
        click.option("--id", "task_ids", multiple=True, metavar="TASK_ID", help="This task's letters; may be repeated."),
        click.option("--all", "everything", is_flag=True, help="All letters."),
        click.option("--reason", "reasons", multiple=True, help="Letters that died of this; may be repeated."),
        click.option("--task", "tasks", multiple=True, help="Letters of this task; a shell pattern."),
        click.option("--exception", "exceptions", multiple=True, help="Letters that raised this class, dotted or its last word."),
        click.option("--fingerprint", "fingerprints", multiple=True, help="Letters with this fingerprint, or its beginning."),
        click.option("--older-than", type=SECONDS, help="Letters that died longer ago: 90s, 15m, 2h, 3d."),
        click.option("--newer-than", type=SECONDS, help="Letters that died since."),
    )
    return functools.reduce(lambda decorated, option: option(decorated), reversed(options), command)


def require_choice(options: dict[str, Any]) -> None:
    """Raises click's usage error where the letters are not chosen, or twice."""
    filters = has_choice(options)
    if options["everything"] and filters:
        msg = "--all means every letter: leave it out, or leave the filters out"
        raise click.UsageError(msg)
    if not options["everything"] and not filters:
        msg = "which letters? name them with --id, choose them with a filter (--reason, --task, …), or say --all"
        raise click.UsageError(msg)


def has_choice(options: dict[str, Any]) -> bool:
    """Whether a filter is given."""
    return any(value not in (None, ()) for name, value in options.items() if name != "everything")


def filter_of(options: dict[str, Any], now_ms: int) -> Filter:
    """The filter; ages count from now (ms, by the broker's clock)."""

    def ago(seconds: float | None) -> int | None:
        return None if seconds is None else now_ms - round(seconds * 1000)

    return Filter(
        task_ids=frozenset(options["task_ids"]),
        reasons=frozenset(options["reasons"]),
        tasks=options["tasks"],
        exceptions=options["exceptions"],
        fingerprints=options["fingerprints"],
        died_before_ms=ago(options["older_than"]),
        died_after_ms=ago(options["newer_than"]),
    )
