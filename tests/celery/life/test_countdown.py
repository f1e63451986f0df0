"""Countdowns: a producer says how long a task waits, and the broker's clock measures it, even if the producer's clock is wrong."""

from __future__ import annotations

import copy
import json
import os
import pickle
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from celery import Celery
from hypothesis import given
from hypothesis import strategies as st

from redelivery import Redelivery
from redelivery.middleware.brokers.redis.scripts import source
from redelivery.middleware.messages.countdown import FromNow, from_now, with_gaps
from redelivery.middleware.messages.events import Outcome
from redelivery.middleware.messages.ttl import PUBLISHED
from tests.support.apps.skewed_producer import SECONDS, WAYS
from tests.support.running import ROOT

if TYPE_CHECKING:
    from tests.support.servers import Server

HOUR_MS = 3_600_000
#: What a slow machine may take between the two moments that are compared.
SLACK_MS = 300_000
#: How far apart two times of one script may be: the result of `TIME`, and the time in a stream entry's id.
TICK_MS = 1000
#: The last millisecond that Celery can express.
LATEST = int(datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC).timestamp()) * 1000


def ms_of(text: str) -> float:
    """A time as a message has it."""
    return datetime.fromisoformat(text).timestamp() * 1000


@pytest.mark.parametrize("skew", [3600, -3600])
@pytest.mark.parametrize("settings", [{}, {"queues": {"#": {"max_length": 100}}}], ids=["plain", "bounded"])
def test_what_a_producer_with_a_wrong_clock_publishes_has_the_right_times(
    any_server: Server, skew: int, settings: dict[str, Any]
) -> None:
    """The message itself has the right times, so that plain workers see them too. An absolute time is left unchanged."""
    path = f"{ROOT / 'tests' / 'support' / 'skewed'}:{ROOT}"
    command = [sys.executable, "-m", "tests.support.apps.skewed_producer", any_server.url, "celery", json.dumps(settings)]
    environment = {**os.environ, "PYTHONPATH": path, "CLOCK_SKEW": str(skew)}
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    ids, right = said["ids"], said["right"]
    at = {event.task_id: event.at_ms for event in any_server.events() if event.outcome == Outcome.PUBLISHED}
    headers = {each["headers"]["id"]: each["headers"] for each in any_server.letters("celery")}
    assert len(headers) == len(WAYS)
    for way in ("countdown", "option", "group", "chain", "both"):
        wait = ms_of(headers[ids[way]]["eta"]) - at[ids[way]]
        assert SECONDS * 1000 - said["took_ms"][way] - TICK_MS <= wait <= SECONDS * 1000 + TICK_MS
    for way in ("both", "expires"):
        life = ms_of(headers[ids[way]]["expires"]) - at[ids[way]]
        assert 600_000 - said["took_ms"][way] - TICK_MS <= life <= 600_000 + TICK_MS
        assert abs(headers[ids[way]][PUBLISHED] - at[ids[way]]) <= TICK_MS
    assert headers[ids["expires"]]["eta"] is None
    assert headers[ids["eta"]]["eta"] == right
    assert headers[ids["expires_later"]]["expires"] == right
    assert abs(ms_of(right) - at[ids["eta"]] - 2 * HOUR_MS - skew * 1000) < SLACK_MS  # otherwise the clock was right


@pytest.mark.parametrize("ms", [0, 951_782_399_999, 951_782_400_000, 1_709_164_800_000, 4_107_542_399_999, LATEST])
def test_the_server_writes_a_time_as_python_does(any_server: Server, ms: int) -> None:
    """The last days of February, the ends of centuries, and the limits of what Celery can express."""
    assert written(any_server, [ms]) == [as_python(ms)]


def test_the_server_writes_every_day_as_python_does(any_server: Server) -> None:
    """For the four hundred years after which the calendar repeats."""
    days = [day * 86_400_000 + day for day in range(366 * 400)]
    assert written(any_server, days) == [as_python(ms) for ms in days]


def written(server: Server, times: list[int]) -> list[str]:
    """The script's text for these times."""
    each = "local texts = {} for i = 1, #ARGV do texts[i] = iso(tonumber(ARGV[i])) end return texts"
    script = source("publish").split("local length")[0] + each
    client, texts = server.client, []
    for at in range(0, len(times), 1000):
        texts += client.eval(script, 0, *times[at : at + 1000])
    return [text.decode() for text in texts]


def as_python(ms: int) -> str:
    """Python's text for a time; not computed by a float, which is a millisecond off on some days."""
    return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms)).isoformat(timespec="milliseconds")


@given(st.text(max_size=20), st.dictionaries(st.sampled_from(["eta", "expires", PUBLISHED]), st.integers(-(10**9), 10**12)))
def test_gaps_are_where_the_times_belong(body: str, times: dict[str, int]) -> None:
    """For any content: the text with its gaps filled in is the message with its times."""
    message: dict[str, Any] = {"body": body, "headers": {"expires": None, "id": body, "eta": "x", "after": body}, "properties": {}}
    text, gaps = with_gaps(message, times)
    filled, at = b"", 0
    for gap in filter(None, gaps.split(",")):
        before, _, ms = gap.replace("n", "t").partition("t")
        filled += text[at : int(before)] + ms.encode()
        at = int(before)
    texts = json.loads(filled + text[at:])
    expected = {name: ms if name == PUBLISHED else str(ms) for name, ms in times.items()}
    assert texts == {**message, "headers": {**message["headers"], **expected}}


def test_a_countdown_is_less_by_what_the_publication_took(monkeypatch: pytest.MonkeyPatch) -> None:
    """It counts from the call, also if the broker is away for a while, and also in a copy. It is rounded up: never early."""
    monkeypatch.setattr("redelivery.middleware.messages.countdown.time.monotonic", lambda: 100.0)
    eta = FromNow.of("2026-11-24T00:00:00+00:00", 10.0)
    assert eta == "2026-11-24T00:00:00+00:00"
    for kept in (eta, copy.deepcopy(eta), pickle.loads(pickle.dumps(eta))):  # noqa: S301 - our own
        for passed, left in ((0.0, 10_000), (2.5, 7500), (9.9995, 1), (11.0, -1000)):
            monkeypatch.setattr("redelivery.middleware.messages.countdown.time.monotonic", lambda passed=passed: 100.0 + passed)
            assert from_now({"eta": kept, "expires": "2026-11-24T00:00:00+00:00"}) == {"eta": left}


def test_messages_of_other_apps_and_of_other_brokers_are_as_celery_makes_them() -> None:
    """An app without redelivery is not changed: its message has Celery's own text."""
    ours, other = Celery("ours", broker="memory://"), Celery("other", broker="memory://")
    Redelivery(ours)
    for app in (ours, other):
        with app.connection_for_write() as connection:
            app.send_task("t", countdown=1800, expires=3600, connection=connection)
            [raw] = [connection.default_channel._get("celery")]
            eta, expires = (datetime.fromisoformat(raw["headers"][name]) for name in ("eta", "expires"))
            assert (expires - eta).total_seconds() == pytest.approx(1800, abs=1)
    assert not hasattr(other.amqp.create_task_message, "is_ours")
    assert hasattr(ours.amqp.create_task_message, "is_ours")
