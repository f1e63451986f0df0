"""Compares the sizes of the core and of each extra with the README's table: `./dev python -m tests.support.documents.weights`.

Each is installed into a new virtual environment, which needs the network and some minutes. The size of an extra is what it adds to
the core. Exit code 1: a size in the README is wrong.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import tomllib
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
#: The tolerated difference: a share of the size, or MB.
PART, MB = 0.1, 1.0


def main() -> int:
    """Measure all sizes, and print the differences."""
    said = {name or "": float(size) for name, size in _said()}
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    core, differs = _weighs(""), False
    for name in ("", *extras):
        size = _weighs(f"[{name}]") - core if name else core
        is_near = abs(size - said[name]) <= max(PART * said[name], MB)
        differs |= not is_near
        sys.stdout.write(f"{name or 'core'}: {size:.1f} MB, the README says {said[name]:.0f}{'' if is_near else ': it differs'}\n")
    return int(differs)


def _said() -> list[tuple[str, str]]:
    """The names and sizes (MB) in the README's table."""
    row = r'^\| `"?(?:~|\$HOME)/redelivery(?:\[(\w+)\])?"?` \|[^|]*\|[^|]*\| (?:\+ )?(\d+) \|$'
    return re.findall(row, (ROOT / "README.md").read_text(), re.MULTILINE)


def _weighs(extra: str) -> float:
    """The MB of files that an installation adds to an empty virtual environment."""
    with tempfile.TemporaryDirectory() as folder:
        venv.create(folder, with_pip=True)
        empty = _size(Path(folder))
        subprocess.run([f"{folder}/bin/pip", "install", "--quiet", f"{ROOT}{extra}"], check=True)
        return _size(Path(folder)) - empty


def _size(folder: Path) -> float:
    return sum(each.stat().st_size for each in folder.rglob("*") if each.is_file() and not each.is_symlink()) / 1e6


if __name__ == "__main__":
    raise SystemExit(main())
