"""Hostile texts in every field that clients can write: every screen shows them as text, and none fails.

A page is parsed as a browser does: stored data must add no tag, no attribute and no address to the page's own.
"""

from __future__ import annotations

import html
import json
import re
import shlex
from html.parser import HTMLParser
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest

from redelivery.middleware.messages.envelope import HEADER
from redelivery.middleware.messages.events import ENTRY, Event, Outcome
from redelivery.workers.operations.letters.filter import Filter
from redelivery.workers.operations.runs import operation
from redelivery.workers.operations.runs.audit import Act, Acted, acted, record
from redelivery.workers.operations.runs.operation import Kind, Options
from tests.support.desk import LETTERS, QUEUE, Desk, body_of, task_message
from tests.support.page.browser import Browser, browser
from tests.support.page.web_page import TOKEN

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.page.web_page import WebPage

__all__ = ["browser"]

SCRIPT = (
    "<script>window.hit=1</script>\"'><img src=x onerror=window.hit=1><svg/onload=window.hit=1>&{{7*7}}javascript:alert(1)"
    "\x1b[31m\u202e\x00"
)
#: The tags of the page's own templates.
TAGS = frozenset(
    [
        "a",
        "b",
        "body",
        "button",
        "code",
        "dd",
        "details",
        "div",
        "dl",
        "dt",
        "figcaption",
        "figure",
        "footer",
        "form",
        "h1",
        "h2",
        "head",
        "header",
        "html",
        "input",
        "label",
        "li",
        "link",
        "main",
        "meta",
        "nav",
        "noscript",
        "ol",
        "option",
        "p",
        "pre",
        "progress",
        "rect",
        "script",
        "section",
        "select",
        "span",
        "summary",
        "svg",
        "table",
        "tbody",
        "td",
        "textarea",
        "th",
        "thead",
        "time",
        "title",
        "tr",
        "ul",
    ]
)


