"""Snapshots that ZooKeeper compressed as it wrote them, unpacked into a file that can be read in parts.

Format: persistence.SnapStream, ZooKeeper 3.9; snappy-java's SnappyOutputStream: a magic, two versions, and blocks of
raw Snappy, each behind its length; such streams may follow each other.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import tempfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, Final

import cramjam

from bookwarden.errors import ConfigError
from bookwarden.metastore.zookeeper.jute import damaged

_BLOCK: Final = 1 << 20
_SNAPPY_MAGIC: Final = b"\x82SNAPPY\0"
_SNAPPY_HEADER: Final = len(_SNAPPY_MAGIC) + 8
_MAX_SNAPPY_BLOCK: Final = 1 << 29


def work_folder(chosen: str | None) -> Path:
    """Make the folder for unpacked snapshots and indexes, by default one of our own among the temporary ones."""
    if chosen is not None:
        Path(chosen).mkdir(parents=True, exist_ok=True)
        return Path(chosen)
    folder = Path(tempfile.gettempdir()) / f"bookwarden-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_uid != os.getuid():
        raise ConfigError(f"{folder} belongs to someone else: set TMPDIR, or ?work=/folder in the store's URL")
    return folder


def unpacked(file: Path, folder: Path) -> Path:
    """Return the file itself if it is not compressed, else its content in the folder, unpacked once.

    Raises FormatError if the file is not whole.
    """
    blocks = {".gz": _gzip_blocks, ".snappy": _snappy_blocks}.get(file.suffix)
    if blocks is None:
        return file
    stat = file.stat()
    identity = hashlib.sha256(f"{file.resolve()}\n{stat.st_size}\n{stat.st_mtime_ns}".encode()).hexdigest()[:16]
    target = folder / f"{file.stem}-{identity}"
    if not target.exists():
        _unpack(file, target, blocks)
    return target


def _unpack(file: Path, target: Path, blocks: Callable[[BinaryIO, Path], Iterator[bytes]]) -> None:
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}-")
    try:
        with os.fdopen(handle, "wb") as sink, file.open("rb") as source:
            sink.writelines(blocks(source, file))
        Path(name).rename(target)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _gzip_blocks(source: BinaryIO, file: Path) -> Iterator[bytes]:
    with gzip.GzipFile(fileobj=source, mode="rb") as stream:
        while True:
            try:
                block = stream.read(_BLOCK)
            except (gzip.BadGzipFile, EOFError, zlib.error) as error:
                raise damaged(str(file), source.tell(), f"it cannot be unpacked ({error})") from error
            if not block:
                return
            yield block


def _snappy_blocks(source: BinaryIO, file: Path) -> Iterator[bytes]:
    if source.read(len(_SNAPPY_MAGIC)) != _SNAPPY_MAGIC:
        raise damaged(str(file), 0, "it does not begin as a stream of Snappy blocks does")
    source.seek(0)
    while prefix := source.read(4):
        if prefix == _SNAPPY_MAGIC[:4]:
            if len(source.read(_SNAPPY_HEADER - 4)) < _SNAPPY_HEADER - 4:
                raise damaged(str(file), source.tell(), "a header of Snappy blocks is not whole")
            continue
        size = int.from_bytes(prefix, "big")
        block = source.read(size) if size <= _MAX_SNAPPY_BLOCK else b""
        if len(prefix) < 4 or len(block) < size:
            raise damaged(str(file), source.tell(), "a Snappy block is not whole")
        try:
            yield bytes(cramjam.snappy.decompress_raw(block))
        except cramjam.DecompressionError as error:
            raise damaged(str(file), source.tell(), f"a Snappy block cannot be unpacked ({error})") from error
