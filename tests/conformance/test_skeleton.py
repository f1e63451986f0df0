"""The skeleton of a new broker in `docs/brokers.md`. The rest of the suite tests that it works."""

from __future__ import annotations

import inspect
import textwrap
from pathlib import Path

from tests.support.skeleton_broker.transport import SkeletonTransport

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "brokers.md"


def test_the_document_shows_the_skeletons_move_as_it_is() -> None:
    """A reader who copies the document copies the code that the suite runs."""
    assert textwrap.dedent(inspect.getsource(SkeletonTransport._move)) in DOCUMENT.read_text()
