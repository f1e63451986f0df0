"""The content of the page over plain HTTP, as a browser without scripts sees it."""

from __future__ import annotations

import re
from html import unescape
from typing import TYPE_CHECKING, Any

import pytest

from redelivery.middleware.messages.steps import sealed
from tests.support.desk import LETTERS, Desk, body_of, copies, task_message
from tests.support.running import until

if TYPE_CHECKING:
    from tests.support.page.web_page import Answer, WebPage


def test_overview_says_how_it_is(page: WebPage, desk: Desk) -> None:
    """The numbers of waiting and dead messages, and an alarm if no worker runs."""
    desk.publish()
    for _ in range(3):
        desk.die()
    answer = page.operator().get("/")
    assert answer.status == 200
    for said in (LETTERS, "dead letters 3", "waiting to run 1", "died 3"):
        assert said in answer.read, said


def test_what_workers_hold_has_one_name_on_each_screen(page: WebPage, desk: Desk) -> None:
    """On the overview, the queues and the workers."""
    desk.publish()
    desk.hold()
    operator = page.operator()
    overview, queues = operator.get("/"), operator.get("/queues")
    assert "held by workers 1" in overview.read
    assert ("1 message is held by workers" in queues.read, "in flight" in queues.read) == (True, False), queues.read
    assert '<th scope="col" class="n">held</th>' in queues.text


def test_causes_lead_to_their_letters_and_a_letter_to_all_of_it(page: WebPage, desk: Desk) -> None:
    """Only links are needed."""
    for number in range(3):
        desk.die(said=f"no {number}", fingerprint="f-one")
    task_id = desk.die(task_message(body=body_of(42, "blue")), exception="shop.Late", said="too late", fingerprint="f-two")
    operator = page.operator()
    causes = operator.get("/causes")
    assert "2 causes of 4 dead letters" in causes.read
    one, two = (next(each for each in causes.links("/letters?") if f"fingerprint={name}" in each) for name in ("f-one", "f-two"))
    assert operator.get(one).text.count("/letter?queue") == 3
    listed = operator.get(two)
    assert "1 shown" in listed.read
    [href] = listed.links("/letter?")
    letter = operator.get(href)
    for said in (task_id, "Late : too late", "exhausted", "w@desk", '"blue"', "origin orders", "Traceback"):
        assert said in letter.read, said


def test_a_cause_without_a_reason_leads_to_its_letters(page: WebPage, desk: Desk) -> None:
    """Another client put them there. All listings call the reason `unknown`, and it can be chosen."""
    desk.die(fingerprint="f-one")
    desk.client.lpush(LETTERS, b"nothing", b"{}")
    operator = page.operator()
    [unknown] = (each for each in operator.get("/causes").links("/letters?") if "reason=unknown" in each)
    listed = operator.get(unknown)
    assert (listed.status, "2 shown" in listed.read) == (200, True), listed.read
    assert "<option selected>unknown" in listed.text


def test_a_cause_leads_to_its_letters_though_many_others_died_later(page: WebPage, desk: Desk) -> None:
    """The link has the position of the newest dead letter of the cause. Later deaths do not change it."""
    desk.die(task_message("task-of-old"), fingerprint="f-old")
    raw: Any = desk.client.lpop(LETTERS)
    copies(desk, 3000)
    desk.client.rpush(LETTERS, raw)  # the oldest of all
    operator = page.operator()
    causes = until(lambda: _if_in("2 causes of 3,001", operator.get("/causes")), 60, "all to be counted")
    [href, *_] = [each for each in causes.links("/letters?") if "fingerprint=f-old" in each]
    assert "before=1" in href
    desk.die()
    shown = operator.get(href)
    assert ("task-of-old" in shown.text, "1 shown, 1 looked at" in shown.read) == (True, True), shown.read


def test_the_example_of_a_cause_is_opened_in_its_own_queue(page: WebPage, desk: Desk) -> None:
    """The newest dead letter may be in another queue than most others. Each queue has its own link and count."""
    for _ in range(3):
        desk.die(fingerprint="f-one", ago_ms=60_000)
    task_id = desk.die(fingerprint="f-one", into="DLQ.mail")
    operator = page.operator()
    causes = operator.get("/causes")
    [example] = causes.links("/letter?")
    assert ("queue=DLQ.mail" in example, task_id in operator.get(example).read) == (True, True), example
    counts = {"3 in DLQ.orders": 3, "1 in DLQ.mail": 1}
    links = re.findall(r'<a href="([^"]*)">([0-9]+ in [^<]*)</a>', causes.text)
    assert {text: operator.get(unescape(href)).text.count("/letter?queue") for href, text in links} == counts
    [everything] = re.findall(r'<a href="([^"]*)">4</a>', causes.text)
    shown = operator.get(unescape(everything))
    assert shown.text.count("/letter?queue") == 4, "the count of a cause opens all of it, whatever the queue"
    assert {
        operator.get(each).text.count("/letter?queue") for each in shown.links("/letters?queue=DLQ.") if "fingerprint" in each
    } == {3, 1}


