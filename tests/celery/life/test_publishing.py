"""`app.redelivery.publishing()`: the messages that its code publishes go out in batches, however the block ends."""

from __future__ import annotations

import asyncio
import json
import os
import pickle
import signal
import subprocess
import sys
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from celery import Celery, group, signals
from kombu.exceptions import EncodeError, OperationalError
from structlog.testing import capture_logs

from redelivery import Redelivery
from redelivery.middleware.brokers import batches
from tests.support.running import ROOT, until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.running import Shop
    from tests.support.servers import Server

NAME = "shop.pack"
NEVER = {"retry": False}


def pack(*_: Any) -> str:
    """The task."""
    return "done"


class Producer:
    """An app that publishes to a private server."""

    def __init__(self, server: Server, **conf: Any) -> None:
        self.server, self.client = server, server.client
        self.app = Celery("producer", broker=server.url, set_as_current=False)
        self.app.conf.update(conf)
        self.install = Redelivery(self.app)
        self.pack = self.app.task(name=NAME)(pack)

    def send(self, **options: Any) -> str:
        """Publish one; its id."""
        return str(self.pack.apply_async((1,), **options).id)

    def ids(self) -> list[str]:
        """The ids of what lies in the queue, the oldest first."""
        return [json.loads(each)["headers"]["id"] for each in reversed(self.client.lrange("celery", 0, -1))]


@pytest.fixture
def producer(server: Server) -> Iterator[Producer]:
    """A producer on a private server."""
    made = Producer(server)
    yield made
    made.app.close()


def test_what_is_published_in_a_block_is_there_when_it_has_ended(producer: Producer) -> None:
    """They are there in order and recorded when the block has ended, and not before."""
    with producer.install.publishing() as block:
        ids = [producer.send() for _ in range(20)]
        assert producer.ids() == []
    assert producer.ids() == ids == [event.task_id for event in producer.server.events()]
    assert block.not_published == ()
    assert producer.send() == producer.ids()[-1]


@pytest.fixture(autouse=True)
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Switch the time limit off, so that a slow machine does not send a batch early."""
    monkeypatch.setattr(batches, "MAX_WAIT", 600.0)


def test_a_batch_goes_when_it_is_full_and_when_it_is_asked_to(producer: Producer) -> None:
    """After 500 messages, after a mebibyte, and with `flush`."""
    with producer.install.publishing() as block:
        for _ in range(batches.MAX_MESSAGES + 1):
            producer.send()
        assert len(producer.ids()) == batches.MAX_MESSAGES
        block.flush()
        assert len(producer.ids()) == batches.MAX_MESSAGES + 1
        producer.pack.delay("x" * batches.MAX_BYTES)
        assert len(producer.ids()) == batches.MAX_MESSAGES + 2
        block.flush()


def test_a_message_that_comes_late_takes_along_what_has_waited(producer: Producer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow loop must not hold its first messages for long, so a late message sends the batch."""
    monkeypatch.setattr(batches, "MAX_WAIT", 0.0)
    with producer.install.publishing():
        producer.send()
        assert len(producer.ids()) == 1


# how it ends


def test_an_exception_in_a_block_undoes_no_call_before_it(producer: Producer) -> None:
    """As in a plain loop: `delay()` has returned, so its task is published."""

    def fails() -> None:
        with producer.install.publishing():
            producer.send()
            message = "later"
            raise ValueError(message)

    with pytest.raises(ValueError, match="later"):
        fails()
    assert len(producer.ids()) == 1


@pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt])
def test_where_publishing_fails_at_the_end_the_caller_hears_it(producer: Producer, kind: type[BaseException]) -> None:
    """Its error replaces an exception of the block; an interrupt is raised as it is, and the error is logged."""
    wanted = OperationalError if issubclass(kind, Exception) else kind
    block = producer.install.publishing()

    def fails() -> None:
        with block:
            producer.send(**NEVER)
            producer.server.kill()
            raise kind

    with capture_logs() as lines, pytest.raises(wanted) as raised:
        fails()
    assert len(block.not_published) == 1
    assert [each["not_published"] for each in lines if each["event"] == "publish.failed"] == [1]
    assert wanted is kind or isinstance(raised.value.__context__, (kind, OSError, Exception))
    producer.server.start()
    assert producer.ids() == []


def test_the_call_that_fills_a_batch_raises_and_the_block_goes_on(producer: Producer) -> None:
    """It raises Celery's own error and names each task that was not published; later messages are published."""
    first = producer.send()
    with producer.install.publishing() as block:
        for _ in range(batches.MAX_MESSAGES - 1):
            producer.send(**NEVER)
        producer.server.kill()
        with pytest.raises(OperationalError):
            producer.send(**NEVER)
        assert len(block.not_published) == batches.MAX_MESSAGES
        producer.server.start()
        later = producer.send()
    assert producer.ids()[-1] == later
    assert set(producer.ids()) <= {first, later}  # a killed server may lose what it has not written to disk


