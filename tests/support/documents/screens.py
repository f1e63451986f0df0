"""The screens of the command line on terminals of three widths, and piped, from real brokers with fixed data.

`docs/screens/` has a file for each command. To write them again: `./dev python -m tests.support.documents.screens`. The data of a
screen come from the shop on Redis, a queue on RabbitMQ (`RABBITMQ`), or exported events and a Spark session (`BOOKS`).
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import pty
import re
import signal
import sys
import tempfile
import termios
import threading
import types
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import click
from celery import Celery
from kombu import Queue

from redelivery import Redelivery
from redelivery.workers.cli.main import redelivery
from redelivery.workers.operations.adoption import adoption
from redelivery.workers.operations.runs.audit import Act, Acted, acted
from redelivery.workers.operations.runs.operation import State, store_of, turn
from redelivery.workers.ports import Claim
from redelivery.workers.reconciliation.spark.session import session
from tests.support.books.spark_session import NOON, Histories, Row
from tests.support.desk import LETTERS, Desk, body_of, task_message
from tests.support.rabbit import Node, installed
from tests.support.running import until
from tests.support.servers import Server, binaries

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterator, Mapping

    from tests.support.rabbit import Rabbit

__all__ = ["FOLDER", "SCREENS", "arranged", "screen", "shown"]

FOLDER = Path(__file__).resolve().parents[3] / "docs" / "screens"
WIDTHS = (80, 120, 200)
#: The command of each file. Commands of `error-` files fail with one line.
SCREENS: Mapping[str, str] = {
    "help": "--help",
    "adopt": "adopt -A shop",
    "audit": "-A shop audit",
    "books-show": "books show books",
    "delayed-cancel": "-A shop delayed cancel 9b1d7c --dry-run",
    "delayed-list": "-A shop delayed list",
    "delayed-promote": "-A shop delayed promote 9b1d7c --dry-run",
    "delayed-reschedule": "-A shop delayed reschedule 9b1d7c --at 2030-01-01T08:00:00Z --dry-run",
    "delayed-show": "-A shop delayed show 9b1d7c",
    "dispatcher": "-A shop dispatcher",
    "dlq-causes": "-A shop dlq causes",
    "dlq-export": "-A shop dlq export DLQ.orders --to letters",
    "dlq-import": "-A shop dlq import rejected --dry-run",
    "dlq-list": "-A shop dlq list",
    "dlq-move": "-A shop dlq move DLQ.orders --reason worker_lost --to DLQ.later --create --dry-run",
    "dlq-purge": "-A shop dlq purge DLQ.orders --older-than 2d --dry-run",
    "dlq-redrive": "-A shop dlq redrive DLQ.orders --dry-run",
    "dlq-show": "-A shop dlq show DLQ.orders",
    "dlq-show-id": "-A shop dlq show DLQ.orders --id 3f2a9c1e",
    "doctor": "-A shop doctor",
    "inventory-export": "-A shop inventory export --to inventory",
    "leave": "-A shop leave --dry-run",
    "metrics": "-A shop metrics",
    "ops-abort": "-A shop ops abort b7e4d2f1",
    "ops-list": "-A shop ops list",
    "ops-pause": "-A shop ops pause c3f8a6b2",
    "ops-resume": "-A shop ops resume b7e4d2f1",
    "ops-show": "-A shop ops show a1c9e5d3",
    "outcomes-export": "-A shop outcomes export --to outcomes",
    "outcomes-tail": "-A shop outcomes tail",
    "policy-explain": "-A shop policy explain --queue orders --task shop.payments.charge_card",
    "reconcile": "reconcile --outcomes outcomes --inventory inventory --output books",
    "task-show": "-A shop task show 3f2a9c1e",
    "web": "-A shop web --port 0 --token-file token",
    "error-ambiguous-id": "-A shop task show 3f2a9c",
    "error-app": "dlq list",
    "error-command": "-A shop dlq lst",
    "error-option": "-A shop dlq redrive DLQ.orders --al",
    "error-purge": "-A shop dlq purge DLQ.orders --all",
    "error-queue": "-A shop dlq redrive DLQ.orders --all --to ordres",
    "error-reason": "-A shop dlq redrive DLQ.orders --reason exausted",
}
#: The screens whose data do not come from the shop on Redis.
BOOKS, RABBITMQ = {"books-show", "reconcile"}, {"dlq-import"}

TASKS: Mapping[str, dict[str, Any]] = {
    "shop.payments.charge_card": {},
    "shop.payments.refund": {},
    "shop.mail.send_receipt": {"acks_late": True, "max_retries": None},
    "shop.reports.nightly": {"time_limit": 300},
}
#: Ages and delays in ms. Half an hour more or less does not change how they are shown.
LONG_AGO, YESTERDAY, SOON, LATER = 275_400_000, 102_600_000, 189_000_000, 365_400_000
MOMENT = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ")
CUT_MOMENT = re.compile(r"…(?:[\d-]* )?[\d:]*\d\dZ")
FIXED = "2026-01-31 12:00:00Z"
PORT = re.compile(r"127\.0\.0\.1:\d+")
#: The seconds in a progress line of the books, and a progress line that a terminal has overwritten.
TAKEN, WRITTEN_OVER = re.compile(r"^ *\d+\.\d s  ", re.MULTILINE), re.compile(r"^.*\r\x1b\[K", re.MULTILINE)
#: The values of Prometheus that differ from run to run.
MEASURED = re.compile(r"^(redelivery_\w*(?:seconds|bytes)(?:\{.*\})?) [\d.e+]+$", re.MULTILINE)
REFUSED = "the bank refused the card: insufficient funds on account ending 4242"


@contextlib.contextmanager
def arranged(server: Server) -> Iterator[Desk]:
    """A desk in a new folder, whose app `shop` always has the same dead letters, delayed messages and events."""
    desk = Desk(server)

    def nothing() -> None:
        pass

    for name, options in TASKS.items():
        desk.app.task(name=name, shared=False, **options)(nothing)
    _arrange(desk)
    # The screen of `adopt` must not depend on what else is installed here.
    with mock.patch.object(adoption, "neighbours_of", tuple), _in_a_new_folder() as folder, _as_shop(desk.app):
        (folder / "token").write_text("a token that somebody chose\n")
        try:
            yield desk
        finally:
            desk.transport.close()


@contextlib.contextmanager
def with_books() -> Iterator[None]:
    """A new folder with events, an inventory, and the books of them, and a running Spark session."""
    histories = Histories()
    charge: Row = {"task": "shop.payments.charge_card"}
    mail: Row = {"task": "shop.mail.send_receipt"}
    refused = {"reason": "exhausted", "attempt": 3, "exception": "shop.errors.CardRefused", "worker": "celery@shop-1"}
    again = ("redelivery_scheduled", {"delay_ms": 1000, "attempt": 1, "delivery": 1, "worker": "celery@shop-1"})
    done = ("succeeded", {"attempt": 1, "delivery": 1, "worker": "celery@shop-1"})
    for number in range(5):
        histories.add(f"0d5b7c1e-6d0b-4f7e-9a51-0c2f6b8e4e0{number}", "published", done, start_ms=NOON - 3_600_000, **mail)
    histories.add("3f2a9c1e-6d0b-4f7e-9a51-0c2f6b8e4d01", "published", ("dead_lettered", refused), **charge)
    histories.hold("3f2a9c1e-6d0b-4f7e-9a51-0c2f6b8e4d01", "dead_letter", **charge)
    histories.add("3f2a9c77-11aa-4c1e-8b62-5d3e7c9f1a02", "published", ("dead_lettered", refused), **charge)
    histories.add("a04e5b9d-2c7f-4e0a-b3d8-9f1e6a2c7b03", "published", again, **mail)
    histories.add("9b1d7c3a-5e8f-4b20-a6c4-1d9e8f7a6b04", "published", start_ms=NOON + 3_500_000, **charge)
    histories.hold("9b1d7c3a-5e8f-4b20-a6c4-1d9e8f7a6b04", "queue", **charge)
    with _in_a_new_folder() as folder:
        histories.write(folder)
        with session(input_bytes=0, log=folder / "spark.log"):
            shown([*_words("reconcile"), "--quiet"], None)
            yield


@contextlib.contextmanager
def with_rabbitmq(rabbit: Rabbit) -> Iterator[None]:
    """The app `shop` on RabbitMQ. Its queues dead-letter by `x-max-length`, and three messages have died."""
    to_rejected = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "rejected"}
    queues = [
        Queue("orders", queue_arguments={**to_rejected, "x-max-length": 1}),
        Queue("mail", queue_arguments={**to_rejected, "x-max-length": 1}),
    ]
    app = Celery("shop", broker=rabbit.url, set_as_current=False)
    app.conf.update(task_queues=queues, task_default_queue="orders", broker_transport_options={"confirm_publish": True})
    install = Redelivery(app)
    with rabbit.connection() as connection:
        for queue in (*queues, Queue("rejected")):
            queue.bind(connection.default_channel).declare()
    for name in ("orders", "orders", "orders", "mail", "mail"):
        app.send_task("shop.payments.charge_card", queue=name)
    until(lambda: rabbit.depth("rejected") == 3, 30, "RabbitMQ to have dead-lettered them")
    with _in_a_new_folder(), _as_shop(app):
        try:
            yield
        finally:
            install.transport.close()


@contextlib.contextmanager
def _in_a_new_folder() -> Iterator[Path]:
    before = Path.cwd()
    kept = {name: os.environ.pop(name, None) for name in ("COLUMNS", "NO_COLOR", "CELERY_APP")}
    with tempfile.TemporaryDirectory(prefix="rd-screens-") as folder:
        os.chdir(folder)
        try:
            yield Path(folder)
        finally:
            os.chdir(before)
            os.environ.update({name: value for name, value in kept.items() if value is not None})


@contextlib.contextmanager
def _as_shop(app: Celery) -> Iterator[None]:
    module = types.ModuleType("shop")
    module.app = app  # type: ignore[attr-defined]
    with mock.patch.dict(sys.modules, {"shop": module}):
        yield


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


def screen(name: str, desk: Desk | None = None) -> str:
    """The current text of a screen's file. The broker of the `desk` is restored after each command."""

    def look(columns: int | None) -> str:
        with contextlib.nullcontext() if desk is None else _left_as_it_was(desk):
            if desk is not None and name.startswith(("ops-", "audit")):
                _begin_operations(desk)
            return _normal(shown(_words(name), columns).replace(f"{Path.cwd()}/", ""))

    parts = [f"$ redelivery {SCREENS[name]}", *(f"--- {width} columns ---\n{look(width)}" for width in WIDTHS)]
    return "\n\n".join([*parts, f"--- piped ---\n{look(None)}"]) + "\n"


