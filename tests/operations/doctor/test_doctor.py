"""`redelivery doctor` finds each planted fault, and nothing else, on a real broker with real workers.

Each fault is planted in a system that is healthy without it, so there must be exactly one finding. A fault in the settings is
planted before the workers start; one on the broker, while they run. For some faults no worker can start, or none may run.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from redis import Redis
from redis.exceptions import TimeoutError as RedisTimeout

from redelivery.workers.operations.doctor.finding import NAMES
from tests.support.lanes import FULL
from tests.support.operators.clinic import HOUR_MS, OLD_VERSION, Clinic
from tests.support.rabbit import Rabbit
from tests.support.running import ROOT, until
from tests.support.servers import Server, binaries

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.xdist_group("doctor")

Plant = Callable[[Clinic], None]
REDIS, AMQP = ("valkey", "redis"), ("rabbit",)
EVERY = (*REDIS, *AMQP)


@dataclass(frozen=True)
class Fault:
    """One misconfiguration: its name in the doctor, its brokers, how it is planted, and how many workers run."""

    finding: str
    brokers: tuple[str, ...] = ("valkey",)
    before: Plant = lambda _: None
    after: Plant = lambda _: None
    workers: int = 1
    also: tuple[str, ...] = ()


def settings(**changed: Any) -> Plant:
    """Of redelivery."""
    return lambda clinic: clinic.settings.update(changed)


def conf(**changed: Any) -> Plant:
    """Of Celery."""
    return lambda clinic: clinic.conf.update(changed)


def config(**changed: str) -> Plant:
    """Of the server."""

    def plant(clinic: Clinic) -> None:
        for name, value in changed.items():
            clinic.server.client.config_set(name.replace("_", "-"), value)

    return plant


def short_results(clinic: Clinic) -> None:
    """Results expire after a minute, but a message may wait for four."""
    clinic.backend = True
    clinic.conf["result_expires"] = 60


def slow_receive(clinic: Clinic) -> None:
    """Kombu's own receive is used, which gives a message to another worker after a minute."""
    clinic.settings["fast_receive"] = False
    clinic.conf["broker_transport_options"] = {"visibility_timeout": 60}


def without_export(clinic: Clinic) -> None:
    """No process exports the outcome log."""
    del clinic.settings["outcome_export"], clinic.settings["outcome_export_every"]


def unexported(clinic: Clinic) -> None:
    """As above, and the log has an old event."""
    without_export(clinic)
    clinic.record_long_ago()


def filled(clinic: Clinic) -> None:
    """The log uses more than four fifths of its cap, and no worker trims it."""
    without_export(clinic)
    clinic.settings["outcome_log_max_bytes"] = cap = 2**20
    client = clinic.server.client
    while client.memory_usage("redelivery:outcomes") is None or client.memory_usage("redelivery:outcomes", samples=0) < 0.85 * cap:
        client.xadd("redelivery:outcomes", {"t": "a", "o": "succeeded", "n": "x" * 2000})


def lost(clinic: Clinic) -> None:
    """Some events left the log before they were exported."""
    without_export(clinic)
    clinic.server.client.hset("redelivery:outcomes:trimmed", "entries", 5)


def nearly_full(clinic: Clinic) -> None:
    """The server's limit is a little above what it uses."""
    used = clinic.server.client.info("memory")["used_memory"]
    clinic.server.client.config_set("maxmemory", int(used * 1.03))


def unsaved(clinic: Clinic) -> None:
    """The directory for the server's snapshots is missing."""
    client = clinic.server.client
    shutil.rmtree(clinic.folder / "data")
    with contextlib.suppress(Exception):
        client.bgsave()
    until(lambda: client.info("persistence")["rdb_last_bgsave_status"] == "err", what="the snapshot to fail")


def replica(clinic: Clinic) -> None:
    """The server follows a master that is away."""
    clinic.server.client.replicaof("127.0.0.1", "1")


def taken(clinic: Clinic) -> None:
    """The name of the dead-letter queue is a key of another type."""
    clinic.server.client.set("DLQ.orders", "a page of the cache")


def taken_queue(clinic: Clinic) -> None:
    """The name of the queue is a key of another type."""
    clinic.server.client.set("orders", "a page of the cache")


