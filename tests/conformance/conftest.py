"""Fixtures: a test with `place` or `shared_place` runs on every broker. The tests of a module share a `shared_place`.

The marker `needs` names the capabilities that a test needs. Brokers without them are left out.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.conformance.brokers import BROKERS, QUICK, Place, capabilities_of, opened_place
from tests.support.lanes import FULL

if TYPE_CHECKING:
    from collections.abc import Iterator


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run each test on each broker with the needed capabilities."""
    needed = {each for mark in metafunc.definition.iter_markers("needs") for each in mark.args}
    names = [name for name in BROKERS if needed <= capabilities_of(name)]
    if "place" in metafunc.fixturenames:
        metafunc.parametrize("place", [pytest.param(name, marks=lane(name)) for name in names], indirect=True)
    if "shared_place" in metafunc.fixturenames:
        params = [pytest.param(name, marks=[*lane(name), pytest.mark.xdist_group(f"conformance-{name}")]) for name in names]
        metafunc.parametrize("shared_place", params, indirect=True, scope="module")


def lane(name: str) -> list[pytest.MarkDecorator]:
    """The mark `full`, for a broker that only the full lane tests."""
    return [] if name in QUICK else [FULL]


@pytest.fixture
def place(request: pytest.FixtureRequest, folder: Path) -> Iterator[Place]:
    """A broker of the test's own."""
    yield from opened_place(request.param, folder, lambda: request.getfixturevalue("rabbit_node"))


@pytest.fixture(scope="module")
def shared_place(request: pytest.FixtureRequest) -> Iterator[Place]:
    """A broker that the tests of a module share. They run in one process."""
    with tempfile.TemporaryDirectory(prefix="rd-", ignore_cleanup_errors=True) as name:
        yield from opened_place(request.param, Path(name), lambda: request.getfixturevalue("rabbit_node"))
