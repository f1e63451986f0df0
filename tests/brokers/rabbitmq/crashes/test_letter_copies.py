"""On RabbitMQ an operator's command may die between publishing a dead letter and acknowledging it: only one of the two goes on."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, cast

import pytest

from redelivery.middleware.brokers.rabbitmq.messages import message_of
from redelivery.middleware.brokers.rabbitmq.names import JOURNAL
from redelivery.middleware.brokers.rabbitmq.topology import declare_journal
from redelivery.middleware.messages.steps import sealed
from redelivery.workers.brokers.rabbitmq import copies
from redelivery.workers.operations.letters.walk import UNROUTABLE, UNSURE
from tests.conformance.brokers import Place
from tests.support.desk import task_message
from tests.support.lanes import first_quick
from tests.support.running import Shop, until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.support.rabbit import Rabbit

#: One dead letter in most tests, because a command may send the first one alone, and the others after it.
COUNT = 1
DIED = "died"
WHEN = datetime(2026, 1, 1, tzinfo=UTC)
QUORUM = {"task_default_queue_type": "quorum", "task_create_missing_queue_type": "quorum"}
CLASSIC = pytest.mark.parametrize("here", ["classic"], indirect=True)


@pytest.fixture(params=first_quick(["classic", "quorum"]))
def here(request: pytest.FixtureRequest, rabbit: Rabbit, folder: Path) -> Iterator[Shop]:
    """A shop on each type of queue, with one attempt for each task, and a journal. A task succeeds at its second attempt."""
    conf: dict[str, Any] = {"broker_transport_options": {"confirm_publish": True}}
    conf |= QUORUM if request.param == "quorum" else {}
    settings = {"queues": {"#": {"max_delivery_attempts": 1}}}
    shop = Shop(cast("Any", rabbit), folder, settings=settings, conf=conf, module="tests.support.rabbitmq.fork_shop")
    with rabbit.connection() as connection:
        connection.connect()
        assert declare_journal(connection.connection, JOURNAL)
    yield shop
    shop.stop()


def bury(here: Shop, count: int) -> list[str]:
    """Have so many tasks die; their ids."""
    ids = [str(here.app.send_task("tests.support.shop.fails", (1,)).id) for _ in range(count)]
    worker = here.start(pool="threads")
    for each in ids:
        here.ended(each, "dead_lettered")
    worker.stop()
    return ids


@pytest.fixture
def buried(here: Shop) -> list[str]:
    """Dead letters; no worker runs any more."""
    return bury(here, COUNT)


@pytest.fixture
def ask(here: Shop) -> Callable[..., dict[str, Any]]:
    """Runs a command to its end, and returns its output."""

    def run(*words: str) -> dict[str, Any]:
        done = _run(here, "", *words, "--json")
        assert done.stdout.startswith("{"), done.stderr
        said: dict[str, Any] = json.loads(done.stdout)
        return said

    return run


@pytest.fixture
def dies(here: Shop, rabbit: Rabbit) -> Callable[..., None]:
    """Runs a command that is killed at a step, and waits until the broker has taken back its messages."""

    def run(order: str, name: str, *words: str) -> None:
        done = _run(here, order, *words)
        assert done.returncode == -signal.SIGKILL, done.stdout + done.stderr
        until(lambda: not sum(unacked for _, unacked in rabbit.depths().values()), what=f"{name} to be given back")

    return run


def _run(here: Shop, order: str, *words: str) -> subprocess.CompletedProcess[str]:
    """One command, which dies at a step if it is told to."""
    role = "importer" if words[1] == "import" else words[1]
    variables = {"CHAOS_KILLS": str(here.folder / "kills"), "CHAOS_ORDER": f"{order}:1", "CHAOS_ROLE": role} if order else {}
    command = [sys.executable, "-m", "redelivery", "-A", here.module, *words]
    given: Any = {"env": {**here.environment, **variables}, "cwd": here.folder, "capture_output": True, "text": True}
    return subprocess.run(command, **given, timeout=120, check=False)


REDRIVE = ("dlq", "redrive", "DLQ.celery", "--all", "--yes")


@pytest.mark.parametrize(
    "order", first_quick(["confirm.before", "redrive.after", "record.before", "record.after", "acknowledge.before"])
)
def test_a_letter_whose_redrive_died_is_redriven_once(
    here: Shop, rabbit: Rabbit, buried: list[str], ask: Callable[..., Any], dies: Callable[..., None], *, order: str
) -> None:
    """The copy that it published runs. The next redrive knows that, records what may be missing, and removes the dead letters."""
    dies(order, "DLQ.celery", *REDRIVE)
    assert rabbit.depth("DLQ.celery") == COUNT
    here.settings["queues"]["#"] |= {"max_delivery_attempts": 2, "redelivery_delay": 0.1}
    here.start(pool="threads")
    for each in buried:
        here.ended(each, "succeeded")
    until(lambda: not here.leftovers(), what="all to be acknowledged")
    said = ask(*REDRIVE)
    assert (said["moved"], said["gone"], said["left"]) == (0, COUNT, {})
    assert here.letters() == []
    for each in buried:
        assert here.outcomes_of(each) == ["published", "dead_lettered", "redriven", "redelivery_scheduled", "succeeded"]
        assert len(here.runs(each)) == 3


@pytest.mark.full
@CLASSIC
@pytest.mark.parametrize("order", first_quick(["redrive.before", "redrive.after"]))
def test_a_letter_that_may_have_gone_back_stays_until_that_is_known(
    here: Shop, rabbit: Rabbit, ask: Callable[..., Any], dies: Callable[..., None], *, order: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No worker runs the copy: for ten minutes the next command does not touch the dead letter, and says so.

    Dead letters that the dead command had not reached go back at once. A limit does not count those that stay.
    """
    bury(here, 3)
    dies(order, "DLQ.celery", *REDRIVE)
    went = rabbit.depth("celery") or 0
    assert (rabbit.depth("DLQ.celery"), went > 0) == (3, order == "redrive.after")
    doubtful = went or 1
    said = ask(*REDRIVE, "--limit", "1")
    assert (said["moved"], said["gone"], said["left"]) == (min(3 - doubtful, 1), 0, {UNSURE: doubtful})
    said = ask("dlq", "purge", "DLQ.celery", "--all", "--yes")
    assert (said["purged"], said["gone"], said["left"]) == (max(2 - doubtful, 0), 0, {UNSURE: doubtful})
    assert rabbit.depth("DLQ.celery") == doubtful
    monkeypatch.setattr(copies, "DOUBT", timedelta())
    assert Place.command(here.app, *REDRIVE)["moved"] == doubtful
    assert rabbit.depth("DLQ.celery") == 0


