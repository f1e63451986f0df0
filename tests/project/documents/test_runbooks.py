"""The runbooks of `docs/runbooks/` are run on real brokers, and their screens are compared with the pages.

`./dev follow --write docs/runbooks/NAME.md` writes the screens again.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.documents.walkthrough import ROOT, follow
from tests.support.rabbit import need_rabbit
from tests.support.runbooks import BROKERS, shell_of

FOLDER = ROOT / "docs" / "runbooks"
RUNBOOKS = [each for each in BROKERS if each.startswith("docs/runbooks/")]


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(each, marks=[] if each.endswith("/dead-letters.md") else [pytest.mark.full], id=Path(each).stem)
        for each in RUNBOOKS
    ],
)
def test_a_runbook_shows_what_its_commands_print(name: str) -> None:
    """Each command ends with 0 and prints the screen below it, except for ids, times and sizes."""
    if BROKERS[name] == "rabbitmq":
        need_rabbit()
    with shell_of(name) as shell:
        _, done = follow((ROOT / name).read_text(), shell)
    assert len(done) >= 3


def test_each_runbook_is_run() -> None:
    """All pages of the folder except the list of them."""
    assert sorted(RUNBOOKS) == sorted(f"docs/runbooks/{each.name}" for each in FOLDER.glob("*.md") if each.name != "README.md")


def test_the_list_names_each_runbook() -> None:
    """An operator who is called at night begins there."""
    text = (FOLDER / "README.md").read_text()
    assert [each for each in RUNBOOKS if f"]({Path(each).name})" not in text] == []
