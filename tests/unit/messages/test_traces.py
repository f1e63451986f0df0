"""Trace contexts in messages: any client may write them, so they are parsed strictly. Older versions keep them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redelivery.middleware.messages import envelope as header
from redelivery.middleware.messages.envelope import HEADER, Attempt, Envelope, unreadable
from redelivery.middleware.messages.steps import dead, redelivered, redriven
from redelivery.middleware.telemetry.contexts import extracted, is_left_out, last_attempt, read, span_context_of, text_of

CONTEXT = f"00-{'a' * 32}-{'b' * 16}-01"
MESSAGE: dict[str, Any] = {
    "body": "",
    "headers": {"id": "x", "task": "shop.charge", "traceparent": CONTEXT},
    "properties": {"delivery_info": {"exchange": "", "routing_key": "orders"}},
}
#: Values that another client may write in place of a context.
HOSTILE: list[Any] = [
    None,
    5,
    True,
    [],
    {},
    "",
    "00",
    CONTEXT.upper(),
    f"{CONTEXT} ",
    f"{CONTEXT}\n",
    f"ff{CONTEXT[2:]}",
    "\ud800",
    "0" * 10_000,
]


def _attempt(trace: str) -> Attempt:
    return Attempt(at_ms=1, worker="w", exception="ValueError: no", delay_ms=100, trace=trace)


def test_a_delivery_that_was_lost_and_does_not_count_is_linked_to_once() -> None:
    """The next delivery links to it; later ones link to the entries of the history. An older version keeps the field."""
    counted = redelivered(MESSAGE, "orders", seen_ms=1, attempt=_attempt(f"{CONTEXT[:-2]}03"))
    lost = redelivered(counted, "orders", seen_ms=1, attempt=None, suspect=True, lost=CONTEXT)
    assert text_of(last_attempt(Envelope.of(lost["headers"]))) == CONTEXT
    assert lost["headers"][HEADER]["lost"] == {"delivery": 2, "trace": CONTEXT}
    after = redelivered(lost, "orders", seen_ms=1, attempt=_attempt(f"{CONTEXT[:-2]}05"))
    assert "lost" not in after["headers"][HEADER]
    # An older version keeps an unknown field, and counts its own deliveries.
    kept = {**after["headers"][HEADER], "lost": lost["headers"][HEADER]["lost"]}
    assert text_of(last_attempt(Envelope.of({HEADER: kept}))) == f"{CONTEXT[:-2]}05"


@pytest.mark.parametrize(
    "lost", [*HOSTILE, *({"delivery": 0, "trace": each} for each in HOSTILE), {"delivery": "0"}, {"trace": CONTEXT}]
)
def test_what_a_stranger_writes_of_a_lost_delivery_stops_nothing(lost: Any) -> None:
    """It counts as absent, and the next step removes it."""
    headers = {**MESSAGE["headers"], HEADER: {"lost": lost}}
    assert last_attempt(Envelope.of(headers)) is None
    again = redelivered({**MESSAGE, "headers": headers}, "orders", seen_ms=1, attempt=None)
    assert "lost" not in again["headers"][HEADER]


def test_the_history_names_the_span_of_each_attempt() -> None:
    """Also after a death and a redrive. Without tracing, a message has no such field."""
    again = redelivered(MESSAGE, "orders", seen_ms=1, attempt=_attempt(CONTEXT))
    letter = dead(
        again,
        "orders",
        dead_letter_queue="D",
        reason="exhausted",
        at_ms=2,
        seen_ms=1,
        attempt=_attempt(f"{CONTEXT[:-2]}00"),
        failed=None,
    )
    back = redriven(letter)
    assert [each["trace"][-2:] for each in back["headers"][HEADER]["attempts"]] == ["01", "00"]
    assert text_of(last_attempt(Envelope.of(back["headers"]))) == f"{CONTEXT[:-2]}00"
    assert back["headers"]["traceparent"] == CONTEXT
    assert "trace" not in redelivered(MESSAGE, "orders", seen_ms=1, attempt=_attempt(""))["headers"][HEADER]["attempts"][0]


@pytest.mark.parametrize("said", HOSTILE)
def test_what_is_no_context_is_none(said: Any) -> None:
    """In the history and in the publication's header. Nothing is raised, and the rest of the entry stays."""
    again = redelivered(MESSAGE, "orders", seen_ms=1, attempt=_attempt(CONTEXT))
    again["headers"][HEADER]["attempts"][0]["trace"] = said
    [entry] = Envelope.of(again["headers"]).attempts
    assert entry.get("trace") is None
    assert entry["worker"] == "w"
    assert unreadable(again["headers"]) == ([] if said is None else ["attempts.trace"])
    assert read(said) is None
    assert last_attempt(Envelope.of(again["headers"])) is None
    assert is_left_out({"traceparent": said}) is False
    if not (isinstance(said, str) and said.strip() == CONTEXT):  # the reader of OpenTelemetry allows blanks
        assert span_context_of(extracted({"traceparent": said, "tracestate": said, "baggage": said})) is None


@given(st.integers(0, 255))
def test_the_flags_say_whether_a_trace_is_sampled(flags: int) -> None:
    """Only the last bit decides."""
    said = f"{CONTEXT[:-2]}{flags:02x}"
    assert is_left_out({"traceparent": said}) is not bool(flags & 1)
    context = read(said)
    assert context is not None
    assert text_of(context) == said


def test_the_version_before_keeps_what_it_does_not_know(monkeypatch: pytest.MonkeyPatch) -> None:
    """An older worker redelivers the message: the span of the attempt stays in the history."""
    again = redelivered(MESSAGE, "orders", seen_ms=1, attempt=_attempt(CONTEXT))
    monkeypatch.delitem(header.ATTEMPT, "trace")
    assert unreadable(again["headers"]) == []
    third = redelivered(again, "orders", seen_ms=1, attempt=Attempt(at_ms=3, worker="old", exception="E"))
    monkeypatch.undo()
    first, second = Envelope.of(third["headers"]).attempts
    assert first["trace"] == CONTEXT
    assert "trace" not in second
