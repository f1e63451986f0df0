"""The page in another application: below any path, with the login of the application, in ASGI and WSGI."""

from __future__ import annotations

import asyncio
import gc
import html
import io
import json
import re
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from a2wsgi import ASGIMiddleware
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.routing import Mount
from structlog.testing import capture_logs

from redelivery.errors import ConfigurationError
from redelivery.web import User, asgi_app, wsgi_app
from redelivery.workers.duties.scheduler import scheduler
from redelivery.workers.operations.letters.filter import Filter
from redelivery.workers.operations.letters.reading import browse
from redelivery.workers.operations.runs import operation
from redelivery.workers.operations.runs.operation import Kind, Options, State
from redelivery.workers.web.guard import form_token_of
from redelivery.workers.web.shared import streams
from redelivery.workers.web.shared.figures import Figures
from redelivery.workers.web.shared.threads import Threads
from redelivery.workers.web.views import letters, queues
from tests.support.desk import LETTERS, QUEUE, Desk, copies, task_message
from tests.support.running import until

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.requests import Request

    from redelivery.workers.duties.scheduler import Entry

USERS = {
    "ada": User("ada", "all"),
    "bob": User("bob", {"redrive": ["DLQ.mail"], "cancel": ["*"]}),
    "dan": User("dan", {"move": ["DLQ.*orders"], "cancel": ["orders"]}),
    "eve": User("eve"),
    "fay": User("fay", {"redrive": [LETTERS]}),
    "gus": User("gus", {"redrive": [LETTERS, "DLQ.payments"]}),
    "hal": User("hal", {"move": [LETTERS]}),
}


def by_header(request: Request) -> User | None:
    """The login of these tests' application."""
    return USERS.get(request.headers.get("x-user", ""))


def asked(app: Any, path: str, user: str = "ada", **options: Any) -> httpx.Response:
    """Send one request to an ASGI application."""

    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://host") as client:
            return await client.request(
                options.pop("method", "GET"), path, headers={"x-user": user, **options.pop("headers", {})}, **options
            )

    return asyncio.run(ask())


def linked(text: str) -> list[str]:
    """All addresses in a page."""
    return re.findall(r'(?:href|src|action|data-live)="([^"]*)"', text)


@pytest.mark.parametrize("path", ["/ops", "/deep/down/here", "/with space"])
def test_every_link_keeps_the_path_that_it_is_mounted_under(desk: Desk, path: str) -> None:
    """In FastAPI and in Starlette, one inside the other."""
    desk.die()
    page = asgi_app(desk.app, user=by_header)
    api = FastAPI()
    api.mount(path, page)
    quoted = path.replace(" ", "%20")
    for app, begin in ((api, quoted), (Starlette(routes=[Mount("/outer", api)]), f"/outer{quoted}")):
        answer = asked(app, f"{begin}/letters?queue={LETTERS}")
        assert answer.status_code == 200
        links = [each for each in linked(answer.text) if not each.startswith("#")]
        assert len(links) > 10
        assert all(each.startswith(f"{begin}/") for each in links), links
        assert asked(app, f"{begin}/static/page.css").status_code == 200
        assert f"Path={begin}" in answer.headers["set-cookie"]


def test_flask_and_django_mount_it_as_wsgi(desk: Desk) -> None:
    """By `SCRIPT_NAME`, with which both pass a part of their addresses to another application."""
    desk.die()
    page = wsgi_app(desk.app, user=by_header)
    status, headers, text = wsgi(page, "/letters", f"queue={LETTERS}")
    assert status.startswith("200")
    assert all(each.startswith("/ops/") for each in linked(text) if not each.startswith("#"))
    assert "data-live" not in text
    assert wsgi(page, "/live", "")[0].startswith("204")
    assert "frame-ancestors 'none'" in dict(headers)["content-security-policy"]
    assert wsgi(page, "/", "", user="nobody")[0].startswith("401")
    inner: Any = asgi_app(desk.app, user=by_header)
    assert wsgi(ASGIMiddleware(inner), "/live", "")[0].startswith("204")


