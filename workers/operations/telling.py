"""Telling OpenTelemetry of what an operator has had done: a span in the trace of each message, where `opentelemetry` is set."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from redelivery.middleware.messages.events import Event
    from redelivery.middleware.runtime import Runtime

    from ..letters import Contents
    from ..ports import Transitions


def tell(transport: Transitions, contents: Contents, place: str, event: Event, began_ns: int) -> None:
    """The broker has moved this message, which lay in this place, and recorded the event; it was prepared at `began_ns`."""
    runtime: Runtime | None = getattr(transport.app, "redelivery", None)
    if runtime is not None and runtime.telemetry is not None:
        runtime.telemetry.operated(contents.headers, place, event, began_ns)
