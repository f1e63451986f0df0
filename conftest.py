"""The hooks of the two lanes of tests, for every folder with tests."""

from __future__ import annotations

from tests.support.lanes import (
    pytest_addoption,
    pytest_collection_modifyitems,
    pytest_configure,
    pytest_report_header,
    pytest_terminal_summary,
    pytest_testnodedown,
)

__all__ = [
    "pytest_addoption",
    "pytest_collection_modifyitems",
    "pytest_configure",
    "pytest_report_header",
    "pytest_terminal_summary",
    "pytest_testnodedown",
]
