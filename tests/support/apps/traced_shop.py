"""The tests' app with OpenTelemetry's SDK, set up as users do. The exporters send to the test's collector (`SHOP_OTLP`).

`SHOP_NEIGHBOUR` also activates `opentelemetry-instrumentation-celery`.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import requests
from opentelemetry import metrics, trace
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from tests.support.notes import note
from tests.support.shop import app

__all__ = ["app"]

#: Milliseconds between two exports.
EVERY = 200


def session() -> requests.Session:
    """A client that closes its connections in forked children, so that each child opens its own."""
    made = requests.Session()
    made.trust_env = False
    os.register_at_fork(after_in_child=made.close)
    return made


def watched() -> None:
    """Set up the SDK before the pool forks: then the main process and each child have their own SDK."""
    at, resource = os.environ["SHOP_OTLP"], Resource.create({"service.name": "shop"})
    tracers = TracerProvider(resource=resource)
    spans = OTLPSpanExporter(endpoint=f"{at}/v1/traces", session=session())
    tracers.add_span_processor(BatchSpanProcessor(spans, schedule_delay_millis=EVERY))
    trace.set_tracer_provider(tracers)
    figures = OTLPMetricExporter(endpoint=f"{at}/v1/metrics", session=session())
    reader = PeriodicExportingMetricReader(figures, export_interval_millis=EVERY)
    metrics.set_meter_provider(MeterProvider([reader], resource=resource))


watched()
if os.environ.get("SHOP_NEIGHBOUR"):
    from opentelemetry.instrumentation.celery import CeleryInstrumentor

    CeleryInstrumentor().instrument()  # type: ignore[no-untyped-call]


class Untold(Exception):
    """An exception that cannot be turned into text."""

    def __str__(self) -> str:
        raise ValueError


@app.task(bind=True)
def fails_untold(self: Any) -> None:
    note(self.request.id, attempt=self.request.retries + 1)
    raise Untold


@app.task(bind=True)
def recovers(self: Any) -> str:
    """Fails until a file exists. Then publishes another task, and returns its id."""
    note(self.request.id, attempt=self.request.retries + 1)
    if not Path(os.environ["SHOP_RUNS"]).with_name("mended").exists():
        message = "the card is 4711"
        raise RuntimeError(message)
    return str(app.send_task("tests.support.shop.ok").id)


@app.task(bind=True)
def asks_again(self: Any, left: int) -> None:
    """Retries with other arguments: Celery publishes a new message."""
    note(self.request.id, left=left)
    if left:
        raise self.retry(args=(left - 1,), countdown=0)


@app.task(bind=True)
def shows(self: Any) -> None:
    """Notes the trace headers that the task sees."""
    seen = {name: getattr(self.request, name, None) for name in ("traceparent", "redelivery_trace")}
    note(self.request.id, **seen, span=trace.get_current_span().get_span_context().is_valid)
