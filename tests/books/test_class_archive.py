"""Java's classes are cached between runs: once for each Java, by one process, and never in a way that stops a run."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from redelivery.workers.reconciliation.spark.java import ClassArchive, ensure_java
from tests.support.running import until

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A cache folder of this test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "redelivery"


def java_home(folder: Path, content: str) -> Path:
    """A Java home, with only the parts that the code looks at."""
    machine = folder / "lib" / "server" / "libjvm.so"
    machine.parent.mkdir(parents=True)
    machine.write_text(content)
    return folder


def archive_of(home: Path) -> ClassArchive:
    """Its archive, which must have a place."""
    found = ClassArchive.of(home)
    assert found is not None
    return found


def test_each_java_has_an_archive_of_its_own_and_the_same_one_each_time(cache: Path, tmp_path: Path) -> None:
    """Another place or another build has another file; only this user can open the folder."""
    one, other = java_home(tmp_path / "one", "17"), java_home(tmp_path / "other", "21")
    first = archive_of(one)
    assert archive_of(one) == first
    assert archive_of(other).file != first.file
    assert first.file.parent == cache
    assert cache.stat().st_mode & 0o777 == 0o700
    (one / "lib" / "server" / "libjvm.so").write_text("17.0.16")
    assert archive_of(one).file != first.file


def test_classes_are_noted_until_the_archive_is_there_and_by_nobody_while_it_is_made(cache: Path, tmp_path: Path) -> None:
    """Only one process makes it; later the archive is mapped, and a Java that cannot map it starts without."""
    archive = archive_of(java_home(tmp_path / "java", "21"))
    assert f"-XX:DumpLoadedClassList={cache}/" in archive.options
    making = archive.file.with_suffix(".making")
    making.touch()
    path = f'-cp "{archive.jars}/*"'
    assert archive.options == path
    making.unlink()
    archive.file.touch()
    assert archive.options.startswith(f'{path} -Xshare:auto "-XX:SharedArchiveFile={archive.file}" ')


@pytest.mark.usefixtures("cache")
def test_a_spark_that_is_set_up_by_files_keeps_its_class_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Such a Spark may have other classes: Java is started as Spark would start it."""
    home = java_home(tmp_path / "java", "21")
    assert ClassArchive.of(home) is not None
    for name, value in (("HADOOP_CONF_DIR", str(tmp_path)), ("PYSPARK_SUBMIT_ARGS", "--driver-class-path x.jar pyspark-shell")):
        with monkeypatch.context() as patch:
            patch.setenv(name, value)
            assert ClassArchive.of(home) is None
    monkeypatch.setenv("SPARK_HOME", str(tmp_path / "spark"))
    (tmp_path / "spark" / "jars").mkdir(parents=True)
    assert ClassArchive.of(home) is not None
    (tmp_path / "spark" / "conf").mkdir()
    assert ClassArchive.of(home) is None


@pytest.mark.parametrize("place", ["", "/dev/null", "relative"])
def test_without_a_safe_place_nothing_is_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, place: str) -> None:
    """No home, a cache that is no folder, a folder that others may write to, a Java without a machine."""
    home = java_home(tmp_path / "java", "21")
    monkeypatch.setenv("XDG_CACHE_HOME", place)
    monkeypatch.setenv("HOME", "/dev/null")
    assert ClassArchive.of(home) is None
    shared = tmp_path / "shared"
    (shared / "redelivery").mkdir(parents=True)
    (shared / "redelivery").chmod(0o777)
    monkeypatch.setenv("XDG_CACHE_HOME", str(shared))
    assert ClassArchive.of(home) is None
    (shared / "redelivery").chmod(0o700)
    assert ClassArchive.of(home) is not None
    assert ClassArchive.of(tmp_path / "nowhere") is None


#: What Java says of itself, in a session that reads nothing: `sharing` where it has mapped an archive.
SESSION = """
from redelivery.workers.reconciliation.spark.session import session
with session(input_bytes=0) as spark:
    print(spark.sparkContext._jvm.java.lang.System.getProperty("java.vm.info"))
"""


def without_java(tmp_path: Path) -> dict[str, str]:
    """The environment of a machine whose only `java` does not start."""
    program = tmp_path / "bin" / "java"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\nexit 1\n")
    program.chmod(0o700)
    return {"JAVA_HOME": "", "PATH": f"{program.parent}:{os.environ['PATH']}"}


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.parametrize("is_embedded", [False, True])
def test_the_second_session_maps_the_classes_of_the_first(cache: Path, tmp_path: Path, *, is_embedded: bool) -> None:
    """With the machine's Java and with PyPI's; nothing but the archive is left, and a further session makes none."""
    environment = os.environ | {"XDG_CACHE_HOME": str(cache.parent)}
    if is_embedded:
        environment |= without_java(tmp_path)

    def of_a_session() -> str:
        command = [sys.executable, "-c", SESSION]
        return subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True, timeout=300).stdout

    of_a_session()
    until(lambda: [each.suffix for each in cache.iterdir()] == [".jsa"], 300)
    assert "sharing" in of_a_session()
    [archive] = cache.iterdir()
    assert archive.suffix == ".jsa"
    archive.unlink()  # not overwritten: the Java before may still be ending, and has it mapped
    archive.write_bytes(os.urandom(10_000))
    assert "sharing" not in of_a_session()
    assert list(cache.iterdir()) == [], "one that is refused is taken away, so that the next session has one made"


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize("is_embedded", [False, True])
def test_a_java_that_cannot_use_the_archive_starts_without_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *, is_embedded: bool
) -> None:
    """An invalid file only costs the time to notice that: with the machine's Java and PyPI's."""
    for name, value in (without_java(tmp_path) if is_embedded else {}).items():
        monkeypatch.setenv(name, value)
    home = ensure_java()
    archive = archive_of(home)
    assert (archive.program.parent.parent / "lib" / "server" / "libjvm.so").exists()
    archive.file.write_bytes(os.urandom(10_000))
    words = [word.strip('"') for word in archive.options.split()]
    done = subprocess.run([home / "bin" / "java", *words, "-version"], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "version" in done.stderr.splitlines()[0]
