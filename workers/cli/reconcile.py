"""`redelivery reconcile`: read the exported books, judge every life, say whether the books balance.

It needs no app and no broker, and `spark-submit` can run this file. Exit code 0: the books balance; 1: they do not; 2: an input
cannot be used; 130: interrupted. The progress goes to stderr: one changing line on a terminal, one line for each stage otherwise.
"""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import signal
import sys
import tempfile
import threading
import time
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, Self

import click

from redelivery.display import harmless
from redelivery.errors import InputError, RedeliveryError

from ..reconciliation.report.wording import counted, lines_of_lives
from .terminal.options import PLACE, Read, at_least, milliseconds_of
from .terminal.output import print_error, usage_message, while_read
from .terminal.screen import screen_width

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..reconciliation.job import Books
    from ..reconciliation.report.summary import Summary

_DAY_MS = 86_400_000

#: `spark-submit` sets this variable for the program that it starts.
_SUBMITTED = "PYSPARK_GATEWAY_PORT"
#: The work for one event with `--all`, relative to a run without it: no life can be left out early.
_ALL_LIVES_FACTOR = 4
#: Books with less input than this (bytes) are small: about 25,000 events.
_MAX_SMALL_BYTES = 2 * 2**20
#: The maximum number of lives that are printed if the books do not balance.
_MAX_WORST = 10
#: py4j logs the traceback of an interrupted call. Without a handler, Python would print it.
_NULL_HANDLER = logging.NullHandler()
#: Seconds between two updates of the progress on a terminal.
_UPDATE_INTERVAL = 0.2


