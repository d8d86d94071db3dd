"""A folder of small files at a path or a URI, each file whole or absent."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import fs

from bookwarden.durable import sync
from bookwarden.errors import ConfigError, FormatError

_HIDDEN = "_"
# Schemes with another name in Hadoop than in pyarrow.
_ARROW_SCHEMES = {"s3a": "s3"}


class Folder:
    """The files below `location`, a path or a URI that pyarrow opens (file, s3, gs, hdfs), or s3a; picklable.

    A file is written under a hidden name and then moved, so readers see all of it or nothing. Its name is relative to
    the folder and may have folders in it. A file system's own errors (OSError) are not translated, but name the file
    that could not be written. ``with_options`` allows pyarrow's options behind a ? of a URI, where no path
    is made by appending to the location.
    """

    def __init__(self, location: str, *, with_options: bool = False) -> None:
        self.location = location.rstrip("/")
        try:
            if "://" in location:
                self._fs, self._root = fs.FileSystem.from_uri(_for_arrow(self.location, with_options))
            else:
                self._fs, self._root = fs.LocalFileSystem(), str(Path(self.location).absolute())
        except (ValueError, pa.ArrowException) as error:
            raise ConfigError(f"{location} is neither a path nor a URI that is known: {error}") from error

    def __reduce__(self) -> tuple[type[Folder], tuple[str]]:
        return Folder, (self.location,)

    @property
    def local_path(self) -> Path | None:
        """Its path on this machine; None on another file system."""
        return Path(self._root) if isinstance(self._fs, fs.LocalFileSystem) else None

    def below(self, name: str) -> Folder:
        """Return a folder inside this one."""
        return Folder(f"{self.location}/{name}")

    def make(self, name: str = "") -> None:
        """Make a folder inside this one, or this one."""
        path = self._path(name)
        with _naming(path):
            self._fs.create_dir(path, recursive=True)

    def write(self, name: str, write_to: Callable[[pa.NativeFile], object], *, durable: bool = False) -> None:
        """Write a file, replacing one of that name.

        A ``durable`` file survives a loss of power once this returns; before, the old or the new one is left.
        """
        path = self._path(name)
        parent, _, base = path.rpartition("/")
        hidden = f"{parent}/{_HIDDEN}{base}.{os.getpid()}-{uuid.uuid4().hex[:8]}"
        try:
            with _naming(path):
                self._fs.create_dir(parent, recursive=True)
                with self._fs.open_output_stream(hidden) as sink:
                    write_to(sink)
                # An object store writes objects whole and durable.
                local = self.local_path if durable else None
                if local:
                    sync(hidden)
                self._fs.move(hidden, path)
        except BaseException:
            self._remove_path(hidden)
            raise
        if local:
            for folder in Path(path).parents:
                sync(folder)
                if folder == local.parent:
                    break

    def write_json(self, name: str, value: Any) -> None:
        """Write a value as JSON."""
        raw = json.dumps(value, indent=1, sort_keys=True).encode()
        self.write(name, lambda sink: sink.write(raw))

    def read(self, name: str) -> bytes:
        """Read a whole file; FileNotFoundError if there is none."""
        with self._fs.open_input_file(self._path(name)) as source:
            raw: bytes = source.read()
        return raw

    def read_json(self, name: str) -> Any:
        """Read what `write_json` wrote; FileNotFoundError if there is none, FormatError if it is not JSON."""
        try:
            return json.loads(self.read(name))
        except ValueError as error:
            raise FormatError(f"{self.location}/{name} is not JSON: it is damaged") from error

    def open(self, name: str) -> pa.NativeFile:
        """Open a file to be read from anywhere in it; the caller closes it."""
        return self._fs.open_input_file(self._path(name))

    def exists(self, name: str) -> bool:
        """Return whether there is a file, or a folder, of that name."""
        return bool(self._fs.get_file_info(self._path(name)).type != fs.FileType.NotFound)

    def files(self, name: str = "") -> list[str]:
        """List the files directly in a folder, sorted; an empty list if it does not exist."""
        return sorted(info.base_name for info in self._entries(name) if self._is_shown(info, fs.FileType.File))

    def folders(self, name: str = "") -> list[str]:
        """List the folders directly in a folder, sorted; an empty list if it does not exist."""
        return sorted(info.base_name for info in self._entries(name) if self._is_shown(info, fs.FileType.Directory))

    def all_files(self) -> list[str]:
        """List the files in this folder and in the folders in it, sorted."""
        found = [info for info in self._entries(recursive=True) if self._is_shown(info, fs.FileType.File)]
        return sorted(info.path.removeprefix(f"{self._root}/") for info in found)

    def move(self, name: str, to: str) -> None:
        """Move a file to another name."""
        self._fs.move(self._path(name), self._path(to))

    def remove(self, name: str) -> None:
        """Remove a file if it is there."""
        self._remove_path(self._path(name))

    def remove_folder(self, name: str) -> None:
        """Remove a folder inside this one, with all that is in it."""
        self._fs.delete_dir(self._path(name))

    def _entries(self, name: str = "", *, recursive: bool = False) -> list[fs.FileInfo]:
        selector = fs.FileSelector(self._path(name), allow_not_found=True, recursive=recursive)
        try:
            found: list[fs.FileInfo] = self._fs.get_file_info(selector)
        except FileNotFoundError:
            # pyarrow lists it first and looks afterwards whether it is there: another process made it in between.
            found = self._fs.get_file_info(selector)
        return found

    @staticmethod
    def _is_shown(info: fs.FileInfo, kind: fs.FileType) -> bool:
        return bool(info.type == kind) and not info.base_name.startswith((_HIDDEN, "."))

    def _remove_path(self, path: str) -> None:
        if self._fs.get_file_info(path).type == fs.FileType.File:
            self._fs.delete_file(path)

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}".rstrip("/")


@contextmanager
def _naming(path: str) -> Iterator[None]:
    """Add the file to an error of pyarrow, which of a full disk does not say what was written."""
    try:
        yield
    except OSError as error:
        if error.filename is None and error.errno is not None:
            raise OSError(error.errno, os.strerror(error.errno), path) from error
        raise


def _for_arrow(location: str, with_options: bool) -> str:
    scheme, _, rest = location.partition("://")
    if "?" in rest and not with_options:
        # Names in the folder are appended to it.
        raise ValueError("options behind a ? are not taken; an S3 server's address is in AWS_ENDPOINT_URL")
    return f"{_ARROW_SCHEMES.get(scheme, scheme)}://{rest}"
