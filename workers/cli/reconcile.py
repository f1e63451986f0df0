"""`redelivery reconcile`: read the exported books, judge every life, say whether it balances.

Needs no app and no broker. It is also what `spark-submit` is given. Exit code 0: the books balance; 1: they do not; 2: an input
cannot be used; 130: interrupted.
"""

from __future__ import annotations

import json
import re
import signal
import tempfile
import time
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from redelivery.display import harmless, scrubbed
from redelivery.errors import InputError, RedeliveryError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..reconciliation.job import Books
    from ..reconciliation.summary import Summary

__all__ = ["reconcile"]

_DAY_MS = 86_400_000

#: How much more work an event is whose life goes the whole way.
_ALL = 4


class Moment(click.ParamType[int]):
    """A time: ISO 8601 (UTC where it names no zone), or milliseconds since the epoch."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """The time in milliseconds since the epoch."""
        if isinstance(value, int) or value.isdigit():
            return int(value)
        try:
            moment = datetime.fromisoformat(value)
        except ValueError:
            self.fail(f"{value!r} is no time: write 2026-01-31T12:00:00Z, or milliseconds since the epoch", param, ctx)
        return round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)


@click.command()
@click.option("--outcomes", required=True, metavar="URI", help="Exported outcome events: a folder or file, Parquet or JSON lines.")
@click.option("--inventory", required=True, metavar="URI", help="The inventory, best taken just before they were exported.")
@click.option("--output", required=True, metavar="URI", help="Folder for verdicts, metrics, repeats, summary.json; replaced whole.")
@click.option("--state", metavar="URI", help="Folder of the books between two runs: open lives are carried over.")
@click.option("--as-of", "as_of_ms", type=Moment(), help="Count ages up to this time. [default: the latest time in the inputs]")
@click.option("--grace", type=click.FloatRange(min=0), default=600, show_default=True, help="Seconds until an open life counts.")
@click.option("--keep", type=click.FloatRange(min=1), default=35, show_default=True, help="Days that are corrected.")
@click.option("--all", "all_lives", is_flag=True, help="Write balanced lives too.")
@click.option("--json", "as_json", is_flag=True, help="Print the summary as one JSON object.")
def reconcile(*, grace: float, keep: float, as_json: bool, **given: Any) -> None:
    """Prove where every task ended; exit 1 where the books do not balance."""
    try:
        from ..reconciliation.job import Books  # noqa: PLC0415 - pyspark is an optional dependency
    except ImportError as exc:
        _refuse(f"the books need PySpark ({exc}): pip install 'redelivery[books]'")
    try:
        with _terminable():
            summary = _run(Books(grace_ms=round(grace * 1000), keep_ms=round(keep * _DAY_MS), **given))
    except KeyboardInterrupt:
        click.echo("interrupted; nothing was written", err=True)
        raise SystemExit(130) from None
    except RedeliveryError as exc:
        _refuse(str(exc))
    click.echo(json.dumps(summary.to_dict()) if as_json else summary.to_table())
    raise SystemExit(0 if summary.balanced else 1)


def _run(books: Books) -> Summary:
    """Start Spark, reconcile, stop Spark. Raises `InputError` for whatever Spark could not do."""
    from ..reconciliation.faults import FAULTS, explain  # noqa: PLC0415 - pyspark is an optional dependency
    from ..reconciliation.job import reconcile as run  # noqa: PLC0415 - as above
    from ..reconciliation.session import session  # noqa: PLC0415 - as above

    progress = Progress()
    progress.say("starting Spark")
    with tempfile.TemporaryDirectory(prefix="redelivery-reconcile-") as folder:
        log = Path(folder) / "spark.log"
        try:
            with session(input_bytes=_to_read(books), log=log) as spark:
                return run(spark, books, progress.say)
        except FAULTS as exc:
            raise InputError(explain(exc)) from exc


class Progress:
    """Lines on standard error: how far it is, and after how many seconds."""

    def __init__(self) -> None:
        self._started = time.monotonic()

    def say(self, text: str) -> None:
        """One line."""
        click.echo(f"{time.monotonic() - self._started:6.1f} s  {scrubbed(text)}", err=True)


def _to_read(books: Books) -> int | None:
    """How many bytes of events it is as much work as; None where an input is not on this machine's file system."""
    read = _local_bytes(books.outcomes, books.inventory)
    return read * _ALL if read is not None and books.all_lives else read


def _local_bytes(*uris: str) -> int | None:
    """How much there is to read; None where an input is not on this machine's file system."""
    total = 0
    for uri in uris:
        path = Path(uri.removeprefix("file://"))
        if re.match(r"[a-z0-9]+:", uri) and not uri.startswith("file:///"):
            return None
        files = path.rglob("*") if path.is_dir() else [path]
        total += sum(each.stat().st_size for each in files if each.is_file())
    return total


def _refuse(text: str) -> NoReturn:
    click.echo(f"redelivery: {harmless(text)}", err=True)
    raise SystemExit(2) from None


@contextmanager
def _terminable() -> Iterator[None]:
    """Treat a request to end as an interruption, so that nothing is left half-written."""
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _interrupt(*_: object) -> NoReturn:
    raise KeyboardInterrupt


if __name__ == "__main__":
    reconcile()
