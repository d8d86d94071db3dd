"""Holes in the scan: what it does not look at, or believes, so that a ledger in use is planned, or a leak is not."""

from __future__ import annotations

from typing import Any

import pytest

from bookwarden.clusters.pulsar.references.pieces import ReferencePieces
from bookwarden.clusters.pulsar.roots import proof
from bookwarden.clusters.pulsar.roots.proof import SampleLookup
from bookwarden.orphans import classify
from bookwarden.orphans.classes import LedgerClass
from bookwarden.orphans.classify import Knowledge, LedgerVerdict

from .. import scanning
from .hole import Hole


def _other_roots(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(proof, "look_up", lambda sample, catalog: SampleLookup(len(sample), ()))


def _doubts(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Knowledge, "doubt_about", lambda knowledge, holder: None)


def _inside_list(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(classify, "_why_gap", lambda row, owner, knowledge: None)
    patch.setattr(scanning, "_lies_inside", lambda row, first: False)


def _left_behind(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(scanning, "classify_left", lambda row, places, knowledge: LedgerVerdict(LedgerClass.REFERENCED))


def _one_root(patch: pytest.MonkeyPatch) -> None:
    begin = ReferencePieces.__init__

    def first_only(pieces: ReferencePieces, roots: dict[str, Any], *rest: Any) -> None:
        begin(pieces, dict(list(roots.items())[:1]), *rest)

    patch.setattr(ReferencePieces, "__init__", first_only)


HOLES = {
    "nobody looks whether another Pulsar has ledgers here": Hole(_other_roots, "planned", ("stranger",)),
    "the scan reads the first metadata root alone": Hole(_one_root, "planned", (), first=7),
    "the scan takes a doubt for nothing named": Hole(_doubts, "planned", ("bad bytes", "bad cursors"), first=6),
    "the scan plans what lies inside its topic's list": Hole(
        _inside_list, "planned", ("holes",), ("damage list",), first=3
    ),
    "the scan does not plan what a broker left behind": Hole(_left_behind, "leak", ("offload",), ("offload",), first=2),
}
