"""Which of many keys of an Oxia namespace have children, for it deletes a key no matter what is below it.

In the order of keys (oxia_reads), all that is below the children a to b of p lies from ``p/a/`` up to ``p/b//``, and
the first key from ``p/`` on is a child of p if the shard has one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Final

from bookwarden.metastore.deadline import Deadline
from bookwarden.metastore.oxia_channels import ServerLost
from bookwarden.metastore.oxia_reads import OxiaReader
from bookwarden.metastore.oxia_shards import OxiaCluster
from bookwarden.metastore.paths import parent_of
from bookwarden.wire.pb import oxia_client_pb2 as pb

# Fewer siblings than these are asked one by one whether they have children.
_FEW_SIBLINGS: Final = 8


class Parents:
    """Tells the parents among keys, with children on any shard."""

    def __init__(self, cluster: OxiaCluster, reader: OxiaReader) -> None:
        self._cluster = cluster
        self._reader = reader

    def among(self, paths: Sequence[str], deadline: Deadline) -> set[str]:
        """Name those of the paths that have children.

        Siblings are asked for with one range if there are many, so that ledgers, which have none, cost next to
        nothing; where something is in the range they are asked for one by one.
        """
        siblings: dict[str, list[str]] = {}
        for path in paths:
            siblings.setdefault(parent_of(path), []).append(path)
        doubtful: list[str] = []
        many: list[list[str]] = []
        for group in siblings.values():
            if len(group) > _FEW_SIBLINGS:
                many.append(group)
            else:
                doubtful += group
        doubtful += chain.from_iterable(self._with_any_below(many, deadline))
        return self._with_next_below(doubtful, deadline)

    def _with_any_below(self, groups: list[list[str]], deadline: Deadline) -> Iterator[list[str]]:
        """Give the groups of siblings whose range, from the first to the last of them, has anything in it."""
        left = groups
        while left:
            shards = self._cluster.shards(deadline)
            again: list[list[str]] = []
            lost = ServerLost("")
            size = max(1, self._cluster.in_flight // len(shards.shards))
            for begin in range(0, len(left), size):
                window = left[begin : begin + size]
                ranges = [(f"{min(group)}/", f"{max(group)}//") for group in window]
                calls = [
                    [(shard, self._reader.send_list(shard, *ends, deadline)) for shard in shards.shards]
                    for ends in ranges
                ]
                for group, of_group in zip(window, calls, strict=True):
                    try:
                        found = any(
                            next(self._reader.keys_of(shard, call), None) is not None for shard, call in of_group
                        )
                    except ServerLost as error:
                        lost = error
                        again.append(group)
                    else:
                        deadline.progress()
                        if found:
                            yield group
                    finally:
                        for _, call in of_group:
                            call.cancel()
            left = again
            if left:
                self._cluster.wait_for_news(shards, lost, deadline)

    def _with_next_below(self, paths: Sequence[str], deadline: Deadline) -> set[str]:
        """Name the paths that are followed by a child on any shard: children of a path may be on all of them."""
        found: set[str] = set()
        left: Sequence[str] = paths
        while left:
            shards = self._cluster.shards(deadline)
            again: dict[str, None] = {}
            lost = ServerLost("")
            batches = ((shard, batch) for batch in self._reader.cut(left) for shard in shards.shards)
            for sent in self._reader.in_flight(batches, _next_below, deadline):
                try:
                    answers = self._reader.answers_of(sent)
                except ServerLost as error:
                    lost = error
                    again.update(dict.fromkeys(sent.keys))
                else:
                    deadline.progress()
                    found.update(
                        path
                        for path, answer in zip(sent.keys, answers, strict=True)
                        if answer.key.startswith(f"{path}/")
                    )
            left = list(again)
            if left:
                self._cluster.wait_for_news(shards, lost, deadline)
        return found


def _next_below(path: str) -> pb.GetRequest:
    return pb.GetRequest(key=f"{path}/", comparison_type=pb.CEILING)
