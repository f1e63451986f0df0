"""Files that only their owner may read (folders of mode 0700, files of 0600): they hold whole dead letters.

Limit: an existing folder keeps its mode, which may let others in.
"""

from __future__ import annotations

import os
from pathlib import Path

FOLDER, FILE = 0o700, 0o600


def private_folder(path: str | Path) -> None:
    """Make a folder and its missing parents. Raises `OSError`."""
    folder = Path(path)
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    for each in reversed(missing):
        each.mkdir(FOLDER, exist_ok=True)


def private_opener(path: str, flags: int) -> int:
    """Open a file: an `opener` for Python's `open`. Raises `OSError`."""
    return os.open(path, flags, FILE)
