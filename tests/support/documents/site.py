"""The site of the documents: lay out its pages, and check the built site.

`python -m tests.support.documents.site lay_out` links every page below `.site/pages`, by its path in the repository, so that links
stay valid. `python -m tests.support.documents.site check` lists everything that a browser would load from another host, and pages
that the search does not find.

`./dev docs` runs both without the project installed, so this module imports only the standard library.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["foreign", "not_found", "pages"]

ROOT = Path(__file__).resolve().parents[3]
SITE = ROOT / ".site"
#: The endings of pages, pictures and screens.
SHOWN = {".md", ".svg", ".png", ".txt"}
PLACES = ("docs", "examples", "benchmarks")
#: Attributes that a browser loads by itself, unlike links.
FETCHED = {("link", "href"), ("script", "src"), ("img", "src"), ("iframe", "src"), ("source", "srcset"), ("source", "src")}
#: Search terms, each with a page that the search must find.
SOUGHT = {
    "visibility timeout": "docs/operations/",
    "canary": "docs/dead-letters/",
    "maxmemory": "docs/doctor/",
    "RedeliverAfter": "docs/api/",
}
#: Links in the head that a browser does not load.
NAMED_ONLY = {"canonical", "next", "prev"}


def pages() -> list[Path]:
    """Every page and picture of the site, by its path in the repository."""
    found = [*ROOT.glob("*.md"), *(each for place in PLACES for each in (ROOT / place).rglob("*"))]
    paths = [each.relative_to(ROOT) for each in found if each.suffix in SHOWN and each.is_file()]
    return sorted(each for each in paths if not any(part.startswith(".") for part in each.parts))  # `.pytest_cache` has a page, too


def lay_out() -> None:
    """Lay out the pages as links, so that a served site shows each change of a page."""
    shutil.rmtree(SITE, ignore_errors=True)
    for page in pages():
        target = SITE / "pages" / page
        target.parent.mkdir(parents=True, exist_ok=True)
        target.symlink_to(ROOT / page)
    shutil.copyfile(ROOT / "docs" / "zensical.toml", SITE / "zensical.toml")


class _Fetches(HTMLParser):
    """What a browser fetches for a page."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        known = dict(attrs)
        if tag == "link" and NAMED_ONLY & set((known.get("rel") or "").split()):
            return
        if tag in {"pre", "div"} and "mermaid" in (known.get("class") or "").split():
            self.found.append("mermaid, which the theme fetches from elsewhere")
        self.found += [value for name, value in attrs if (tag, name) in FETCHED and value]


def foreign(site: Path) -> Iterator[str]:
    """Everything that a browser would load from another host, with its page."""
    for page in sorted(site.rglob("*.html")):
        reader = _Fetches()
        reader.feed(page.read_text("utf-8"))
        for place in reader.found:
            if "//" in place or place.startswith("mermaid"):
                yield f"{page.relative_to(site)}: {place}"
    for sheet in sorted(site.rglob("*.css")):
        if "url(http" in sheet.read_text("utf-8") or "@import" in sheet.read_text("utf-8"):
            yield f"{sheet.relative_to(site)}: a style of another host"


def not_found(site: Path) -> Iterator[str]:
    """What is missing in the search of a built site: its script, its index, a page, or a term of `SOUGHT`."""
    script = re.search(r'"search":"([^"]+)"', (site / "index.html").read_text("utf-8"))
    if script is None or not (site / script[1]).exists():
        yield "search: no script"
    if not (site / "search.json").exists():
        yield "search: no index"
        return
    index: dict[str, Any] = json.loads((site / "search.json").read_text("utf-8"))
    between, texts = re.compile(index["config"]["separator"]), dict[str, str]()
    for each in index["items"]:
        page = each["location"].partition("#")[0]
        texts[page] = " ".join([texts.get(page, ""), *between.split(re.sub(r"<[^>]*>", " ", f"{each['title']} {each['text']}"))])
    for built in sorted(site.rglob("index.html")):
        page = "" if built.parent == site else f"{built.parent.relative_to(site)}/"
        if page not in texts:
            yield f"search: {page} is not in the index"
    for words, page in SOUGHT.items():
        if words.lower() not in texts.get(page, "").lower():
            yield f"search: {words!r} does not lead to {page}"


def main(command: str) -> None:
    """Lay out the pages, or check the built site. Exit code 1: the check has found something."""
    if command == "lay_out":
        lay_out()
        return
    if not (SITE / "html" / "index.html").exists():
        sys.exit("the site has no first page")
    found = [*foreign(SITE / "html"), *not_found(SITE / "html")]
    sys.stdout.write("".join(f"{each}\n" for each in found))
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main(sys.argv[1])
