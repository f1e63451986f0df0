"""Files with whole dead letters are readable only by their owner, and no error about them shows a credential."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

import pytest

from redelivery.workers.letters import Letter
from redelivery.workers.operations.letters.archive import archive
from tests.support.desk import LETTERS, Desk

if TYPE_CHECKING:
    from pathlib import Path


def modes(folder: Path) -> set[tuple[bool, int]]:
    """Of each file and folder below: whether it is a folder, and its mode."""
    return {(each.is_dir(), each.stat().st_mode & 0o777) for each in (folder, *folder.rglob("*"))}


@pytest.mark.parametrize("has_pyarrow", [True, False])
def test_letters_are_their_owners_alone(desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, has_pyarrow: bool) -> None:
    """As Parquet, and as JSON lines without pyarrow, with any umask; existing files keep their mode."""
    if not has_pyarrow:
        for name in [
            each for each in sys.modules if each.partition(".")[0] == "pyarrow" or each == "redelivery.workers.export.tables"
        ]:
            monkeypatch.delitem(sys.modules, name)
        monkeypatch.setitem(sys.modules, "pyarrow", None)
    desk.die()
    before = os.umask(0)
    try:
        tmp_path.chmod(0o755)
        raws: Any = desk.client.lrange(LETTERS, 0, -1)
        letters = [Letter.of(raw) for raw in raws]
        written = archive(letters, str(tmp_path / "a" / "b"), LETTERS, now_ms=1, why="x")
        desk.json("dlq", "export", LETTERS, "--to", str(tmp_path / "c"))
    finally:
        os.umask(before)
    assert written.endswith(".parquet" if has_pyarrow else ".jsonl")
    assert modes(tmp_path / "a") == modes(tmp_path / "c") == {(True, 0o700), (False, 0o600)}
    assert tmp_path.stat().st_mode & 0o777 == 0o755


@pytest.mark.parametrize("words", [("dlq", "export", LETTERS), ("outcomes", "export"), ("inventory", "export")])
def test_a_destination_that_is_none_is_told_without_its_credentials(desk: Desk, words: tuple[str, ...]) -> None:
    """One line, which names the bucket."""
    desk.die()
    done = desk.run(*words, "--to", "s3://KEY:SECRET@bucket/x?nonsense=1&secret_key=SECRET")
    assert (done.exit_code, len(done.stderr.splitlines())) == (2, 1), done.output
    assert ("SECRET" in done.output, "KEY" in done.output, "bucket" in done.stderr) == (False, False, True), done.stderr
