"""The page in a real Chromium: from a cause to its redrive, live figures, and axe-core on each screen."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from redelivery.workers.operations.letters.filter import Filter
from redelivery.workers.operations.runs import operation
from redelivery.workers.operations.runs.operation import Kind, Options
from tests.support.desk import LETTERS, copies, task_message
from tests.support.page.axe import findings
from tests.support.page.browser import Browser, browser
from tests.support.page.web_page import TOKEN

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.desk import Desk
    from tests.support.page.web_page import WebPage

__all__ = ["browser"]

SCREENS = ("/", "/causes", "/letters", "/delayed", "/task", "/queues", "/queue?name=orders", "/workers", "/operations", "/books")


#: Elements that are wider than their place and cover their neighbours.
BURST = """[...document.querySelectorAll("td, th, label, p, form, summary")]
    .filter(each => each.clientWidth > 1 && each.scrollWidth > each.clientWidth + 1).map(each => each.outerHTML)"""
#: Tables with columns that are outside of the window until somebody scrolls.
CUT = """[...document.querySelectorAll(".scroll")]
    .filter(each => each.scrollWidth > each.clientWidth + 1).map(each => each.getAttribute("aria-label"))"""


def click(browser: Browser, selector: str, text: str = "") -> None:
    """Click the first element of this kind with this text, and wait for another document."""
    browser.ask("window.before = true")
    browser.ask(f"[...document.querySelectorAll({selector!r})].find(each => each.textContent.includes({text!r})).click()")
    browser.await_("!window.before && document.readyState === 'complete'")


def test_from_a_cause_to_its_redrive(browser: Browser, open_page: Callable[..., WebPage], desk: Desk) -> None:
    """Open the cause and a dead letter, make a dry run, begin the redrive. No other host is asked, and the console is empty."""
    for number in range(3):
        desk.die(task_message(task="shop.charge"), exception="shop.CardRefused", said=f"card {number} was refused")
    desk.die(fingerprint="f-other")
    page = open_page("--allow", "redrive", "--as", "ada")
    shown = browser.open(f"{page.address}/login?token={TOKEN}")
    assert browser.ask("location.pathname + location.search") == "/"
    click(browser, "nav a", "Causes")
    click(browser, "td.n a", "3")
    assert browser.ask("document.querySelectorAll('table.letters tbody tr').length") == 3
    click(browser, "table.letters a")
    assert "card 2 was refused" in browser.ask("document.body.innerText")
    click(browser, "a", "all dead letters of this cause")
    browser.ask("document.querySelector('input[name=canary]').value = '1'")
    click(browser, "form.act button", "Dry run")
    assert "3 dead letters of 4 would go. Nothing was changed." in browser.ask("document.body.innerText")
    click(browser, "form.act button", "Redrive 3 dead letters")
    assert browser.ask("document.querySelector('h1').innerText").startswith(f"Redrive of {LETTERS}")
    assert "ada" in browser.ask("document.body.innerText")
    assert shown.logged == []
    assert all(each.startswith(page.address) for each in shown.requested)


def test_a_filter_of_several_values_is_chosen_again_as_it_is(browser: Browser, page: WebPage, desk: Desk) -> None:
    """Each value has its own field, so the form leads to its own address again."""
    for task in ("shop.charge", "shop.mail", "shop.pack"):
        desk.die(task_message(task=task))
    query = f"?queue={LETTERS}&task=shop.charge&task=shop.mail&reason=exhausted&reason=expired"
    browser.open(f"{page.address}/login?token={TOKEN}")
    browser.open(f"{page.address}/letters{query}")
    assert findings(browser) == []
    click(browser, "form.filter button", "Choose")
    assert browser.ask("location.search.replace(/&[a-z-]+=(?=&|$)/g, '')") == query
    assert browser.ask("document.querySelectorAll('table.letters tbody tr').length") == 2


def test_figures_are_live(browser: Browser, page: WebPage, desk: Desk) -> None:
    """A death appears on the open page, with the heading and the alarms. A broker that goes away is reported."""
    browser.open(f"{page.address}/login?token={TOKEN}")
    heading, alarms = "document.querySelector('h1').innerText", "document.querySelector('ul.alarms').innerText"
    alarm = f"{heading} === '1 thing needs an operator' && {alarms}.includes('No worker renews its lease.')"
    assert browser.ask(alarm)
    assert browser.ask("document.querySelector('[data-figure=letters]').textContent") == "0"
    desk.die()
    browser.await_("document.querySelector('[data-figure=letters]').textContent === '1'")
    browser.await_(f"{heading} === 'All is well' && document.querySelector('ul.alarms').hidden")  # a worker held it
    desk.client.delete(desk.keys.leases)
    browser.await_(alarm)
    assert findings(browser) == []
    desk.client.config_set("maxmemory", 1)
    browser.await_(f"{heading} === '2 things need an operator' && {alarms}.includes('The broker is full')")
    assert browser.ask("document.querySelector('ul.alarms code').textContent") == "maxmemory"
    desk.client.config_set("maxmemory", 0)
    desk.server.kill()
    browser.await_("!document.getElementById('broker').hidden && document.getElementById('broker').textContent.includes('broker')")
    assert browser.ask("document.getElementById('live').classList.contains('bad')"), "what is not live has no green dot"
    desk.server.start()
    browser.await_("document.getElementById('broker').hidden && !document.getElementById('live').classList.contains('bad')")


def test_a_screen_of_a_broker_that_is_gone_says_it_once(browser: Browser, page: WebPage, desk: Desk) -> None:
    """There is no second banner: such a screen opens no stream."""
    browser.open(f"{page.address}/login?token={TOKEN}")
    desk.server.kill()
    browser.await_("!document.getElementById('broker').hidden")
    shown = browser.open(f"{page.address}/causes")
    assert not any(each.endswith("/live") for each in shown.requested)
    assert browser.ask("document.getElementById('live').hidden && document.getElementById('broker').hidden")
    said = browser.ask("document.body.innerText")
    assert (said.count("does not answer"), "Ask again" in said) == (1, True), said
    desk.server.start()


@pytest.mark.full
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_and_nothing_is_wider_than_the_window(
    browser: Browser, open_page: Callable[..., WebPage], desk: Desk, scheme: str
) -> None:
    """For each screen with data, at 390, 1280 and 2560 pixels. No element is wider than its place."""
    desk.publish()
    desk.hold()
    desk.delay(task_message())
    task_id = desk.die(task_message(task="shop.charge"), exception="shop.CardRefused", said="refused " * 40)
    desk.die()
    desk.die(into="DLQ.mail")
    desk.client.set(desk.keys.operator, "another")
    made = operation.begin(
        desk.install, Kind.REDRIVE, LETTERS, Filter(tasks=("shop.*",)), Options(canary=1), actor="ada", why="mended"
    )
    operation.turn(desk.install, made.id, "pause", "ada", "lunch")
    page = open_page("--allow", "all")
    browser.open(page.address, scheme=scheme)
    assert findings(browser) == [], "the login"
    browser.open(f"{page.address}/login?token={TOKEN}")
    previews = (f"/operations/preview?kind=redrive&queue={LETTERS}", "/operations/preview?kind=cancel")
    several = f"/letters?queue={LETTERS}&queue=DLQ.mail&reason=exhausted"
    more = (
        f"/letter?queue={LETTERS}&id={task_id}",
        f"/task?id={task_id}",
        f"/operation?id={made.id}",
        several,
        *previews,
        "/nowhere",
    )
    for path in (*SCREENS, *more):
        for width in (390, 2560, 1280):
            browser.open(page.address + path, width=width, scheme=scheme)
            assert browser.ask("document.documentElement.scrollWidth <= innerWidth"), (path, width)
            assert browser.ask(BURST) == [], (path, width)
            if width != 2560:  # 2560 looks like 1280
                assert findings(browser) == [], (path, width)


@pytest.mark.full
def test_words_without_a_space_make_no_screen_wider(browser: Browser, open_page: Callable[..., WebPage], desk: Desk) -> None:
    """Names of users, tasks, queues, reasons and exceptions, and what an exception says, of any length. They hide no column."""
    word, queue = "W" * 10_000, f"DLQ.{'q' * 200}"
    ids = [desk.die(task_message(task=word), exception=f"shop.{word}", said=word), desk.die(said=f"one {word}", into=queue)]
    ids.append(desk.die(task_message("e" * 250), reason="r" * 250, said=word))
    ids.append(desk.delay(task_message("d" * 250, task=word)))
    page = open_page("--allow", "all", "--as", "u" * 120)
    browser.open(f"{page.address}/login?token={TOKEN}")
    paths = ["/", "/causes", f"/letters?queue={LETTERS}", "/delayed", "/queues", *(f"/task?id={each}" for each in ids)]
    paths += [f"/letter?queue={LETTERS}&id={ids[0]}", f"/letter?queue={queue}&id={ids[1]}", f"/queue?name=orders&task={'t' * 500}"]
    for kind in (f"redrive&queue={LETTERS}", "cancel"):
        paths.append(f"/operations/preview?kind={kind}")
        browser.open(page.address + paths[-1])
        browser.await_("document.querySelectorAll('dl.facts').length > 0")
    for path in paths:
        for width in (390, 1280, 2560):
            browser.open(page.address + path, width=width)
            assert browser.ask("document.documentElement.scrollWidth <= innerWidth"), (path, width)
            assert browser.ask(BURST) == [], (path, width)
            assert width < 1280 or browser.ask(CUT) == [], (path, width)


#: Counts how often the page has checked whether it should reload.
COUNTED = """
    window.turns = 0;
    const every = window.setInterval;
    window.setInterval = (act, ms) => every(() => { act(); window.turns += 1; }, ms);
