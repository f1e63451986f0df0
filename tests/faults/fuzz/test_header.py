"""Our own header with any content, sent to real workers on Redis and RabbitMQ: only the app's own queues and keys are touched.

Every operator's command and every screen must also answer while such dead letters exist. `FUZZ_HEADERS` says how many messages,
the seed of the run which ones.
"""

from __future__ import annotations

import json
import os
import random
import re
import sys
import types
import uuid
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from redelivery.middleware.brokers.rabbitmq.messages import MAX_HEADERS
from redelivery.middleware.brokers.rabbitmq.properties import MARK
from redelivery.middleware.messages.envelope import DELIVERED, HEADER, KNOWN
from redelivery.middleware.messages.steps import sealed
from redelivery.workers.cli.main import redelivery
from tests.faults.fuzz.hostile_messages import nested, value
from tests.support.desk import task_message
from tests.support.hostile.wire import wired
from tests.support.lanes import FULL, seed
from tests.support.page.web_page import WebPage
from tests.support.running import Shop, until

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator
    from pathlib import Path

    from click.testing import Result

    from tests.support.page.web_page import Answer
    from tests.support.rabbit import Rabbit

COUNT = int(os.environ.get("FUZZ_HEADERS", "300"))
#: Messages that are not due yet when the operator's commands run.
WAITING = 12
SETTINGS = {"queues": {"#": {"redelivery_delay": 0.02, "max_delivery_attempts": 2}, "handled": {"max_delivery_attempts": 2}}}
WHERE = ("celery", "DLQ.celery", "DLQ.handled")
#: Targets that belong to others, or would be useful to an attacker.
PLACES = (
    *("foreign", "DLQ.foreign", "cache", "celery", "handled", "DLQ.celery", "unacked", "unacked_index", "_kombu.binding.celery"),
    *("redelivery:delayed", "redelivery:recovering", "redelivery:outcomes", "redelivery:leases", "celery.pidbox", "celeryev"),
    *("w0@shop.celery.pidbox", "x.reply.celery.pidbox", "redelivery.outcomes", "redelivery_delayed_celery_delayed_3", "amq.topic"),
)
#: Each JSON type in each size that a header may have: the fields below get them in turn, with any seed.
EACH_TYPE: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 2**53, 10**400, 0.5, float("nan"), float("-inf")),
    *("", "x", "celery.pidbox", "\ud800", "x" * 1_000_000),
    *([], [None], ["x"] * 10_000, [[]] * 1000, [{"queue": "foreign", "reason": "exhausted", "count": 1}] * 1000),
    *(
        {},
        {"queue": None},
        {"queue": {"queue": "foreign"}},
        {"queue": "foreign"} | {f"k{number}": number for number in range(10_000)},
    ),
)
FIELDS = ("deaths", "origin", "undelivered", "attempts")
TOTAL = COUNT + len(FIELDS) * len(EACH_TYPE)
REASONS = ("exhausted", "expired", "rejected", "worker_lost", "operator", "non_retryable")
#: All that an app of these queues has on its broker, whatever is sent to it.
OWN = re.compile(
    r"""
    (DLQ\.)*(celery|handled|other)(\x06\x16[369])? | unacked | unacked_index | _kombu\.binding(\.|_permanent\.|_deadlines).*
    | redelivery:(leases|owners|starts|outcomes(:.*)?|dead_letter_queues|dispatcher|letter_keeper|letter_watcher|exporter)
    | redelivery:(operator|audit|operations(:open)?|lease_watcher(:second)?)
    | redelivery:(received|slots|woken):.* | redelivery:delayed(:tasks)?
    | redelivery:(watch|idle|delayed:due|delayed:messages):(DLQ\.)*(celery|handled|other)(\x06\x16[369])?
    | redelivery\.(outcomes|watching|journal|audit) | redelivery\.start\.[0-9a-f]{40} | redelivery_delayed_.*
    | .*celery\.pidbox | celeryev\..*
    """,
    re.VERBOSE,
)


