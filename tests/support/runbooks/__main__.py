"""Run the named runbooks, or all, and write what their commands print into the pages."""

from __future__ import annotations

import sys

from tests.support.pages import differences, play, rewritten

from . import BROKERS, FOLDER, shell_for

for name in sys.argv[1:] or BROKERS:
    page = FOLDER / f"{name}.md"
    with shell_for(name) as shell:
        screens = play(page.read_text(), shell)
    changed = len(differences(screens))
    page.write_text(rewritten(page.read_text(), screens))
    sys.stdout.write(f"{name}: {len(screens)} screens, {changed} written anew\n")
