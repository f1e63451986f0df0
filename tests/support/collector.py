"""An OpenTelemetry collector (OTLP over http), which shows spans as trees, and metrics as figures."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Self

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span as Wire
from opentelemetry.proto.trace.v1.trace_pb2 import Status

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = ["Collector", "Told"]


@dataclass(frozen=True)
class Told:
    """One span."""

    name: str
    kind: str
    trace_id: str
    span_id: str
    parent_id: str
    links: tuple[str, ...]
    attributes: dict[str, Any]
    status: str
    description: str
    events: tuple[str, ...]
    start: int
    end: int

    @classmethod
    def of(cls, span: Wire) -> Self:
        return cls(
            name=span.name,
            kind=Wire.SpanKind.Name(span.kind).removeprefix("SPAN_KIND_"),
            trace_id=span.trace_id.hex(),
            span_id=span.span_id.hex(),
            parent_id=span.parent_span_id.hex(),
            links=tuple(link.span_id.hex() for link in span.links),
            attributes=_values(span.attributes),
            status=Status.StatusCode.Name(span.status.code).removeprefix("STATUS_CODE_"),
            description=span.status.message,
            events=tuple(event.name for event in span.events),
            start=span.start_time_unix_nano,
            end=span.end_time_unix_nano,
        )

    def __getitem__(self, name: str) -> Any:
        return self.attributes.get(name)


def _values(attributes: Iterable[Any]) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in attributes}


@dataclass
class Collector:
    """Everything that was sent so far. `figures` has the last value of each series of each process."""

    spans: list[Told] = field(default_factory=list)
    figures: dict[tuple[str, str, tuple[tuple[str, Any], ...]], Any] = field(default_factory=dict)
    scopes: Counter[str] = field(default_factory=Counter)
    _server: ThreadingHTTPServer | None = None

    @property
    def address(self) -> str:
        assert self._server is not None
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        collector = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                (collector.take_traces if self.path == "/v1/traces" else collector.take_metrics)(body)
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                """Log nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.shutdown()
        self._server.server_close()

    def take_traces(self, body: bytes) -> None:
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            for scope in resource.scope_spans:
                self.scopes[scope.scope.name] += len(scope.spans)
                self.spans.extend(map(Told.of, scope.spans))

    def take_metrics(self, body: bytes) -> None:
        for resource in ExportMetricsServiceRequest.FromString(body).resource_metrics:
            process = str(_values(resource.resource.attributes)["service.instance.id"])  # each forked process has its own id
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    kind = metric.WhichOneof("data")
                    for point in getattr(metric, kind).data_points:
                        labels = tuple(sorted(_values(point.attributes).items()))
                        value = (point.count, point.sum) if kind == "histogram" else point.as_int or point.as_double
                        self.figures[metric.name, process, labels] = value

    def of_task(self, task_id: str) -> list[Told]:
        """The spans of one task's message, in the order in which they began."""
        found = [each for each in list(self.spans) if each["messaging.message.id"] in {task_id, f"letter-{task_id}"}]
        return sorted(found, key=lambda each: each.start)

    def series(self, name: str, *labels: str) -> Counter[tuple[Any, ...]]:
        """A counter by the values of these labels, summed over all processes."""
        found: Counter[tuple[Any, ...]] = Counter()
        for (metric, _, said), value in list(self.figures.items()):
            if metric == name:
                known = dict(said)
                found[tuple(known.get(label) for label in labels)] += value[0] if isinstance(value, tuple) else value
        return found


def tree(spans: list[Told], shown: Callable[[Told], str]) -> str:
    """The spans as an indented tree. Siblings are in the order of their start."""
    ids = {each.span_id for each in spans}

    def lines(parent: str | None, depth: int) -> list[str]:
        below = [each for each in spans if (each.parent_id == parent if parent is not None else each.parent_id not in ids)]
        return [
            line
            for each in sorted(below, key=lambda one: one.start)
            for line in ("  " * depth + shown(each), *lines(each.span_id, depth + 1))
        ]

    return "\n".join(lines(None, 0))