class _Strange(HTMLParser):
    """Parses a page and collects what is not in its templates."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[Any] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        said = dict(attrs)
        self.found += [tag] if tag not in TAGS else []
        self.found += [(name, value) for name, value in attrs if name.startswith("on") or name == "style"]
        self.found += [value for name in ("href", "src", "action") if (value := said.get(name) or "/")[0] not in "/#"]
        self.found += [said] if tag == "script" and said.get("src") != "/static/page.js" else []
        self.found += [said] if tag == "meta" and said.get("http-equiv") not in {None, "refresh"} else []
        self.found += [said] if tag == "meta" and not re.fullmatch(r"[\w=,. -]*", said.get("content") or "") else []


def strange(text: str) -> list[Any]:
    """The parts of a page that are not in its templates, and characters that move a cursor or change the text direction."""
    parser = _Strange()
    parser.feed(text)
    return [*parser.found, *re.findall("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", text)]


def spoiled(value: Any) -> Any:
    """The same data with a hostile text in place of each text, and with one more hostile key."""
    if isinstance(value, dict):
        return {**{name: spoiled(each) for name, each in value.items()}, SCRIPT: SCRIPT}
    if isinstance(value, list):
        return [spoiled(each) for each in value]
    return SCRIPT if isinstance(value, str) else value


@pytest.fixture
def spoiled_desk(desk: Desk) -> Desk:
    """A broker on which every text is hostile: dead letters, messages, events, workers, operations, the audit, queues."""
    call: dict[str, Any] = {"argsrepr": SCRIPT, "kwargsrepr": SCRIPT, "origin": SCRIPT}
    desk.die(
        task_message(SCRIPT, task=SCRIPT, body=body_of(SCRIPT, {SCRIPT: SCRIPT}), **call),
        exception=SCRIPT,
        said=SCRIPT,
        fingerprint=SCRIPT,
    )
    taken: Any = desk.client.lindex(LETTERS, 0)
    letter = json.loads(taken)
    for number, spoil in enumerate(("redelivery", "headers", "properties")):
        copy = json.loads(taken)
        copy["headers"]["id"] = f"spoiled-{number}"
        if spoil == "redelivery":
            copy["headers"]["redelivery"] = spoiled(copy["headers"]["redelivery"])
        else:
            copy[spoil] = {
                **spoiled(copy[spoil]),
                **({"redelivery": letter["headers"]["redelivery"], "id": f"spoiled-{number}"} if spoil == "headers" else {}),
            }
        desk.client.lpush(LETTERS, json.dumps(copy))
    desk.client.lpush(LETTERS, SCRIPT)
    desk.delay(task_message(SCRIPT + "2", task=SCRIPT))
    desk.publish(task_message(SCRIPT + "3", task=SCRIPT, **call))
    desk.transport.leases.register("evil", {"worker": SCRIPT, "pid": SCRIPT, "since": SCRIPT})
    desk.hold("evil", SCRIPT)
    words: dict[str, Any] = {
        "task": SCRIPT,
        "queue": SCRIPT,
        "reason": SCRIPT,
        "worker": SCRIPT,
        "exception": SCRIPT,
        "fingerprint": SCRIPT,
    }
    for outcome in Outcome:
        entry = Event(
            task_id=SCRIPT, outcome=outcome, actor=SCRIPT, release=SCRIPT, parent_id=SCRIPT, root_id=SCRIPT, attempt=1, **words
        )
        desk.client.xadd(desk.keys.outcomes, dict(zip(ENTRY, entry.to_entry(), strict=True)))
    desk.client.hset(desk.keys.dead_letter_queues, SCRIPT, SCRIPT)
    desk.client.set(desk.keys.operator, "another")  # so that new operations stay as they are
    made = operation.begin(
        desk.install, Kind.REDRIVE, LETTERS, Filter(tasks=(SCRIPT,), exceptions=(SCRIPT,)), Options(), actor=SCRIPT, why=SCRIPT
    )
    progress = {
        "left": {SCRIPT: 1},
        "deaths": [{"task_id": SCRIPT, "reason": SCRIPT, "exception": SCRIPT}, {SCRIPT: 1}, {"task_id": 7, "reason": [SCRIPT]}],
    }
    desk.client.hset(desk.keys.operation(made.id), mapping={"message": SCRIPT, "progress": json.dumps(progress), f"to:{SCRIPT}": 1})
    unread = operation.begin(desk.install, Kind.PURGE, LETTERS, Filter(), Options(), actor=SCRIPT)
    desk.client.hset(desk.keys.operation(unread.id), "about", json.dumps({"kind": SCRIPT, "queue": 1, "filter": SCRIPT}))
    said = acted(
        Act.PURGE, Acted.DONE, SCRIPT, actor=SCRIPT, why=SCRIPT, tasks=[SCRIPT], result={SCRIPT: SCRIPT, "moved": 1}, message=SCRIPT
    )
    for each in (
        said,
        json.dumps({**json.loads(said), "act": SCRIPT, "acted": SCRIPT, "tasks": [1, None, [SCRIPT]], "result": {"moved": "x"}}),
        SCRIPT,
    ):
        record(desk.transport, each)
    return desk


def paths_of(desk: Desk) -> list[str]:
    """The address of every screen, for every hostile object."""
    evil = quote(SCRIPT)
    ids = [evil, *(f"spoiled-{number}" for number in range(3)), evil + "2", evil + "3"]
    found = [
        "/",
        "/causes",
        f"/causes?queue={LETTERS}",
        f"/letters?queue={LETTERS}",
        "/letters",
        "/delayed",
        "/queues",
        "/workers",
        "/operations",
        "/task",
    ]
    found += [f"/letter?queue={LETTERS}&id={each}{more}" for each in ids for more in ("", "&raw=1")]
    found += [f"/task?id={each}" for each in ids]
    found += [f"/operation?id={each.id}" for each in operation.listed(desk.install)]
    found += [f"/operations/preview?kind={kind}&queue={LETTERS}" for kind in ("redrive", "purge", evil)]
    found += [f"/operations/preview?kind=move&queue={LETTERS}&to={evil}&create=1", f"/operations/preview?kind=cancel&queue={evil}"]
    found += ["/operations/preview?kind=cancel", f"/operations/preview?kind=redrive&queue={LETTERS}&task={evil}&canary={evil}"]
    found += [
        f"/letters?queue={evil}",
        f"/queue?name={evil}",
        f"/queue?name={QUEUE}&task={evil}",
        f"/delayed?queue={evil}",
        f"/delayed?id={evil}2",
    ]
    found += [
        f"/letters?queue={LETTERS}&{name}={evil}"
        for name in ("task", "exception", "reason", "fingerprint", "older-than", "newer-than", "id", "before")
    ]
    return [*found, f"/operation?id={evil}", f"/delayed?notice={evil}", f"/{evil}"]


def test_hostile_words_are_text_on_every_screen(spoiled_desk: Desk, open_page: Callable[..., WebPage]) -> None:
    """They add no tag, attribute or address. No screen fails: wrong input gives a client error."""
    page = open_page("--allow", "all", "--as", SCRIPT.replace("\x00", ""))
    operator = page.operator()
    commands: list[str] = []
    shown = 0
    for path in paths_of(spoiled_desk):
        answer = operator.get(path)
        assert answer.status in {200, 400, 404}, (path, answer.status, answer.read)
        assert strange(answer.text) == [], path
        shown += "&lt;script&gt;" in answer.text
        commands += re.findall(r"<code>(redelivery [^<]*)</code>", answer.text)
    assert shown > 25
    hostile = [shlex.split(html.unescape(each)) for each in commands if "script" in each]
    assert hostile
    assert [words for words in hostile if sum("script" in word for word in words) != 1 or len(words) > 7] == []
    assert "web.failed" not in page.log
    for header in ("location", "set-cookie"):
        assert "<script" not in str(operator.get("/").header(header))


@pytest.mark.parametrize("field", ["origin", "failure", "deaths", "attempts", "first_death"])
def test_a_dead_letter_whose_header_lacks_fields_is_shown(desk: Desk, open_page: Callable[..., WebPage], field: str) -> None:
    """Another client may have written only one of the fields."""
    task_id = desk.die()
    letter = json.loads(desk.client.lpop(LETTERS))  # type: ignore[arg-type]
    given = letter["headers"][HEADER].get(field) or {"queue": QUEUE}
    one = given[0] if isinstance(given, list) else given
    for name in one:
        left = {name: one[name]}
        letter["headers"][HEADER][field] = [left, left] if isinstance(given, list) else left
        desk.client.lpush(LETTERS, json.dumps(letter))
    page = open_page()
    shown = [page.operator().get(f"/letter?queue={LETTERS}&id={task_id}&at={place}") for place in range(len(one))]
    assert [answer.status for answer in shown] == [200] * len(one)
    assert "web.failed" not in page.log


def test_hostile_words_in_a_form_are_text_in_the_audit(desk: Desk, open_page: Callable[..., WebPage]) -> None:
    """For each field that a user can fill in."""
    task_id, word = desk.die(), SCRIPT.replace("\x00", "")
    desk.client.set(desk.keys.operator, "another")
    operator = open_page("--allow", "all").operator()
    [form, *_] = operator.get(f"/letter?queue={LETTERS}&id={task_id}").forms("/letter/redrive")
    for name in ("queue", "id", "at", "changes"):
        answer = operator.post("/letter/redrive", {**form, name: word})
        assert (answer.status, strange(answer.text)) == (400, []), name
    [begin] = operator.get(f"/operations/preview?kind=purge&queue={LETTERS}").forms("/operations/begin")
    for name in (
        "kind",
        "queue",
        "limit",
        "rate",
        "canary",
        "canary_wait",
        "abort_after",
        "abort_share",
        "older-than",
        "reason",
        "to",
    ):
        answer = operator.post("/operations/begin", {**begin, name: word})
        assert (answer.status, strange(answer.text)) == (400, []), name
    shown = operator.follow(operator.post("/operations/begin", {**begin, "why": word, "task": word}))
    assert (strange(shown.text), "&lt;script&gt;" in shown.text) == ([], True)
    [turn] = shown.forms("/operation/abort")
    shown = operator.follow(operator.post("/operation/abort", {**turn, "why": word}))
    audit = operator.get("/operations")
    assert (strange(shown.text), strange(audit.text), "&lt;script&gt;" in audit.text) == ([], [], True)
    assert operator.post("/letter/redrive", {**form, "why": word}).status == 303
    assert strange(operator.get("/operations").text) == []


@pytest.mark.full
def test_no_hostile_word_runs_in_a_browser(spoiled_desk: Desk, open_page: Callable[..., WebPage], browser: Browser) -> None:
    """The browser's console stays empty: no page had to block a script."""
    page = open_page("--allow", "all")
    browser.open(f"{page.address}/login?token={TOKEN}")
    for path in paths_of(spoiled_desk):
        shown = browser.open(page.address + path)
        assert browser.ask("window.hit === undefined"), path
        assert [each for each in shown.logged if "status of 4" not in each] == [], path
        assert all(each.startswith(page.address) for each in shown.requested), path
