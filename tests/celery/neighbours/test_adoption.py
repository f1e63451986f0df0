"""`redelivery adopt` names the libraries that an app uses, and says a line about each; `docs/integrations.md` says the rest."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, distribution
from typing import TYPE_CHECKING

import pytest

from redelivery.workers.operations.adoption.adoption import NEIGHBOURS
from tests.support.running import ROOT

if TYPE_CHECKING:
    from pathlib import Path

APP = """
import {imports}
from celery import Celery
from redelivery import Redelivery
app = Celery("shop", broker="redis://localhost:1/0")
app.conf.ONCE = {{}}
Redelivery(app)
"""
#: What the tests' environment cannot have: Airflow is too much, celery-batches asks for Celery 5.6, and the stubs lie in a folder.
ABSENT = {"apache-airflow-providers-celery", "celery-batches", "celery-types"}


def looked_at(folder: Path, imports: str) -> list[str]:
    """What `redelivery adopt` says of an app that imports these."""
    (folder / "adopt_me.py").write_text(APP.format(imports=imports))
    command = [sys.executable, "-m", "redelivery", "-A", "adopt_me", "adopt", "--json"]
    ran = subprocess.run(command, cwd=folder, env={"PYTHONPATH": f"{folder}:{ROOT}"}, capture_output=True, text=True, check=True)
    found: list[str] = json.loads(ran.stdout)["look_at"]
    return found


def names(lines: list[str]) -> set[str]:
    """The libraries that the lines are about."""
    return {line.partition(": ")[0] for line in lines} & {each.name for each in NEIGHBOURS}


def test_what_an_app_has_loaded_is_named(tmp_path: Path) -> None:
    """Each library is named by its distribution."""
    loaded = [each for each in NEIGHBOURS if each.module and each.name not in ABSENT]
    lines = looked_at(tmp_path, ", ".join(each.module for each in loaded))
    assert {each.name for each in loaded} <= names(lines)
    assert len(lines) == len(names(lines))


def test_what_it_has_not_loaded_is_not_named_but_for_what_runs_beside_it(tmp_path: Path) -> None:
    """Flower and redbeat are never imported by an app; only their installation can be seen."""
    assert names(looked_at(tmp_path, "json")) == {"flower", "celery-redbeat"}


@pytest.mark.parametrize("module", ["airflow.providers.celery", "celery_batches"])
def test_what_cannot_be_installed_here_is_named_by_its_module(tmp_path: Path, module: str) -> None:
    """Modules with the right names stand for them."""
    package = tmp_path.joinpath(*module.split("."))
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (wanted,) = [each.name for each in NEIGHBOURS if each.module == module]
    assert wanted in names(looked_at(tmp_path, module))


def test_stubs_are_named_where_they_are_installed(tmp_path: Path) -> None:
    """celery-types has no module that an app imports, so its installation is looked for."""
    assert "celery-types" not in names(looked_at(tmp_path, "json"))
    installed = tmp_path / "celery_types-0.26.0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: celery-types\nVersion: 0.26.0\n")
    assert "celery-types" in names(looked_at(tmp_path, "json"))


@pytest.mark.parametrize("name", sorted({each.name for each in NEIGHBOURS} - ABSENT))
def test_each_name_is_that_of_a_distribution(name: str) -> None:
    """Each distribution must be installed here, so that the tests of `docs/integrations.md` can run."""
    try:
        distribution(name)
    except PackageNotFoundError:
        pytest.fail(f"{name} is not installed: run ./dev test, which installs what the tests need")


def test_the_document_has_a_row_for_each() -> None:
    """Each row has a link to its section; `test_docs.py` checks the links."""
    text = (ROOT / "docs" / "integrations.md").read_text()
    for each in NEIGHBOURS:
        assert f"| [{each.name}](#" in text
