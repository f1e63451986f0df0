"""The screens of the command line, as people see them: on terminals of three widths, and piped, from a real broker with fixed data.

`docs/screens/` holds them, a file for each command. To write them anew: `./dev python -m tests.support.screens`.
"""

from __future__ import annotations

import contextlib
import io
import os
import pty
import re
import sys
import tempfile
import termios
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import click

from redelivery.workers.cli.main import redelivery
from redelivery.workers.operations import adoption
from tests.support.desk import Desk, body_of, task_message
from tests.support.servers import Server, binaries

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["FOLDER", "SCREENS", "arranged", "screen", "shown"]

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "screens"
WIDTHS = (80, 120, 200)
#: What each file shows; a name that begins with `error-` is refused with one line.
SCREENS: Mapping[str, str] = {
    "help": "--help",
    "adopt": "adopt -A shop",
    "delayed-cancel": "-A shop delayed cancel 9b1d7c --dry-run",
    "delayed-list": "-A shop delayed list",
    "delayed-promote": "-A shop delayed promote 9b1d7c --dry-run",
    "delayed-reschedule": "-A shop delayed reschedule 9b1d7c --at 2030-01-01T08:00:00Z --dry-run",
    "delayed-show": "-A shop delayed show 9b1d7c",
    "dlq-causes": "-A shop dlq causes",
    "dlq-export": "-A shop dlq export DLQ.orders --to letters",
    "dlq-list": "-A shop dlq list",
    "dlq-move": "-A shop dlq move DLQ.orders --reason worker_lost --to DLQ.later --create --dry-run",
    "dlq-purge": "-A shop dlq purge DLQ.orders --older-than 2d --dry-run",
    "dlq-redrive": "-A shop dlq redrive DLQ.orders --dry-run",
    "dlq-show": "-A shop dlq show DLQ.orders",
    "dlq-show-id": "-A shop dlq show DLQ.orders --id 3f2a9c1e",
    "inventory-export": "-A shop inventory export --to inventory",
    "leave": "-A shop leave --dry-run",
    "metrics": "-A shop metrics",
    "outcomes-tail": "-A shop outcomes tail",
    "policy-explain": "-A shop policy explain --queue orders --task shop.payments.charge_card",
    "task-show": "-A shop task show 3f2a9c1e",
    "error-ambiguous-id": "-A shop task show 3f2a9c",
    "error-app": "dlq list",
    "error-command": "-A shop dlq lst",
    "error-option": "-A shop dlq redrive DLQ.orders --al",
    "error-purge": "-A shop dlq purge DLQ.orders --all",
    "error-queue": "-A shop dlq redrive DLQ.orders --all --to ordres",
    "error-reason": "-A shop dlq redrive DLQ.orders --reason exausted",
}

TASKS: Mapping[str, dict[str, Any]] = {
    "shop.payments.charge_card": {},
    "shop.payments.refund": {},
    "shop.mail.send_receipt": {"acks_late": True, "max_retries": None},
    "shop.reports.nightly": {"time_limit": 300},
}
#: Days and hours, with half an hour in which nothing changes.
LONG_AGO, YESTERDAY, SOON, LATER = 275_400_000, 102_600_000, 189_000_000, 365_400_000
MOMENT = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ")
CUT_MOMENT = re.compile(r"…(?:[\d-]* )?[\d:]*\d\dZ")
FIXED = "2026-01-31 12:00:00Z"
#: Of Prometheus' lines the values that differ from run to run.
MEASURED = re.compile(r"^(redelivery_\w*(?:seconds|bytes)(?:\{.*\})?) [\d.e+]+$", re.MULTILINE)
REFUSED = "the bank refused the card: insufficient funds on account ending 4242"


