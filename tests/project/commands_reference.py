"""Print the reference of all commands, `docs/commands.md`, from their help: `python -m tests.project.commands_reference`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from redelivery.workers.cli.main import redelivery
from tests.support.documents.screens import SCREENS

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["reference"]

INTRODUCTION = """# Commands

Every command with its arguments and options.

*What it prints* leads to the output of a command on terminals of 80, 120 and 200 columns, and in a pipe. An error is one line:
[a misspelt queue](screens/error-queue.txt), [an ambiguous id](screens/error-ambiguous-id.txt), [no app](screens/error-app.txt).

`redelivery -A shop COMMAND` and `celery -A shop redelivery COMMAND` are the same. `shop` is the module of your Celery app, as in
`celery -A`.

| exit code | meaning |
|---|---|
| 0 | the command did what it was asked to do |
| 1 | the command found something (`reconcile`: the books do not balance; `doctor`: something will hurt) |
| 2 | the arguments are wrong, or the command failed; one line says why |
| 130 | the command was interrupted, by Ctrl-C or SIGTERM |
"""


def reference() -> str:
    """The text of the page."""
    context = click.Context(redelivery, info_name="redelivery")
    return "\n".join([INTRODUCTION, *(_section(each, words) for words, each in _leaves(redelivery, context, ()))])


def _leaves(group: click.Group, context: click.Context, words: tuple[str, ...]) -> Iterator[tuple[str, click.Command]]:
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if command is None or command.hidden:
            continue
        if isinstance(command, click.Group):
            yield from _leaves(command, context, (*words, name))
        else:
            yield " ".join((*words, name)), command


def _section(command: click.Command, words: str) -> str:
    context = click.Context(command, info_name=words)
    usage = " ".join(("redelivery", words, *command.collect_usage_pieces(context)))
    rows = [_row(each.get_help_record(context)) for each in command.get_params(context) if _is_shown(each)]
    table = "" if not rows else "\n| option | meaning |\n|---|---|\n" + "".join(rows)
    return f"## {words}\n\n```text\n{usage}\n```\n\n{_help(command)}\n\n{_screens(words)}\n{table}"


def _screens(words: str) -> str:
    lines = {name: line.replace("-A shop", "").strip() for name, line in SCREENS.items() if not name.startswith("error-")}
    shown = [f"[`{line}`](screens/{name}.txt)" for name, line in lines.items() if f"{line} ".startswith(f"{words} ")]
    return f"What it prints: {', '.join(shown)}"


def _help(command: click.Command) -> str:
    """The help text of a command, one line for each paragraph."""
    return "\n\n".join(" ".join(part.split()) for part in (command.help or "").replace("\b", "").split("\n\n"))


def _is_shown(parameter: click.Parameter) -> bool:
    return isinstance(parameter, click.Option) and not parameter.hidden and "--help" not in parameter.opts


def _row(record: tuple[str, str] | None) -> str:
    option, meaning = record or ("", "")
    return "| `{}` | {} |\n".format(*(each.replace("|", "\\|") for each in (option, meaning)))


if __name__ == "__main__":
    sys.stdout.write(reference())
