"""Files on whatever file system Spark can reach: the few operations that the job needs beyond reading and writing tables.

Everything goes through Hadoop's FileSystem, so a path means the same here as where Spark reads it. Limit: on an object store a
rename is a copy, and not atomic.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from py4j.protocol import Py4JJavaError

from redelivery.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

#: The characters that have a meaning in a pattern of Hadoop's.
_GLOB: Final = re.compile(r"[\\*?\[\]{}]")


def literal(uri: str) -> str:
    """The pattern that matches only this path: Spark treats each path that it reads as a pattern."""
    return _GLOB.sub(r"\\\g<0>", uri)


@dataclass(frozen=True, slots=True)
class File:
    """One file: its full path, its name, and its size in bytes."""

    path: str
    name: str
    size: int


class Files:
    """File operations of one session."""

    def __init__(self, spark: SparkSession) -> None:
        self._jvm: Any = spark.sparkContext._jvm  # noqa: SLF001 - Spark has no public door to Hadoop's file systems
        self._path: Any = self._class("org.apache.hadoop.fs.Path")
        self._gateway: Any = spark.sparkContext._gateway  # noqa: SLF001 - as above
        self._configuration: Any = spark.sparkContext._jsc.hadoopConfiguration()  # noqa: SLF001 - as above

    def absolute(self, uri: str) -> str:
        """The full URI that a path stands for."""
        path, system = self._open(uri)
        return str(system.makeQualified(path).toString())

    def real(self, uri: str) -> str:
        """The same; on a local disk, links are followed."""
        path, system = self._open(uri)
        return f"file:{os.path.realpath(_local(path))}" if _is_local(system) else self.absolute(uri)

    def exists(self, uri: str) -> bool:
        """Whether there is a file or folder."""
        path, system = self._open(uri)
        return bool(system.exists(path))

    def names(self, uri: str) -> list[str]:
        """The names in a folder; none if there is no such folder."""
        path, system = self._open(uri)
        if not system.exists(path):
            return []
        return sorted(str(each.getPath().getName()) for each in system.listStatus(path) if not _is_checksum(each))

    def beginning(self, uri: str, start: str) -> list[str]:
        """The names in a folder that begin with `start`; the file system itself filters them."""
        path, system = self._open(uri)
        if not system.exists(path):
            return []
        # A pattern for whole paths would fail if any name in the folder has a colon.
        only = self._class("org.apache.hadoop.fs.GlobFilter")(literal(start) + "*")
        return sorted(str(each.getPath().getName()) for each in system.listStatus(path, only))

    def modified_ms(self, uri: str) -> int:
        """When a file or folder was last changed (ms since the epoch); for a folder, an object store says that it was just now."""
        path, system = self._open(uri)
        return int(system.getFileStatus(path).getModificationTime())

    def walk(self, uri: str) -> Iterator[File]:
        """All files below, or the file itself; hidden ones (`_`, `.`) and those in hidden folders are left out, as Spark does."""
        path, system = self._open(uri)
        waiting = [system.getFileStatus(path)]
        top = True
        while waiting:
            status = waiting.pop()
            where = status.getPath()
            name = str(where.getName())
            if not top and name.startswith(("_", ".")):
                continue
            top = False
            if status.isDirectory():
                waiting.extend(system.listStatus(where))
            else:
                yield File(str(where.toString()), name, int(status.getLen()))

    def read(self, uri: str) -> str | None:
        """A small file's text; None if there is no such file."""
        path, system = self._open(uri)
        if not system.exists(path):
            return None
        stream = system.open(path)
        try:
            return str(self._class("org.apache.commons.io.IOUtils").toString(stream, "UTF-8"))
        finally:
            stream.close()

    def write(self, uri: str, text: str) -> None:
        """Write a small file."""
        path, system = self._open(uri)
        system.setWriteChecksum(False)
        stream = system.create(path, True)  # noqa: FBT003 - Hadoop's `overwrite`
        try:
            stream.write(bytearray(text, "utf-8"))
        finally:
            stream.close()

    def rename(self, source: str, target: str) -> None:
        """Move a file or folder; raises `InputError` if the file system refuses.

        Where a local disk refuses, Hadoop would copy everything and delete it: a folder that is a mount point would be emptied.
        """
        path, system = self._open(source)
        to_path = self._path(target)
        if _is_local(system):
            try:
                Path(_local(path)).rename(_local(to_path))
            except OSError as exc:
                msg = f"{source} could not be renamed: {exc.strerror}"
                raise InputError(msg) from exc
        elif not system.rename(path, to_path):
            msg = f"{source} could not be renamed to {target}: look at the permissions of its folder"
            raise InputError(msg)

    def replace(self, source: str, target: str) -> None:
        """Move a file over another: in one step if the file system can (HDFS, a local disk), else the old one is removed first."""
        from_path, system = self._open(source)
        to_path = self._path(target)
        rename = self._class("org.apache.hadoop.fs.Options$Rename")
        options = self._gateway.new_array(rename, 1)
        options[0] = rename.OVERWRITE
        try:
            context = self._class("org.apache.hadoop.fs.FileContext").getFileContext(system.getUri(), self._configuration)
            context.rename(system.makeQualified(from_path), system.makeQualified(to_path), options)
        except Py4JJavaError:  # a file system that FileContext does not know: object stores, for the most part
            system.delete(to_path, False)  # noqa: FBT003 - Hadoop's `recursive`
            self.rename(source, target)

    def remove(self, uri: str) -> None:
        """Remove a file or folder with all that is in it; nothing happens if there is none."""
        path, system = self._open(uri)
        system.delete(path, True)  # noqa: FBT003 - Hadoop's `recursive`

    def _class(self, name: str) -> Any:
        return getattr(self._jvm, name)  # by its whole name: with `a.b.c`, each package would be searched for in all jars

    def _open(self, uri: str) -> tuple[Any, Any]:
        path = self._path(uri)
        return path, path.getFileSystem(self._configuration)


def _is_local(system: Any) -> bool:
    return str(system.getScheme()) == "file"


def _local(path: Any) -> str:
    return str(path.toUri().getPath())


def _is_checksum(status: Any) -> bool:
    name = str(status.getPath().getName())
    return name.startswith(".") and name.endswith(".crc")
