"""Options of every command that changes something: who does it and why, and whether a worker does it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from ...operations.runs.audit import os_user
from ..terminal.options import together
from ..terminal.output import say

if TYPE_CHECKING:
    from collections.abc import Callable

#: The error of a command that cannot be undone, if it has no `--yes` and no terminal.
NEEDS_YES = "this cannot be undone, and there is no terminal to ask on: say --yes, or try --dry-run first"


def is_terminal() -> bool:
    """Whether the command can ask a person."""
    return sys.stdin is not None and sys.stdin.isatty()


def is_confirmed(question: str) -> bool:
    """Ask a person at the terminal."""
    agreed = click.confirm(question, err=True)
    if not agreed:
        say("Nothing was changed.", err=True)
    return agreed


#: The options `--as` and `--why`.
acting = together(
    click.option("--as", "actor", metavar="NAME", default=os_user, help="Who does it, for the audit. By default your user name."),
    click.option("--why", default="", metavar="TEXT", help="Why, for the audit."),
)


def detaching(command: Callable[..., Any]) -> Callable[..., Any]:
    """The option `--detach`."""
    text = "Let a worker do it, and end. `redelivery ops` shows and controls it."
    return click.option("--detach", is_flag=True, help=text)(command)