def forged(chance: random.Random) -> Any:
    """A header in which any field may be anything, and most values would do harm if they were trusted."""
    if chance.random() < 0.03:
        return value(chance)

    def one(*likely: Any) -> Any:
        return chance.choice(likely) if chance.random() < 0.75 else value(chance)

    def death() -> dict[str, Any]:
        return {
            "queue": one(*PLACES),
            "reason": one(*REASONS),
            "count": one(1, 10**400),
            "first": one(1, -1, 10**400),
            "last": one(1, -(10**400), 2**60),
            "generation": one(0, 1, 2**53),
            "exchange": one("", *PLACES),
            "routing_keys": one([], ["celery"], list(PLACES) * 5),
        }

    def attempt() -> dict[str, Any]:
        return {
            "at": one(1, 10**400),
            "worker": one("w", "\ud800"),
            "exception": one("E", "x" * 5000),
            "delay": one(5, float("inf")),
        }

    likely: dict[str, Callable[[], Any]] = {
        "origin": lambda: {"queue": one(*PLACES), "exchange": one("", *PLACES), "routing_key": one(*PLACES, "redelivery.outcomes")},
        "undelivered": lambda: one(*PLACES),
        "parked": lambda: one(*(True, False)),
        "deaths": lambda: [death() for _ in range(chance.choice((0, 1, 1, 2, 30)))],
        "attempts": lambda: [attempt() for _ in range(chance.choice((0, 1, 30)))],
        "attempt": lambda: one(0, 1, 2**52),
        "generation": lambda: one(0, 1, 2**40),
        "first_seen": lambda: one(1, 2**52),
        "failure": lambda: {
            "type": one("E"),
            "message": one("no"),
            "traceback": one("x" * 50_000),
            "fingerprint": one("f", "\ud800"),
        },
    }
    header = {name: made() for name, made in likely.items() if chance.random() < 0.6}
    header.update({name: value(chance) for name in ("deaths", "origin", "undelivered", "attempts") if chance.random() < 0.25})
    header.update({name: value(chance) for name in sorted(KNOWN) if chance.random() < 0.05})
    return header


def messages(chance: random.Random) -> Iterator[tuple[str, dict[str, Any]]]:
    """Messages, each with its queue: first each field with each type, then messages that the seed draws."""
    given = [{field: each, "parked": True, "attempt": 1} for field in FIELDS for each in EACH_TYPE]
    for number in range(TOTAL):
        message = task_message(
            f"fuzz-{number}", f"tests.support.hostile.lied_to.{chance.choice(('take', 'take', 'fails', 'again'))}"
        )
        message["headers"][HEADER] = given[number] if number < len(given) else forged(chance)
        if number < len(given):
            yield chance.choice(WHERE), message
            continue
        if chance.random() < 0.3:
            message["headers"][DELIVERED] = {"exchange": chance.choice(("", *PLACES)), "routing_key": chance.choice(PLACES)}
        if chance.random() < 0.05:
            message["headers"]["x"] = nested(chance.choice((63, 70, 600)), chance)
        if chance.random() < 0.05:
            message["headers"][MARK] = value(chance)
        yield chance.choice(WHERE), message


def waiting(chance: random.Random) -> Iterator[dict[str, Any]]:
    """Messages that are due in an hour; the header of the first is valid."""
    at = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    for number in range(WAITING):
        message = task_message(f"waits-{number}", "tests.support.hostile.lied_to.take", eta=at)
        message["headers"].update({HEADER: forged(chance)} if number else {})
        yield message


def answers(
    here: Shop, folder: Path, *, letters: str, fuzzed: int = TOTAL, waiting: int = WAITING, cannot: Collection[str] = ()
) -> None:
    """Every command ends well, and JSON output is valid. So many tasks were made, and so many wait.

    A command that cannot handle a message may say why. The commands in `cannot` do not exist for this broker.
    """
    waits = [f"waits-{number}" for number in range(waiting)]
    commands: list[tuple[str, ...]] = [
        *(("dlq", "list"), ("dlq", "show", letters), ("dlq", "show", letters, "--full", "--limit", "500"), ("dlq", "causes")),
        *(("dlq", "show", letters, "--id", f"fuzz-{number}") for number in range(0, fuzzed, 20)),
        *(("dlq", "export", letters), ("dlq", "export", letters, "--to", str(folder / "letters"))),
        *(("dlq", "redrive", letters, "--all", "--dry-run"), ("dlq", "purge", letters, "--all", "--dry-run")),
        *(("dlq", "move", letters, "--all", "--to", "DLQ.other", "--create", "--dry-run"), ("dlq", "import", letters)),
        *(("audit",), ("ops", "list")),
        *(("metrics",), ("delayed", "list"), ("outcomes", "tail"), ("adopt",), ("leave", "--dry-run"), ("leave", "--yes")),
        ("policy", "explain", "--queue", "celery", "--task", "tests.support.hostile.lied_to.take"),
        *(("delayed", "show", each) for each in waits),
        *(("delayed", "reschedule", each, "--in", "2h") for each in waits),
        *(("delayed", "promote", each) for each in waits[::3]),
        *(("delayed", "cancel", each) for each in waits),
        *(("task", "show", "fuzz-1"), ("task", "show", waits[0]), ("inventory", "export", "--to", str(folder / "inventory"))),
        ("outcomes", "export", "--to", str(folder / "outcomes")),
        ("dlq", "move", letters, "--reason", "rejected", "--to", "DLQ.other", "--create", "--yes"),
        ("dlq", "purge", letters, "--reason", "expired", "--archive", str(folder / "archive"), "--yes"),
        ("dlq", "redrive", letters, "--all", "--yes"),
    ]
    with named(here) as module:
        for words in commands:
            for form in ((), ("--json",)):
                done = CliRunner().invoke(redelivery, ["-A", module, *words, *form])
                _answers(done, words, is_json=bool(form), may_refuse=words[0] in {"task", "leave", "delayed", *cannot})


