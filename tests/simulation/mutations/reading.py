"""Holes in what is read: references that are not looked at, and nodes that are taken for what they are not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from bookwarden.clusters.pulsar.references import live as references
from bookwarden.clusters.pulsar.references import nodes as reference_nodes
from bookwarden.clusters.pulsar.references import shadows
from bookwarden.clusters.pulsar.references.live import MetadataReferences
from bookwarden.clusters.pulsar.references.unnamed_use import UnnamedUses
from bookwarden.deletion import node_check
from bookwarden.ledgers.kinds import BucketHolder
from bookwarden.ledgers.live_references import LiveReferences
from bookwarden.ledgers.references import NodeReferences, ReferenceIndex
from bookwarden.wire import cursor, managed_ledger

from .hole import Hole


def _roots(patch: pytest.MonkeyPatch) -> None:
    begin = MetadataReferences.__init__

    def first_only(self: MetadataReferences, stores: Sequence[Any], *rest: Any, **options: Any) -> None:
        begin(self, stores[:1], *rest, **{**options, "seen_from_ledgers": options["seen_from_ledgers"][:1]})

    patch.setattr(MetadataReferences, "__init__", first_only)


def _shadows(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(references, "_nodes_of_others", lambda *rest: ())


def _listers(patch: pytest.MonkeyPatch) -> None:
    others = references._nodes_of_others
    patch.setattr(
        references, "_nodes_of_others", lambda holder, own, shadows, ledger_ids: others(holder, own, shadows, ())
    )


def _compaction(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(UnnamedUses, "of_compacted", lambda uses, holder, named, cursors: LiveReferences(named, True))
    # The check of nodes keeps it too.
    patch.setattr(node_check, "doubt_about_compacted", lambda *rest: None)


def _buckets(patch: pytest.MonkeyPatch) -> None:
    def named_only(uses: UnnamedUses, holder: BucketHolder, named: frozenset[int], *rest: object) -> LiveReferences:
        return LiveReferences(named, True)

    patch.setattr(UnnamedUses, "of_buckets", named_only)


def _unknown_fields(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(managed_ledger, "refuse_unknown", lambda message, what: None)


def _unknown_fields_of_cursors(patch: pytest.MonkeyPatch) -> None:
    for check in ("refuse_unknown", "require"):
        patch.setattr(cursor, check, lambda *rest: None)


def _unreadable(patch: pytest.MonkeyPatch) -> None:
    add = ReferenceIndex.add_node

    def not_there(index: ReferenceIndex, node: NodeReferences) -> None:
        if node.doubt is None:
            add(index, node)
        else:
            index.note_absent(node.path, node.root)

    patch.setattr(ReferenceIndex, "add_node", not_there)


def _refused(patch: pytest.MonkeyPatch) -> None:
    for module in (references, shadows):
        patch.setattr(module, "read_each", lambda store, paths: list(store.get_many(paths)))


def _no_bytes(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(reference_nodes, "was_emptied", lambda node: False)


def _left_behind(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(references, "_left_behind", lambda lists: {})


HOLES = {
    "only the first metadata root is read": Hole(_roots, "lost", (), ("mark by id",), first=7),
    "shadows, and who else lists a ledger, are not looked for": Hole(
        _shadows, "lost", (), ("shadow", "mark by id"), first=8
    ),
    "who else lists a ledger is not looked for": Hole(_listers, "lost", ("rescue",)),
    "a compacted ledger that nothing names is not in use": Hole(_compaction, "lost", first=32),
    "a bucket that nothing names is not in use": Hole(_buckets, "lost", (), first=16),
    "a list may have fields that nobody knows": Hole(_unknown_fields, "lost", ("strange nodes",), ("damage strange",)),
    "another message's bytes are a cursor of nothing": Hole(
        _unknown_fields_of_cursors, "planned", ("bad cursors",), first=2
    ),
    "a node that cannot be read is not there": Hole(_unreadable, "lost", ("bad bytes", "bad cursors"), first=2),
    "a node that may not be read keeps the batch": Hole(_refused, "stuck", ("hidden nodes",), ("hide topic",)),
    "a list that lost all its bytes names nothing": Hole(_no_bytes, "lost", ("empty nodes",)),
    "a ledger that its broker left behind is named": Hole(_left_behind, "leak", ("offload",), ("offload",), first=2),
}