def wsgi(app: Callable[..., Any], path: str, query: str, user: str = "ada") -> tuple[str, list[tuple[str, str]], str]:
    """Send one request to a WSGI application that is mounted under /ops."""
    said: list[Any] = []
    environ = {
        "REQUEST_METHOD": "GET",
        "SCRIPT_NAME": "/ops",
        "PATH_INFO": path,
        "QUERY_STRING": query,
        "SERVER_NAME": "host",
        "SERVER_PORT": "80",
        "SERVER_PROTOCOL": "HTTP/1.1",
        "HTTP_HOST": "host",
        "HTTP_X_USER": user,
        "wsgi.url_scheme": "http",
        "wsgi.input": io.BytesIO(),
        "wsgi.errors": io.StringIO(),
        "wsgi.version": (1, 0),
        "wsgi.multithread": True,
        "wsgi.multiprocess": False,
        "wsgi.run_once": False,
    }

    def start(status: str, headers: list[tuple[str, str]], exc_info: Any = None) -> None:  # noqa: ARG001 - WSGI's signature
        said[:] = [status, headers]

    body = app(environ, start)
    text = b"".join(body).decode()
    if hasattr(body, "close"):
        body.close()
    return said[0], said[1], text


def test_rights_are_for_each_action_and_each_queue(desk: Desk) -> None:
    """A user has the rights of the login that the page also has."""
    task_id = desk.die()
    page = asgi_app(desk.app, user=by_header, allow=["redrive", "cancel"], carry_out=False)
    letter = f"/letter?queue={LETTERS}&id={task_id}"
    assert "Redrive to" in asked(page, letter, "ada").text
    assert "Change it first" not in asked(page, letter, "ada").text
    for user in ("bob", "eve"):
        assert "Redrive to" not in asked(page, letter, user).text
        assert asked(page, f"/operations/preview?kind=redrive&queue={LETTERS}", user).status_code == 403
    assert asked(page, "/", "mallory").status_code == 401


def posted(app: Any, path: str, user: str, **form: str) -> httpx.Response:
    """Send a form of this user, as this user's page contains it."""
    cookie = "c" * 64
    headers = {"sec-fetch-site": "same-origin", "cookie": f"redelivery_form={cookie}"}
    return asked(app, path, user, method="POST", data={**form, "token": form_token_of(cookie, user)}, headers=headers)


def test_an_operation_of_every_queue_is_for_who_may_act_on_every_queue(desk: Desk) -> None:
    """A user with a right to one queue may neither pause nor end such an operation."""
    page = asgi_app(desk.app, user=by_header, allow="all", carry_out=False)
    made = operation.begin(desk.install, Kind.CANCEL, "", Filter(tasks=("desk.*",)), actor="cy")
    assert posted(page, "/operation/abort", "dan", id=made.id).status_code == 403
    assert "Control" not in asked(page, f"/operation?id={made.id}", "dan").text
    assert operation.found(desk.install, made.id).state is State.WAITING
    assert posted(page, "/operation/abort", "bob", id=made.id).status_code == 303
    assert operation.found(desk.install, made.id).state is State.ABORTED


def test_a_move_needs_the_right_to_both_queues(desk: Desk) -> None:
    """No dead letter leaves or enters a DLQ of other users, even if the move creates that DLQ."""
    desk.die()
    page = asgi_app(desk.app, user=by_header, allow="all", carry_out=False)
    fields = {"kind": "move", "queue": LETTERS, "all": "1", "create": "1"}
    for user, target, status in (("dan", "DLQ.pay", 403), ("dan", "DLQ.old.orders", 303)):
        assert posted(page, "/operations/begin", user, **fields, to=target).status_code == status, target