def _answers(done: Result, words: tuple[str, ...], *, is_json: bool, may_refuse: bool) -> None:
    """It ended well, or said in one line why it cannot, if that is allowed."""
    may_refuse = may_refuse or words[:2] == ("dlq", "import") or "--id" in words
    assert isinstance(done.exception, (SystemExit, type(None))), (words, done.exception)
    assert done.exit_code == 0 or (done.exit_code == 2 and may_refuse), (words, done.output[-2000:])
    if done.exit_code and not is_json:
        assert words[0] == "metrics" or done.stderr.count("redelivery: error: ") == 1, (words, done.stderr)
    if is_json and not done.exit_code:
        lines = words[:2] in {("dlq", "export"), ("outcomes", "tail")} and "--to" not in words
        for each in done.stdout.splitlines() if lines else [done.stdout]:
            json.loads(each, parse_constant=_refused)


def _fits(message: Any) -> bool:
    """Whether it can be sent: headers that do not fit into a frame close the connection."""
    return len(message._serialize_properties()) < MAX_HEADERS


def _refused(word: str) -> Any:
    message = f"{word} is not JSON"
    raise AssertionError(message)


def shown(here: Shop, folder: Path, *, letters: str) -> None:
    """Every screen of the page answers, all pages of the list of dead letters, and each dead letter in it."""
    with WebPage(here.module, folder, "--allow", "look", env=here.environment) as page:
        operator = page.operator()

        def screen(address: str) -> Answer:
            answer = operator.get(address)
            assert answer.status == 200, (address, answer.status, answer.text[-1000:], page.log[-3000:])
            return answer

        for address in ("/", "/causes", "/delayed", "/queues", "/queue?name=celery", "/workers", "/operations", "/books"):
            screen(address)
        listed = screen(f"/letters?queue={letters}")
        for form in listed.forms("/look")[:1]:  # RabbitMQ
            listed = operator.follow(operator.post("/look", form))
        named = listed.links("/letter?")
        while older := [each for each in listed.links("/letters?") if "before=" in each]:
            listed = screen(older[0])
            named += listed.links("/letter?")
        assert named
        for address in named:
            screen(address)
        for task_id in ("fuzz-1", "waits-0", "waits-1"):
            assert operator.get(f"/task?id={task_id}").status in {200, 400, 404}  # on RabbitMQ, where a search marks messages, 400
        assert "Traceback" not in page.log


def examined(here: Shop) -> None:
    """The doctor ends with its findings. It asks the workers by a broadcast."""
    with named(here) as module:
        for form in ((), ("--json",)):
            done = CliRunner().invoke(redelivery, ["-A", module, "doctor", *form])
            assert isinstance(done.exception, (SystemExit, type(None))), done.exception
            assert done.exit_code in {0, 1, 2}, done.output[-2000:]
            assert "redelivery: error: " not in done.stderr
            assert not form or "findings" in json.loads(done.stdout)


@contextmanager
def named(here: Shop) -> Iterator[str]:
    """A module in which the commands find this app."""
    module = types.ModuleType(f"operator_{uuid.uuid4().hex}")
    module.app = here.app  # type: ignore[attr-defined]
    sys.modules[module.__name__] = module
    try:
        yield module.__name__
    finally:
        del sys.modules[module.__name__]


def at_rest(sizes: dict[str, int]) -> bool:
    """Whether only unconsumed dead letters and messages that are not due are left."""
    return not {
        name: size for name, size in sizes.items() if name != "delayed" and (not name.startswith("DLQ.") or name == "DLQ.handled")
    }


