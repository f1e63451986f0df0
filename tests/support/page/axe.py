"""Accessibility checks of a page with axe-core."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.support.page.browser import Browser

__all__ = ["findings"]

AXE = Path(sys.prefix) / "stubs" / "axe_playwright_python" / "axe.min.js"


def findings(browser: Browser) -> list[Any]:
    """The violated rules of the page in the browser, with their places."""
    browser.ask(AXE.read_text(encoding="utf-8") + "; 0")
    found: list[Any] = browser.ask(
        "axe.run().then(each => each.violations.map(one => [one.id, one.nodes.map(node => node.html.slice(0, 200))]))"
    )
    return found