@pytest.mark.parametrize(
    ("kind", "options", "may", "may_not"),
    [
        (Kind.REDRIVE, Options(to="payments"), "gus", "fay"),
        (Kind.REDRIVE, Options(to="made.up", create=True), "ada", "gus"),
        (Kind.MOVE, Options(to="DLQ.old.orders", create=True), "dan", "hal"),
    ],
)
def test_who_may_begin_an_operation_may_control_it_and_nobody_else(
    desk: Desk, kind: Kind, options: Options, may: str, may_not: str
) -> None:
    """The right to the queue that the dead letters leave counts, not the right to their target."""
    desk.die()
    desk.publish(queue="payments")
    page = asgi_app(desk.app, user=by_header, allow="all", carry_out=False)
    made = operation.begin(desk.install, kind, LETTERS, Filter(), options, actor="cy")
    for name, state in (("pause", State.PAUSED), ("resume", State.WAITING), ("abort", State.ABORTED)):
        before = operation.found(desk.install, made.id).state
        assert posted(page, f"/operation/{name}", may_not, id=made.id).status_code == 403
        assert f"/operation/{name}" not in asked(page, f"/operation?id={made.id}", may_not).text
        assert operation.found(desk.install, made.id).state is before
        assert f"/operation/{name}" in asked(page, f"/operation?id={made.id}", may).text
        assert posted(page, f"/operation/{name}", may, id=made.id).status_code == 303
        assert operation.found(desk.install, made.id).state is state


@pytest.mark.parametrize(
    ("user", "target", "create", "status"),
    [
        ("fay", "payments", "", 403),
        ("fay", "payments", "1", 403),
        ("fay", "made.up", "1", 403),
        ("fay", QUEUE, "1", 403),
        ("fay", QUEUE, "", 303),
        ("gus", "payments", "", 303),
        ("gus", "made.up", "1", 403),
        ("ada", "made.up", "1", 303),
    ],
)
def test_a_redrive_to_another_queue_needs_the_right_to_its_dead_letters_too(
    desk: Desk, user: str, target: str, create: str, status: int
) -> None:
    """Otherwise they would run where other users are responsible. To create a queue, a user needs the right to every queue."""
    desk.die()
    desk.publish(queue="payments")
    page = asgi_app(desk.app, user=by_header, allow="all", carry_out=False)
    fields = {"kind": "redrive", "queue": LETTERS, "all": "1", "to": target, "create": create}
    query = "&".join(f"{name}={value}" for name, value in fields.items())
    assert asked(page, f"/operations/preview?{query}", user).status_code == (200 if status == 303 else status)
    assert posted(page, "/operations/begin", user, **fields).status_code == status
    assert len(operation.listed(desk.install)) == (status == 303)


def test_the_changes_to_a_dead_letter_name_no_other_queue(desk: Desk) -> None:
    """An edited dead letter goes back to its origin, whatever the edit contains."""
    task_id = desk.die()
    page = asgi_app(desk.app, user=by_header, allow="all", carry_out=False)
    changes = json.dumps({"args": [1], "queue": "payments", "to": "payments"})
    fields = {"queue": LETTERS, "id": task_id, "changes": changes, "to": "payments", "create": "1"}
    assert posted(page, "/letter/redrive", "ada", **fields).status_code == 303
    assert (desk.ids(), desk.ids("payments")) == ([task_id], [])