def test_one_click_leads_to_everything_of_a_cause_though_many_others_died_later(page: WebPage, desk: Desk) -> None:
    """Ten of each queue are shown, from the newest on, with a link to all. After eight queues there are only links."""
    queues = [LETTERS, *(f"DLQ.mail{number}" for number in range(9))]
    for name in queues:
        for _ in range(12 if name == LETTERS else 1):
            desk.die(fingerprint="f-one", into=name)
    kept = desk.client.lrange(LETTERS, 0, -1)
    desk.client.delete(LETTERS)
    copies(desk, 3000)
    desk.client.rpush(LETTERS, *kept)
    operator = page.operator()
    causes = until(lambda: _if_in("2 causes of 3,021", operator.get("/causes")), 60, "all to be counted")
    [everything] = re.findall(r'<a href="([^"]*)">21</a>', causes.text)
    shown = operator.get(unescape(everything))
    assert ("f-one" in shown.read, "Dead letters of 10 queues" in shown.read) == (True, True), shown.read
    assert (shown.text.count("/letter?queue"), "The newest 10 are shown." in shown.read) == (10 + 7, True), shown.read
    links = [each for each in shown.links("/letters?queue=DLQ.") if "fingerprint=f-one" in each]
    assert [operator.get(each).text.count("/letter?queue") for each in links] == [12, *([1] * 9)]
    many = "&".join(f"queue={LETTERS}" for _ in range(51))
    refused = operator.get(f"/letters?{many}")
    assert (refused.status, "51 queues are too many for one screen" in refused.read) == (400, True), refused.read
    unknown = operator.get(f"/letters?queue={LETTERS}&queue=DLQ.nowhere")
    assert (unknown.status, "DLQ.nowhere" in unknown.read) == (400, True), unknown.read


def test_links_to_a_dead_letter_name_its_place(page: WebPage, desk: Desk) -> None:
    """From its cause, and from the life of its task. It opens at once, however long the queue is."""
    desk.die(fingerprint="f-older")
    task_id = desk.die(fingerprint="f-one")
    for _ in range(3):
        desk.die()
    operator = page.operator()
    [example] = [each for each in operator.get("/causes").links("/letter?") if task_id in each]
    [lies] = operator.get(f"/task?id={task_id}").links("/letter?")
    assert (example, lies) == (f"/letter?queue={LETTERS}&id={task_id}&at=1",) * 2
    copies(desk, 600)
    [lies] = operator.get("/task?id=task-00007").links("/letter?")
    assert lies.endswith("&at=12"), lies


def _if_in(text: str, answer: Answer) -> Answer | None:
    return answer if text in answer.read else None


def test_letters_page_on_from_where_they_ended_though_others_die_meanwhile(page: WebPage, desk: Desk) -> None:
    """Each dead letter is on one page. Later ones are only on the first page."""
    ids = copies(desk, 120)
    operator, seen = page.operator(), []
    answer = operator.get(f"/letters?queue={LETTERS}")
    while True:
        seen += [each for each in ids if f"id={each}&amp;" in answer.text]
        older = [each for each in answer.links("/letters?") if "before=" in each]
        if not older:
            break
        desk.die()
        answer = operator.get(older[0])
    assert sorted(seen) == sorted(ids)


@pytest.mark.parametrize(
    ("query", "count"),
    [
        ("task=desk.*", 2),
        ("task=desk.p*&reason=worker_lost", 1),
        ("exception=Late", 1),
        ("fingerprint=f-val", 0),
        ("fingerprint=f-Val", 2),
        ("older-than=1h", 1),
        ("newer-than=1h", 2),
    ],
)
def test_letters_are_chosen_as_on_the_command_line(page: WebPage, desk: Desk, query: str, count: int) -> None:
    """The address has the names of the options."""
    desk.die(task_message(task="desk.pack"), ago_ms=7_200_000)
    desk.die(task_message(task="desk.pack"), reason="worker_lost")
    desk.die(task_message(task="mail.send"), exception="shop.Late")
    answer = page.operator().get(f"/letters?queue={LETTERS}&{query}")
    assert (answer.status, answer.text.count("/letter?queue")) == (200, count), answer.read


def test_what_is_not_there_is_said(page: WebPage) -> None:
    """For a queue, a dead letter, a reason and a screen."""
    operator = page.operator()
    wrong = {
        "/letters?queue=nope": 400,
        "/letter?queue=DLQ.orders&id=nope": 400,
        "/letters?queue=DLQ.orders&reason=tired": 400,
        "/nope": 404,
    }
    for path, status in wrong.items():
        answer = operator.get(path)
        assert (answer.status, "Overview" in answer.read) == (status, True), path


def test_the_timeline_has_all_that_is_due_and_the_table_the_first_of_it(desk: Desk, page: WebPage) -> None:
    """For each queue and priority, with overdue messages, also for a part of the time."""
    keys, now_ms = desk.keys, desk.transport.now_ms()
    waits = {"orders": (220, 60_000), "mail": (30, 7_200_000), keys.list_name("orders", 9): (1, -5_000)}
    for name, (count, after_ms) in waits.items():
        desk.client.zadd(keys.destinations, {name: now_ms + after_ms})
        idents = [f"task-{name}-{number}\x06\x16x" for number in range(count)]
        desk.client.zadd(keys.due(name), {ident: now_ms + after_ms + at for at, ident in enumerate(idents)})
        desk.client.hset(keys.waiting(name), mapping={ident: sealed(task_message(ident)) for ident in idents})
    operator = page.operator()
    shown = operator.get("/delayed")
    assert "251 messages by when they are due, from now until the last of them: at most 221 in one of 60 parts" in shown.text
    assert "The first 200 to become due of 251." in shown.read
    assert "due at any time in the next hour" in shown.read
    hour = operator.get(next(each for each in shown.links("/delayed?") if "within=hour" in each))
    assert "in the next hour in the next day in the next week 221; 30 later" in hour.read
    assert "in the next day" not in operator.get("/delayed?within=hour&queue=orders").read
    assert "30 messages by when they are due" in operator.get("/delayed?queue=mail").text
    assert "The first 200 to become due of 221." in operator.get("/delayed?queue=orders&within=day").read
    assert "251 messages by when they are due" in operator.get("/delayed?within=year").text