def test_a_message_whose_call_publishes_those_before_it_is_named_with_them(producer: Producer) -> None:
    """Its call has raised, so it is not published later."""
    producer.send()
    with producer.install.publishing() as block:
        producer.send(task_id="first", **NEVER)
        producer.server.kill()
        with capture_logs() as lines, pytest.raises(OperationalError):
            producer.send(task_id="second", retry=True, retry_policy={"max_retries": 0})
        assert block.not_published == ("first", "second")
        producer.server.start()
    assert [each["task_ids"] for each in lines if each["event"] == "publish.failed"] == [["first", "second"]]
    assert not {"first", "second"} & set(producer.ids())


def test_large_headers_count_as_large_bodies_do(producer: Producer) -> None:
    """A block holds a mebibyte of headers at most, and one message more."""
    with producer.install.publishing():
        for _ in range(5):
            producer.send(headers={"text": "x" * 300_000, "list": ["x" * 300_000]})
        assert len(producer.ids()) == 4


def test_what_cannot_be_serialized_is_refused_by_its_own_call(producer: Producer) -> None:
    """The other tasks are published; a caller that changes its argument afterwards does not change the message."""
    argument = ["as it was"]
    with producer.install.publishing():
        producer.pack.delay(argument)
        argument[0] = "changed"
        with pytest.raises(EncodeError):
            producer.pack.delay(object())
        producer.send()
    assert len(producer.ids()) == 2
    raw = json.loads(producer.client.lrange("celery", -1, -1)[0])
    assert "as it was" in raw["headers"]["argsrepr"]


def test_a_header_that_changes_after_its_call_does_not_change_the_message(producer: Producer) -> None:
    """As in a plain loop: neither the caller nor a receiver of `after_task_publish` changes what was published."""

    def receiver(headers: dict[str, Any], **_: Any) -> None:
        headers["late"] = True

    signals.after_task_publish.connect(receiver)
    try:
        with producer.install.publishing():
            tenant = {"id": 0}
            for tenant["id"] in (1, 2):
                producer.send(headers={"tenant": tenant})
    finally:
        signals.after_task_publish.disconnect(receiver)
    headers = [json.loads(each)["headers"] for each in producer.client.lrange("celery", 0, -1)]
    assert [each["tenant"]["id"] for each in headers] == [2, 1]
    assert not any("late" in each for each in headers)


def test_a_header_that_cannot_be_written_is_refused_by_its_own_call(producer: Producer) -> None:
    """The other tasks are published, also those that were collected before it."""
    with producer.install.publishing() as block:
        first = producer.send()
        with pytest.raises(TypeError, match="not JSON serializable"):
            producer.send(task_id="bad", headers={"tenant": object()})
        assert producer.ids() == [first]
        assert block.not_published == ("bad",)
        second = producer.send(headers={"tenants": [None, {"id": uuid.uuid4()}]})
    assert producer.ids() == [first, second]


