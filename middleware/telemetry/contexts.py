"""Trace contexts: how a message carries them, and how they are read.

A message has the context of its publication in Celery's headers, as the process's propagators write it (W3C's `traceparent` by
default). The entries of its history have the context of each attempt, as W3C's text. Any client may have written either: a context
that cannot be read counts as absent.
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

#: W3C's header, and the last digits of its flags that mean: not sampled.
TRACEPARENT = "traceparent"
UNSAMPLED = frozenset("02468ace")


class _Texts(Getter[Any]):
    """Reads headers: a value that is no ASCII text counts as absent."""

    def get(self, carrier: Mapping[str, Any], key: str) -> list[str] | None:
        said = carrier.get(key)
        return [said] if isinstance(said, str) and said.isascii() else None

    def keys(self, carrier: Mapping[str, Any]) -> list[str]:
        return list(carrier)


TEXTS = _Texts()


def is_left_out(headers: Mapping[str, Any]) -> bool:
    """Whether the publication's trace is not sampled, so that its message gets no spans."""
    said = headers.get(TRACEPARENT)
    return isinstance(said, str) and TRACE_CONTEXT.fullmatch(said) is not None and said[-1] in UNSAMPLED


def extracted(headers: Mapping[str, Any]) -> Context:
    """The trace context in these headers; an empty context if they have none."""
    return extract(headers, Context(), TEXTS)


def injected(headers: dict[str, Any], span: trace.Span) -> None:
    """Write the context of a span into these headers."""
    inject(headers, trace.set_span_in_context(span, Context()))


def span_context_of(context: Context) -> SpanContext | None:
    """The span that a context names; None if it names none."""
    found = trace.get_current_span(context).get_span_context()
    return found if found.is_valid else None


def text_of(context: SpanContext | None) -> str:
    """W3C's text of a span's context; empty if there is none."""
    if context is None:
        return ""
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"


def read(text: object) -> SpanContext | None:
    """The span's context in W3C's text; None if the text is no context."""
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
    """The span of the delivery before, by the message's history: the attempt's, or the move's if its worker died."""
    lost = envelope.lost
    if lost is not None and lost.get("delivery") == envelope.delivery:  # otherwise it belongs to an earlier delivery
        return read(lost.get("trace"))
    return read(envelope.attempts[-1].get("trace")) if envelope.attempts else None
