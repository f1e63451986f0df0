"""The site of the documents: the pages that it is built from, and a look at what was built.

`python -m tests.support.documents.site lay_out` links every page below `.site/pages`, by its path in the repository, so that links
need no change. `python -m tests.support.documents.site check` names each place of the built site that a browser would fetch from
another host.
`./dev docs` runs both, in an environment without the project: this module imports the standard library alone.
"""

from __future__ import annotations

import shutil
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["foreign", "pages"]

ROOT = Path(__file__).resolve().parents[3]
SITE = ROOT / ".site"
#: What the pages are made of: Markdown, the pictures beside it, and screens.
SHOWN = {".md", ".svg", ".png", ".txt"}
PLACES = ("docs", "examples", "benchmarks")
#: Attributes that a browser follows by itself; a link is followed by its reader.
FETCHED = {("link", "href"), ("script", "src"), ("img", "src"), ("iframe", "src"), ("source", "srcset"), ("source", "src")}
#: Links in the head that name a place and fetch nothing.
NAMED_ONLY = {"canonical", "next", "prev"}


def pages() -> list[Path]:
    """Every page and picture of the site, by its path in the repository."""
    found = [*ROOT.glob("*.md"), *(each for place in PLACES for each in (ROOT / place).rglob("*"))]
    paths = [each.relative_to(ROOT) for each in found if each.suffix in SHOWN and each.is_file()]
    return sorted(each for each in paths if not any(part.startswith(".") for part in each.parts))  # pytest keeps a page, too


def lay_out() -> None:
    """Lay the pages out anew, as links: a change of a page is a change of the site that is served."""
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
    """Each place of a built site that a browser would fetch from another host, with its page."""
    for page in sorted(site.rglob("*.html")):
        reader = _Fetches()
        reader.feed(page.read_text("utf-8"))
        for place in reader.found:
            if "//" in place or place.startswith("mermaid"):
                yield f"{page.relative_to(site)}: {place}"
    for sheet in sorted(site.rglob("*.css")):
        if "url(http" in sheet.read_text("utf-8") or "@import" in sheet.read_text("utf-8"):
            yield f"{sheet.relative_to(site)}: a style of another host"


def main(command: str) -> None:
    """Lay the pages out, or check what was built; ends with 1 where a page asks another host."""
    if command == "lay_out":
        lay_out()
        return
    found = list(foreign(SITE / "html"))
    sys.stdout.write("".join(f"{each}\n" for each in found))
    sys.exit(1 if found or not (SITE / "html" / "index.html").exists() else 0)


if __name__ == "__main__":
    main(sys.argv[1])
