"""Fixtures: every test with `place` runs on every broker; with `shared_place` too, which the tests of a module share."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.conformance.brokers import BROKERS, Place, opened_place

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(params=BROKERS)
def place(request: pytest.FixtureRequest, folder: Path) -> Iterator[Place]:
    """A broker of the test's own."""
    yield from opened_place(request.param, folder, lambda: request.getfixturevalue("rabbit_node"))


@pytest.fixture(
    scope="module", params=[pytest.param(name, marks=pytest.mark.xdist_group(f"conformance-{name}")) for name in BROKERS]
)
def shared_place(request: pytest.FixtureRequest) -> Iterator[Place]:
    """A broker that the tests of a module share; they stay in one process."""
    with tempfile.TemporaryDirectory(prefix="rd-", ignore_cleanup_errors=True) as name:
        yield from opened_place(request.param, Path(name), lambda: request.getfixturevalue("rabbit_node"))