def test_what_a_signals_handler_publishes_while_a_batch_is_sent_goes_at_once(
    producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not take the channel from the batch, which is published as well."""
    publish, sent = batches._publish, []

    def interrupted(*args: Any, **how: Any) -> None:
        sent.append(producer.send())
        publish(*args, **how)

    monkeypatch.setattr(batches, "_publish", interrupted)
    with producer.install.publishing():
        first = producer.send()
    assert producer.ids() == [*sent, first]


def test_a_process_that_dies_in_a_block_has_published_whole_batches(producer: Producer) -> None:
    """Messages that it had collected are neither published nor recorded: 500 of 700 are."""
    words = (
        "import os, signal; from celery import Celery; from redelivery import Redelivery;"
        f"app = Celery(broker={producer.server.url!r}); install = Redelivery(app);"
        "block = install.publishing(); block.__enter__();"
        f"[app.send_task({NAME!r}) for _ in range(700)]; os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", words], cwd=ROOT, check=False, timeout=60)
    assert done.returncode == -signal.SIGKILL
    ids = producer.ids()
    assert len(ids) == 500
    assert [event.task_id for event in producer.server.events()] == ids


# which threads, tasks and processes are in it


def test_a_block_in_a_block_publishes_at_its_own_end(producer: Producer) -> None:
    """It also publishes what the outer block has collected before, so that the order stays."""
    with producer.install.publishing() as outer:
        first = producer.send()
        with producer.install.publishing():
            second = producer.send()
        assert producer.ids() == [first, second]
        third = producer.send()
        assert producer.ids() == [first, second]
        with pytest.raises(RuntimeError, match="entered once"):
            outer.__enter__()
    assert producer.ids() == [first, second, third]


def test_another_apps_block_does_not_collect_for_this_one(producer: Producer, server: Server) -> None:
    """Each app has its own blocks; they may be nested."""
    other = Producer(server)
    with other.install.publishing():
        assert producer.send() == producer.ids()[-1]
        with producer.install.publishing():
            one, two = producer.send(), other.send()
        assert producer.ids()[-1] == one
    assert producer.ids()[-1] == two
    other.app.close()


def test_another_thread_publishes_at_once(producer: Producer) -> None:
    """Even a thread that has the block's context publishes at once; and it may not flush."""
    with producer.install.publishing() as block, ThreadPoolExecutor() as pool:
        mine = producer.send()
        theirs = pool.submit(producer.send).result(30)
        assert producer.ids() == [theirs]
        copied = asyncio.run(asyncio.to_thread(producer.send))
        assert producer.ids() == [theirs, copied]
        with pytest.raises(RuntimeError, match="its own thread"):
            pool.submit(block.flush).result(30)
    assert producer.ids() == [theirs, copied, mine]


def test_coroutines_have_their_own_blocks_and_those_that_begin_in_one_are_in_it(producer: Producer) -> None:
    """A coroutine that was started in a block belongs to it; once the block has ended, it publishes at once."""

    async def publish(gate: asyncio.Event | None = None) -> str:
        if gate is not None:
            await gate.wait()
        return producer.send()

    async def story() -> None:
        gate = asyncio.Event()
        with producer.install.publishing():
            late = asyncio.create_task(publish(gate))
            inside = await asyncio.gather(publish(), publish())
            assert producer.ids() == []
        assert sorted(producer.ids()) == sorted(inside)
        gate.set()
        assert await late == producer.ids()[-1]

        async def blocked(entered: asyncio.Event, leave: asyncio.Event) -> None:
            with producer.install.publishing():
                producer.send()
                entered.set()
                await leave.wait()

        entered, leave = asyncio.Event(), asyncio.Event()
        other = asyncio.create_task(blocked(entered, leave))
        await entered.wait()
        mine = producer.send()
        assert producer.ids()[-1] == mine
        other.cancel()
        with pytest.raises(asyncio.CancelledError):
            await other
        assert len(producer.ids()) == 5

    asyncio.run(story())


def test_a_forked_child_publishes_its_own_and_not_its_parents(producer: Producer) -> None:
    """The child publishes at once; messages that the parent has collected are published once, by the parent."""
    producer.send()
    with producer.install.publishing():
        mine = producer.send()
        child = os.fork()
        if not child:
            try:
                producer.app._after_fork()
                producer.send()
            finally:
                os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert len(producer.ids()) == 2
    assert producer.ids()[-1] == mine
    assert len(producer.ids()) == 3


def test_a_child_that_leaves_its_parents_block_publishes_nothing_of_it(producer: Producer) -> None:
    """Parent and child both leave the block, but only the parent publishes."""
    child = -1
    with producer.install.publishing():
        producer.send()
        child = os.fork()
    if not child:
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert len(producer.ids()) == 1


# what else Celery does


def test_a_message_with_a_producer_or_a_connection_of_its_callers_goes_at_once(producer: Producer, server: Server) -> None:
    """A caller that passes a producer or a connection controls when its message is sent."""
    with producer.install.publishing():
        with producer.app.producer_pool.acquire() as given:
            assert producer.send(producer=given) == producer.ids()[-1]
        with producer.app.connection_for_write() as connection:
            assert producer.send(connection=connection) == producer.ids()[-1]
        collected = producer.send()
        assert len(producer.ids()) == 2
    assert producer.ids()[-1] == collected
    assert server.client.llen("celery") == 3


def test_policies_of_trying_again_are_kept_apart_and_the_order_stays(producer: Producer) -> None:
    """A message with another retry policy begins a new batch."""
    with producer.install.publishing():
        ids = [
            producer.send(),
            producer.send(retry=False),
            producer.send(retry=False),
            producer.send(retry_policy={"max_retries": 1}),
        ]
        assert producer.ids() == ids[:3]
    assert producer.ids() == ids


def test_signals_are_sent_by_the_call_and_may_change_the_message(producer: Producer) -> None:
    """Both signals are sent as usual: `after_task_publish` then says that the message is in the batch."""
    heard: list[tuple[str, int]] = []

    def before(headers: Any = None, **_: Any) -> None:
        headers["tenant"] = "t1"
        heard.append(("before", len(producer.ids())))

    def after(**_: Any) -> None:
        heard.append(("after", len(producer.ids())))

    signals.before_task_publish.connect(before, weak=False)
    signals.after_task_publish.connect(after, weak=False)
    try:
        with producer.install.publishing():
            producer.send()
            producer.send()
            assert heard == [("before", 0), ("after", 0)] * 2
    finally:
        signals.before_task_publish.disconnect(before)
        signals.after_task_publish.disconnect(after)
    assert [json.loads(each)["headers"]["tenant"] for each in producer.client.lrange("celery", 0, -1)] == ["t1", "t1"]


def test_eager_tasks_run_at_once_and_nothing_is_published(server: Server) -> None:
    """`task_always_eager`."""
    producer = Producer(server, task_always_eager=True)
    with producer.install.publishing():
        assert producer.pack.delay().get() == "done"
        assert group([producer.pack.s()], app=producer.app).apply_async().get() == ["done"]
    assert producer.ids() == []
    producer.app.close()


def test_a_connection_is_held_no_longer_than_a_batch_takes(producer: Producer) -> None:
    """An app with a connection pool of one may use the connection inside a block."""
    producer.app.conf.broker_pool_limit = 1
    with producer.install.publishing():
        producer.send()
        with producer.app.connection_or_acquire() as connection:
            assert connection.default_channel._size("celery") == 0
        producer.send()
    assert len(producer.ids()) == 2


def test_events_that_tell_of_tasks_sent_are_sent_at_once(server: Server) -> None:
    """These events (`task_send_sent_event`) are not tasks, so they are not collected."""
    producer = Producer(server, task_send_sent_event=True)
    with producer.install.publishing():
        ids = [producer.send() for _ in range(3)]
    assert producer.ids() == ids
    producer.app.close()


def test_a_connection_is_held_no_longer_than_the_call_that_needs_it(server: Server) -> None:
    """The event `task-sent` goes out at once, although its task waits in the batch."""
    producer = Producer(server, task_send_sent_event=True, broker_pool_limit=1)
    with producer.install.publishing():
        producer.send()
        with producer.app.pool.acquire() as connection:
            assert connection.default_channel._size("celery") == 0
    assert len(producer.ids()) == 1
    producer.app.close()


def test_many_threads_each_with_a_block_publish_each_task_once(producer: Producer) -> None:
    """Batches of different threads do not use the same numbers."""
    together = threading.Barrier(8)

    def publish() -> list[str]:
        together.wait(30)
        ids = []
        for _ in range(5):
            with producer.install.publishing():
                ids += [producer.send() for _ in range(20)]
        return ids

    with ThreadPoolExecutor(8) as pool:
        made = [each.result(120) for each in [pool.submit(publish) for _ in range(8)]]
    lying = producer.ids()
    assert sorted(lying) == sorted(each for ids in made for each in ids)
    for ids in made:
        mine = set(ids)
        assert [each for each in lying if each in mine] == ids


def test_an_app_can_still_be_pickled(producer: Producer) -> None:
    """Celery pickles the app for the children of a pool that spawns them."""
    with producer.install.publishing():
        assert pickle.loads(pickle.dumps(producer.app)).main == "producer"  # noqa: S301 - our own


# real workers


def test_workers_run_what_a_block_has_published(shop: Callable[..., Shop]) -> None:
    """A batch wakes the workers; links, priorities, delays and results work, with the ids that `send_task` returned."""
    here = shop(backend=True)
    here.start()
    with here.app.redelivery.publishing():
        ids = [here.send("ok", number) for number in range(60)]
        later = here.send("ok", countdown=1)
        urgent = here.send("ok", priority=9)
        linked = here.app.send_task("tests.support.shop.ok", (1,), link=here.app.signature("tests.support.shop.ok", queue="celery"))
        doomed = here.send("raises", "dead_letter")
    for each in (*ids, later, urgent, linked.id):
        here.ended(each, "succeeded")
    here.ended(doomed, "dead_lettered")
    until(lambda: len(here.runs()) == len(ids) + 5, what="the linked task")
    assert [here.app.AsyncResult(each).get(timeout=60) for each in ids] == list(range(60))
    assert here.leftovers() == {}


def test_one_batch_is_worked_off_by_all_workers_that_wait(shop: Callable[..., Shop]) -> None:
    """One push wakes one of them, and each worker that takes messages wakes the next."""
    here = shop()
    for _ in range(3):
        here.start("--prefetch-multiplier=1", pool="solo", concurrency=1)
    with here.app.redelivery.publishing():
        ids = [here.send("naps", 0.2) for _ in range(24)]
    for each in ids:
        here.ended(each, "succeeded")
    assert len({run["pid"] for run in here.runs()}) == 3