"""


@pytest.mark.full
def test_a_screen_of_what_is_under_way_opens_again_but_not_while_somebody_writes(
    browser: Browser, open_page: Callable[..., WebPage], desk: Desk
) -> None:
    """A user who types a reason loses no text. axe-core finds nothing, although the screen also reloads without scripts."""
    desk.die()
    desk.client.set(desk.keys.operator, "another")
    made = operation.begin(desk.install, Kind.REDRIVE, LETTERS, Filter(), Options(), actor="ada", why="mended")
    page = open_page("--allow", "all", "--as", "ada")
    browser.open(f"{page.address}/login?token={TOKEN}")
    browser.open(f"{page.address}/operation?id={made.id}", first=COUNTED)
    browser.ask("window.before = true; document.querySelector('input[name=why]').value = 'the shop is mended'")
    assert findings(browser) == []
    browser.await_("window.turns > 0")
    assert browser.ask("window.before && document.querySelector('input[name=why]').value") == "the shop is mended"
    browser.ask("document.querySelector('input[name=why]').value = ''; document.querySelector('input[name=why]').focus()")
    browser.ask("window.turns = 0")
    browser.await_("window.turns > 0")
    assert browser.ask("window.before"), "a field has the focus"
    browser.ask("document.activeElement.blur()")
    browser.await_("!window.before && document.readyState === 'complete'")
    browser.open(f"{page.address}/operation?id={made.id}", has_scripts=False)
    browser.ask("window.before = true")
    browser.await_("!window.before && document.readyState === 'complete'")


@pytest.mark.full
def test_a_dry_run_that_is_not_done_yet_opens_again(
    browser: Browser, open_page: Callable[..., WebPage], desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The screen reloads until the counts are there. axe-core finds nothing meanwhile."""
    copies(desk, 2_000)
    monkeypatch.setenv("WEB_SHOP_TIMEOUT", "0")
    page = open_page("--allow", "all")
    browser.open(f"{page.address}/login?token={TOKEN}")
    browser.open(f"{page.address}/operations/preview?kind=redrive&queue={LETTERS}")
    browser.ask("Object.defineProperty(document, 'hidden', {value: true, configurable: true})")  # a hidden screen does not reload
    assert "The dead letters are being counted." in browser.ask("document.body.innerText")
    assert findings(browser) == []
    browser.ask("delete document.hidden")
    browser.await_("document.body.innerText.includes('2,000 dead letters of 2,000 would go')")