def _begin_operations(desk: Desk) -> None:
    """Begin three operations: stopped by its canary, paused, and waiting."""
    store, now = store_of(desk.transport), desk.transport.now_ms()
    client: Any = desk.client
    stopped, paused, waiting = (
        "a1c9e5d3-0b7f-4e62-8d15-7c3a9f2e6b01",
        "b7e4d2f1-5a3c-4b98-9e07-1d6f8c2a4b02",
        "c3f8a6b2-9d1e-4c75-b240-6e8a1f3d5b03",
    )
    operations: dict[str, tuple[Act, dict[str, Any], dict[str, Any], str]] = {
        stopped: (Act.REDRIVE, {"fingerprints": ["c1f0a77e"]}, {"canary": 10, "rate": 200.0}, "fixed in 4.2"),
        paused: (Act.PURGE, {"reasons": ["worker_lost"]}, {"rate": 50.0}, "nobody needs these"),
        waiting: (Act.REDRIVE, {}, {"canary": 10, "rate": 200.0}, "fixed in 4.3"),
    }
    for number, (operation_id, (act, chosen, options, why)) in enumerate(operations.items()):
        about = {"kind": act, "queue": LETTERS, "filter": chosen, "options": options, "actor": "ana", "why": why}
        record = acted(act, Acted.BEGUN, LETTERS, actor="ana", why=why, operation=operation_id, options=options)
        store.begin(operation_id, json.dumps(about), record)
        client.zadd(desk.keys.operations, {operation_id: now + number})
        client.hset(desk.keys.operation(operation_id), "created_ms", str(now - YESTERDAY))
    claim = Claim(stopped, "token")
    store.turn(stopped, State.RUNNING, states={State.WAITING}, token=claim.token)
    first = "3f2a9c1e-6d0b-4f7e-9a51-0c2f6b8e4d01"
    died = {"task_id": first, "queue": "orders", "reason": "exhausted", "exception": "shop.errors.CardRefused"}
    progress = {"total": 40_000, "looked_at": 10, "matched": 10, "died_again": 1, "deaths": [died]}
    counts = {"moved": 10, "to:orders": 10}
    client.hset(desk.keys.operation(stopped), mapping=counts)
    store.report(claim, json.dumps(progress), "")
    said = f"the canary died again: {first} (exhausted: shop.errors.CardRefused); repair the cause first"
    record = acted(Act.REDRIVE, Acted.STOPPED, LETTERS, actor="ana", operation=stopped, result={"total": 40_000}, message=said)
    store.turn(stopped, State.STOPPED, states={State.RUNNING}, held=claim.token, message=said, record=record, has_ended=True)
    times = {"started_ms": now - YESTERDAY, "ended_ms": now - YESTERDAY + 4_000}
    client.hset(desk.keys.operation(stopped), mapping=times)
    turn(desk.install, paused, "pause", "ben", "ask first")


