"""Java's classes are kept between runs: once for each Java, by one process, and never in a way that stops a run."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pyspark
import pytest

from redelivery.workers.reconciliation.spark.java import ClassArchive, ensure_java
from tests.support.running import until

JAR = str(next((Path(pyspark.__file__).parent / "jars").glob("spark-launcher_*.jar")))


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A cache folder of this test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "redelivery"


def java_home(folder: Path, content: str) -> Path:
    """A Java home, as far as its machine is looked at."""
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
    """Another place or another build is another file; the folder is for this user alone."""
    one, other = java_home(tmp_path / "one", "17"), java_home(tmp_path / "other", "21")
    first = archive_of(one)
    assert archive_of(one) == first
    assert archive_of(other).file != first.file
    assert first.file.parent == cache
    assert cache.stat().st_mode & 0o777 == 0o700
    (one / "lib" / "server" / "libjvm.so").write_text("17.0.16")
    assert archive_of(one).file != first.file


def test_classes_are_noted_until_the_archive_is_there_and_by_nobody_while_it_is_made(cache: Path, tmp_path: Path) -> None:
    """Then the archive is mapped; a Java that cannot map it starts without."""
    archive = archive_of(java_home(tmp_path / "java", "21"))
    assert f"-XX:DumpLoadedClassList={cache}/" in archive.options
    making = archive.file.with_suffix(".making")
    making.touch()
    assert archive.options == ""
    making.unlink()
    archive.file.touch()
    assert archive.options.split()[:2] == ["-Xshare:auto", f'"-XX:SharedArchiveFile={archive.file}"']


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


@pytest.mark.parametrize("is_embedded", [False, True])
def test_what_was_noted_is_kept_and_mapped(cache: Path, monkeypatch: pytest.MonkeyPatch, *, is_embedded: bool) -> None:
    """With the machine's Java and with PyPI's; nothing but the archive is left, and a second process makes none."""
    if is_embedded:
        monkeypatch.setenv("JAVA_HOME", "")
    home = ensure_java(embedded=is_embedded)
    archive = archive_of(home)
    noted = Path(archive.options.strip('"').partition("=")[2])
    noted.write_text("java/lang/Object\njava/lang/String\n")
    archive.keep(JAR)
    until(lambda: [each.suffix for each in cache.iterdir()] == [".jsa"], 120)
    words = [word.strip('"') for word in archive.options.split()]
    command = [str(home / "bin" / "java"), "-Xshare:on", *words[1:], "-cp", JAR, "-version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    assert "sharing" in done.stderr
    noted.touch()
    archive.keep(JAR)
    assert [each.suffix for each in cache.iterdir()] == [".jsa"]


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize("is_embedded", [False, True])
def test_a_java_that_cannot_use_the_archive_starts_without_it(monkeypatch: pytest.MonkeyPatch, *, is_embedded: bool) -> None:
    """A file that is no archive costs nothing but the time to see it: the machine's Java and PyPI's."""
    if is_embedded:
        monkeypatch.setenv("JAVA_HOME", "")
    home = ensure_java(embedded=is_embedded)
    archive = archive_of(home)
    assert (archive.program.parent.parent / "lib" / "server" / "libjvm.so").exists()
    archive.file.write_bytes(os.urandom(10_000))
    words = [word.strip('"') for word in archive.options.split()]
    done = subprocess.run([home / "bin" / "java", *words, "-version"], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "version" in done.stderr.splitlines()[0]
