"""OpenTelemetry's SDK for the benchmarks. Spans are serialized as for a collector, and discarded."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opentelemetry.sdk.trace import ReadableSpan

__all__ = ["instrument", "tell"]


def tell() -> None:
    """Set up the SDK with the sampler of the environment. `BENCH_METERS=none` leaves metrics out."""
    from opentelemetry import metrics, trace  # noqa: PLC0415 - few sides have it
    from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans  # noqa: PLC0415
    from opentelemetry.sdk.metrics import MeterProvider  # noqa: PLC0415
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader  # noqa: PLC0415
    from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult  # noqa: PLC0415

    class Encoded(SpanExporter):
        """Encodes spans as for a collector."""

        def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
            encode_spans(spans).SerializeToString()
            return SpanExportResult.SUCCESS

    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(Encoded()))
    trace.set_tracer_provider(provider)
    if os.environ.get("BENCH_METERS") != "none":
        metrics.set_meter_provider(MeterProvider([InMemoryMetricReader()]))


def instrument() -> None:
    from opentelemetry.instrumentation.celery import CeleryInstrumentor  # noqa: PLC0415 - few sides have it

    CeleryInstrumentor().instrument()  # type: ignore[no-untyped-call]