def _words(name: str) -> list[str]:
    """The words of a screen's command. Paths for Java are absolute, because Java keeps the folder in which it started."""
    words = SCREENS[name].split()
    if name != "reconcile":
        return words
    return [words[0], *(word if word.startswith("--") else str(Path.cwd() / word) for word in words[1:])]


@contextlib.contextmanager
def _left_as_it_was(desk: Desk) -> Iterator[None]:
    client: Any = desk.client
    before = [(key, max(client.pttl(key), 0), client.dump(key)) for key in client.scan_iter()]
    yield
    client.flushdb()
    for each in before:
        client.restore(*each)


def _normal(text: str) -> str:
    """The text without colours, and with fixed texts for times."""
    text = TAKEN.sub("   1.0 s  ", WRITTEN_OVER.sub("", text))
    text = PORT.sub("127.0.0.1:5151", MOMENT.sub(FIXED, click.unstyle(text)))
    text = CUT_MOMENT.sub(lambda found: "…" + FIXED[-(len(found[0]) - 1) :], text)
    return MEASURED.sub(r"\1 …", text).rstrip()


def shown(words: list[str], columns: int | None) -> str:
    """The output of a command, stdout and stderr, on a terminal of `columns` columns, or on a pipe (None)."""
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
    with (
        contextlib.redirect_stdout(stream),
        contextlib.redirect_stderr(stream),
        contextlib.suppress(SystemExit),
        mock.patch.object(signal, "sigwait", _with_sigterm(signal.sigwait)),
        mock.patch("uvicorn.Server.run", _served_nothing),
        mock.patch.object(logging.root, "handlers", [logging.NullHandler()]),  # logs have times, and are not part of the screen
    ):
        redelivery.main(words, prog_name="redelivery")


