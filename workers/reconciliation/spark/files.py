"""File operations on any file system that Spark can reach, besides reading and writing tables.

They use Hadoop's FileSystem, so a path means the same here and where Spark reads it. Limit: on an object store a rename is a copy,
and not atomic.
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

#: The special characters in Hadoop's patterns.
_GLOB: Final = re.compile(r"[\\*?\[\]{}]")


def literal(uri: str) -> str:
    """The pattern that matches only this path. Spark reads each path as a pattern."""
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
        self._jvm: Any = spark.sparkContext._jvm  # noqa: SLF001 - Spark has no public way to Hadoop's file systems
        self._path: Any = self._class("org.apache.hadoop.fs.Path")
        self._gateway: Any = spark.sparkContext._gateway  # noqa: SLF001 - as above
        self._configuration: Any = spark.sparkContext._jsc.hadoopConfiguration()  # noqa: SLF001 - as above

    def absolute(self, uri: str) -> str:
        """The full URI of a path."""
        path, system = self._open(uri)
        return str(system.makeQualified(path).toString())

    def real(self, uri: str) -> str:
        """The full URI of a path. On a local disk, links are followed."""
        path, system = self._open(uri)
        return f"file:{os.path.realpath(_local(path))}" if _is_local(system) else self.absolute(uri)

    def exists(self, uri: str) -> bool:
        """Whether the file or folder exists."""
        path, system = self._open(uri)
        return bool(system.exists(path))

    def names(self, uri: str) -> list[str]:
        """The names in a folder; empty if there is no such folder."""
        path, system = self._open(uri)
        if not system.exists(path):
            return []
        return sorted(str(each.getPath().getName()) for each in system.listStatus(path) if not _is_checksum(each))

    def beginning(self, uri: str, start: str) -> list[str]:
        """The names in a folder that begin with `start`, filtered by the file system."""
        path, system = self._open(uri)
        if not system.exists(path):
            return []
        # A pattern for whole paths would fail for a name with a colon.
        only = self._class("org.apache.hadoop.fs.GlobFilter")(literal(start) + "*")
        return sorted(str(each.getPath().getName()) for each in system.listStatus(path, only))

    def modified_ms(self, uri: str) -> int:
        """The time of the last change (ms since the epoch). For a folder, an object store returns the current time."""
        path, system = self._open(uri)
        return int(system.getFileStatus(path).getModificationTime())

    def walk(self, uri: str) -> Iterator[File]:
        """All files below the folder, or the file itself. Skips hidden files and folders (`_`, `.`), as Spark does."""
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
        """The text of a small file; None if there is no such file."""
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
        """Move a file or folder. Raises `InputError` if the file system refuses.

        Hadoop is not used for a local disk: after a refusal it would copy and delete everything, and so empty a mount point.
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
        """Move a file over another, in one step on HDFS and local disks. Elsewhere the old file is removed first."""
        from_path, system = self._open(source)
        to_path = self._path(target)
        rename = self._class("org.apache.hadoop.fs.Options$Rename")
        options = self._gateway.new_array(rename, 1)
        options[0] = rename.OVERWRITE
        try:
            context = self._class("org.apache.hadoop.fs.FileContext").getFileContext(system.getUri(), self._configuration)
            context.rename(system.makeQualified(from_path), system.makeQualified(to_path), options)
        except Py4JJavaError:  # FileContext does not know most object stores
            system.delete(to_path, False)  # noqa: FBT003 - Hadoop's `recursive`
            self.rename(source, target)

    def remove(self, uri: str) -> None:
        """Remove a file or folder with its contents, if it exists."""
        path, system = self._open(uri)
        system.delete(path, True)  # noqa: FBT003 - Hadoop's `recursive`

    def _class(self, name: str) -> Any:
        return getattr(self._jvm, name)  # by its full name: with `a.b.c`, py4j would search all jars for each package

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
