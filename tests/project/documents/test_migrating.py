"""`docs/migrating.md` is run: its files are written, its commands run in order, and their output is compared."""

from __future__ import annotations

import pytest

from tests.support.documents.walkthrough import ROOT, follow
from tests.support.runbooks import shell_of

DOCUMENT = "docs/migrating.md"


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_document_is_run_from_its_first_command_to_its_last() -> None:
    """From plain Celery to observing, to redelivery, and back. There are always messages in the queue."""
    with shell_of(DOCUMENT) as shell:
        _, done = follow((ROOT / DOCUMENT).read_text(), shell)
        charged, shipped = ((shell.folder / name).read_text().split() for name in ("charged", "shipped"))
    assert len(done) > 15
    assert sorted(set(charged), key=int) == ["1", "3", "5", "13"]
    assert shipped == ["1", "4"]
