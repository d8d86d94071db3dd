"""The children of many keys of an Oxia namespace; neighbours share one request a shard.

In the order of keys (reads.py), all that is below the children a to b of p lies from ``p/a/`` up to ``p/b//``: the
children of a, what is below them, and so on to the children of b. So where nothing is below their children, one range
has the children of siblings and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from bookwarden.metastore.deadline import Deadline
from bookwarden.metastore.oxia.reads import OxiaReader
from bookwarden.metastore.paths import parent_of

Children = Mapping[str, list[str]]


class ChildLists:
    """Lists children on all shards, sorted."""

    def __init__(self, reader: OxiaReader) -> None:
        self._reader = reader

    def of(self, paths: Sequence[str], deadline: Deadline) -> list[list[str]]:
        """List the children of each key; fastest if siblings are asked for together."""
        groups: dict[str, list[str]] = {}
        for path in dict.fromkeys(paths):
            groups.setdefault(parent_of(path) if path != "/" else "", []).append(path)
        found: dict[str, list[str]] = {}
        for siblings in groups.values():
            together = self._of_siblings(siblings, deadline) if len(siblings) > 1 else None
            found.update(together or {path: self._of_one(path, deadline) for path in siblings})
        return [sorted(found[path]) for path in paths]

    def _of_one(self, path: str, deadline: Deadline) -> list[str]:
        prefix = f"{path.rstrip('/')}/"
        names = (key[len(prefix) :] for key in self._reader.list_range(prefix, f"{prefix}/", deadline))
        # A key "/" would be its own child.
        return [name for name in names if name]

    def _of_siblings(self, paths: Sequence[str], deadline: Deadline) -> Children | None:
        """List the range of siblings; None at the first key in it that is no child."""
        slashes = paths[0].count("/") + 1

        def children_among(keys: Iterator[str]) -> Children | None:
            found: dict[str, list[str]] = {path: [] for path in paths}
            for key in keys:
                parent, _, name = key.rpartition("/")
                if key.count("/") != slashes:
                    return None
                if parent in found:
                    found[parent].append(name)
            return found

        return self._reader.over_range(f"{min(paths)}/", f"{max(paths)}//", children_among, deadline)