@pytest.mark.full
@pytest.mark.parametrize(
    "order", first_quick(["confirm.before", "move.after", "record.before", "record.after", "acknowledge.before"])
)
def test_a_letter_whose_move_died_lies_in_one_queue(
    here: Shop, rabbit: Rabbit, buried: list[str], ask: Callable[..., Any], dies: Callable[..., None], *, order: str
) -> None:
    """The next move finds it in its new queue, records what may be missing, and removes it from the old one."""
    words = ("dlq", "move", "DLQ.celery", "--all", "--yes", "--to", "DLQ.spare", "--create")
    dies(order, "DLQ.celery", *words)
    until(lambda: rabbit.depth("DLQ.spare") == COUNT, what="the broker to have read what was published")
    assert rabbit.depth("DLQ.celery") == COUNT
    said = ask(*words)
    assert (said["moved"], said["gone"], said["left"]) == (0, COUNT, {})
    assert here.letters() == []
    assert Counter(letter["headers"]["id"] for letter in here.letters("DLQ.spare")) == Counter(buried)
    for each in buried:
        assert Counter(here.outcomes_of(each)) == Counter(["published", "dead_lettered", "redriven", "dead_lettered"])


@CLASSIC
def test_a_letter_that_has_not_come_to_its_new_queue_is_soon_moved(
    here: Shop, rabbit: Rabbit, buried: list[str], dies: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command died before it published. For half a minute another command may be publishing it; after that it can be moved."""
    words = ("dlq", "move", "DLQ.celery", "--all", "--yes", "--to", "DLQ.spare", "--create")
    dies("move.before", "DLQ.celery", *words)
    assert (rabbit.depth("DLQ.celery"), rabbit.depth("DLQ.spare")) == (COUNT, 0)
    assert Place.command(here.app, *words)["left"] == {UNSURE: COUNT}
    monkeypatch.setattr(copies, "LOOKED_DOUBT", timedelta())
    assert Place.command(here.app, *words)["moved"] == COUNT
    assert Counter(letter["headers"]["id"] for letter in here.letters("DLQ.spare")) == Counter(buried)


@pytest.mark.full
@CLASSIC
@pytest.mark.parametrize("order", first_quick(["record.before", "record.after", "acknowledge.before"]))
def test_a_letter_whose_purge_died_is_purged_once(
    here: Shop, rabbit: Rabbit, buried: list[str], ask: Callable[..., Any], dies: Callable[..., None], *, order: str
) -> None:
    """The next command knows whether that was recorded."""
    words = ("dlq", "purge", "DLQ.celery", "--all", "--yes")
    dies(order, "DLQ.celery", *words)
    assert rabbit.depth("DLQ.celery") == COUNT
    said = ask(*words)
    assert (said["purged"], said["gone"]) == ((COUNT, 0) if order == "record.before" else (0, COUNT))
    assert here.letters() == []
    for each in buried:
        assert here.outcomes_of(each) == ["published", "dead_lettered", "purged"]


def put_dead(rabbit: Rabbit, message: dict[str, Any]) -> None:
    """Put a message that RabbitMQ itself has dead-lettered."""
    death = {"queue": "celery", "reason": "rejected", "exchange": "", "routing-keys": ["celery"], "count": 1, "time": WHEN}
    made = message_of(sealed(message), target=("", DIED))
    made.properties["application_headers"]["x-death"] = [death]
    with rabbit.connection() as connection:
        connection.default_channel.queue_declare(DIED, durable=True, auto_delete=False)
        connection.default_channel.basic_publish(made, routing_key=DIED)


@pytest.mark.full
@CLASSIC
def test_what_an_import_that_died_left_in_doubt_holds_no_other_up(
    here: Shop, rabbit: Rabbit, ask: Callable[..., Any], dies: Callable[..., None]
) -> None:
    """A doubtful message stays at the head of the queue for half a minute; a limit does not count it."""
    put_dead(rabbit, task_message())
    dies("import.before", DIED, "dlq", "import", DIED)
    put_dead(rabbit, task_message())
    said = ask("dlq", "import", DIED, "--limit", "1")
    assert (said["moved"], said["left"]) == (1, {UNSURE: 1})
    assert (rabbit.depth(DIED), len(here.letters())) == (1, 1)


@CLASSIC
@pytest.mark.parametrize(
    "order", first_quick(["confirm.before", "import.after", "record.before", "record.after", "acknowledge.before"])
)
def test_a_death_whose_import_died_is_one_letter(
    here: Shop, rabbit: Rabbit, ask: Callable[..., Any], dies: Callable[..., None], *, order: str
) -> None:
    """The next import finds the letter that the first one published."""
    message = task_message()
    put_dead(rabbit, message)
    dies(order, DIED, "dlq", "import", DIED)
    assert rabbit.depth(DIED) == 1
    # The event that opens its life may have been confirmed by itself, before there was a letter to send; and what was not confirmed
    # when its connection died may be dropped.
    assert rabbit.depth("DLQ.celery") in (
        {1} if order == "import.after" else {0, 1, None} if order == "confirm.before" else {1, None}
    )
    said = ask("dlq", "import", DIED)
    assert (said["moved"], said["left"]) == (1, {})
    assert (rabbit.depth(DIED), rabbit.depth("DLQ.celery")) == (0, 1)
    assert here.outcomes_of(message["headers"]["id"]) == ["received", "dead_lettered"]


@pytest.mark.full
@CLASSIC
def test_a_letter_that_nothing_took_is_in_no_doubt(rabbit: Rabbit, buried: list[str], ask: Callable[..., Any]) -> None:
    """The target queue was missing, so no copy exists: when the queue is there again, the dead letter is redriven at once."""
    with rabbit.connection() as connection:
        connection.default_channel.queue_delete("celery")
    assert ask(*REDRIVE)["left"] == {UNROUTABLE: COUNT}
    with rabbit.connection() as connection:
        connection.default_channel.queue_declare("celery", durable=True, auto_delete=False)
    assert ask(*REDRIVE)["moved"] == COUNT
    assert (rabbit.depth("DLQ.celery"), rabbit.depth("celery")) == (0, len(buried))
