"""One trace over all attempts of a task, its death, its redrive and its success: from real SDKs, compared as a tree."""

from __future__ import annotations

import sys
from itertools import pairwise
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from celery import Celery
from opentelemetry import trace
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from structlog.testing import capture_logs

from redelivery import Redelivery
from redelivery.middleware.telemetry.spans import NEIGHBOUR, SCOPE, Spans
from tests.support.collector import Told, tree
from tests.support.lanes import FULL
from tests.support.running import until
from tests.telemetry.traced import SETTINGS, Traced, shown, traced

if TYPE_CHECKING:
    from pathlib import Path

#: The spans of one message, as a tree. `P` and `R` stand for the names of its publication and of its runs.
LIVES = """\
{P}
  receive celery #1 of life 0
    {R} #1 of life 0 (RuntimeError)
    settle celery redelivery_scheduled
  receive celery #2 of life 0
    {R} #2 of life 0 (RuntimeError)
    settle celery redelivery_scheduled
  receive celery #3 of life 0
    {R} #3 of life 0 (RuntimeError)
    settle celery redelivery_scheduled
  receive celery #4 of life 0
    {R} #4 of life 0 (RuntimeError)
    settle celery dead_lettered exhausted
  settle DLQ.celery redriven {actor}
  receive celery #1 of life 1
    {R} #1 of life 1
    settle celery succeeded"""


def _broker(request: pytest.FixtureRequest, name: str) -> Any:
    return request.getfixturevalue("server" if name == "redis" else "rabbit")


def _links(spans: list[Told]) -> None:
    """Receive and run of each attempt link to the publication and to the attempt before, also of an earlier life."""
    published = spans[0]
    received = [each for each in spans if each["messaging.operation.name"] == "receive"]
    runs = [each for each in spans if each.kind == "CONSUMER"]
    assert len(received) == len(runs) == 5
    for number, (receive, run) in enumerate(zip(received, runs, strict=True)):
        before = [received[number - 1].span_id] if number else []
        assert list(receive.links) == list(run.links) == [published.span_id, *before]
        assert run.parent_id == receive.span_id
    [redrive] = [each for each in spans if each["redelivery.outcome"] == "redriven"]
    assert list(redrive.links) == [published.span_id, received[3].span_id]


@pytest.mark.parametrize(
    ("broker", "neighbour"),
    [
        ("redis", False),
        ("redis", True),
        pytest.param("rabbitmq", False, marks=FULL),
        ("rabbitmq", True),
    ],
)
def test_one_trace_has_four_attempts_a_death_a_redrive_and_a_success(
    request: pytest.FixtureRequest, folder: Path, broker: str, neighbour: bool
) -> None:
    """Each step is there once. With `opentelemetry-instrumentation-celery`, the spans of the runs are that library's."""
    with traced(_broker(request, broker), folder, neighbour=neighbour) as shop:
        shop.start()
        task_id = shop.publish("recovers")
        shop.ended(task_id, "dead_lettered")
        (folder / "mended").touch()
        shop.does("-m", "redelivery", "-A", shop.module, "dlq", "redrive", "DLQ.celery", "--id", task_id, "--yes")
        shop.ended(task_id, "succeeded")
        spans = shop.told(task_id, 17)
        names = {"P": "publish celery", "R": "process celery"}
        if neighbour:
            names = {"P": f"apply_async/{shop.module}.recovers", "R": f"run/{shop.module}.recovers"}
        redriven = shop.ended(task_id, "redriven")
        assert redriven.actor
        assert tree(spans, shown) == LIVES.format(**names, actor=redriven.actor)
        assert len({each.trace_id for each in spans}) == 1
        _links(spans)
        _says_what_the_books_say(shop, task_id, spans, broker)
        _follows_the_conventions(spans, broker)
        child = [each for each in shop.collector.spans if each["celery.task_name"] == "tests.support.shop.ok"]
        [last] = [each for each in spans if each.kind == "CONSUMER"][-1:]
        assert {each.trace_id for each in child} == {last.trace_id}
        assert last.span_id in {each.parent_id for each in child}  # a message that the task publishes is a child of its run


def _says_what_the_books_say(shop: Traced, task_id: str, spans: list[Told], broker: str) -> None:
    """Each move has the delay, the reason, the actor and the times of its event."""
    settled = [each for each in spans if each["messaging.operation.name"] == "settle"]
    events = [each for each in shop.events_of(task_id) if each.outcome not in {"published", "received"}]
    assert [each["redelivery.outcome"] for each in settled] == [str(each.outcome) for each in events]
    for span, event in zip(settled, events, strict=True):
        for name in ("delay_ms", "run_ms", "waited_ms", "actor", "reason", "exception", "fingerprint"):
            said = getattr(event, name)
            assert span[f"redelivery.{name}"] == (said if said != "" else None), (name, event)
    delays = [each["redelivery.delay_ms"] for each in settled if each["redelivery.outcome"] == "redelivery_scheduled"]
    assert len(delays) == 3
    assert all(0 < each <= (125 if broker == "redis" else 1000) for each in delays)