def test_a_count_of_a_part_says_so(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page reads a limited number of held messages, and says how many."""
    for _ in range(2):
        desk.publish()
        desk.hold()
    page, said = asgi_app(desk.app, user=by_header), "not all that workers hold"
    for most in (3, 2):
        monkeypatch.setattr(queues, "LOOKED_AT", most)
        assert said not in asked(page, "/queues").text, most
    monkeypatch.setattr(queues, "LOOKED_AT", 1)
    assert f"the first 1 message that the page looked at, {said}" in asked(page, "/queues").text


def test_the_beginning_of_an_id_lists_all_that_begin_so_without_reading_the_whole_queue(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One page reads a limited number of dead letters, as with any filter. It says how far it got, and the next page goes on."""
    copies(desk, 150)
    page = asgi_app(desk.app, user=by_header)
    shown = asked(page, f"/letters?queue={LETTERS}&id=task-0004").text
    assert [f"id=task-{number:05}&" in shown.replace("&amp;", "&") for number in (39, 40, 49, 50)] == [False, True, True, False]
    monkeypatch.setattr(browse, "SLOW", 0)
    monkeypatch.setattr(browse, "FIRST", 20)
    shown = asked(page, f"/letters?queue={LETTERS}&id=task-00077").text
    for looked_at in (20, 40, 60):
        assert f"None of the newest {looked_at} dead letters passes the filter: Older searches on" in shown
        [older] = [html.unescape(each) for each in linked(shown) if "before=" in each]
        shown = asked(page, older).text
    assert "id=task-00077&amp;at=77" in shown


@pytest.mark.parametrize("many", [False, True])
def test_an_operation_looks_an_id_up_by_its_beginning_unless_there_are_too_many_dead_letters(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, many: bool
) -> None:
    """If there are too many, the dry run takes the beginning for a whole id and says so. It reads the queue once."""
    task_id = desk.die(task_message("5a1f9c3e-77aa-4f0e-9a55-0d4f6f1c2b3d"))
    copies(desk, 150)
    desk.die()
    page = asgi_app(desk.app, user=by_header, allow=["redrive"], carry_out=False)
    monkeypatch.setattr(letters, "SEARCHED", 151 if many else 152)
    kept, said = f"/operations/preview?kind=redrive&queue={LETTERS}", "here the id must be whole"
    short = asked(page, f"{kept}&id={task_id[:8]}").text
    assert (said in short, "No dead letter would go: 0 of 152 are chosen." in short, "1 dead letter of 152 would go" in short) == (
        many,
        many,
        not many,
    )
    assert "1 dead letter of 152 would go" in asked(page, f"{kept}&id={task_id}").text
    begun = posted(page, "/operations/begin", "ada", kind="redrive", queue=LETTERS, id=task_id[:8])
    [made] = operation.listed(desk.install)
    assert (begun.status_code, set(made.filter.task_ids)) == (303, {task_id[:8] if many else task_id})


def runners() -> set[Entry]:
    """The duties of this process that carry out operations."""
    return {each for each in scheduler()._entries if each.name == "redelivery-operations"}


def test_a_page_that_is_mounted_carries_out_what_is_begun_on_it(desk: Desk) -> None:
    """Without a worker, this process leads from its first request on, until the page is no longer referenced."""
    desk.die()
    before, page = runners(), asgi_app(desk.app, user=by_header, allow=["redrive"])
    assert runners() == before
    begun = posted(Starlette(routes=[Mount("/ops", page)]), "/ops/operations/begin", "ada", kind="redrive", queue=LETTERS, all="1")
    assert begun.status_code == 303
    [made] = operation.listed(desk.install)
    until(lambda: operation.found(desk.install, made.id).state is State.DONE, 60, "the page to carry it out")
    assert (desk.client.llen(LETTERS), len(runners() - before)) == (0, 1)
    del page
    gc.collect()
    until(lambda: runners() <= before, 60, "its runner to end")


@pytest.mark.parametrize("options", [{"allow": ["redrive"], "carry_out": False}, {}])
def test_a_page_carries_nothing_out_where_it_is_told_so_or_reads_only(desk: Desk, options: dict[str, Any]) -> None:
    """Then only workers carry out operations."""
    before = runners()
    assert asked(asgi_app(desk.app, user=by_header, **options), "/", "ada").status_code == 200
    assert runners() <= before


#: A request for live figures, as a server passes it on.
LIVE: Any = {
    "type": "http",
    "asgi": {"version": "3.0", "spec_version": "2.3"},
    "method": "GET",
    "path": "/live",
    "root_path": "",
    "query_string": b"",
    "headers": [(b"x-user", b"ada")],
}


def test_clients_that_go_before_their_stream_begins_take_no_place(desk: Desk) -> None:
    """After any number of such clients, the next page gets live figures."""
    page = asgi_app(desk.app, user=by_header)

    async def gone() -> int:
        statuses: list[int] = []

        async def receive() -> dict[str, str]:
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            await asyncio.sleep(0)  # as a middleware of the application would
            if message["type"] == "http.response.start":
                statuses.append(message["status"])

        stream: Any = page
        for _ in range(streams.LIMIT + 1):
            await stream(LIVE, receive, send)
        return statuses.count(503)

    assert asyncio.run(gone()) == 0


def test_more_streams_than_are_served_are_refused(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page without a stream shows the figures of its opening. When a stream ends, another one may begin."""
    monkeypatch.setattr(streams, "LIMIT", 2)
    page: Any = asgi_app(desk.app, user=by_header)

    async def opened() -> tuple[int, asyncio.Task[None]]:
        status: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        heard = asyncio.Event()

        async def receive() -> dict[str, str]:
            await asyncio.Event().wait()
            return {}

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                status.set_result(message["status"])
            else:  # a stream has its place when its body begins
                heard.set()

        task = asyncio.ensure_future(page(LIVE, receive, send))
        await heard.wait()
        return await status, task

    async def all_of_them() -> list[int]:
        both = [await opened() for _ in range(2)]
        third = await opened()
        both[0][1].cancel()
        await asyncio.gather(both[0][1], return_exceptions=True)
        fourth = await opened()
        for _, task in (*both, third, fourth):
            task.cancel()
        return [status for status, _ in (*both, third, fourth)]

    assert asyncio.run(all_of_them()) == [200, 200, 503, 200]


def test_a_look_that_fails_is_said_once_and_open_pages_hear_of_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bug in the figures ends no stream. The page reports it once, and shows figures again later."""
    monkeypatch.setattr(streams, "BEAT", 0.01)
    bugs = [ValueError("a bug"), ValueError("a bug")]

    class Broken:
        """Fails twice."""

        def figures(self) -> Figures:
            """Look at the broker."""
            if bugs:
                raise bugs.pop()
            return Figures({}, 0, None)

    sampler: Any = Broken()

    async def heard() -> list[Any]:
        stream: Any = streams.Streams(sampler, Threads()).stream()
        said: list[Any] = []
        async for line in stream.body_iterator:
            if line.startswith("data: "):
                said.append(json.loads(line.removeprefix("data: ")))
                if "figures" in said[-1]:
                    break
        return said

    async def soon() -> list[Any]:
        return await asyncio.wait_for(heard(), 10)

    with capture_logs() as lines:
        said = asyncio.run(soon())
    assert {each["broker"] for each in said[:-1]} == {"This is an error in redelivery: its log says what happened."}
    assert said[-1]["broker"] == ""
    assert [(line["event"], line["path"]) for line in lines] == [("web.failed", "/live")]


def test_a_coroutine_may_be_the_login_and_its_answer_is_checked(desk: Desk) -> None:
    """It returns a user or None. Any other answer counts as no login."""

    async def later(request: Request) -> User | None:
        return by_header(request)

    assert asked(asgi_app(desk.app, user=later), "/", "ada").status_code == 200
    assert asked(asgi_app(desk.app, user=later), "/", "").status_code == 401
    wrong: Any = lambda _: "ada"  # noqa: E731 - as a user may write it
    with pytest.raises(ConfigurationError, match=r"must give redelivery\.web\.User"):
        asked(asgi_app(desk.app, user=wrong), "/")


def test_a_page_without_a_login_is_refused(desk: Desk) -> None:
    """Also with two logins, a weak token, an unknown right, or an app without redelivery."""
    from celery import Celery  # noqa: PLC0415

    with pytest.raises(ConfigurationError, match="the page needs one login"):
        asgi_app(desk.app)
    with pytest.raises(ConfigurationError, match="the page needs one login"):
        asgi_app(desk.app, user=by_header, token="x" * 20)
    with pytest.raises(ConfigurationError, match="16 characters"):
        asgi_app(desk.app, token="short")
    with pytest.raises(ConfigurationError, match="no action 'redrve'; did you mean 'redrive'"):
        asgi_app(desk.app, user=by_header, allow=["redrve"])
    with pytest.raises(ConfigurationError, match="has no redelivery"):
        asgi_app(Celery("plain"), user=by_header)
