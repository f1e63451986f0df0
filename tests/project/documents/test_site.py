"""The site of the documents, as `./dev docs` builds it: which pages it has, and that it asks no other host."""

from __future__ import annotations

import re
import tomllib
from typing import TYPE_CHECKING, Any

import pytest

from tests.project.commands_reference import reference
from tests.support.documents.site import foreign, pages
from tests.support.running import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

CONFIGURATION = tomllib.loads((ROOT / "docs" / "zensical.toml").read_text())["project"]


def navigation(entries: list[Any]) -> Iterator[str]:
    """The pages that the navigation leads to."""
    for entry in entries:
        for target in entry.values():
            if isinstance(target, str):
                yield target
            else:
                yield from navigation(target)


def test_the_navigation_has_every_page_once() -> None:
    """A page that is not in it is found by nobody; a page that is gone is found by the build."""
    assert sorted(navigation(CONFIGURATION["nav"])) == sorted(str(page) for page in pages() if page.suffix == ".md")


def test_the_theme_fetches_no_font() -> None:
    """By default it asks another host for fonts."""
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
    """Scripts, styles, pictures, and what the theme's own script would fetch."""
    (tmp_path / "index.html").write_text(head)
    assert len(list(foreign(tmp_path))) == 1


def test_a_page_that_only_links_to_another_host_is_not(tmp_path: Path) -> None:
    """A reader follows a link, or does not."""
    (tmp_path / "index.html").write_text(
        '<link rel="canonical" href="https://here.example/"><script src="x.js"></script><a href="https://elsewhere.example/">there</a>'
    )
    assert list(foreign(tmp_path)) == []


def test_the_reference_of_the_commands_is_what_the_code_says() -> None:
    """Written by `./dev python -m tests.project.commands_reference > docs/commands.md`."""
    assert (ROOT / "docs" / "commands.md").read_text() == reference()


def test_the_page_of_the_python_names_has_all_of_them() -> None:
    """What `redelivery` exports is on it, and is documented there."""
    import redelivery  # noqa: PLC0415 - its names are the test's subject

    text = (ROOT / "docs" / "api.md").read_text()
    documented = {name.rpartition(".")[2] for name in re.findall(r"^::: (\S+)$", text, re.MULTILINE)}
    assert set(redelivery.__all__) - documented == set()