@contextlib.contextmanager
def arranged(server: Server) -> Iterator[Desk]:
    """A desk whose app `shop` has dead letters, messages that wait, and events, always the same; the folder is a new one."""
    desk, before = Desk(server), Path.cwd()
    kept = {name: os.environ.pop(name, None) for name in ("COLUMNS", "NO_COLOR", "CELERY_APP")}

    def nothing() -> None:
        pass

    for name, options in TASKS.items():
        desk.app.task(name=name, shared=False, **options)(nothing)
    _arrange(desk)
    sys.modules["shop"] = desk.module
    # What else this environment has installed or loaded is no part of the screen of `adopt`.
    with mock.patch.object(adoption, "neighbours_of", tuple), tempfile.TemporaryDirectory(prefix="rd-screens-") as folder:
        os.chdir(folder)
        try:
            yield desk
        finally:
            os.chdir(before)
            del sys.modules["shop"]
            os.environ.update({name: value for name, value in kept.items() if value is not None})
            desk.transport.close()


def _arrange(desk: Desk) -> None:
    charge, mail = "shop.payments.charge_card", "shop.mail.send_receipt"
    order = body_of(4711, "EUR")
    refused = {"exception": "shop.errors.CardRefused", "said": REFUSED, "fingerprint": "c1f0a77e0d2b"}
    desk.die(task_message("3f2a9c1e-6d0b-4f7e-9a51-0c2f6b8e4d01", charge, body=order), ago_ms=LONG_AGO, **refused)
    desk.die(task_message("3f2a9c77-11aa-4c1e-8b62-5d3e7c9f1a02", charge, body=order), ago_ms=YESTERDAY, **refused)
    lost = {"exception": "WorkerLostError", "said": "signal 9 (SIGKILL)", "fingerprint": "77b0d6aa913c"}
    desk.die(task_message("a04e5b9d-2c7f-4e0a-b3d8-9f1e6a2c7b03", mail), reason="worker_lost", ago_ms=YESTERDAY, **lost)
    desk.delay(task_message("9b1d7c3a-5e8f-4b20-a6c4-1d9e8f7a6b04", mail), SOON)
    desk.delay(task_message("c8e2f5d0-7a1b-4d93-8e5f-2b4c6d8e0f05", charge), LATER)
    desk.transport.leases.unregister("w")


def screen(name: str) -> str:
    """The file of a screen, as it is now."""
    words = SCREENS[name].split()
    parts = [f"$ redelivery {SCREENS[name]}", *(f"--- {width} columns ---\n{_normal(shown(words, width))}" for width in WIDTHS)]
    return "\n\n".join([*parts, f"--- piped ---\n{_normal(shown(words, None))}"]) + "\n"


def _normal(text: str) -> str:
    """The same without its colours, and with one time in place of each."""
    text = MOMENT.sub(FIXED, click.unstyle(text))
    text = CUT_MOMENT.sub(lambda found: "…" + FIXED[-(len(found[0]) - 1) :], text)
    return MEASURED.sub(r"\1 …", text).rstrip()


def shown(words: list[str], columns: int | None) -> str:
    """What a command prints, on stdout and stderr, where both are a terminal with so many columns, or a pipe."""
    if columns is None:
        written = io.StringIO()
        _run(words, written)
        return written.getvalue()
    master, slave = pty.openpty()
    termios.tcsetwinsize(slave, (50, columns))
    read: list[bytes] = []
    reader = threading.Thread(target=_read, args=(master, read))
    reader.start()
    with os.fdopen(slave, "w") as stream:
        _run(words, stream)
    reader.join()
    os.close(master)
    return b"".join(read).decode().replace("\r\n", "\n")


def _run(words: list[str], stream: io.TextIOBase | io.TextIOWrapper) -> None:
    with contextlib.redirect_stdout(stream), contextlib.redirect_stderr(stream), contextlib.suppress(SystemExit):
        redelivery.main(words, prog_name="redelivery")


def _read(master: int, into: list[bytes]) -> None:
    """All that is written until the other end is closed, which Linux says by an error."""
    with contextlib.suppress(OSError):
        while chunk := os.read(master, 65_536):
            into.append(chunk)


def main() -> None:
    """Write all screens anew; those that are no longer listed go."""
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="rd-") as folder:
        server = Server(Path(folder), binaries()["valkey"]).start()
        try:
            with arranged(server):
                for name in SCREENS:
                    (FOLDER / f"{name}.txt").write_text(screen(name))
        finally:
            server.stop(9)
    for file in FOLDER.glob("*.txt"):
        if file.stem not in SCREENS:
            file.unlink()


if __name__ == "__main__":
    main()
