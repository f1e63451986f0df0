"""Attacks on the page: forged forms, other sites, other hosts, scripts in every field, readers who write, many streams, no broker.

Flower's CVE-2022-30034 must not be possible here. Its OAuth login could be bypassed (`test_access.py` and `test_proxy.py`: names,
addresses and headers that are nearly right), its API called tasks and stopped workers for every visitor who was logged in
(`test_nothing_answers_without_a_login`, `test_only_what_is_allowed_is_done`), and it accepted the forms of any site
(`test_a_form_of_another_site_changes_nothing`, `test_a_forged_form_changes_nothing`).
"""

from __future__ import annotations

import socket
import time
from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest

from redelivery.workers.operations.runs.audit import os_user
from redelivery.workers.web.guard import form_token_of
from redelivery.workers.web.views import acts, screens
from tests.support.desk import LETTERS, Desk, body_of, task_message
from tests.support.page.web_page import TOKEN, Visitor
from tests.support.running import until

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.page.web_page import WebPage
    from tests.support.servers import Server

SCRIPT = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>&\x1b[31m\u202e"


def redrive_form(visitor: Visitor, task_id: str) -> dict[str, str]:
    """The form that the redrive button of a dead letter sends."""
    return visitor.get(f"/letter?queue={LETTERS}&id={task_id}").forms("/letter/redrive")[0]


def test_nothing_answers_without_a_login(page: WebPage, desk: Desk) -> None:
    """No screen, no action and no stream, for any address and any method."""
    desk.die()
    stranger = page.visitor()
    for path in (*screens(), *acts(), "/live", "/api/tasks", "/nowhere"):
        for answer in (stranger.get(path), stranger.post(path, {"queue": LETTERS, "id": "x"})):
            assert answer.status in {401, 404, 405}, path
            assert "DLQ" not in answer.text, path
    assert len(desk.ids(LETTERS)) == 1


@pytest.mark.parametrize("given", ["", "Bearer ", "Bearer wrong", "Basic YTpi", f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}"])
def test_a_wrong_token_is_no_login(page: WebPage, given: str) -> None:
    """A part of the token is not a login either."""
    assert page.visitor().get("/", Authorization=given).status == 401
    assert page.visitor().get(f"/login?token={quote(given)}").status == 401


def test_the_token_is_nowhere_but_in_what_was_printed(page: WebPage, desk: Desk) -> None:
    """It is in no page, cookie, redirection, header or log line."""
    desk.die()
    visitor = page.visitor()
    answers = [visitor.get(f"/login?token={TOKEN}"), visitor.get("/"), visitor.get("/letters"), visitor.get("/static/page.js")]
    assert answers[0].header("location") == "/"
    assert all(TOKEN not in answer.text + str(answer.headers) for answer in answers)
    assert TOKEN not in "".join(visitor.cookies.values())
    assert TOKEN not in page.log


def test_cookies_go_to_this_page_alone(page: WebPage) -> None:
    """Scripts cannot read them, and other sites cannot send them."""
    visitor = page.visitor()
    cookies = [visitor.get(f"/login?token={TOKEN}").header("set-cookie"), visitor.get("/").header("set-cookie")]
    assert all("HttpOnly" in each and "samesite=strict" in each.lower() and "Path=/" in each for each in cookies)


def test_a_login_leads_nowhere_else(page: WebPage) -> None:
    """Even if the address names another target."""
    for query in ("next=https://evil.example", "next=//evil.example", "url=//evil.example"):
        assert page.visitor().get(f"/login?token={TOKEN}&{query}").header("location") == "/"
    assert page.operator().get("//evil.example/").status in {401, 404}


@pytest.mark.parametrize(
    "headers",
    [
        {"Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "same-site"},
        {"Sec_Fetch_Site": "none"},
        {"Sec_Fetch_Site": "", "Origin": "https://evil.example"},
    ],
)
def test_a_form_of_another_site_changes_nothing(open_page: Callable[..., WebPage], desk: Desk, headers: dict[str, str]) -> None:
    """Even with the user's cookies and the form's own token."""
    task_id, operator = desk.die(), open_page("--allow", "all").operator()
    answer = operator.post("/letter/redrive", redrive_form(operator, task_id), **headers)
    assert (answer.status, desk.ids(), len(desk.ids(LETTERS))) == (403, [], 1)


def test_an_origin_is_looked_at_where_the_browser_says_no_more(open_page: Callable[..., WebPage], desk: Desk) -> None:
    """For example over plain http from another machine, where the browser sends no other hint."""
    task_id, operator = desk.die(), open_page("--allow", "all").operator()
    form, kind = redrive_form(operator, task_id), {"Content-Type": "application/x-www-form-urlencoded"}
    body = "&".join(f"{name}={quote(value)}" for name, value in form.items()).encode()
    for origin in ("https://evil.example", "null", f"http://127.0.0.1:{operator.port + 1}", "http://[", ""):
        assert operator.ask("POST", "/letter/redrive", body, {**kind, "Origin": origin}).status == 403, origin
    assert desk.ids() == []
    own = {**kind, "Origin": f"http://127.0.0.1:{operator.port}"}
    assert operator.ask("POST", "/letter/redrive", body, own).status == 303


def test_a_forged_form_changes_nothing(open_page: Callable[..., WebPage], desk: Desk) -> None:
    """Without the token, with another user's, with a planted cookie, or as JSON."""
    task_id, page = desk.die(), open_page("--allow", "all")
    operator, other = page.operator(), page.operator()
    form = redrive_form(operator, task_id)
    other.get("/")
    tokens = ["", "0" * 64, redrive_form(other, task_id)["token"]]
    answers = [operator.post("/letter/redrive", {**form, "token": token}) for token in tokens]
    answers.append(operator.post("/letter/redrive", {name: value for name, value in form.items() if name != "token"}))
    answers.append(operator.ask("POST", "/letter/redrive", b"{}", {"Content-Type": "application/json"}))
    operator.cookies["redelivery_form"] = "x" * 64
    answers.append(operator.post("/letter/redrive", form))
    assert [answer.status for answer in answers] == [403, 403, 403, 403, 415, 403]
    assert (desk.ids(), len(desk.ids(LETTERS))) == ([], 1)


@pytest.mark.parametrize(("before", "sent"), [("", ""), ("", "GET /"), ("GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", "GET /")])
def test_a_client_that_asks_for_nothing_is_cut_off(
    open_page: Callable[..., WebPage], monkeypatch: pytest.MonkeyPatch, before: str, sent: str
) -> None:
    """On a new connection, or after a request. Otherwise silent clients would in time take all connections."""
    monkeypatch.setenv("WEB_SHOP_IDLE", "1")
    with socket.create_connection(("127.0.0.1", open_page().port)) as client:
        client.settimeout(20)
        client.sendall(before.encode())
        if before:
            assert client.recv(1)
        client.sendall(sent.encode())
        while client.recv(65_536):
            pass


def test_a_form_that_breaks_off_is_no_error(open_page: Callable[..., WebPage]) -> None:
    """The client has left. The log says that the form was refused, without a traceback."""
    page = open_page("--allow", "all")
    head = (
        f"POST /look HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {TOKEN}\r\n"
        "Content-Type: application/x-www-form-urlencoded\r\nContent-Length: 100\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", page.port)) as client:
        client.sendall(f"{head}queue=".encode())
    until(lambda: "The client left" in page.log or "Traceback" in page.log, 20, "the form to be refused")
    assert "Traceback" not in page.log


def test_nothing_is_changed_by_an_address_alone(open_page: Callable[..., WebPage], desk: Desk) -> None:
    """GET only reads. Every action refuses it."""
    task_id, operator = desk.die(), open_page("--allow", "all").operator()
    for path in acts():
        assert operator.get(f"{path}?queue={LETTERS}&id={task_id}").status in {404, 405}, path
    assert len(desk.ids(LETTERS)) == 1


def test_a_reader_sees_no_button_and_is_refused(page: WebPage, desk: Desk) -> None:
    """For each form, even with a valid token."""
    task_id, delayed_id = desk.die(), desk.delay(task_message())
    reader = page.operator()
    shown = reader.get("/delayed")
    assert [
        each for path in acts() for each in (*reader.get(f"/letter?queue={LETTERS}&id={task_id}").forms(path), *shown.forms(path))
    ] == []
    token = form_token(reader)
    given = {"queue": LETTERS, "kind": "purge", "all": "1", "token": token, "after": "1h"}
    for path in acts():
        form = {**given, "id": delayed_id if path.startswith("/delayed") else task_id}
        assert reader.post(path, form).status in {400, 403}, path
    assert reader.get(f"/operations/preview?kind=redrive&queue={LETTERS}").status == 403
    assert (len(desk.ids(LETTERS)), desk.ids(), len(desk.events)) == (1, [], 2)


def form_token(visitor: Visitor) -> str:
    """The token of this visitor's forms, computed as the page does it. The pages of a reader have no form to take it from."""
    visitor.get("/")
    return form_token_of(visitor.cookies["redelivery_form"], os_user())


def test_only_what_is_allowed_is_done(open_page: Callable[..., WebPage], desk: Desk) -> None:
    """A user with the right to redrive may neither edit a dead letter nor purge."""
    task_id, operator = desk.die(), open_page("--allow", "redrive").operator()
    form = redrive_form(operator, task_id)
    assert operator.post("/letter/redrive", {**form, "changes": '{"args": [1]}'}).status == 403
    assert operator.post("/operations/begin", {**form, "kind": "purge", "all": "1"}).status == 403
    assert operator.post("/letter/redrive", form).status == 303


def test_other_names_are_refused_as_host(open_page: Callable[..., WebPage]) -> None:
    """So nobody can make another name lead to this page. Addresses and configured names are accepted."""
    page = open_page("--allow-host", "ops.example")
    expected = {
        "evil.example": 421,
        "localhost.evil.example": 421,
        "": 421,
        "ops.example": 401,
        "localhost:1": 401,
        "127.0.0.1": 401,
    }
    for host, status in expected.items():
        assert page.visitor().get("/", Host=host).status == status, host


@pytest.mark.parametrize(
    "host", ["127.0.0.1/delayed/cancel?", "127.0.0.1#", "localhost\\@evil.example", "evil.example@localhost", "[::1"]
)
def test_what_is_no_host_is_refused_though_a_host_is_in_it(page: WebPage, host: str) -> None:
    """A host header with parts of an address could be read as another path or name."""
    assert page.visitor().get("/", Host=host).status == 421


def test_a_duration_that_no_clock_holds_is_refused(open_page: Callable[..., WebPage], desk: Desk) -> None:
    """In an address and in a form: a client error, and nothing changes."""
    desk.die()
    desk.delay(task_message())
    operator, long = open_page("--allow", "all").operator(), "9" * 400
    for field in ("older-than", "newer-than"):
        assert operator.get(f"/letters?queue={LETTERS}&{field}={long}").status == 400
    shown = operator.get("/delayed")
    [form] = shown.forms("/delayed/reschedule")
    for after in (long, "9" * 30 + "w"):
        answer = operator.post("/delayed/reschedule", {**form, "after": after})
        assert (answer.status, "100 years" in answer.read) == (400, True)
    assert operator.get("/delayed").forms("/delayed/reschedule") == [form]


def test_every_answer_carries_the_headers_of_safety(page: WebPage, desk: Desk) -> None:
    """Screens, errors, files, refused streams: only the page's own script, no frame, no type sniffing, no caching."""
    desk.die()
    operator = page.operator()
    for answer in (operator.get("/"), operator.get("/nope"), page.visitor().get("/"), operator.get("/", Host="evil.example")):
        policy = answer.header("content-security-policy")
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert (answer.header("x-content-type-options"), answer.header("cache-control")) == ("nosniff", "no-store")
        assert answer.header("server") == ""


def test_scripts_in_every_field_are_text(open_page: Callable[..., WebPage], desk: Desk) -> None:
    """In a dead letter, a delayed message and the address: they are shown and never run. The page has no control character."""
    message = task_message(SCRIPT, task=SCRIPT, body=body_of(SCRIPT), argsrepr=SCRIPT, kwargsrepr=SCRIPT, origin=SCRIPT)
    desk.die(message, exception=SCRIPT, said=SCRIPT, fingerprint=SCRIPT, reason=SCRIPT)
    desk.delay(task_message(SCRIPT + "2", task=SCRIPT))
    operator = open_page("--allow", "all").operator()
    evil = quote(SCRIPT)
    paths = [
        "/",
        "/causes",
        "/letters",
        f"/letter?queue={LETTERS}&id={evil}",
        f"/letter?queue={LETTERS}&id={evil}&raw=1",
        "/delayed",
    ]
    paths += [
        f"/letters?queue={evil}",
        f"/letters?queue={LETTERS}&task={evil}",
        f"/letter?queue={LETTERS}&id={evil}2",
        f"/task?id={evil}",
    ]
    paths += [
        f"/operations/preview?kind=redrive&queue={LETTERS}",
        f"/queue?name={evil}",
        f"/operations/preview?kind={evil}&queue={LETTERS}",
    ]
    shown = 0
    for path in paths:
        text = operator.get(path).text
        shown += "&lt;script&gt;" in text
        assert "<script>alert" not in text, path
        assert "<img" not in text, path
        assert not any(char in text for char in ("\x1b", "\u202e")), path
    assert shown >= len(paths) - 4


def test_what_is_redacted_is_not_shown(open_page: Callable[..., WebPage], desk: Desk) -> None:
    """As on the command line: no arguments, no texts of exceptions, no bytes."""
    secret = "4111-1111"
    task_id = desk.die(task_message(body=body_of(secret), argsrepr=secret), said=secret)
    operator = open_page("--allow", "all", settings='{"redact": true}').operator()
    letter = f"/letter?queue={LETTERS}&id={task_id}"
    for path in (
        "/",
        "/causes",
        "/letters",
        letter,
        f"{letter}&raw=1",
        f"/operations/preview?kind=redrive&queue={LETTERS}",
        f"/task?id={task_id}",
    ):
        answer = operator.get(path)
        assert (answer.status, secret in answer.text) == (200, False), path


def test_a_body_without_end_is_cut_off(open_page: Callable[..., WebPage]) -> None:
    """By its length header, by the bytes that came, and by time. The page answers other requests meanwhile."""
    operator = open_page("--allow", "all").operator()
    operator.get("/")
    kind = {"Content-Type": "application/x-www-form-urlencoded", "Sec-Fetch-Site": "same-origin"}
    assert operator.ask("POST", "/letter/redrive", b"a=" + b"x" * (2 * 1024 * 1024), kind).status == 413
    assert operator.ask("POST", "/letter/redrive", b"&".join(b"a=1" for _ in range(5000)), kind).status == 400
    assert operator.get(f"/letters?id={'x' * 10_000}").status == 414
    assert operator.get("/").status == 200


@pytest.mark.full
def test_200_open_pages_cost_the_broker_one_look_in_two_seconds(page: WebPage, desk: Desk) -> None:
    """One look serves all pages."""
    operator = page.operator()
    cookies = "; ".join(f"{name}={value}" for name, value in operator.cookies.items())

    def commands(seconds: float) -> int:
        before = int(desk.client.info("stats")["total_commands_processed"])
        time.sleep(seconds)  # the measured time
        return int(desk.client.info("stats")["total_commands_processed"]) - before

    def opened() -> socket.socket:
        stream = socket.create_connection(("127.0.0.1", page.port), timeout=30)
        stream.sendall(f"GET /live HTTP/1.1\r\nHost: 127.0.0.1\r\nCookie: {cookies}\r\n\r\n".encode())
        heard = b""
        while b"data: " not in heard:
            heard += stream.recv(4096)
        return stream

    streams = [opened()]
    alone = commands(6)
    streams += [opened() for _ in range(199)]
    together = commands(6)
    assert operator.get("/").status == 200
    for each in streams:
        each.close()
    assert 0 < together < 3 * alone + 60, (alone, together)


def test_a_broker_that_is_gone_is_said_and_the_page_stays(open_page: Callable[..., WebPage], desk: Desk, server: Server) -> None:
    """Each screen answers in bounded time, and an action changes nothing. When the broker is back, everything works."""
    task_id, page = desk.die(), open_page("--allow", "all")
    operator = page.operator()
    form = redrive_form(operator, task_id)
    server.kill()
    for path in (
        "/",
        "/causes",
        "/letters",
        f"/letter?queue={LETTERS}&id={task_id}",
        "/delayed",
        "/queues",
        "/workers",
        "/operations",
    ):
        answer = operator.get(path)
        assert (answer.status, answer.read.count("The broker does not answer any more")) == (503, 1), (path, answer.read)
        assert answer.read.lower().count("does not answer") == 1, (path, answer.read)
    assert operator.post("/letter/redrive", form).status == 503
    server.start()
    assert operator.get("/").status == 200
    assert page.process.poll() is None
