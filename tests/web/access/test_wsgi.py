"""The page in a WSGI application (Django or Flask), with its login: what each user's forms can change."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from redelivery.workers.operations.runs.audit import entries
from redelivery.workers.web.guard import FormCookie, form_token_of
from tests.support.desk import LETTERS, QUEUE
from tests.support.page.web_page import Visitor
from tests.support.page.wsgi_hosts import PATH

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.support.desk import Desk
    from tests.support.servers import Server


@pytest.fixture(params=["django", "flask"])
def entered(request: pytest.FixtureRequest, server: Server, tmp_path: Path) -> Iterator[Callable[[str], Visitor]]:
    """A visitor who is logged in at this application under this name."""
    env = {**os.environ, "WEB_SHOP_BROKER": server.url, "WEB_SHOP_FOLDER": str(tmp_path)}
    command = [sys.executable, "-m", "tests.support.page.wsgi_hosts", request.param]
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as host:
        assert host.stdout is not None
        port = int(host.stdout.readline())

        def enter(name: str) -> Visitor:
            visitor = Visitor(port)
            assert visitor.get(f"/enter?user={name}").status == 200
            return visitor

        yield enter
        host.terminate()


def test_the_users_of_the_application_are_the_users_of_the_page(entered: Callable[[str], Visitor], desk: Desk) -> None:
    """A user with the right redrives under the own name. A reader, an unknown visitor and a form of another site cannot."""
    task_id = desk.die()
    screen, act = f"{PATH}/letter?queue={LETTERS}&id={task_id}", f"{PATH}/letter/redrive"
    nobody = entered("bea")
    assert (nobody.get(screen).status, nobody.post(act, {"queue": LETTERS, "id": task_id}).status) == (401, 401)
    reader = entered("carl")
    assert (reader.get(screen).status, reader.get(screen).forms(act)) == (200, [])
    forged = {"queue": LETTERS, "id": task_id, "token": form_token_of(reader.cookies[FormCookie.name], "carl")}
    refused = reader.post(act, forged)
    assert (refused.status, "carl may not redrive" in refused.read) == (403, True), refused.read
    operator = entered("olga")
    [form, *_] = operator.get(screen).forms(act)
    for wrong, headers in (({**form, "token": forged["token"]}, {}), (form, {"Sec-Fetch-Site": "cross-site"})):
        assert operator.post(act, wrong, **headers).status == 403
    assert (desk.ids(), entries(desk.transport, 10)) == ([], [])
    done = operator.post(act, {**form, "why": "the bank is open"})
    assert done.header("location").startswith(f"{PATH}/task?"), done.read
    assert "redriven" in operator.follow(done).read
    [entry] = entries(desk.transport, 10)
    assert (desk.ids(QUEUE), entry.actor, entry.why) == ([task_id], "olga", "the bank is open")


def test_a_right_of_the_application_is_for_its_queues(entered: Callable[[str], Visitor], desk: Desk) -> None:
    """An operation on another queue's dead letters is refused, and does not begin."""
    desk.die()
    desk.die(into="DLQ.mail")
    operator = entered("olga")
    begun = {}
    for queue in (LETTERS, "DLQ.mail"):
        form = {"kind": "redrive", "queue": queue, "all": "1"}
        operator.get(f"{PATH}/letters?queue={queue}")
        token = form_token_of(operator.cookies[FormCookie.name], "olga")
        begun[queue] = operator.post(f"{PATH}/operations/begin", {**form, "token": token}).status
    assert begun == {LETTERS: 303, "DLQ.mail": 403}
    assert [(each.actor, each.queue) for each in entries(desk.transport, 10)] == [("olga", LETTERS)]
