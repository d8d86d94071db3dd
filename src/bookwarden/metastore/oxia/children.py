"""Search for keys with children: Oxia itself deletes a key whatever is below it.

In the order of keys (reads.py) the children of ``p/a`` come right before ``p/a//``. So the last key before ``p/a//``
is a child of ``p/a`` if the shard has one; and where it is not below any child of p, nothing is below those children
of p that come before a, as long as their names are no longer or shorter than a's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from bookwarden.metastore.deadline import Deadline
from bookwarden.metastore.oxia.channels import ServerLost
from bookwarden.metastore.oxia.reads import OxiaReader
from bookwarden.metastore.oxia.shards import OxiaCluster
from bookwarden.metastore.paths import parent_of
from bookwarden.wire.pb import oxia_client_pb2 as pb


class Parents:
    """Finds the parents among keys, with children on any shard."""

    def __init__(self, cluster: OxiaCluster, reader: OxiaReader) -> None:
        self._cluster = cluster
        self._reader = reader

    def among(self, paths: Sequence[str], deadline: Deadline) -> set[str]:
        """Return the paths that have children.

        Siblings share one question, so that ledgers, which have no children, cost next to nothing; where something
        is below one of them, each is asked for by itself.
        """
        siblings: dict[tuple[str, int], list[str]] = {}
        for path in paths:
            siblings.setdefault((parent_of(path), len(path)), []).append(path)
        groups = {max(group): group for group in siblings.values()}
        doubtful: dict[str, None] = {}
        for last, before in self._keys_before_ends(list(groups), deadline):
            if _is_below_a_sibling(before, last):
                doubtful.update(dict.fromkeys(groups[last]))
        return {
            path for path, before in self._keys_before_ends(list(doubtful), deadline) if before.startswith(f"{path}/")
        }

    def _keys_before_ends(self, paths: Sequence[str], deadline: Deadline) -> Iterator[tuple[str, str]]:
        """Yield each path with the last key before the end of its children, or an empty one, once a shard."""
        left: Sequence[str] = paths
        while left:
            shards = self._cluster.shards(deadline)
            again: dict[str, None] = {}
            lost = ServerLost("")
            batches = ((shard, batch) for batch in self._reader.cut(left) for shard in shards.shards)
            for sent in self._reader.in_flight(batches, _before_end, deadline):
                try:
                    answers = self._reader.answers_of(sent)
                except ServerLost as error:
                    lost = error
                    again.update(dict.fromkeys(sent.keys))
                else:
                    deadline.progress()
                    yield from ((path, answer.key) for path, answer in zip(sent.keys, answers, strict=True))
            left = list(again)
            if left:
                self._cluster.wait_for_news(shards, lost, deadline)


def _before_end(shard: int, paths: list[str]) -> pb.ReadRequest:
    request = pb.ReadRequest(shard=shard)
    for path in paths:
        request.gets.add(key=f"{path}//", comparison_type=pb.LOWER)
    return request


def _is_below_a_sibling(key: str, path: str) -> bool:
    """Return whether the key is below a child of the path's parent."""
    siblings = path[: path.rindex("/") + 1]
    return key.startswith(siblings) and "/" in key[len(siblings) :]
