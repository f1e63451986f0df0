"""Adds an operator's action as a span to the trace of a message, if the setting `opentelemetry` is on."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from redelivery.middleware.messages.events import Event
    from redelivery.middleware.ports import Transport
    from redelivery.middleware.runtime import Runtime

    from ..letters import Contents


def send_span(transport: Transport, contents: Contents, place: str, event: Event, began_ns: int) -> None:
    """Send the span of a message that left `place` with this event. The span began at `began_ns`."""
    runtime: Runtime | None = getattr(transport.app, "redelivery", None)
    if runtime is not None and runtime.telemetry is not None:
        runtime.telemetry.operated(contents.headers, place, event, began_ns)