def alarmed(clinic: Clinic) -> None:
    """The node is low on memory."""
    assert isinstance(clinic.server, Rabbit)
    clinic.server.node.evaluate("rabbit_alarm:set_alarm({{resource_limit, memory, node()}, []}).")


def governed(clinic: Clinic) -> None:
    """A policy of the broker ends messages of the queue."""
    assert isinstance(clinic.server, Rabbit)
    clinic.server.ctl("set_policy", "--", "short lives", "^orders$", json.dumps({"message-ttl": 60_000}))


FAULTS = {
    "maxmemory-policy": Fault("broker.evicts", REDIS, after=config(maxmemory="1gb", maxmemory_policy="allkeys-lru")),
    "no persistence": Fault("broker.forgets", REDIS, after=config(appendonly="no")),
    "snapshots fail": Fault("broker.save_failing", REDIS, after=unsaved),
    "nearly full": Fault("broker.filling", after=nearly_full),
    "replicas missing": Fault("broker.replicas_missing", before=settings(wait_replicas=1)),
    "a replica": Fault("broker.replica", REDIS, after=replica, workers=0),
    "no dispatcher": Fault("dispatcher.none", before=settings(dispatcher=False)),
    "no worker": Fault("queue.unconsumed", EVERY, after=Clinic.publish, workers=0),
    "visibility_timeout": Fault(
        "visibility_timeout.short",
        after=lambda clinic: clinic.start_plain(broker_transport_options={"visibility_timeout": 60}),
        also=("queue.mixed",),
    ),
    "visibility_timeout of kombu's receive": Fault("visibility_timeout.short", before=slow_receive),
    "plain neighbours": Fault("queue.mixed", ("valkey", *AMQP), after=Clinic.start_plain),
    "a worker's clock": Fault("clock.worker", ("valkey", *AMQP), after=lambda clinic: clinic.start_skewed(600)),
    "a worker's clock, behind": Fault("clock.worker", after=lambda clinic: clinic.start_skewed(-600)),
    "a producer's clock": Fault("clock.producer", REDIS, after=lambda clinic: clinic.publish_skewed(-600)),
    "several versions": Fault("versions.mixed", ("valkey", *AMQP), after=Clinic.start_old),
    "unread letters": Fault("dead_letter_queue.unread", EVERY, after=Clinic.put_letter),
    "no exporter": Fault("outcome_log.not_exported", EVERY, before=unexported),
    "a full log": Fault("outcome_log.filling", before=filled, workers=0),
    "a log with a gap": Fault("outcome_log.lost", before=lost),
    "acks_late of a task": Fault("task.acks_early", ("valkey", *AMQP), before=lambda clinic: clinic.task.update(acks_late=False)),
    "acks_late of the app": Fault("app.acks_early", before=conf(task_acks_late=False)),
    "a Strategy": Fault(
        "task.unobserved", before=lambda clinic: clinic.task.update(Strategy="tests.support.operators.clinic_shop:gathering")
    ),
    "reject_on_worker_lost": Fault("settings.refused", before=conf(task_reject_on_worker_lost=False), workers=0),
    "a retry beside ours": Fault("settings.refused", AMQP, before=conf(task_retry_on_worker_lost=True), workers=0),
    "what RabbitMQ cannot keep": Fault("settings.refused", AMQP, before=settings(queues={"#": {"max_length": 9}}), workers=0),
    "a missing DLQ": Fault(
        "dead_letter_queue.missing",
        ("valkey", *AMQP),
        before=settings(queues={"#": {"auto_create_dead_letter_resources": False}}),
        workers=0,
    ),
    "a taken queue": Fault("queue.taken", after=taken_queue, workers=0),
    "a taken DLQ": Fault("dead_letter_queue.taken", after=taken, workers=0),
    "a queue's pattern": Fault("policy.matches_nothing", before=settings(queues={"ordres": {"max_delivery_attempts": 3}})),
    "a task's pattern": Fault("policy.matches_nothing", AMQP, before=settings(tasks={"shop.*.pack": {"max_delivery_attempts": 3}})),
    "an override's pattern": Fault(
        "policy.matches_nothing", before=settings(override={"tasks": {"shop.pakc": {"enabled": False}}})
    ),
    "a queue's field in a row of tasks": Fault("policy.not_for_tasks", before=settings(tasks={"#": {"max_length": 5}})),
    "retention without archive": Fault("retention.no_archive", before=settings(queues={"#": {"max_dead_letters": 5}})),
    "result_expires": Fault("results.expire_early", before=short_results),
    "always eager": Fault("app.always_eager", before=conf(task_always_eager=True)),
    "an unlimited prefetch": Fault("prefetch.unlimited", before=conf(worker_prefetch_multiplier=0)),
    "unconfirmed": Fault("publications.unconfirmed", AMQP, before=conf(broker_transport_options={})),
    "a queue that does not last": Fault("queue.transient", AMQP, before=lambda clinic: clinic.queue.update(durable=False)),
    "transient messages": Fault("publications.transient", AMQP, before=conf(task_default_delivery_mode=1)),
    "a policy of RabbitMQ's": Fault("broker.policy_bypasses", AMQP, after=governed),
    "a queue's arguments": Fault("broker.bypasses", AMQP, before=lambda clinic: clinic.queue.update(message_ttl=60)),
    "an alarm": Fault("broker.alarm", AMQP, after=alarmed),
}
#: One of each kind of check, in the quick lane.
QUICK = {"maxmemory-policy-valkey", "unread letters-valkey", "a worker's clock-valkey", "a task's pattern-rabbit"}
CASES = [
    pytest.param(fault, kind, id=f"{name}-{kind}", marks=[] if f"{name}-{kind}" in QUICK else [FULL])
    for name, fault in FAULTS.items()
    for kind in fault.brokers
]


