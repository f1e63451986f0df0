"""The spans, by OpenTelemetry's conventions for messaging: *publish*, *receive*, *process* and *settle*.

All spans of a message belong to the trace of its publication, also after a redrive. The publication has one child *receive* for
each delivery, which ends when the pool gets the task. The *receive* has two children: the *process* of the attempt, in the pool's
child process, and the *settle* of the move that follows, with outcome, reason and delay. *receive* and *process* link to the
publication and to the attempt before, which the message's history names (`attempts[].trace`). A redrive is a *settle* with its
actor.

If a message was not sampled when it was published, it has no spans. If `opentelemetry-instrumentation-celery` is active in a
process, its spans replace *publish* and *process*, and get the attempt's number and links. A failure here is only logged.

Limits: an attempt whose process dies has no *process*; its *settle* has the reason. The trace of a message that was published
without one begins when the message is received.
"""

from __future__ import annotations

import functools
import sys
import time
from contextlib import contextmanager
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from celery import signals
from celery.exceptions import Ignore, Reject, Retry
from opentelemetry import trace
from opentelemetry.context import attach, detach
from opentelemetry.trace import Link, SpanKind, Status, StatusCode

from redelivery.errors import EnvelopeError
from redelivery.settings.exceptions import known_as

from ..child.attempt import TRACE
from ..logs import log
from ..messages.envelope import Envelope
from ..messages.steps import opened
from ..ports import Answer
from .contexts import below, extracted, injected, is_left_out, last_attempt, read, span_context_of, text_of
from .figures import Figures
from .forked import flush

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from opentelemetry.context import Context
    from opentelemetry.trace import Span, SpanContext

    from ..messages.events import Event
    from ..ports import Held
    from ..runtime import Runtime
    from ..worker.deliveries.held_delivery import HeldDelivery

#: The name of the instrumentation scope, and of the distribution.
SCOPE = "redelivery"
#: The module of `opentelemetry-instrumentation-celery`, which makes its own spans of publications and runs.
NEIGHBOUR = "opentelemetry.instrumentation.celery"


def has_neighbour() -> bool:
    """Whether `opentelemetry-instrumentation-celery` is active in this process."""
    module = sys.modules.get(NEIGHBOUR)
    return module is not None and bool(module.CeleryInstrumentor().is_instrumented_by_opentelemetry)


