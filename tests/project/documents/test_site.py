"""The site that `./dev docs` builds: it has all pages and loads nothing from other hosts."""

from __future__ import annotations

import functools
import json
import re
import subprocess
import threading
import tomllib
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest

from tests.project.commands_reference import reference
from tests.support.documents.screens import SCREENS
from tests.support.documents.site import SOUGHT, foreign, not_found, pages
from tests.support.page.browser import Browser, browser
from tests.support.running import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["browser"]

#: JavaScript that opens the search, finds its field, and reads the addresses of the results.
OPENED = "[...document.querySelectorAll('*')].map(each => each.shadowRoot).find(each => each?.querySelector('[role=combobox]'))"
INPUT = f"{OPENED}?.querySelector('[role=combobox]')"
FOUND = f"[...({OPENED}?.querySelectorAll('[role=listbox] a[role=option]') ?? [])].map(each => each.href)"
CONFIGURATION = tomllib.loads((ROOT / "docs" / "zensical.toml").read_text())["project"]


def navigation(entries: list[Any]) -> Iterator[str]:
    """The pages in the navigation."""
    for entry in entries:
        for target in entry.values():
            if isinstance(target, str):
                yield target
            else:
                yield from navigation(target)


def test_the_navigation_has_every_page_once() -> None:
    """Readers do not find a page that is not in it. The build finds an entry without a page."""
    assert sorted(navigation(CONFIGURATION["nav"])) == sorted(str(page) for page in pages() if page.suffix == ".md")


def test_the_theme_fetches_no_font() -> None:
    """By default the theme loads fonts from another host."""
    assert CONFIGURATION["theme"]["font"] is False


@pytest.mark.parametrize(
    "head",
    [
        '<script src="https://elsewhere.example/x.js"></script>',
        '<link rel="stylesheet" href="//elsewhere.example/x.css">',
        '<img src="https://elsewhere.example/badge.svg">',
        '<pre class="mermaid"></pre>',
    ],
)
def test_a_page_that_asks_another_host_is_found(tmp_path: Path, head: str) -> None:
    """Scripts, styles, pictures, and requests of the theme's own script."""
    (tmp_path / "index.html").write_text(head)
    assert len(list(foreign(tmp_path))) == 1


def test_a_page_that_only_links_to_another_host_is_not(tmp_path: Path) -> None:
    """A browser loads the target of a link only when a reader follows it."""
    (tmp_path / "index.html").write_text(
        '<link rel="canonical" href="https://here.example/"><script src="x.js"></script><a href="https://elsewhere.example/">there</a>'
    )
    assert list(foreign(tmp_path)) == []


def built(folder: Path, *items: dict[str, str]) -> Path:
    """Write a site with these search items, a script, and each wanted page."""
    script = folder / "assets" / "search.js"
    script.parent.mkdir()
    script.touch()
    (folder / "index.html").write_text('<script id="__config">{"search":"./assets/search.js"}</script>')
    for page in set(SOUGHT.values()):
        (folder / page).mkdir(parents=True)
        (folder / page / "index.html").touch()
    (folder / "search.json").write_text(json.dumps({"config": {"separator": r"[\s_]+"}, "items": items}))
    return folder


def items() -> list[dict[str, str]]:
    """A search item for each wanted word: in a title or a text, of a page or a part of it."""
    first = {"location": "", "title": "redelivery", "text": ""}
    return [first, *({"location": f"{page}#there", "title": words, "text": f"<p>{words}</p>"} for words, page in SOUGHT.items())]


def test_a_search_that_finds_each_page_is_sound(tmp_path: Path) -> None:
    """The index splits the name of a setting into several words."""
    index = [each | {"title": each["title"].replace(" ", "_"), "text": ""} for each in items()]
    assert list(not_found(built(tmp_path, *index))) == []


def test_what_the_search_does_not_find_is_named(tmp_path: Path) -> None:
    """A page that is not in the index, a word that is not on its page, no script, no index."""
    site = built(tmp_path, *(each for each in items() if each["title"] != "visibility timeout"))
    assert list(not_found(site)) == [
        "search: docs/operations/ is not in the index",
        "search: 'visibility timeout' does not lead to docs/operations/",
    ]
    (site / "search.json").unlink()
    (site / "assets" / "search.js").unlink()
    assert list(not_found(site)) == ["search: no script", "search: no index"]


@pytest.fixture
def site() -> Iterator[str]:
    """The address of the built site on the loopback. It is built if it is missing."""
    if not (ROOT / ".site" / "html" / "index.html").exists():
        subprocess.run([str(ROOT / "dev"), "docs"], check=True, timeout=600)
    handler = functools.partial(_Quiet, directory=str(ROOT / ".site" / "html"))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


class _Quiet(SimpleHTTPRequestHandler):
    """Serves files without a log."""

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - its parent's name
        """Log nothing."""


@pytest.mark.full
@pytest.mark.timeout(900)
def test_the_search_leads_to_each_page_in_a_browser(browser: Browser, site: str) -> None:
    """Open the search, type, and find the page among the results. No other host is asked."""
    shown = browser.open(site)
    for words, page in SOUGHT.items():
        browser.open(site)
        browser.await_("document.querySelector('.md-search__button') !== null")
        browser.ask("document.querySelector('.md-search__button').click()")
        browser.await_(f"!!{INPUT}")
        browser.ask(f"""(() => {{
            const input = {INPUT};
            Object.getOwnPropertyDescriptor(HTMLInputElement.prototype, "value").set.call(input, {json.dumps(words)});
            input.dispatchEvent(new Event("input", {{bubbles: true, composed: true}}));
        }})()""")
        browser.await_(f"{FOUND}.some(each => each.includes({json.dumps(page)}))")
    assert all(each.startswith((site, "data:", "blob:")) for each in shown.requested), shown.requested


def test_the_reference_of_the_commands_is_what_the_code_says() -> None:
    """Written by `./dev python -m tests.project.commands_reference > docs/commands.md`."""
    assert (ROOT / "docs" / "commands.md").read_text() == reference()


def test_the_reference_of_the_commands_leads_to_every_screen() -> None:
    """Of the screens of errors it names only a few."""
    text = (ROOT / "docs" / "commands.md").read_text()
    led_to = set(re.findall(r"\(screens/([\w-]+)\.txt\)", text))
    assert {name for name in SCREENS if name != "help" and not name.startswith("error-")} <= led_to <= set(SCREENS)


def test_the_page_of_the_python_names_has_all_of_them() -> None:
    """The page has all exports of `redelivery`, with their documentation."""
    import redelivery  # noqa: PLC0415 - its names are the test's subject

    text = (ROOT / "docs" / "api.md").read_text()
    documented = {name.rpartition(".")[2] for name in re.findall(r"^::: (\S+)$", text, re.MULTILINE)}
    assert set(redelivery.__all__) - documented == set()


def test_each_name_of_the_python_page_is_introduced() -> None:
    """In the repository the page has no docstrings, so a sentence stands above each place where the site inserts one."""
    text = (ROOT / "docs" / "api.md").read_text()
    above = re.findall(r"^(.*)\n\n::: \S+$", text, re.MULTILINE)
    assert len(above) == len(re.findall(r"^::: ", text, re.MULTILINE))
    assert [line for line in above if not line.endswith((".", ":")) or line.startswith(("#", ":::", "    "))] == []
