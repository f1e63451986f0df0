"""The wheel has every package of this repository and the Lua scripts, and no tests."""

from __future__ import annotations

import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[3]
PACKAGES = ("middleware", "settings", "workers")


def packages() -> set[str]:
    """The packages that pyproject.toml declares."""
    return set(tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]["packages"])


def folders() -> set[str]:
    """The packages that exist as folders."""
    found = {"redelivery"} | {f"redelivery.{package}" for package in PACKAGES}
    for package in PACKAGES:
        below = [path for path in (ROOT / package).rglob("*") if path.is_dir() and path.name != "__pycache__"]
        found |= {"redelivery." + ".".join(path.relative_to(ROOT).parts) for path in below}
    return found


@pytest.fixture(scope="module")
def packed(built: Path) -> tuple[set[str], set[str]]:
    """The names of the files in the wheel and in the source distribution."""
    with zipfile.ZipFile(next(built.glob("*.whl"))) as wheel, tarfile.open(next(built.glob("*.tar.gz"))) as source:
        return set(wheel.namelist()), {name.partition("/")[2] for name in source.getnames()}


def sources() -> set[str]:
    """Every file of the package, under its name in the wheel."""
    kinds = {".py", ".lua", ".html", ".css", ".js", ".svg", ".typed"}
    own = {f"redelivery/{path.name}" for path in (ROOT / "redelivery").iterdir() if path.is_file() and path.suffix in kinds}
    own.add("redelivery/py.typed")
    packaged = {
        f"redelivery/{path.relative_to(ROOT)}"
        for package in PACKAGES
        for path in (ROOT / package).rglob("*")
        if path.suffix in kinds
    }
    return own | packaged


def test_every_folder_of_a_package_is_a_declared_package() -> None:
    """The editable install finds a folder that is not declared, and the wheel would lack it."""
    assert packages() == folders()


def test_links_lead_to_the_packages() -> None:
    """Type checkers follow these links, and would check nothing without them."""
    links = {package: (ROOT / "redelivery" / package).readlink() for package in PACKAGES}
    assert links == {package: Path("..") / package for package in PACKAGES}


@pytest.mark.parametrize("lock", sorted(path.name for path in (ROOT / "requirements").glob("*.txt")))
def test_lock_pins_with_hashes_and_holds_no_address(lock: str) -> None:
    """Each requirement has one version and its hashes, and no index."""
    text = (ROOT / "requirements" / lock).read_text(encoding="utf-8")
    requirements = [each for each in text.replace("\\\n", " ").splitlines() if each.strip()]
    assert "://" not in text
    assert all("==" in each and "--hash=sha256:" in each for each in requirements)
    assert requirements


def test_the_older_lock_holds_the_lowest_that_is_promised() -> None:
    """It has each dependency of pyproject.toml at its lower bound, for `./dev older`."""
    text = (ROOT / "requirements" / "older.txt").read_text(encoding="utf-8")
    locked = dict(line.split()[0].split("==") for line in text.splitlines() if "==" in line)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    promised = {each.name: each.specifier for each in map(Requirement, project["dependencies"])}
    lowest = {name: next(each.version for each in bounds if each.operator == ">=") for name, bounds in promised.items()}
    assert {name: Version(locked[name]) for name in lowest} == {name: Version(version) for name, version in lowest.items()}


def test_wheel_holds_every_source_file_and_no_other(packed: tuple[set[str], set[str]]) -> None:
    """Python, Lua and the marker for type checkers. No tests, no examples, no top-level `settings` or the like."""
    wheel, _ = packed
    assert {name for name in wheel if ".dist-info/" not in name} == sources()


def test_wheel_declares_its_commands_and_its_licence(packed: tuple[set[str], set[str]]) -> None:
    """The wheel has the entry points and the licence."""
    wheel, _ = packed
    assert {name.partition(".dist-info/")[2] for name in wheel} >= {"entry_points.txt", "licenses/LICENSE", "METADATA"}


def test_source_distribution_can_build_the_wheel(packed: tuple[set[str], set[str]]) -> None:
    """`python -m build` makes the wheel from the source distribution, which has the packages at the same places."""
    _, source = packed
    assert {f"{package}/__init__.py" for package in PACKAGES} | {"pyproject.toml", "README.md", "LICENSE"} <= source