def _follows_the_conventions(spans: list[Told], broker: str) -> None:
    """Kinds, names and attributes follow the messaging conventions. A failed attempt is an error, a move is not."""
    kinds = {"publish": "PRODUCER", "receive": "CLIENT", "process": "CONSUMER", "settle": "CLIENT"}
    types = {"publish": "send", "receive": "receive", "process": "process", "settle": "settle"}
    for each in spans:
        operation = each["messaging.operation.name"]
        if operation is None:  # the other library's
            continue
        assert each.name == f"{operation} {each['messaging.destination.name']}"
        assert each.kind == kinds[operation]
        assert each["messaging.operation.type"] == types[operation]
        assert each["messaging.system"] == broker
        assert each.start <= each.end
        assert each.status == ("ERROR" if each["error.type"] else "UNSET")
        assert each.events == (("exception",) if each["error.type"] else ())
    assert sum(each["messaging.operation.name"] is None for each in spans) in {0, 6}


def test_an_instrumentation_that_is_still_being_imported_harms_no_publication(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread imports it at that moment: the module exists, and its names do not yet."""
    app = Celery("producer", broker="memory://", set_as_current=False)
    Redelivery(app)
    sent: list[str] = []
    send = Spans(app.redelivery, "redis").publishing(lambda _, name, *__, **___: sent.append(name))
    monkeypatch.setitem(sys.modules, NEIGHBOUR, ModuleType(NEIGHBOUR))
    with capture_logs() as lines:
        send(None, "charge", SimpleNamespace(headers={"id": "a"}))
    assert sent == ["charge"]
    assert [(line["event"], line["step"]) for line in lines] == [("telemetry.failed", "publish")]


def test_a_broken_exporter_fails_no_publication(monkeypatch: pytest.MonkeyPatch) -> None:
    """The message is published already: a caller that got the error would publish it again."""

    class Broken(SpanProcessor):
        def on_end(self, span: Any) -> None:
            raise OSError(span.name)

    provider = TracerProvider()
    provider.add_span_processor(Broken())
    monkeypatch.setattr(trace, "get_tracer", provider.get_tracer)
    app = Celery("producer", broker="memory://", set_as_current=False)
    Redelivery(app)
    send = Spans(app.redelivery, "redis").publishing(lambda *_, **__: "sent")
    with capture_logs() as lines:
        assert send(None, "charge", SimpleNamespace(headers={"id": "a"})) == "sent"
    assert [(line["event"], line["step"]) for line in lines] == [("telemetry.failed", "publish")]


def test_an_attempt_whose_process_dies_has_a_move_that_says_why(server: Any, folder: Path) -> None:
    """The run has no span, because its process died. The move has one, and the next attempt links to it."""
    settings = {**SETTINGS, "queues": {"#": {"redelivery_delay": 0.1, "max_delivery_attempts": 3}}}
    with traced(server, folder, settings=settings) as shop:
        shop.start()
        task_id = shop.publish("tests.support.shop.kills", 1)
        shop.ended(task_id, "succeeded")
        spans = shop.told(task_id, 6)
        assert tree(spans, shown) == (
            "publish celery\n"
            "  receive celery #1 of life 0\n"
            "    settle celery redelivery_scheduled worker_lost\n"
            "  receive celery #2 of life 0\n"
            "    process celery #2 of life 0\n"
            "    settle celery succeeded"
        )
        received = [each for each in spans if each.name.startswith("receive")]
        assert list(received[1].links) == [spans[0].span_id, received[0].span_id]


@pytest.mark.full
@pytest.mark.parametrize(
    ("broker", "counts"),
    [
        ("redis", False),
        pytest.param("redis", True, marks=FULL),
        pytest.param("rabbitmq", False, marks=FULL),
        pytest.param("rabbitmq", True, marks=FULL),
    ],
)
def test_after_a_killed_worker_the_next_delivery_links_to_the_move_that_says_so(
    request: pytest.FixtureRequest, folder: Path, broker: str, counts: bool
) -> None:
    """The dead worker's span is unknown. Whether the crash counts depends on whether its start was recorded."""
    policy = {"max_delivery_attempts": 3, "persist_delivery_count": "always" if counts else "suspects"}
    with traced(_broker(request, broker), folder, settings={**SETTINGS, "queues": {"#": policy}}) as shop:
        first = shop.start()
        task_id = shop.publish("tests.support.shop.naps", 5)
        until(lambda: shop.runs(task_id), 30, "the task to run")
        until(lambda: len(shop.collector.of_task(task_id)) == 2, 30, "its publication and its receipt to be told")
        first.kill()
        shop.start()
        shop.ended(task_id, "succeeded")
        spans = shop.told(task_id, 6)
        again = 2 if counts else 1
        assert tree(spans, shown) == (
            "publish celery\n"
            "  receive celery #1 of life 0\n"
            "  settle celery redelivery_scheduled worker_lost\n"
            f"  receive celery #{again} of life 0\n"
            f"    process celery #{again} of life 0\n"
            "    settle celery succeeded"
        )
        [lost] = [each for each in spans if each["redelivery.reason"] == "worker_lost"]
        [receive, run] = [each for each in spans if each["redelivery.attempt"] == again and each.start > lost.start][:2]
        assert list(receive.links) == list(run.links) == [spans[0].span_id, lost.span_id]
        scheduled = shop.ended(task_id, "redelivery_scheduled")
        if counts and broker == "redis":  # if a start is recorded as a time
            assert scheduled.started_ms is not None
            assert 0 <= scheduled.at_ms - scheduled.started_ms < 300_000
        else:
            assert scheduled.started_ms is None


#: The spans of a dead letter that its handler redrives. `P` and `R` stand for the names of its publication and of its runs.
HANDLED = """\
{P}
  receive celery #1 of life 0
    {R} celery #1 of life 0 (ValueError)
    settle celery dead_lettered exhausted
  receive DLQ.celery #1 of life 0
    {R} DLQ.celery #1 of life 0
    settle DLQ.celery redriven
  receive celery #1 of life 1
    {R} celery #1 of life 1
    settle celery succeeded"""


@pytest.mark.parametrize("broker", ["redis", pytest.param("rabbitmq", marks=FULL)])
def test_what_a_dead_letter_handler_does_is_told_in_the_trace_of_its_letter(
    request: pytest.FixtureRequest, folder: Path, broker: str
) -> None:
    """The delivery of the dead letter, the handler's run, and its decision. The next life is below the same publication."""
    settings = {**SETTINGS, "queues": {"#": {"max_delivery_attempts": 1}}}
    with traced(_broker(request, broker), folder, settings=settings, module="tests.support.traced_letter_shop") as shop:
        shop.start("-Q", "celery")
        shop.start("-Q", "DLQ.celery")
        task_id = shop.publish("tests.support.apps.letter_shop.picky", "redrive")
        shop.ended(task_id, "succeeded")
        spans = shop.told(task_id, 10)
        assert tree(spans, shown) == HANDLED.format(P="publish celery", R="process")
        assert len({each.trace_id for each in spans}) == 1
        handler = [each for each in spans if each["messaging.destination.name"] == "DLQ.celery"]
        assert [each["celery.task_name"] for each in handler[:2]] == ["redelivery.dead_letters.celery"] * 2
        received = [each for each in spans if each.name.startswith("receive")]
        for before, receive in pairwise(received):
            assert receive.links[0] == spans[0].span_id
            assert receive.links[-1] in {before.span_id, received[0].span_id}


@FULL
@pytest.mark.parametrize("pool", ["threads", "solo"])
def test_pools_that_share_the_workers_process_tell_the_same(server: Any, folder: Path, pool: str) -> None:
    """Below one publication are all attempts, each with its run and its move."""
    with traced(server, folder) as shop:
        shop.start(pool=pool)
        task_id = shop.publish("tests.support.shop.fails", 1)
        shop.ended(task_id, "succeeded")
        assert tree(shop.told(task_id, 7), shown).splitlines()[1:] == [
            "  receive celery #1 of life 0",
            "    process celery #1 of life 0 (RuntimeError)",
            "    settle celery redelivery_scheduled",
            "  receive celery #2 of life 0",
            "    process celery #2 of life 0",
            "    settle celery succeeded",
        ]


@pytest.mark.parametrize("neighbour", [False, pytest.param(True, marks=FULL)])
def test_what_a_task_publishes_anew_goes_on_in_its_trace(server: Any, folder: Path, neighbour: bool) -> None:
    """After `self.retry` with other arguments, the new message has the same life and the same trace."""
    with traced(server, folder, neighbour=neighbour) as shop:
        shop.start()
        task_id = shop.publish("asks_again", 1)
        shop.ended(task_id, "succeeded")
        spans = shop.told(task_id, 7)
        assert len({each.trace_id for each in spans}) == 1
        received = [each for each in spans if each.name.startswith("receive")]
        assert [each["redelivery.attempt"] for each in received] == [1, 2]
        assert received[1].links[-1] == received[0].span_id
        published = [each for each in spans if each.kind in {"PRODUCER", "CLIENT"} and each.name.startswith(("publish", "apply"))]
        assert len(published) == 2
        [first] = [each for each in spans if each.kind == "CONSUMER"][:1]
        assert published[1].parent_id == first.span_id


def test_a_message_without_a_trace_begins_one_that_its_next_attempts_go_on_in(server: Any, folder: Path) -> None:
    """The producer has no tracing. The second attempt is below the first."""
    with traced(server, folder) as shop:
        shop.settings = {**SETTINGS, "opentelemetry": False}
        task_id = shop.send("recovers")
        shop.settings = SETTINGS
        shop.start()
        shop.ended(task_id, "dead_lettered")
        spans = shop.told(task_id, 12)
        assert len({each.trace_id for each in spans}) == 1
        received = [each for each in spans if each.name.startswith("receive")]
        assert [each.parent_id for each in received] == ["", *(each.span_id for each in received[:-1])]


@pytest.mark.parametrize("hidden", [{"store_failure_texts": False}, {"redact": True}], ids=["not stored", "redacted"])
def test_texts_of_exceptions_are_not_told_where_they_are_not_stored_or_hidden(server: Any, folder: Path, hidden: Any) -> None:
    """The span of a failed run has only the exception's type."""
    settings = {**SETTINGS, **hidden, "queues": {"#": {"max_delivery_attempts": 1}}}
    with traced(server, folder, settings=settings) as shop:
        shop.start()
        task_id = shop.publish("recovers")
        shop.ended(task_id, "dead_lettered")
        spans = shop.told(task_id, 4)
        [run] = [each for each in spans if each.kind == "CONSUMER"]
        assert (run.status, run.description, run.events, run["error.type"]) == ("ERROR", "", (), "RuntimeError")
        assert "the card" not in str(shop.collector.spans)


def test_an_exception_without_words_fails_its_attempt_as_it_does_untraced(server: Any, folder: Path) -> None:
    """Its `__str__` raises, so the SDK cannot record it. The message is redelivered all the same."""
    settings = {**SETTINGS, "queues": {"#": {"max_delivery_attempts": 2, "redelivery_delay": 0.1}}}
    with traced(server, folder, settings=settings) as shop:
        shop.start()
        task_id = shop.publish("fails_untold")
        dead = shop.ended(task_id, "dead_lettered")
        assert (dead.reason, dead.exception) == ("exhausted", f"{shop.module}.Untold")
        runs = [each for each in shop.told(task_id, 7) if each.kind == "CONSUMER"]
        assert [each["error.type"] for each in runs] == [dead.exception] * 2


def test_what_is_not_sampled_is_told_by_figures_alone(server: Any, folder: Path) -> None:
    """The publication decides for all attempts: there is no span, and no trace in the history."""
    with traced(server, folder, variables={"OTEL_TRACES_SAMPLER": "parentbased_always_off"}) as shop:
        shop.start()
        task_id = shop.publish("recovers")
        shop.ended(task_id, "dead_lettered")
        until(lambda: shop.collector.series("redelivery.outcomes", "redelivery.outcome")["dead_lettered",] == 1, 30, "the figures")
        [letter] = shop.letters()
        assert not any("trace" in each for each in letter["headers"]["redelivery"]["attempts"])
        assert not int(letter["headers"]["traceparent"][-2:], 16) & 1
        shop.workers[0].stop()
        assert shop.collector.spans == []


@pytest.mark.parametrize("neighbour", [False, pytest.param(True, marks=FULL)])
def test_without_the_setting_nothing_is_told_and_messages_are_as_they_were(server: Any, folder: Path, neighbour: bool) -> None:
    """Even with the SDK and the other library, which works as before."""
    with traced(server, folder, neighbour=neighbour, settings={**SETTINGS, "opentelemetry": False}) as shop:
        shop.start()
        task_id = shop.publish("shows")
        shop.ended(task_id, "succeeded")
        [shows] = shop.runs(task_id)
        assert shows["redelivery_trace"] is None
        assert shows["span"] is neighbour
        assert (shows["traceparent"] is not None) is neighbour
        shop.workers[0].stop()
        assert shop.collector.scopes[SCOPE] == 0
        assert not shop.collector.series("redelivery.outcomes")
