"""The demo: webhooks fail and are redelivered, workers are killed, and in the end the books are compared with the receiver's.

1. A private broker and the receiver start; the webhooks are published; a worker with two children starts.
2. When a third has ended, one pool child is killed. When half has ended, the whole worker is killed, and started again.
3. When everything has ended, the broken endpoints are repaired and their dead letters redriven.
4. The outcome log and the inventory are exported and reconciled, and every id is compared with the receiver's own journal.

Exit code 0: balanced, nothing lost, the receiver agrees. 1: one of these is not true. 2: the demo could not run. 130: interrupted.
On RabbitMQ, a worker that is killed between a record and its acknowledgement leaves an end that is recorded twice. The demo names
and accepts these.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import signal
import sys
import time
import urllib.request
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from random import Random
from typing import TYPE_CHECKING, Any

import pyarrow.dataset

from redelivery.errors import RedeliveryError
from webhooks import journal, report
from webhooks.account import Account, balance
from webhooks.broker import BROKERS, Broker, private_broker
from webhooks.command import Command, CommandError
from webhooks.scenarios import Scenario, Webhook, plan
from webhooks.server import Receiver
from webhooks.watch import Watch
from webhooks.worker import HOME, Worker

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

__all__ = ["main"]

QUEUE = "webhooks"
#: Seconds after which the demo stops waiting.
DEADLINE = 600.0
LOOK_EVERY = 0.1


@dataclass(frozen=True, slots=True)
class Run:
    """All parts of one run."""

    webhooks: list[Webhook]
    random: Random
    outputs: Path
    progress: report.Progress
    broker: Broker
    receiver: Receiver
    worker: Worker
    watch: Watch
    command: Command


def main(arguments: list[str] | None = None) -> int:
    """Run the demo; returns the exit code."""
    options = _parse(arguments)
    for number in (signal.SIGINT, signal.SIGTERM):  # SIGINT, too: in a shell without job control, children ignore it
        signal.signal(number, _interrupt)
    progress = report.Progress(sys.stderr if options.json else sys.stdout)
    with ExitStack() as stack:
        return _run_and_report(options, progress, stack)


def _run_and_report(options: argparse.Namespace, progress: report.Progress, stack: ExitStack) -> int:
    """Run, print the result, and serve the page with `--web`; returns the exit code."""
    try:
        account, balanced, run = _run(options, progress, stack)
    except KeyboardInterrupt:
        progress.say("interrupted; the broker and the worker are stopped")
        return 130
    except (CommandError, RedeliveryError, RuntimeError, OSError) as exc:
        progress.say(f"the demo could not run: {exc}")
        return 2
    show = report.as_json if options.json else report.table
    print(show(account, balanced=balanced, seconds=progress.seconds, outputs=run.outputs), flush=True)
    if options.web:
        progress.say("the operator's page; Ctrl-C ends it, and the broker")
        with suppress(KeyboardInterrupt):
            run.command.web()
    return 0 if (balanced or account.only_doubled) and account.lost == 0 and not account.disagreements else 1


def _run(options: argparse.Namespace, progress: report.Progress, outer: ExitStack) -> tuple[Account, bool, Run]:
    """Run the demo. With `--web` the broker runs until the outer stack is closed."""
    with ExitStack() as stack:
        broker = private_broker(options.broker, QUEUE)
        progress.say(f"starting a private {broker.title}")
        run = _prepare(options, progress, (outer if options.web else stack).enter_context(broker), stack)
        outputs = run.outputs
        if options.sabotage:
            progress.say(f"sabotage: {run.broker.delete_one()} was deleted from the queue, without a record")
        progress.say("starting a worker with two children")
        stack.enter_context(run.worker)
        _deliver(run)
        _redrive(run)
        progress.say("stopping the worker")
        run.worker.stop()
        progress.say("exporting the outcome log and the inventory")
        run.command.export()
    progress.say("reconciling the books (Spark starts)")
    code = run.command.reconcile()
    lines = journal.read(outputs / "receiver.jsonl")
    summary = json.loads((run.command.books / "summary.json").read_text(encoding="utf-8"))
    events, verdicts = _rows(run.command.outcomes), _rows(run.command.books / "verdicts")
    may_repeat = run.broker.may_repeat and not summary["gaps"]
    account = balance(run.webhooks, events, verdicts, lines, may_repeat=may_repeat)
    return account, bool(summary["balanced"]) and code == 0, run


def _prepare(options: argparse.Namespace, progress: report.Progress, broker: Broker, stack: ExitStack) -> Run:
    """Start the receiver, make the parts of the run, and publish."""
    secret = secrets.token_hex(16)
    webhooks = plan(options.count, options.seed)
    random = Random(options.seed)  # noqa: S311 - the choice of the child must be repeatable
    outputs = _outputs()
    receiver = stack.enter_context(Receiver(outputs / "receiver.jsonl", seed=options.seed, secret=secret.encode()))
    environment = os.environ | {"WEBHOOKS_BROKER": broker.url, "WEBHOOKS_SECRET": secret, "PYTHONUNBUFFERED": "1"}
    run = Run(
        webhooks=webhooks,
        random=random,
        outputs=outputs,
        progress=progress,
        broker=broker,
        receiver=receiver,
        worker=Worker(environment, outputs / "worker.log", random=random),
        watch=Watch(broker),
        command=Command(environment, outputs, outputs / "commands.log"),
    )
    _publish(run)
    progress.say(f"published {len(webhooks)} webhooks; the receiver listens on {receiver.url}")
    return run


def _publish(run: Run) -> None:
    os.environ["WEBHOOKS_BROKER"] = run.broker.url
    from webhooks.app import deliver  # noqa: PLC0415 - the app reads the broker's address when it is imported

    url = f"{run.receiver.url}/webhooks"
    for webhook in run.webhooks:
        payload = {"id": webhook.id, "event": "order.paid", "amount_cents": 100 + run.random.randrange(100_000)}
        if webhook.scenario is Scenario.POISON:
            payload["crash"] = True
        deliver.apply_async((url, payload), task_id=webhook.id)
    deliver.app.close()


def _deliver(run: Run) -> None:
    """Wait until every webhook has ended, and kill a child and the worker on the way."""
    count = len(run.webhooks)
    kills: list[tuple[int, Callable[[Run], bool]]] = [(count // 3, _kill_child), (count // 2, _kill_worker)]

    def step() -> bool:
        if kills and run.watch.ended >= kills[0][0] and kills[0][1](run):
            kills.pop(0)
        return run.watch.has_ended(count)

    _watch_until(run, "delivering", step)


def _kill_child(run: Run) -> bool:
    child = run.worker.kill_child()
    if child is not None:
        run.progress.say(f"SIGKILL to one pool child (process {child})")
    return child is not None


def _kill_worker(run: Run) -> bool:
    run.worker.kill()
    run.progress.say("SIGKILL to the whole worker, with its children; starting another")
    run.worker.start()
    return True


def _redrive(run: Run) -> None:
    request = urllib.request.Request(f"{run.receiver.url}/repair", method="POST")  # noqa: S310 - our own loopback server
    with urllib.request.urlopen(request):  # noqa: S310 - as above
        run.progress.say("the broken endpoints are repaired; an operator redrives their dead letters")
    if not run.watch.dead:
        return
    before = run.watch.ended
    moved = run.command.redrive("exhausted")
    run.progress.say(f"redriven: {moved} dead letters")
    _watch_until(run, "redriving", lambda: run.watch.outcomes["redriven"] >= moved and run.watch.has_ended(before))


def _watch_until(run: Run, what: str, is_done: Callable[[], bool]) -> None:
    """Read the outcome log until `is_done`, or nothing is left to wait for, or the deadline has passed."""
    watch, deadline = run.watch, time.monotonic() + DEADLINE
    while time.monotonic() < deadline:
        watch.look()
        ended = f"{watch.ended} of {len(run.webhooks)} ended"
        run.progress.update(f"{what}: {ended} · {watch.waiting} wait for redelivery · {watch.dead} dead letters")
        if is_done() or watch.is_idle():
            break
        if not run.worker.is_alive():
            msg = f"the worker ended by itself: see {run.outputs / 'worker.log'}"
            raise RuntimeError(msg)
        time.sleep(LOOK_EVERY)
    run.progress.say(f"{what}: {watch.ended} of {len(run.webhooks)} have ended, {watch.dead} of them as dead letters")


def _rows(directory: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = (
        pyarrow.dataset.dataset(directory, format="parquet", exclude_invalid_files=False).to_table().to_pylist()
    )
    return rows


def _outputs() -> Path:
    directory = HOME.parent.parent / ".demo" / datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
    directory.mkdir(parents=True)
    return directory


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="demo", description="Webhooks that fail, workers that are killed, and the books of it.")
    parser.add_argument("--broker", choices=BROKERS, default="redis", help="the private broker that is started (redis)")
    parser.add_argument("--count", type=_count, default=500, help="how many webhooks (500)")
    parser.add_argument("--seed", type=int, default=7, help="decides who fails, and how (7)")
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output; the rest goes to standard error")
    parser.add_argument("--sabotage", action="store_true", help="delete one message without a record: must end with 1")
    parser.add_argument("--web", action="store_true", help="end with the operator's page of this run")
    return parser.parse_args(arguments)


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        msg = f"{text!r} is not a number of webhooks: give 1 or more"
        raise argparse.ArgumentTypeError(msg)
    return int(text)


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt
