"""An object store: only complete objects are visible, and there are no folders and no renames.

It keeps objects and unfinished uploads in two folders. It behaves like Azure's store without a hierarchical namespace, where
pyarrow raises `NotImplementedError` for a move.
"""

from __future__ import annotations

import shutil
import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import fs

from redelivery.workers.export import tables

__all__ = ["SCHEME", "ObjectStore", "install"]

SCHEME = "store://"


class _Upload:
    """A file whose content becomes the object when the file is closed."""

    def __init__(self, unfinished: Path, object_: Path) -> None:
        self._file, self._unfinished, self._object = unfinished.open("wb"), unfinished, object_

    @property
    def closed(self) -> bool:
        return self._file.closed

    def write(self, data: Any) -> int:
        return self._file.write(data)

    def flush(self) -> None:
        """Does nothing: no part of an object is visible before it is closed."""

    def close(self) -> None:
        """Make the complete object visible."""
        if not self._file.closed:
            self._file.close()
            self._object.parent.mkdir(parents=True, exist_ok=True)
            self._unfinished.replace(self._object)


class ObjectStore(fs.FileSystemHandler):
    """A store below a folder. `resolve` replaces pyarrow's lookup of URIs; `copied` counts the copied objects."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.copied = folder, 0
        for name in ("objects", "uploads"):
            (folder / name).mkdir(parents=True, exist_ok=True)

    def resolve(self, uri: str) -> tuple[fs.FileSystem, str]:
        """The store, and the path in it. Text behind a `?` is an option."""
        path, _, options = uri.removeprefix(SCHEME).partition("?")
        assert "/" not in options, f"{uri}: there is a path behind the options"
        return fs.PyFileSystem(self), path.rstrip("/")

    def open_output_stream(self, path: str, metadata: Any) -> pa.NativeFile:  # noqa: ARG002 - pyarrow's signature
        return pa.PythonFile(_Upload(self._unfinished(), self._at(path)), mode="w")

    def open_input_stream(self, path: str) -> pa.NativeFile:
        return pa.OSFile(str(self._at(path)))

    open_input_file = open_input_stream

    def move(self, src: str, dest: str) -> None:
        message = f"{src} cannot be moved to {dest}: this store renames nothing"
        raise NotImplementedError(message)

    def copy_file(self, src: str, dest: str) -> None:
        """Copy an object. The copy is visible when it is complete."""
        unfinished = self._unfinished()
        shutil.copyfile(self._at(src), unfinished)
        self._at(dest).parent.mkdir(parents=True, exist_ok=True)
        unfinished.replace(self._at(dest))
        self.copied += 1

    def delete_file(self, path: str) -> None:
        self._at(path).unlink()

    def create_dir(self, path: str, recursive: bool) -> None:
        """There are no folders."""

    def get_file_info(self, paths: list[str]) -> list[fs.FileInfo]:
        return [self._info(path) for path in paths]

    def get_file_info_selector(self, selector: fs.FileSelector) -> list[fs.FileInfo]:
        folder = self._at(selector.base_dir)
        found = folder.rglob("*") if selector.recursive else folder.glob("*")
        return [self._info(str(each.relative_to(self.folder / "objects"))) for each in found]

    def get_type_name(self) -> str:
        return "objects"

    def normalize_path(self, path: str) -> str:
        return path

    def _info(self, path: str) -> fs.FileInfo:
        at = self._at(path)
        if at.is_file():
            return fs.FileInfo(path, fs.FileType.File, size=at.stat().st_size)
        return fs.FileInfo(path, fs.FileType.Directory if at.is_dir() else fs.FileType.NotFound)

    def _unfinished(self) -> Path:
        return self.folder / "uploads" / uuid.uuid4().hex

    def _at(self, path: str) -> Path:
        return self.folder / "objects" / path

    def _unknown(self, *_: Any) -> Any:
        message = "the export does not need this operation"
        raise AssertionError(message)

    open_append_stream = delete_dir = delete_dir_contents = delete_root_dir_contents = _unknown


def install(folder: str) -> None:
    """Let all exports of this process write to the store below this folder."""
    tables.resolve = ObjectStore(Path(folder)).resolve
