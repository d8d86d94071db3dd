"""Holes that were closed, each put back by a change of the product: the simulation has to find every one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from bookwarden.clusters.pulsar import references
from bookwarden.clusters.pulsar.references import MetadataReferences
from bookwarden.clusters.pulsar.retries import RetrySender
from bookwarden.clusters.pulsar.unnamed_use import UnnamedUses
from bookwarden.deletion import decide, sweeping
from bookwarden.ledgers.holders import LiveReferences

from . import journal

Put = Callable[[pytest.MonkeyPatch], None]


def _bookie_cluster(patch: pytest.MonkeyPatch) -> None:
    judge = decide._judge
    patch.setattr(decide, "_judge", lambda mark, *rest: judge(replace(mark, bookie_cluster=""), *rest))


def _roots(patch: pytest.MonkeyPatch) -> None:
    begin = MetadataReferences.__init__

    def first_only(self: MetadataReferences, stores: Sequence[Any], *rest: Any, **options: Any) -> None:
        begin(self, stores[:1], *rest, **{**options, "seen_from_ledgers": options["seen_from_ledgers"][:1]})

    patch.setattr(MetadataReferences, "__init__", first_only)


def _shadows(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(references, "_nodes_of_others", lambda holder, shadows, ledger_ids: ())


def _compaction(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(UnnamedUses, "of_compacted", lambda uses, holder, named, cursors: LiveReferences(named, True))


def _flush(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(RetrySender, "flush", lambda sender: None)


def _journal(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(journal.MemoryJournal, "append", lambda self, records: None)


def _custom_metadata(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(decide, "custom_metadata_mismatch", lambda holder, custom: None)


def _replays(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(sweeping.Sweep, "_send_on", lambda sweep, decided, now_ms: None)


MUTATIONS: dict[str, Put] = {
    "a mark of other bookies is carried out": _bookie_cluster,
    "only the first metadata root is read": _roots,
    "who else lists a ledger is not looked for": _shadows,
    "a compacted ledger that nothing names is not in use": _compaction,
    "retries count as sent before they are": _flush,
    "nothing is journaled": _journal,
    "the custom metadata is not looked at": _custom_metadata,
    "what is to be retried is not sent on": _replays,
}
