"""`redelivery books show`: verdicts of an output, the worst first, page by page, without Spark."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections import Counter
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result
from pyarrow import parquet

from redelivery.workers.cli.main import redelivery
from redelivery.workers.reconciliation.outputs import pages
from redelivery.workers.reconciliation.outputs.pages import COLUMNS, page_of
from redelivery.workers.reconciliation.rules import DISCREPANCIES, RULES, VERDICTS, WORST_FIRST

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

STEP = pa.struct([("outcome", pa.string()), ("at_ms", pa.int64())])
NUMBERS = ("generation", "first_ms", "last_ms", "events", "nesting")


def life(task_id: str, verdict: str, **more: Any) -> dict[str, Any]:
    """A row of `verdicts/`."""
    row = {"task_id": task_id, "verdict": verdict, "queue": "orders", "task": "shop.charge", "generation": 0, "nesting": 0}
    row |= {"cause": f"why {task_id}", "rule": RULES[verdict], "was": None, "first_ms": 1, "last_ms": 2, "events": 1}
    row |= {"advice": f"mend what is {verdict}" if verdict in DISCREPANCIES else None}
    return row | {"history": [{"outcome": "published", "at_ms": 1}]} | more


def books_of(folder: Path, *parts: list[dict[str, Any]]) -> Path:
    """An output with these lives, one file for each part, as Spark's tasks write them."""
    kinds = {name: pa.int64() if name in NUMBERS else pa.list_(STEP) if name == "history" else pa.string() for name in COLUMNS}
    (folder / "verdicts").mkdir(parents=True)
    for number, part in enumerate(parts):
        parquet.write_table(pa.Table.from_pylist(part, pa.schema(kinds)), folder / "verdicts" / f"part-{number}.parquet")
    (folder / "verdicts" / "_SUCCESS").touch()
    counts = Counter(each["verdict"] for part in parts for each in part)
    numbers = dict.fromkeys(("as_of_ms", "lives", "events", "possible_repeats"), 0)
    (folder / "summary.json").write_text(json.dumps({**numbers, "verdicts": counts}))
    return folder


def show(folder: Path, *words: str) -> Result:
    """Run the command."""
    return CliRunner().invoke(redelivery, ["books", "show", str(folder), *words])


def test_the_worst_come_first_and_of_those_the_oldest(tmp_path: Path) -> None:
    """For any order within and between files; every verdict has its rank."""
    folder = books_of(
        tmp_path / "books",
        [life("b", "balanced"), life("s", "stuck"), life("l2", "lost", first_ms=2)],
        [
            life("o", "orphaned"),
            life("l1", "lost", first_ms=1),
            life("never", "lost", first_ms=None),
            life("m", "missing_dead_letter"),
        ],
    )
    assert [each["task_id"] for each in page_of(str(folder), limit=9).lives] == ["never", "l1", "l2", "m", "s", "o", "b"]
    assert set(WORST_FIRST) == set(VERDICTS)


@pytest.mark.parametrize("limit", [1, 2, 3, 6, 7, 8])
def test_pages_together_are_all_lives_once(tmp_path: Path, limit: int) -> None:
    """Each page names the one after it; the last names none."""
    lives = [life(f"{number}", "lost", first_ms=number % 3, generation=number % 2) for number in range(7)]
    folder = str(books_of(tmp_path / "books", lives[:4], lives[4:]))
    seen, after = [], 0
    while True:
        page = page_of(folder, limit=limit, after=after)
        assert page.total == 7
        seen += [each["task_id"] for each in page.lives]
        if page.next is None:
            break
        after = page.next
    assert sorted(seen) == [str(number) for number in range(7)]
    assert seen == [each["task_id"] for each in page_of(folder, limit=7).lives]


@pytest.mark.parametrize("chosen", [(), ("stuck", "lost"), ("balanced",)])
def test_a_page_has_the_lives_that_a_sort_of_all_would_have(tmp_path: Path, chosen: tuple[str, ...]) -> None:
    """For any verdicts and times, many of which are equal or unknown."""
    drawn = random.Random(5)  # noqa: S311 - lives of a test
    lives = [life(f"{each:03}", drawn.choice(VERDICTS), first_ms=drawn.choice([None, 0, 1, 1, 2, 9])) for each in range(300)]
    drawn.shuffle(lives)
    folder = str(books_of(tmp_path / "books", lives[:100], lives[100:120], lives[120:]))
    wanted = [each for each in lives if not chosen or each["verdict"] in chosen]
    wanted.sort(key=lambda each: (WORST_FIRST.index(each["verdict"]), each["first_ms"] or 0, each["task_id"]))
    for after, limit in ((0, 1), (0, 7), (13, 20), (0, 300), (290, 50), (400, 5)):
        page = page_of(folder, verdicts=chosen, limit=limit, after=after)
        assert [each["task_id"] for each in page.lives] == [each["task_id"] for each in wanted[after : after + limit]]
        assert page.total == len(wanted)


def test_a_page_says_what_to_do_and_how_to_go_on(tmp_path: Path) -> None:
    """For the verdicts on the page; the command for the next page is on standard error."""
    folder = books_of(tmp_path / "books", [life("a", "lost"), life("b", "lost"), life("c", "stuck"), life("d\x1b[31m", "orphaned")])
    done = show(folder, "--verdict", "lost", "--limit", "1")
    assert done.exit_code == 0, done.output
    assert done.stdout.splitlines() == [
        f"lost: {RULES['lost']}",
        "  to do: mend what is lost",
        "  a  orders shop.charge",
        "    why a",
        "",
        "1 of 2 lives with the verdict lost",
    ]
    assert done.stderr == f"more: redelivery books show {folder} --verdict lost --limit 1 --after 1\n"
    last = show(folder)
    assert "\x1b" not in last.stdout
    assert last.stdout.endswith("4 of 4 lives\n")
    assert last.stderr == ""


