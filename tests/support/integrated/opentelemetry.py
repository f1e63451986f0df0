"""The tests' app with OpenTelemetry's instrumentation, whose spans go to a file instead of a collector."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from celery.signals import worker_process_init
from opentelemetry import trace
from opentelemetry.instrumentation.celery import CeleryInstrumentor
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult

from tests.support.shop import app

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opentelemetry.sdk.trace import ReadableSpan

__all__ = ["app"]


class Written(SpanExporter):
    """Appends a line for each span."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        path = Path(os.environ["SHOP_RUNS"]).with_name("spans")
        with path.open("a") as out:
            out.writelines(json.dumps(json.loads(span.to_json())) + "\n" for span in spans)
        return SpanExportResult.SUCCESS


@worker_process_init.connect(weak=False)
def traced(**_: Any) -> None:
    """Set up tracing in each child, as the documentation says."""
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(Written()))
    trace.set_tracer_provider(provider)
    CeleryInstrumentor().instrument()  # type: ignore[no-untyped-call]


@app.task
def passes_on(task: str, *args: Any) -> str:
    """Publishes another task, and returns its id."""
    return str(app.send_task(f"tests.support.shop.{task}", args).id)
