"""The demo's receiver misbehaves as planned, and the comparison with its journal finds every difference."""

from __future__ import annotations

import http.client
import json
import time
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest
from webhooks import journal, server, signature
from webhooks.account import Account, balance
from webhooks.scenarios import Scenario, Treatment, Webhook, plan, treatment_of
from webhooks.server import Receiver

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SECRET = b"made up"
SEED = 7


def named(scenario: Scenario, spoilt: int = 1) -> str:
    """An id with this scenario."""
    wanted = Treatment(scenario, 0 if scenario is Scenario.ACCEPT else spoilt)
    return next(name for number in range(10_000) if treatment_of(SEED, name := f"webhook-{number}") == wanted)


def post(url: str, webhook_id: str, *, secret: bytes = SECRET, at: int | None = None) -> tuple[int, http.client.HTTPMessage, bytes]:
    """Send one webhook."""
    body = json.dumps({"id": webhook_id}).encode()
    at = int(time.time()) if at is None else at
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=5)
    try:
        headers = {signature.TIMESTAMP: str(at), signature.SIGNATURE: signature.sign(secret, at, body)}
        connection.request("POST", "/webhooks", body, headers)
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read()
    finally:
        connection.close()


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """The file of the receiver's journal."""
    return tmp_path / "receiver.jsonl"