class Spans:
    """The spans and figures of one process; `runtime.Telemetry` describes the methods."""

    def __init__(self, runtime: Runtime, system: str) -> None:
        self._runtime = runtime
        self._tracer = trace.get_tracer(SCOPE, version(SCOPE))
        self.figures = Figures(runtime.app, system)
        self.watch_depths = self.figures.watch_depths
        self._common: Mapping[str, Any] = {"messaging.system": system, **_server(runtime.app)}
        signals.worker_process_shutdown.connect(flush, weak=False, dispatch_uid="redelivery:telemetry")

    # a producer

    def publishing(self, send: Callable[..., Any]) -> Callable[..., Any]:
        """`app.amqp.send_task_message`, wrapped in a span whose context is sent with the message."""
        amqp = self._runtime.app.amqp

        @functools.wraps(send)
        def send_task_message(producer: Any, name: str, message: Any, *args: Any, **options: Any) -> Any:
            queue = _destination(amqp, options)
            span: Span | None = None
            try:
                if not has_neighbour():
                    span = self._publication(queue, name, message.headers, options.get("headers"))
            except Exception:  # noqa: BLE001 - as `_logging_errors`, but cheaper
                log.exception("telemetry.failed", step="publish")
            if span is None:
                answer = send(producer, name, message, *args, **options)
            elif span.is_recording():
                try:
                    with trace.use_span(span):
                        answer = send(producer, name, message, *args, **options)
                finally:
                    with _logging_errors("publish"):
                        span.end()
            else:
                answer = _within(span, send, producer, name, message, *args, **options)
            self.figures.sent(queue)
            return answer

        return send_task_message

    def _publication(self, queue: str, name: str, headers: dict[str, Any], more: Mapping[str, Any] | None) -> Span:
        given = span_context_of(extracted({**headers, **more})) if more else None
        attributes = self._attributes("publish", "send", queue, name, headers.get("id"))
        kind = SpanKind.PRODUCER if given is None else SpanKind.CLIENT
        links = () if given is None else (Link(given),)
        span = self._tracer.start_span(f"publish {queue}", kind=kind, attributes=attributes, links=links)
        if given is None:  # otherwise the caller's context stays in the message
            injected(headers, span)
        return span

    # a worker's main process

    def hand_over(self, request: Any, delivery: HeldDelivery) -> None:
        """End the *receive* of a delivery whose request goes to the pool."""
        held = delivery.held
        self.figures.delivered(held.queue)
        held.trace, request.request_dict[TRACE] = "", None  # never use a value that the message has
        headers = delivery.headers(request)
        if not is_left_out(headers):
            with _logging_errors("receive"):
                self._receive(request, delivery, headers)

    def _receive(self, request: Any, delivery: HeldDelivery, headers: Mapping[str, Any]) -> None:
        held, envelope, facts, context = delivery.held, delivery.envelope, delivery.facts, extracted(headers)
        created, before = span_context_of(context), last_attempt(envelope)
        if created is None and before is not None:
            context = below(before)
        received_ns = time.time_ns() - round((time.monotonic() - facts.received) * 1e9)
        span = self._tracer.start_span(
            f"receive {held.queue}",
            context,
            SpanKind.CLIENT,
            {
                **self._attributes("receive", "receive", held.queue, request.name, request.id),
                **_counts(facts.attempt, facts.generation),
            },
            _links(created, before),
            received_ns,
        )
        injected(request.request_dict, span)
        if span.is_recording():
            held.trace = text_of(span.get_span_context())
            request.request_dict[TRACE] = (held.trace, text_of(created), text_of(before))
        span.end()

    def settling(self, held: Held | None, event: Event) -> Callable[[Answer], None]:
        """Begin the *settle* of a message that leaves; return the function to call with the broker's answer."""
        span: Span | None = None
        if held is not None and held.trace != "":
            with _logging_errors("settle"):
                span = self._settle(held, event)
                if held.trace is None and span is not None and span.is_recording():
                    held.move_trace = text_of(span.get_span_context())

        def answered(answer: Answer) -> None:
            try:
                if answer in {Answer.DONE, Answer.ALREADY}:
                    self.figures.ended(event)
                if span is not None:
                    _end(span, answer)
            except Exception:  # noqa: BLE001 - as `_logging_errors`, but cheaper
                log.exception("telemetry.failed", step="settle")

        return answered

    def _settle(self, held: Held, event: Event) -> Span | None:
        if held.trace is not None:
            received = read(held.trace)
            return None if received is None else self._settlement(below(received), held.queue, event)
        try:
            headers = opened(held.raw)["headers"]
        except EnvelopeError:
            return None
        return self._settle_before_pool(headers, held.queue, event)

    def _settle_before_pool(self, headers: Mapping[str, Any], queue: str, event: Event, began_ns: int | None = None) -> Span | None:
        """A *settle* that is a child of the publication, because the message was not handed to the pool."""
        if is_left_out(headers):
            return None
        context, before = extracted(headers), last_attempt(Envelope.of(headers))
        created = span_context_of(context)
        if created is None:
            if before is None:
                return None
            context = below(before)
        return self._settlement(context, queue, event, _links(created, before), began_ns)

    def _settlement(
        self, context: Context, queue: str, event: Event, links: tuple[Link, ...] = (), began_ns: int | None = None
    ) -> Span:
        attributes = {
            **self._attributes("settle", "settle", queue, event.task, event.task_id),
            **_counts(event.attempt, event.generation),
            **dict(_outcome_attributes(event)),
        }
        return self._tracer.start_span(f"settle {queue}", context, SpanKind.CLIENT, attributes, links, began_ns)

    def operated(self, headers: Mapping[str, Any], queue: str, event: Event, began_ns: int) -> None:
        """Report a recorded move by an operator."""
        with _logging_errors("settle"):
            span = self._settle_before_pool(headers, queue, event, began_ns)
            if span is not None:
                span.end()

    # a pool's child

    def around(self, attempted: Callable[..., Any]) -> Callable[..., Any]:
        """`attempted`, wrapped in the *process* span of the attempt that it gets."""

        @functools.wraps(attempted)
        def traced(attempt: Any, *args: Any, **kwargs: Any) -> Any:
            known = attempt.task.request.get(TRACE)
            if known is None:
                return attempted(attempt, *args, **kwargs)
            span: Span = trace.INVALID_SPAN
            is_ours = False
            with _logging_errors("process"):
                span, is_ours = self._process(attempt, *known)
            with trace.use_span(span, record_exception=False, set_status_on_exception=False):
                try:
                    return attempted(attempt, *args, **kwargs)
                except BaseException as exc:
                    with _logging_errors("process"):
                        self._fail(span, exc, is_ours=is_ours)
                    raise
                finally:
                    if is_ours:
                        with _logging_errors("process"):
                            span.end()

        return traced

    def _process(self, attempt: Any, received: str, created: str, before: str) -> tuple[Span, bool]:
        """The span of the attempt, and whether it was made here and must be ended here."""
        facts, task = attempt.facts, attempt.task
        current, links = trace.get_current_span(), _links(read(created), read(before))
        counts = _counts(facts.attempt, facts.generation)
        if has_neighbour() and current.is_recording():
            current.set_attributes(counts)
            for link in links:
                current.add_link(link.context)
            return current, False
        attributes = {**self._attributes("process", "process", facts.queue, task.name, task.request.id), **counts}
        context, parent = extracted(vars(task.request)), read(received)
        if parent is not None:  # this process's propagators may not write W3C's context
            context = trace.set_span_in_context(trace.NonRecordingSpan(parent), context)
        return self._tracer.start_span(f"process {facts.queue}", context, SpanKind.CONSUMER, attributes, links), True

    def _fail(self, span: Span, exc: BaseException, *, is_ours: bool) -> None:
        """Mark the span of a failed attempt. `Reject`, `Ignore` and Celery's own `Retry` are not failures."""
        failed = getattr(exc, "failed", None)
        if isinstance(exc, (Reject, Ignore)) or (isinstance(exc, Retry) and failed is None):
            return
        cause = exc if failed is None else exc.__cause__
        span.set_attribute("error.type", known_as(type(exc)) if failed is None else failed.type)
        if not is_ours:
            return
        settings = self._runtime.settings
        if cause is None or settings.redact or not settings.store_failure_texts:
            span.set_status(Status(StatusCode.ERROR))
            return
        span.record_exception(cause)
        span.set_status(Status(StatusCode.ERROR, str(cause)))

    def _attributes(self, operation: str, kind: str, queue: str, task: Any, task_id: Any) -> dict[str, Any]:
        """Those that OpenTelemetry's conventions require."""
        return {
            **self._common,
            "messaging.operation.name": operation,
            "messaging.operation.type": kind,
            "messaging.destination.name": queue,
            "messaging.message.id": str(task_id),
            "celery.task_name": str(task),
        }