@contextlib.contextmanager
def clinic_of(kind: str, request: pytest.FixtureRequest, folder: Path) -> Iterator[Clinic]:
    """A healthy system on a broker of the test's own."""
    with contextlib.ExitStack() as stack:
        if kind in AMQP:
            node, url = request.getfixturevalue("managed_node")
            server: Any = node.vhost()
            stack.callback(server.remove)
            stack.callback(node.evaluate, "rabbit_alarm:clear_alarm({resource_limit, memory, node()}).")
        else:
            binary, url = binaries().get(kind), ""
            if binary is None:
                message = f"there is no {kind} on this machine: ./dev test installs it where it may"
                (pytest.fail if os.environ.get("CI") else pytest.skip)(message)
            (folder / "data").mkdir()
            server = Server(folder, binary, {"appendonly": "yes", "dir": str(folder / "data")}).start()
            stack.callback(server.stop, 9)
        clinic = Clinic(server, folder, management_url=url)
        stack.callback(clinic.stop)
        yield clinic


@pytest.mark.parametrize("kind", [pytest.param("valkey"), pytest.param("redis", marks=FULL), pytest.param("rabbit")])
def test_a_sound_system_has_no_finding(kind: str, request: pytest.FixtureRequest, folder: Path) -> None:
    """Two workers, a task that has succeeded, an exporter: exit code 0, no finding, nothing unknown."""
    with clinic_of(kind, request, folder) as clinic:
        clinic.start()
        clinic.start()
        clinic.publish()
        until(lambda: list((folder / "books").rglob("*.parquet")), what="the export")
        found = clinic.examined()
        assert (found.code, found.said["findings"], found.not_known, found.said["workers"]) == (0, [], [], 2)
        assert found.said["sound"] is True


@pytest.mark.parametrize(("fault", "kind"), CASES)
def test_a_planted_fault_is_found(fault: Fault, kind: str, request: pytest.FixtureRequest, folder: Path) -> None:
    """It is the only finding, with exit code 1, and with what, why and fix in texts that fit a screen."""
    with clinic_of(kind, request, folder) as clinic:
        fault.before(clinic)
        for _ in range(fault.workers):
            clinic.start(concurrency=1)
        fault.after(clinic)
        found = clinic.examined()
        assert (found.names, found.code) == (sorted({fault.finding, *fault.also}), 1), found.said
        for each in found.said["findings"]:
            assert each["severity"] in {"danger", "warning"}
            assert all(each[part].strip() for part in ("what", "why", "fix"))
            assert not re.search(r"\bNone\b|<[a-z]+ object|\b1 ([a-z]+ )?(messages|events|letters)\b", " ".join(each.values()))