def test_all_can_be_reached_by_the_keyboard(browser: Browser, open_page: Callable[..., WebPage], desk: Desk) -> None:
    """The first stop skips the navigation. The focus is visible. Enter follows a link and sends a form."""
    task_id = desk.die()
    page = open_page("--allow", "redrive", "--as", "ada")
    browser.open(f"{page.address}/login?token={TOKEN}")
    browser.press("Tab")
    assert browser.ask("document.activeElement.textContent") == "Skip to the content"
    assert browser.ask("document.activeElement.getBoundingClientRect().left >= 0")
    reach(browser, "a", "Causes")
    assert browser.ask("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    browser.press("Enter")
    browser.await_("location.pathname === '/causes' && document.readyState === 'complete'")
    reach(browser, "td a", "1")
    browser.press("Enter")
    browser.await_("location.pathname === '/letters' && document.readyState === 'complete'")
    reach(browser, "th a", task_id[:8])
    browser.press("Enter")
    browser.await_("location.pathname === '/letter' && document.readyState === 'complete'")
    reach(browser, "button", "Redrive to")
    browser.press("Enter")
    browser.await_("location.pathname === '/task' && document.readyState === 'complete'")
    assert desk.ids() == [task_id]


def reach(browser: Browser, selector: str, text: str) -> None:
    """Press Tab until an element of this kind with this text has the focus."""
    for _ in range(80):
        browser.press("Tab")
        if browser.ask(f"document.activeElement.matches({selector!r}) && document.activeElement.textContent.includes({text!r})"):
            return
    pytest.fail(f"no Tab leads to {selector} {text}")