def _within(span: Span, call: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Call a function within a span that is not recorded, so that inner spans are not sampled either."""
    token = attach(trace.set_span_in_context(span))
    try:
        return call(*args, **options)
    finally:
        detach(token)


def _end(span: Span, answer: Answer) -> None:
    """End the span with the broker's answer; a refused move is an error."""
    if answer in {Answer.REFUSED, Answer.MISSING}:
        span.set_attribute("error.type", str(answer))
        span.set_status(Status(StatusCode.ERROR))
    span.end()


@contextmanager
def _logging_errors(step: str) -> Iterator[None]:
    """Log any error, for example of the SDK, a sampler or another client's header; the message must go on."""
    try:
        yield
    except Exception:  # noqa: BLE001 - see above
        log.exception("telemetry.failed", step=step)


def _counts(attempt: int, generation: int) -> dict[str, int]:
    return {"redelivery.attempt": attempt, "redelivery.generation": generation}


def _links(created: SpanContext | None, before: SpanContext | None) -> tuple[Link, ...]:
    return tuple(Link(each) for each in (created, before) if each is not None)


def _outcome_attributes(event: Event) -> Iterator[tuple[str, Any]]:
    yield "redelivery.outcome", str(event.outcome)
    for name in ("reason", "delay_ms", "due_ms", "exception", "fingerprint", "actor", "release", "run_ms", "waited_ms"):
        value = getattr(event, name)
        if value is not None and value != "":
            yield f"redelivery.{name}", value if isinstance(value, int) else str(value)


def _destination(amqp: Any, options: Mapping[str, Any]) -> str:
    """The queue of a publication, or exchange and routing key if the caller names those."""
    queue = options.get("queue")
    if queue is None and options.get("exchange") is not None:
        exchange = options["exchange"]
        name, key = getattr(exchange, "name", exchange), options.get("routing_key") or ""
        return f"{name}:{key}" if name else str(key)
    return str(amqp.default_queue.name if queue is None else getattr(queue, "name", queue))


def _server(app: Any) -> dict[str, Any]:
    """The broker's host and port, if its address names one host; without user and password."""
    connection = app.connection_for_write()
    host, port = connection.hostname, connection.port
    if not isinstance(host, str) or not host or "/" in host or "@" in host:
        return {}
    return {"server.address": host, **({"server.port": int(port)} if port else {})}