def _moment(text: str) -> int:
    """Milliseconds since the epoch, of a time that is written like that or as ISO 8601 (UTC if it names no zone)."""
    try:
        read = int(text) if text.isdecimal() else milliseconds_of(text)
        datetime.fromtimestamp(read / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        msg = f"{text!r} is not a time: write 2026-01-31T12:00:00Z, or milliseconds since the epoch"
        raise InputError(msg) from None
    return read


class _Standalone(click.Command):
    """A command that also runs without the root `redelivery`. A wrong option is still an error of one line."""

    def main(self, *args: Any, **given: Any) -> Any:
        if _SUBMITTED in os.environ:
            given.setdefault("prog_name", f"spark-submit {Path(sys.argv[0]).name}")
        return super().main(*args, **given)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as exc:
            if ctx.parent is not None:  # `redelivery` prints the error
                raise
            _refuse(usage_message(exc))


@click.command(cls=_Standalone)
@click.option(
    "--outcomes", type=PLACE, required=True, metavar="URI", help="Exported outcome events: a folder or file, Parquet or JSON lines."
)
@click.option(
    "--inventory",
    type=PLACE,
    required=True,
    metavar="URI",
    help="The inventory, or a folder with one of each app. Take it just before you export the outcomes.",
)
@click.option(
    "--output", type=PLACE, required=True, metavar="URI", help="Folder for the report, tables and summary.json. It is replaced."
)
@click.option("--state", type=PLACE, metavar="URI", help="Folder that carries open lives from one run to the next.")
@click.option(
    "--as-of", "as_of_ms", type=Read("time", _moment), help="Count ages up to this time.  [default: when the inventory was taken]"
)
@click.option(
    "--grace",
    type=at_least(0),
    metavar="SECONDS",
    default=600,
    show_default=True,
    help="Age at which an open life counts as wrong.",
)
@click.option(
    "--keep",
    type=at_least(1),
    metavar="DAYS",
    default=35,
    show_default=True,
    help="For how many days late events may correct a verdict.",
)
@click.option("--all", "all_lives", is_flag=True, help="Write balanced lives too.")
@click.option("--json", "as_json", is_flag=True, help="Print the summary as one JSON object.")
@click.option("-q", "--quiet", is_flag=True, help="Do not show the progress.")
def reconcile(*, grace: float, keep: float, as_json: bool, quiet: bool, **given: Any) -> None:
    """Compare events and inventory, and give each life a verdict. Exit code 1: the books do not balance."""
    size = _local_size(given["outcomes"], given["inventory"])
    progress = Progress(is_quiet=quiet)
    summary = _reconcile(progress, size, grace_ms=round(grace * 1000), keep_ms=round(keep * _DAY_MS), **given)
    with while_read():
        click.echo(json.dumps(summary.to_dict()) if as_json else summary.to_table(screen_width()))
        if not summary.balanced and not as_json:
            _show_worst(given["output"])
    raise SystemExit(0 if summary.balanced else 1)


def _reconcile(progress: Progress, size: Size | None, **books: Any) -> Summary:
    """Reconcile these books. On an error, print the reason and end the process."""
    try:
        with progress, _sigterm_as_interrupt():
            _check_places({"outcome events": books["outcomes"], "inventory": books["inventory"]})
            progress.say(_beginning(books["outcomes"], size))
            from ..reconciliation.job import Books  # noqa: PLC0415 - pyspark is an optional dependency

            are_small = size is not None and size.bytes < _MAX_SMALL_BYTES
            return _run(Books(are_small=are_small, **books), progress, size)
    except ImportError as exc:
        _refuse(f"the books need PySpark ({exc}): install redelivery[books]")
    except KeyboardInterrupt:
        click.echo("interrupted; run it again", err=True)
        raise SystemExit(130) from None
    except RedeliveryError as exc:
        _refuse(str(exc))


def _run(books: Books, progress: Progress, size: Size | None) -> Summary:
    """Start Spark, reconcile, stop Spark. Raises `InputError` for an error of Spark's."""
    from ..reconciliation.job import reconcile as run  # noqa: PLC0415 - as above
    from ..reconciliation.spark.session import (  # noqa: PLC0415 - pyspark is an optional dependency
        FAULTS,
        explain,
        session,
    )

    logging.getLogger().addHandler(_NULL_HANDLER)
    with tempfile.TemporaryDirectory(prefix="redelivery-reconcile-") as folder:
        log = Path(folder) / "spark.log"
        try:
            to_read = None if size is None else size.bytes * (_ALL_LIVES_FACTOR if books.all_lives else 1)
            with session(input_bytes=to_read, log=log) as spark:
                return run(spark, books, progress.say)
        except FAULTS as exc:
            if _was_interrupted(exc):
                raise KeyboardInterrupt from exc
            raise InputError(explain(exc)) from exc


class Progress:
    """Shows the current step, and how many seconds the command has run."""

    def __init__(self, *, is_quiet: bool = False) -> None:
        self._is_quiet, self._is_terminal = is_quiet, sys.stderr.isatty()
        self._started, self._text = time.monotonic(), ""
        self._ended = threading.Event()
        self._clock = threading.Thread(target=self._tick, daemon=True)

    def __enter__(self) -> Self:
        if self._is_terminal and not self._is_quiet:
            self._clock.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if self._clock.is_alive():
            self._clock.join()
            click.echo("\r\x1b[K", nl=False, err=True)

    def say(self, text: str) -> None:
        """Show this as the current step."""
        self._text = harmless(text)
        if not self._is_quiet and not self._is_terminal:
            click.echo(self._line(), err=True)

    def _tick(self) -> None:
        while True:
            width = shutil.get_terminal_size().columns
            click.echo(f"\r\x1b[K{self._line()[: width - 1]}", nl=False, err=True)
            if self._ended.wait(_UPDATE_INTERVAL):
                return

    def _line(self) -> str:
        return f"{time.monotonic() - self._started:6.1f} s  {self._text}"


class Size(NamedTuple):
    """The number of files to read, and of their bytes."""

    files: int
    bytes: int


def _local_size(*uris: str) -> Size | None:
    """The size of all inputs; None if one is not on this machine's file system."""
    paths = [_local(uri) for uri in uris]
    found: list[int] = []
    for path in paths:
        if path is None:
            return None
        # Skip hidden files: an export may be writing one, and it may disappear before its size is read.
        files = (each for each in path.rglob("*") if not each.name.startswith(".")) if path.is_dir() else [path]
        found += [each.stat().st_size for each in files if each.is_file()]
    return Size(len(found), sum(found))


def _local(uri: str) -> Path | None:
    """The path of a URI; None if it is not on this machine's file system."""
    is_elsewhere = re.match(r"[a-z0-9]+:", uri) and not uri.startswith("file:///")
    return None if is_elsewhere else Path(uri.removeprefix("file://"))


def _check_places(places: dict[str, str]) -> None:
    """Raise `InputError` if a local path does not exist, before Spark starts. On a cluster only Hadoop can resolve a path."""
    if {_SUBMITTED, "HADOOP_CONF_DIR"} & set(os.environ):
        return
    for what, uri in places.items():
        path = _local(uri)
        if path is not None and not path.exists():
            msg = f"there is nothing at {uri}: export the {what} first, or look at the path"
            raise InputError(msg)


def _beginning(outcomes: str, size: Size | None) -> str:
    if size is None:
        return f"starting Spark to read {outcomes}"
    files = counted(size.files, "file", "files")
    return f"starting Spark to read {files} ({size.bytes / 1e6:.1f} MB), events and inventory"


def _show_worst(output: str) -> None:
    """Print the worst lives, the path of the report, and how to see the rest."""
    from ..reconciliation.outputs.pages import page_of  # noqa: PLC0415 - pyarrow is an optional dependency
    from ..reconciliation.rules import DISCREPANCIES  # noqa: PLC0415 - as above

    shown = harmless(output.rstrip("/"))
    try:
        page = page_of(output, verdicts=DISCREPANCIES, limit=_MAX_WORST)
    except (ImportError, InputError):  # pyarrow cannot read Spark's output there
        click.echo(f"\nEach life that is wrong is listed in {shown}/verdicts.")
    else:
        heading = f"The worst {len(page.lives)} of {page.total:,}:" if page.next else "What is wrong:"
        click.echo("\n".join(["", heading, "", *lines_of_lives(page.lives, screen_width())]).rstrip() if page.lives else "")
    click.echo(f"\nreport: {shown}/report.html\nmore:   redelivery books show {shown}")


def _refuse(text: str) -> NoReturn:
    print_error(text)
    raise SystemExit(2) from None


@contextmanager
def _sigterm_as_interrupt() -> Iterator[None]:
    """Treat SIGTERM as an interruption, so that no incomplete output is left."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _was_interrupted(exc: BaseException | None) -> bool:
    """Whether an interruption caused this error. During a call to Java it breaks the connection, which raises another error."""
    while exc is not None and not isinstance(exc, KeyboardInterrupt):
        exc = exc.__cause__ or exc.__context__
    return exc is not None


if __name__ == "__main__":
    reconcile()
