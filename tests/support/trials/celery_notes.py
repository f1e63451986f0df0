"""The notes of the trials' tasks, in a file that the tests read."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from tests.support import notes

__all__ = ["note", "runs_of"]


def note(task_id: str, what: str, **facts: Any) -> None:
    notes.note(task_id, what=what, **facts)


def runs_of(task_id: str) -> int:
    lines = Path(os.environ["SHOP_RUNS"]).read_text("utf-8").splitlines()
    return sum(1 for line in lines if f'"id": "{task_id}"' in line and '"what": "run"' in line)
