"""Public names are documented: purpose, types, units, and errors."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import pkgutil
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import redelivery
import redelivery.settings
import redelivery.testing
import redelivery.web
from redelivery import Outcome, Reason, RedeliveryPolicy, errors
from redelivery.settings import FIELDS, GENERAL, GeneralSettings, PolicyFields
from tests.project.settings_reference import described

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[3]
PUBLIC = [redelivery, redelivery.errors, redelivery.settings, redelivery.testing, redelivery.web]
TIMES = re.compile(r"(seconds|timeout|delay|.*_ms)")
UNITS = re.compile(r"second|millisecond|\bms\b|timedelta")


def modules() -> list[str]:
    """Every module of the package, by name."""
    return sorted(
        each.name for each in pkgutil.walk_packages(redelivery.__path__, "redelivery.") if not each.name.endswith("__main__")
    )


def public() -> dict[str, Any]:
    """The public objects, and the public methods of their classes, by name."""
    found: dict[str, Any] = {}
    for module in PUBLIC:
        for name in module.__all__:
            offered = getattr(module, name)
            if inspect.isclass(offered) or inspect.isfunction(offered):
                found[f"{module.__name__}.{name}"] = offered
            if inspect.isclass(offered):
                found.update((f"{module.__name__}.{name}.{method}", value) for method, value in methods(offered))
    return found


def methods(owner: type) -> Iterator[tuple[str, Any]]:
    """The public methods and properties that a class defines, or inherits from a class of redelivery."""
    for name, member in inspect.getmembers_static(owner):
        value = getattr(member, "__func__", None) or getattr(member, "fget", None) or getattr(member, "func", None) or member
        if not name.startswith("_") and inspect.isfunction(value) and value.__module__.startswith("redelivery."):
            yield name, value


def said(name: str, value: Any) -> str:
    """The docstring; for a method also that of its class."""
    owner = public().get(name.rpartition(".")[0])
    return f"{inspect.getdoc(value) or ''}\n{inspect.getdoc(owner) or ''}" if owner is not None else inspect.getdoc(value) or ""


@pytest.mark.parametrize("name", modules())
def test_every_name_that_a_module_offers_is_there_and_described(name: str) -> None:
    """All names in `__all__` exist. Modules, classes and functions have a docstring."""
    module = importlib.import_module(name)
    assert module.__doc__, name
    for offered in getattr(module, "__all__", ()):
        value = getattr(module, offered)
        is_ours = getattr(value, "__module__", "").startswith("redelivery")
        if is_ours and (inspect.isclass(value) or inspect.isfunction(value)):
            assert (value.__doc__ or "").strip(), f"{name}.{offered} has no docstring"


@pytest.mark.parametrize("name", sorted(public()))
def test_what_is_public_is_described_and_typed(name: str) -> None:
    """It has its own docstring, a type for each parameter and the result, and a unit for each time."""
    value = public()[name]
    assert (value.__doc__ or "").strip(), name
    if not inspect.isfunction(value):
        return
    signature = inspect.signature(value)
    parameters = [each for each in signature.parameters.values() if each.name not in {"self", "cls"}]
    assert [each.name for each in parameters if each.annotation is inspect.Parameter.empty] == []
    assert signature.return_annotation is not inspect.Signature.empty
    if any(TIMES.fullmatch(each.name) for each in parameters):
        assert UNITS.search(said(name, value)), f"{name} takes a time, and does not say in what unit"


@pytest.mark.parametrize("name", sorted(public()))
def test_what_is_public_says_what_it_raises(name: str) -> None:
    """A docstring names each error that its function raises itself."""
    value = public()[name]
    if not inspect.isfunction(value):
        return
    raised = {each for each in re.findall(r"\braise (\w+)\(", inspect.getsource(value)) if each in errors.__all__}
    assert [each for each in raised if each not in said(name, value)] == []


def test_every_setting_has_its_unit_and_its_default() -> None:
    """The docstring has a line for each field. Durations are in seconds."""
    policy = {each.name: each for each in described(RedeliveryPolicy, FIELDS)}
    general = {each.name: each for each in described(GeneralSettings, GENERAL)}
    durations = {name for name, type_ in PolicyFields.__annotations__.items() if "timedelta" in str(type_)}
    assert {name for name, each in policy.items() if each.unit == "seconds"} == durations
    assert {name for name, each in general.items() if each.unit == "seconds"} == {
        each.name for each in dataclasses.fields(GeneralSettings) if each.type == "float"
    }


def test_a_setting_that_nobody_describes_is_found() -> None:
    """A field without a line is refused, and so is a line with another default than the field's."""
    with pytest.raises(ValueError, match="lacks, or should not have, more"):
        described(RedeliveryPolicy, [*FIELDS, "more"])

    class Wrong(GeneralSettings):
        __doc__ = (GeneralSettings.__doc__ or "").replace("(seconds; 10)", "(seconds; 11)")

    with pytest.raises(ValueError, match="lease is 10 by default, and its docstring says 11"):
        described(Wrong, GENERAL)


@pytest.mark.parametrize("word", sorted({*Outcome, *Reason}))
def test_every_outcome_and_reason_is_in_the_glossary(word: str) -> None:
    """So users can look up what they see in the books."""
    assert f"`{word}`" in (ROOT / "docs" / "glossary.md").read_text()


def test_every_error_is_one_of_ours() -> None:
    """All have one base class, which users can catch."""
    assert all(issubclass(getattr(errors, name), errors.RedeliveryError) for name in errors.__all__)