def test_what_a_fault_is_called_can_be_ignored(request: pytest.FixtureRequest, folder: Path) -> None:
    """Then there is no finding, and the output names what was ignored."""
    with clinic_of("valkey", request, folder) as clinic:
        clinic.put_letter()
        found = clinic.examined("--ignore", "dead_letter_queue.unread")
        assert (found.code, found.said["findings"], found.said["ignored"]) == (0, [], ["dead_letter_queue.unread"])


def test_letters_that_died_today_are_no_finding(request: pytest.FixtureRequest, folder: Path) -> None:
    """An operator may be about to read them."""
    with clinic_of("valkey", request, folder) as clinic:
        clinic.put_letter(ago_ms=HOUR_MS)
        assert clinic.examined().names == []


@pytest.mark.full
def test_letters_that_a_worker_reads_are_no_finding(request: pytest.FixtureRequest, folder: Path) -> None:
    """Their age does not matter."""
    with clinic_of("valkey", request, folder) as clinic:
        clinic.start("-Q", "orders,DLQ.other", concurrency=1)
        clinic.settings["queues"] = {"orders": {"dead_letter_queue": "DLQ.other"}}
        clinic.server.client.lpush("DLQ.other", "kept back by the worker's own rate")
        assert "dead_letter_queue.unread" not in clinic.examined().names


@pytest.mark.full
def test_a_broker_that_does_not_answer_in_time_is_not_known(request: pytest.FixtureRequest, folder: Path) -> None:
    """The doctor ends in time, whatever the broker does; checks that need its answers are reported as unknown."""
    with clinic_of("valkey", request, folder) as clinic:
        clinic.server.client.config_set("appendonly", "no")
        clinic.server.client.execute_command("CLIENT", "PAUSE", "240000", "WRITE")  # reads are answered, writes are not
        found = clinic.examined("--timeout", "3s")
        with pytest.raises(RedisTimeout):  # the doctor has ended, and the broker still does not answer
            Redis(unix_socket_path=clinic.server.socket, socket_timeout=0.2).set("written", "1")
        clinic.server.client.execute_command("CLIENT", "UNPAUSE")
        assert found.names == ["broker.forgets"]
        assert "the workers" in found.not_known
        assert found.said["workers"] is None


def test_a_user_without_the_right_makes_it_not_known(request: pytest.FixtureRequest, folder: Path) -> None:
    """`CONFIG GET` is a right that workers do not need."""
    with clinic_of("valkey", request, folder) as clinic:
        client = clinic.server.client
        client.config_set("appendonly", "no")
        client.execute_command("ACL", "SETUSER", "default", "-config|get")
        found = clinic.examined()
        assert (found.code, found.names) == (0, [])
        assert found.not_known == ["whether the server writes snapshots"]


@pytest.mark.full
def test_rabbitmq_without_its_plugin_is_not_known(request: pytest.FixtureRequest, folder: Path) -> None:
    """Only the plugin can list policies; faults that AMQP shows are still found."""
    with clinic_of("rabbit", request, folder) as clinic:
        clinic.settings["management_url"] = None
        governed(clinic)
        clinic.declare()
        found = clinic.examined()
        assert (found.code, found.names) == (0, [])
        assert found.not_known == ["whether the broker's own policies end messages"]


@pytest.mark.full
def test_each_version_is_named(request: pytest.FixtureRequest, folder: Path) -> None:
    """Each with the workers that have it."""
    with clinic_of("valkey", request, folder) as clinic:
        clinic.start(concurrency=1)
        clinic.start_old()
        [finding] = clinic.examined().said["findings"]
        assert f"{OLD_VERSION}: w1@shop" in finding["what"]


def test_the_words_are_those_of_the_document() -> None:
    """`docs/doctor.md` has a row for each finding and no other; each finding except one is planted in a test above."""
    page = (ROOT / "docs" / "doctor.md").read_text()
    assert set(re.findall(r"^\| `([a-z_]+\.[a-z_]+)` \|", page, re.MULTILINE)) == set(NAMES)
    assert {each.finding for each in FAULTS.values()} >= set(NAMES) - {"delays.overdue"}
