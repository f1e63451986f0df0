"""Trace contexts: how a message carries them, and how they are read.

Celery's headers have the context of the publication, as the process's propagators write it (W3C's `traceparent` by default). The
entries of the message's history have the context of each attempt, as W3C's text. Any client may have written either: a context that
cannot be read counts as absent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.propagate import extract, inject
from opentelemetry.propagators.textmap import Getter

from ..messages.envelope import TRACE_CONTEXT

if TYPE_CHECKING:
    from collections.abc import Mapping

    from opentelemetry.trace import SpanContext

    from ..messages.envelope import Envelope

#: W3C's header, and the last digits of the flags of a trace that is not sampled.
TRACEPARENT = "traceparent"
UNSAMPLED = frozenset("02468ace")


class _Texts(Getter[Any]):
    """Reads headers; a value that is not ASCII text counts as absent."""

    def get(self, carrier: Mapping[str, Any], key: str) -> list[str] | None:
        value = carrier.get(key)
        return [value] if isinstance(value, str) and value.isascii() else None

    def keys(self, carrier: Mapping[str, Any]) -> list[str]:
        return list(carrier)


TEXTS = _Texts()


def is_left_out(headers: Mapping[str, Any]) -> bool:
    """Whether the publication's trace is not sampled, so that its message gets no spans."""
    context = headers.get(TRACEPARENT)
    return isinstance(context, str) and TRACE_CONTEXT.fullmatch(context) is not None and context[-1] in UNSAMPLED


def extracted(headers: Mapping[str, Any]) -> Context:
    """The trace context in these headers; an empty context if they have none."""
    return extract(headers, Context(), TEXTS)


def injected(headers: dict[str, Any], span: trace.Span) -> None:
    """Write the context of a span into these headers."""
    inject(headers, trace.set_span_in_context(span, Context()))


def span_context_of(context: Context) -> SpanContext | None:
    """The span in a context, if there is one."""
    found = trace.get_current_span(context).get_span_context()
    return found if found.is_valid else None


def text_of(context: SpanContext | None) -> str:
    """W3C's text of a span's context; empty if there is none."""
    if context is None:
        return ""
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"


def read(text: object) -> SpanContext | None:
    """The span's context in W3C's text; None if the text is not a context."""
    found = TRACE_CONTEXT.fullmatch(text) if isinstance(text, str) else None
    if found is None:
        return None
    numbers = [int(each, 16) for each in found.groups()]
    context = trace.SpanContext(numbers[0], numbers[1], is_remote=True, trace_flags=trace.TraceFlags(numbers[2]))
    return context if context.is_valid else None


def below(context: SpanContext) -> Context:
    """A context in which new spans are children of this one."""
    return trace.set_span_in_context(trace.NonRecordingSpan(context), Context())


def last_attempt(envelope: Envelope) -> SpanContext | None:
    """The span of the delivery before, from the message's history: the attempt's, or the move's if its worker died."""
    lost = envelope.lost
    if lost is not None and lost.get("delivery") == envelope.delivery:  # otherwise it belongs to an earlier delivery
        return read(lost.get("trace"))
    return read(envelope.attempts[-1].get("trace")) if envelope.attempts else None