def _served_nothing(_: object, sockets: list[socket.socket]) -> None:
    """Replace the server of the page by one that ends at once."""
    for each in sockets:
        each.close()


def _with_sigterm(wait: Callable[[set[signal.Signals]], int]) -> Callable[[set[signal.Signals]], int]:
    """Let `sigwait` get SIGTERM at once: the screen of a server shows only how it begins."""

    def waits(signals: set[signal.Signals]) -> int:
        signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
        return wait(signals)

    return waits


def _read(master: int, into: list[bytes]) -> None:
    """Read until the other end is closed, which Linux reports as an error."""
    with contextlib.suppress(OSError):
        while chunk := os.read(master, 65_536):
            into.append(chunk)


def main() -> None:
    """Write all screens, and remove those that are not listed any more. Without RabbitMQ its screens stay unchanged."""
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="rd-") as folder:
        server = Server(Path(folder), binaries()["valkey"]).start()
        try:
            with arranged(server) as desk:
                _write(set(SCREENS) - BOOKS - RABBITMQ, desk)
        finally:
            server.stop(9)
    with with_books():
        _write(BOOKS)
    if installed():
        with (
            tempfile.TemporaryDirectory(prefix="rd-") as folder,
            Node(Path(folder) / "rabbit").running() as node,
            with_rabbitmq(node.vhost()),
        ):
            _write(RABBITMQ)
    else:
        sys.stderr.write(f"no RabbitMQ is installed: {', '.join(sorted(RABBITMQ))} stayed as it was\n")
    for file in FOLDER.glob("*.txt"):
        if file.stem not in SCREENS:
            file.unlink()


def _write(names: set[str], desk: Desk | None = None) -> None:
    for name in sorted(names):
        (FOLDER / f"{name}.txt").write_text(screen(name, desk))


if __name__ == "__main__":
    main()
