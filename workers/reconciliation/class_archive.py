"""Java's classes in one file, so that Spark starts without reading and checking each of them anew.

The first run of a Java and a Spark notes which classes it loads. When it has ended, a process of its own writes them to a file in
the user's cache folder, and later runs map that file. Nobody waits for it: a machine that ends with its first run has lost nothing.
A file is made for exactly one Java and one folder of jars, and gets its name when it is whole. Where Java cannot use it, it starts
as it would have without.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shlex
import stat
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

import pyspark

#: Seconds after which a file that is being made was left by a process that died, and after which an unused one goes.
_MAKING, _UNUSED = 600, 60 * 86_400


@dataclass(frozen=True, slots=True)
class ClassArchive:
    """The archive of one Java (the program that is run) and this Spark; `file` may not be there yet."""

    program: Path
    file: Path

    @classmethod
    def of(cls, home: Path) -> ClassArchive | None:
        """The archive for a Java home; None where it has no place that only this user can write to."""
        machine = (home / "lib" / "server" / "libjvm.so").resolve()
        folder = _folder()
        jars = Path(os.environ.get("SPARK_HOME", Path(pyspark.__file__).parent)) / "jars"
        if folder is None or not machine.exists() or not jars.exists():
            return None
        about = [f"{each} {each.stat().st_mtime_ns} {each.stat().st_size}" for each in (machine, jars)]
        key = hashlib.sha256("\n".join([*about, pyspark.__version__]).encode()).hexdigest()[:16]
        return cls(machine.parents[2] / "bin" / "java", folder / f"spark-{key}.jsa")

    @property
    def is_there(self) -> bool:
        """Whether it can be mapped."""
        return self.file.exists()

    @property
    def options(self) -> str:
        """What Java is started with: to map the archive, or to note its classes, unless it is being made."""
        if self.is_there:
            with contextlib.suppress(OSError):  # another process may take it away at any time
                os.utime(self.file)
            return f'-Xshare:auto "-XX:SharedArchiveFile={self.file}" -Xlog:cds=off'
        return "" if self._making.exists() else f'"-XX:DumpLoadedClassList={self._noted}"'

    def keep(self, class_path: str) -> None:
        """Have it made in the background, unless it is there or another process makes it; call it when the work is done.

        The class path is that of the Java whose classes were noted.
        """
        self._tidy()
        if self.is_there or not self._noted.exists() or not _is_first(self._making):
            self._noted.unlink(missing_ok=True)
            return
        new = self.file.with_suffix(f".{os.getpid()}.new")
        files = [f"-XX:SharedClassListFile={self._noted}", f"-XX:SharedArchiveFile={new}"]
        dump = shlex.join(["nice", str(self.program), "-Xshare:dump", *files, "-cp", class_path])
        left = shlex.join(["rm", "-f", str(new), str(self._noted), str(self._making)])
        script = f"{dump} && {shlex.join(['mv', str(new), str(self.file)])}; {left}"
        none = subprocess.DEVNULL
        # The shell ends at once: what it has begun is nobody's child.
        words = ["/bin/sh", "-c", f"({script}) &"]
        subprocess.run(words, stdin=none, stdout=none, stderr=none, start_new_session=True, check=False)  # noqa: S603 - our own text

    @property
    def _making(self) -> Path:
        return self.file.with_suffix(".making")

    @property
    def _noted(self) -> Path:
        return self.file.with_suffix(f".{os.getpid()}.classes")

    def _tidy(self) -> None:
        """Take away what nobody has used for long, and what processes left that died."""
        now = time.time()
        for each in self.file.parent.glob("spark-*"):
            with contextlib.suppress(FileNotFoundError):
                if each.stat().st_mtime < now - (_UNUSED if each.suffix == ".jsa" else _MAKING):
                    each.unlink()


def _folder() -> Path | None:
    """Our folder in the user's cache; None where it cannot be made, or others may write to it."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")  # noqa: PTH111 - it leaves a ~ that it cannot resolve
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


def _is_first(marker: Path) -> bool:
    """Whether no other process has put this marker there."""
    try:
        marker.touch(exist_ok=False)
    except OSError:
        return False
    return True
