"""Paths of nodes: their validity, and their parents."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from bookwarden.errors import FormatError

# A node's path travels in one request with its value; ZooKeeper's whole default request is 1 MiB.
MAX_PATH_BYTES = 32 * 1024


def validate_path(path: str) -> str:
    """Return the path; raise FormatError when no store can have a node there.

    The text of the error shortens the path, because it may come from a forged message.
    """
    problem = _problem(path)
    if problem:
        raise FormatError(f"{path[:200]!r} is no path of a metadata store: {problem}")
    return path


def validate_paths(paths: Sequence[str]) -> Sequence[str]:
    """Return the paths; raise FormatError, as validate_path does, if one is invalid."""
    if not _are_plain(paths):
        for path in paths:
            validate_path(path)
    return paths


# Fast path of validate_path, must equal it: tests/unit/metastore/test_store_paths.py
def _are_plain(paths: Sequence[str]) -> bool:
    """Return whether all are short ASCII and need no closer look; checked at once on their joined text."""
    lines = "\n".join(paths)
    if not lines.isascii() or any(part in lines for part in ("//", "/.", "/\n", "\0")):
        return False
    ends = len(paths) - 1
    return (
        lines[:1] == "/" and lines[-1] != "/" and lines.count("\n") == lines.count("\n/") == ends and _are_short(paths)
    )


def _are_short(paths: Sequence[str]) -> bool:
    return max(map(len, paths)) <= MAX_PATH_BYTES


def _problem(path: str) -> str | None:
    if not path.startswith("/"):
        return "it does not begin with /"
    if path != "/" and (path.endswith("/") or "//" in path):
        return "it has an empty part"
    if "/." in path and any(part in (".", "..") for part in path.split("/")):
        return "it has a relative part"
    if "\0" in path:
        return "it has a null character"
    try:
        size = len(path.encode("utf-8"))
    except UnicodeEncodeError:
        return "it is not valid Unicode"
    return f"it has {size} bytes, more than {MAX_PATH_BYTES}" if size > MAX_PATH_BYTES else None


def parent_of(path: str) -> str:
    """Return the path's parent."""
    return path.rpartition("/")[0] or "/"


def ancestors(path: str) -> Iterator[str]:
    """Yield the parents of the path, the topmost first, without the root."""
    parts = path.split("/")[1:-1]
    for depth in range(1, len(parts) + 1):
        yield "/" + "/".join(parts[:depth])