@pytest.fixture
def receiver(log: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    """A running receiver, with a short time for the scenario `silent`."""
    monkeypatch.setattr(server, "SILENCE", 0.1)
    with Receiver(log, seed=SEED, secret=SECRET) as running:
        yield running


def test_good_webhook_is_processed_once_however_often_it_comes(receiver: Receiver, log: Path) -> None:
    """A repeat is answered with 200, recorded as repeated, and not processed again."""
    name = named(Scenario.ACCEPT)
    assert [post(receiver.url, name)[0] for _ in range(2)] == [200, 200]
    assert [(line.number, line.processed, line.repeated) for line in journal.read(log)] == [(1, True, False), (2, False, True)]


@pytest.mark.parametrize("offence", ["secret", "age"])
def test_wrong_signature_is_refused_and_not_recorded(receiver: Receiver, log: Path, offence: str) -> None:
    """A body that was signed with another secret, or long ago, is answered with 401."""
    secret = b"another" if offence == "secret" else SECRET
    at = int(time.time()) - signature.TOLERANCE - 5 if offence == "age" else None
    assert post(receiver.url, "webhook-1", secret=secret, at=at)[0] == 401
    assert journal.read(log) == []


def test_busy_endpoint_says_when_to_come_back(receiver: Receiver) -> None:
    """503 with Retry-After for the number of tries that the treatment spoils, then 200."""
    name = named(Scenario.BUSY, spoilt=2)
    answers = [post(receiver.url, name) for _ in range(3)]
    assert [status for status, _, _ in answers] == [503, 503, 200]
    assert [headers["Retry-After"] for _, headers, _ in answers] == ["1", "1", None]


@pytest.mark.parametrize("scenario", [Scenario.RESET, Scenario.SILENT, Scenario.REPLY_LOST])
def test_spoilt_connection_is_reset_and_then_served(receiver: Receiver, log: Path, scenario: Scenario) -> None:
    """The connection is reset, not closed. Work that was done before a lost reply is not repeated."""
    name = named(scenario)
    with pytest.raises(ConnectionResetError):
        post(receiver.url, name)
    assert post(receiver.url, name)[0] == 200
    done_first = scenario is Scenario.REPLY_LOST
    assert [line.processed for line in journal.read(log)] == [done_first, not done_first]


@pytest.mark.parametrize(("scenario", "status"), [(Scenario.GONE, 410), (Scenario.REFUSED, 422)])
def test_permanent_refusal_stays(receiver: Receiver, scenario: Scenario, status: int) -> None:
    """A permanent answer stays the same at each try."""
    assert {post(receiver.url, named(scenario))[0] for _ in range(4)} == {status}


def test_broken_endpoint_works_after_its_repair(receiver: Receiver, log: Path) -> None:
    """Each try is answered with 500 until the operator repairs the endpoint."""
    name = named(Scenario.BROKEN)
    before = [post(receiver.url, name)[0] for _ in range(4)]
    connection = http.client.HTTPConnection(urlsplit(receiver.url).netloc, timeout=5)
    connection.request("POST", "/repair", b"")
    assert connection.getresponse().status == 204
    connection.close()
    assert [*before, post(receiver.url, name)[0]] == [500, 500, 500, 500, 200]
    assert [line.status for line in journal.read(log)] == [500, 500, 500, 500, 200]


def test_slow_body_arrives_whole(receiver: Receiver) -> None:
    """The length of all pieces is the Content-Length."""
    status, headers, body = post(receiver.url, named(Scenario.SLOW))
    assert (status, len(body)) == (200, int(headers["Content-Length"]))


def test_plan_is_repeatable_and_meets_every_scenario() -> None:
    """The same seed gives the same plan, with one poison. Another seed gives another plan."""
    webhooks = plan(500, SEED)
    assert webhooks == plan(500, SEED)
    assert webhooks != plan(500, SEED + 1)
    assert {webhook.scenario for webhook in webhooks} == set(Scenario)
    assert sum(webhook.scenario is Scenario.POISON for webhook in webhooks) == 1


def event(task_id: str, outcome: str, at: int, **fields: Any) -> dict[str, Any]:
    """One row of the exported outcome log."""
    row = {"event_id": f"{at}-0", "task_id": task_id, "outcome": outcome, "at_ms": at, "generation": 0, "attempt": 0, "reason": ""}
    return row | fields


def line(task_id: str, number: int, *, processed: bool = False, repeated: bool = False) -> journal.Line:
    """One line of the journal."""
    return journal.Line(task_id, number, 0, "", 200, processed, repeated)


def account_of(webhook: Webhook, events: list[dict[str, Any]], lines: list[journal.Line], verdict: str = "balanced") -> Account:
    """The account of a single webhook."""
    return balance([webhook], events, [{"task_id": webhook.id, "verdict": verdict}], lines)


GOOD = Webhook("w", Scenario.ACCEPT)
SUCCESS = [event("w", "published", 1), event("w", "succeeded", 2, attempt=1)]


def test_account_agrees_when_both_sides_do() -> None:
    """For a success at the first attempt that the receiver processed once."""
    account = account_of(GOOD, SUCCESS, [line("w", 1, processed=True)])
    assert (account.published, account.first_time, account.lost, account.disagreements) == (1, 1, 0, [])


@pytest.mark.parametrize(
    ("webhook", "events", "lines", "said"),
    [
        (GOOD, SUCCESS, [], "processed it 0 times"),
        (GOOD, SUCCESS, [line("w", 1, processed=True), line("w", 2, repeated=True)], "1 attempts, and the receiver 2"),
        (GOOD, SUCCESS[:1], [line("w", 1, processed=True)], "no end for it"),
        (Webhook("w", Scenario.GONE), SUCCESS, [line("w", 1, processed=True)], "its scenario ends as dead_lettered"),
        (Webhook("w", Scenario.POISON), SUCCESS, [line("w", 1)], "kills whoever prepares it"),
        (GOOD, [*SUCCESS, event("x", "succeeded", 3, attempt=1)], [line("w", 1, processed=True)], "x: nobody sent it"),
    ],
)
def test_account_names_what_differs(webhook: Webhook, events: list[dict[str, Any]], lines: list[journal.Line], said: str) -> None:
    """Each kind of disagreement is one sentence that begins with the id."""
    assert any(said in each for each in account_of(webhook, events, lines).disagreements)


def test_repeat_that_the_books_know_is_no_disagreement() -> None:
    """A worker was killed between the receiver's answer and the acknowledgement, and the books say so."""
    events = [
        SUCCESS[0],
        event("w", "redelivery_scheduled", 2, reason="worker_lost", attempt=1),
        event("w", "succeeded", 3, attempt=2),
    ]
    account = account_of(GOOD, events, [line("w", 1, processed=True), line("w", 2, repeated=True)])
    assert (account.after_redelivery, account.possible_repeats, account.disagreements) == (1, 1, [])


def test_lost_webhook_is_named() -> None:
    """The account has the verdict of the books, with the id."""
    account = account_of(GOOD, SUCCESS[:1], [], verdict="lost")
    assert (account.lost, account.lost_ids, account.succeeded) == (1, ["w"], 0)


def test_redriven_webhook_counts_by_its_last_life() -> None:
    """It died once, was redriven and succeeded: it counts as a success, and its death counts, too."""
    events = [
        SUCCESS[0],
        event("w", "dead_lettered", 2, reason="exhausted", attempt=5),
        event("w", "redriven", 3, generation=1),
        event("w", "succeeded", 4, generation=1, attempt=1),
    ]
    lines = [*(line("w", number) for number in range(1, 6)), line("w", 6, processed=True)]
    account = account_of(Webhook("w", Scenario.BROKEN), events, lines)
    assert (account.succeeded, account.redriven_succeeded, account.dead_lettered) == (1, 1, 0)
    assert (account.deaths, account.disagreements) == ({"exhausted": 1}, [])


TWICE = [
    SUCCESS[0],
    event("w", "succeeded", 2, attempt=1),
    event("w", "redelivery_scheduled", 3, reason="worker_lost"),
    event("w", "succeeded", 4, attempt=1),
]


@pytest.mark.parametrize(
    ("events", "verdict", "may_repeat", "forgiven"),
    [
        (TWICE, "duplicated", True, True),
        (TWICE, "duplicated", False, False),
        ([TWICE[0], TWICE[1], TWICE[3]], "duplicated", True, False),
        (TWICE, "lost", True, False),
        (SUCCESS, "balanced", True, False),
    ],
)
def test_an_end_that_a_crash_doubled_is_forgiven_where_the_books_name_it(
    events: list[dict[str, Any]], verdict: str, may_repeat: bool, forgiven: bool
) -> None:
    """Only on RabbitMQ, if the events have the crash, and if nothing else is wrong."""
    lines = [line("w", 1, processed=True), line("w", 2, repeated=True)]
    account = balance([GOOD], events, [{"task_id": "w", "verdict": verdict}], lines, may_repeat=may_repeat)
    assert account.only_doubled is forgiven