@FULL
@pytest.mark.slow
def test_whatever_our_header_says_nothing_but_the_apps_own_is_touched_on_redis(shop: Callable[..., Shop], tmp_path: Path) -> None:
    """No new key and no changed type outside the app's own, and other clients' keys are unchanged."""
    here = shop(settings=SETTINGS, module="tests.support.hostile.lied_to")
    client = here.server.client
    client.set("cache", "1")
    client.lpush("foreign", b"theirs")
    worker = here.start("-Q", "celery,handled,DLQ.handled", pool="threads")
    sent = list(messages(random.Random(seed())))  # noqa: S311 - a scenario, no secret
    letters = [sealed(message) for name, message in sent if name == "DLQ.celery"]
    for name, message in sent:
        client.lpush(name, sealed(message))
    until(lambda: at_rest(here.leftovers()), 120, f"all to end: {here.leftovers()}")
    client.lpush("DLQ.celery", *letters)
    for message in waiting(random.Random(seed())):  # noqa: S311 - as above
        client.lpush("celery", sealed(message))
    until(lambda: set(here.leftovers()) <= {"delayed", "DLQ.celery"}, 60, f"them to wait: {here.leftovers()}")
    shown(here, tmp_path, letters="DLQ.celery")
    answers(here, tmp_path, letters="DLQ.celery")
    examined(here)
    until(lambda: at_rest(here.leftovers()), 120, f"all to end: {here.leftovers()}")
    keys = {name.decode("utf-8", "replace") for name in client.scan_iter(count=1000)}
    assert {name for name in keys - {"cache", "foreign"} if not OWN.fullmatch(name)} == set()
    assert (client.get("cache"), client.lrange("foreign", 0, -1)) == (b"1", [b"theirs"])
    assert client.type("redelivery:delayed") in {b"none", b"zset"}
    assert worker.process.poll() is None, worker.text[-3000:]
    here.ended(here.send("take"), "succeeded")
    assert worker.stop() == 0


@FULL
@pytest.mark.slow
def test_whatever_our_header_says_nothing_but_the_apps_own_is_touched_on_rabbitmq(rabbit: Rabbit, tmp_path: Path) -> None:
    """No queue beyond the app's is declared or gets a message, no broadcast is sent, and the books get only our events."""
    here = Shop(rabbit, tmp_path, settings=SETTINGS, module="tests.support.hostile.lied_to")  # type: ignore[arg-type]
    try:
        worker = here.start("-Q", "celery,handled,DLQ.handled", pool="threads")
        with rabbit.connection() as connection:
            channel = connection.connection.channel()
            for name in ("foreign", "spy", "DLQ.celery"):
                channel.queue_declare(name, durable=True, auto_delete=False)
            channel.queue_bind("spy", "celery.pidbox", "")
            made = [(name, wired(message)) for name, message in messages(random.Random(seed()))]  # noqa: S311 - a scenario
            fitting = [(name, each) for name, each in made if _fits(each)]
            assert len(fitting) > 0.9 * len(made)  # headers that do not fit into a frame cannot be sent
            for name, each in fitting:
                channel.basic_publish(each, "", name)
            exchanges = rabbit.exchanges()
        until(lambda: at_rest(here.leftovers()), 120, f"all to end: {here.leftovers()}")
        with rabbit.connection() as connection:
            for each in filter(_fits, map(wired, waiting(random.Random(seed())))):  # noqa: S311 - as above
                connection.connection.channel().basic_publish(each, "", "celery")
        until(lambda: set(here.leftovers()) <= {"delayed"}, 60, f"them to wait: {here.leftovers()}")
        shown(here, tmp_path, letters="DLQ.celery")
        answers(here, tmp_path, letters="DLQ.celery", cannot={"ops"})
        until(lambda: at_rest(here.leftovers()), 120, f"all to end: {here.leftovers()}")
        assert rabbit.exchanges() - exchanges == set()
        depths = rabbit.depths()
        assert {name for name in depths.keys() - {"foreign", "spy"} if not OWN.fullmatch(name)} == set()
        assert (depths["foreign"], depths["spy"]) == ((0, 0), (0, 0))
        examined(here)
        assert rabbit.events()
        assert worker.process.poll() is None, worker.text[-3000:]
        here.ended(here.send("take"), "succeeded")
        assert worker.stop() == 0
    finally:
        here.stop()