def test_json_has_the_events_and_the_number_of_the_next_page(tmp_path: Path) -> None:
    """`--json` before the command's name has the same effect."""
    folder = books_of(tmp_path / "books", [life("a", "lost"), life("b", "stuck")])
    said = json.loads(show(folder, "--limit", "1", "--json").stdout)
    assert (said["total"], said["after"], said["next"]) == (2, 0, 1)
    assert said["lives"][0] == life("a", "lost")
    root = CliRunner().invoke(redelivery, ["--json", "books", "show", str(folder), "--after", "1"])
    assert json.loads(root.stdout)["next"] is None


def test_what_is_no_output_of_the_books_is_refused_in_one_line(tmp_path: Path) -> None:
    """A folder of another kind, one that is not there, a verdict that does not exist."""
    (tmp_path / "other").mkdir()
    for folder in ("other", "nowhere"):
        done = show(tmp_path / folder)
        assert (done.exit_code, done.stdout) == (2, "")
        assert done.stderr.startswith(f"redelivery: error: there are no books in {tmp_path / folder}: name the folder")
    assert show(tmp_path, "--verdict", "lots").exit_code == 2
    assert show(tmp_path, "--limit", "0").exit_code == 2


def remove(*files: Path) -> None:
    """Remove these files of a table."""
    for each in files:
        each.unlink()


def damaged_text(file: Path) -> None:
    """Put a byte that is no UTF-8 into an id."""
    whole = parquet.read_table(file)
    ids = pa.Array.from_buffers(pa.string(), 1, pa.array([b"\xff"], pa.binary()).buffers())
    parquet.write_table(whole.set_column(whole.schema.get_field_index("task_id"), "task_id", ids), file)


CUT = "/part-1.parquet cannot be read: it is cut, damaged or of another program; run `redelivery reconcile` again"
DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "no Parquet": (lambda file: file.write_text("no Parquet"), CUT),
    "empty": (lambda file: file.write_bytes(b""), CUT),
    "cut": (lambda file: file.write_bytes(file.read_bytes()[:-9]), CUT),
    "zeros": (lambda file: file.write_bytes(file.read_bytes()[:40] + bytes(200) + file.read_bytes()[240:]), CUT),
    "no UTF-8": (damaged_text, CUT),
    "other columns": (
        lambda file: parquet.write_table(pa.table({"task_id": ["a"]}), file),
        "/part-1.parquet is no file of verdicts: the column verdict is missing; run `redelivery reconcile` again",
    ),
    "other types": (
        lambda file: parquet.write_table(pa.table({"task_id": [1]}), file),
        "/part-1.parquet is no file of verdicts: the column task_id is of another type; run `redelivery reconcile` again",
    ),
    "missing": (
        remove,
        " has 1 of 2 lives that summary.json counts: a file is missing or strange; run `redelivery reconcile` again",
    ),
    "all missing": (
        lambda file: remove(*file.parent.glob("*.parquet")),
        " has no files: run `redelivery reconcile` again",
    ),
    "a folder": (lambda file: file.rename(file.with_name("part-0.parquet")).with_name("part-1.parquet").mkdir(), CUT),
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("words", [(), ("--verdict", "lost"), ("--json",)])
def test_damage_is_one_line_that_names_the_file_and_what_to_do(tmp_path: Path, damage: str, words: tuple[str, ...]) -> None:
    """Whatever is damaged: no life is left out silently, and nothing is said in Arrow's words."""
    folder = books_of(tmp_path / "books", [life("a", "lost")], [life("b", "lost")])
    spoil, said = DAMAGES[damage]
    spoil(folder / "verdicts" / "part-1.parquet")
    done = show(folder, *words)
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr == f"redelivery: error: {folder}/verdicts{said}\n"


def test_an_output_without_rights_or_summary_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reason is the system's; a summary that is cut is named as well."""
    folder = books_of(tmp_path / "books", [life("a", "lost")])
    (folder / "summary.json").write_text('{"lives":')
    assert show(folder).stderr == (
        f"redelivery: error: {folder}/summary.json cannot be read: it is cut, damaged or of another program; "
        "run `redelivery reconcile` again\n"
    )
    system = Mock(get_file_info=Mock(side_effect=PermissionError(13, "Arrow's own long words")))
    monkeypatch.setattr(pages, "place_of", lambda _: (system, ""))
    assert show(folder).stderr == (
        f"redelivery: error: {folder}/verdicts cannot be read: Permission denied; look at its rights and at the disk\n"
    )


def test_balanced_lives_that_were_not_written_are_explained(tmp_path: Path) -> None:
    """They are only there with `--all`."""
    folder = books_of(tmp_path / "books", [])
    assert "balanced lives are written with `reconcile --all` only" in show(folder, "--verdict", "balanced").stdout
    assert "--all" not in show(folder, "--verdict", "lost").stdout


def test_the_command_loads_no_spark(tmp_path: Path) -> None:
    """It works on a machine with pyarrow and without Spark."""
    folder = books_of(tmp_path / "books", [life("a", "lost")])
    code = (
        "import sys; sys.modules['pyspark'] = sys.modules['jinja2'] = None\n"
        "from redelivery.workers.cli.main import main\n"
        f"sys.argv = ['redelivery', 'books', 'show', {str(folder)!r}]\nmain()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    assert "why a" in done.stdout
