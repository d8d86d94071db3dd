"""Ledgers of the source before any is copied: what is to be copied, is whole already, or stays."""

from __future__ import annotations

from typing import Any

import pytest

from bookwarden.bookie_clusters.moving.scope import LedgerToCopy, Route, Scope, candidate_of, with_target
from bookwarden.bookie_clusters.registry import BookieCluster, Registry
from bookwarden.ledgers.custom_metadata import COPY_KEY, OWNER_KEY, expected_custom_metadata
from bookwarden.ledgers.kinds import Holder, ManagedLedgerHolder, SchemaHolder
from bookwarden.ledgers.metadata import LedgerMetadata, LedgerState
from bookwarden.ledgers.outcomes import CopyOutcome
from bookwarden.metastore.memory import MemoryStore
from unit.switching.two_bookie_clusters import COPY, OWNER, TwoBookieClusters

SCHEMA = SchemaHolder("t/ns/orders")
DATA = ManagedLedgerHolder("t/ns/persistent/orders")
CLOSED, OPEN = LedgerState.CLOSED, LedgerState.OPEN
FORMER = "0badc0de"


def registry_with(**fields: Any) -> Registry:
    cluster = BookieCluster("a", "zk+hierarchical://h/ledgers", None, "/ledgers", "instance-a", 1, **fields)
    return Registry(1, OWNER, "/ledgers", "a", {"a": cluster}, former_owners=(FORMER,))


def metadata(state: LedgerState = CLOSED, holder: Holder | None = SCHEMA, **more: bytes) -> LedgerMetadata:
    custom = {} if holder is None else {name: text.encode() for name, text in expected_custom_metadata(holder).items()}
    end = (1000, 9) if state is CLOSED else (0, None)
    return LedgerMetadata(3, state, 1, 1, 1, (), *end, custom={**custom, **more})


@pytest.mark.parametrize(
    ("found", "shared", "expected"),
    [
        (metadata(), False, LedgerToCopy(7, "schema", SCHEMA, 1000, 10)),
        (metadata(**{OWNER_KEY: OWNER.encode()}), True, LedgerToCopy(7, "schema", SCHEMA, 1000, 10)),
        # A copy from the other cluster is a source like any ledger, once it is whole.
        (metadata(**{COPY_KEY: b"9:1000"}), False, LedgerToCopy(7, "schema", SCHEMA, 1000, 10)),
        (metadata(OPEN), False, LedgerToCopy(7, "schema", SCHEMA, 0, 0, CopyOutcome.OPEN)),
        (metadata(**{COPY_KEY: b"9:1001"}), False, LedgerToCopy(7, "schema", SCHEMA, 1000, 10, CopyOutcome.LEFT_OUT)),
        (metadata(holder=DATA), False, LedgerToCopy(7, "data", DATA, 1000, 10, CopyOutcome.LEFT_OUT)),
        (metadata(holder=None), False, LedgerToCopy(7, "other", None, 1000, 10, CopyOutcome.LEFT_OUT)),
        (None, False, LedgerToCopy(7, "unreadable", None, 0)),
        # Another Pulsar cluster's.
        (metadata(), True, None),
        (None, True, None),
        # Whoever made it, brokers read it there.
        (metadata(**{OWNER_KEY: b"00000000"}), False, LedgerToCopy(7, "schema", SCHEMA, 1000, 10)),
    ],
)
def test_a_ledger_is_sorted_by_its_metadata(
    found: LedgerMetadata | None, shared: bool, expected: LedgerToCopy | None
) -> None:
    registry = registry_with(shared=shared)
    assert candidate_of(7, found, registry, "a", wanted=Scope().wanted) == expected


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (metadata(), LedgerToCopy(7, "not ours", SCHEMA, 1000, 10, CopyOutcome.FAILED)),
        (metadata(OPEN), LedgerToCopy(7, "not ours", SCHEMA, 0, 0, CopyOutcome.FAILED)),
        (metadata(**{OWNER_KEY: b"00000000"}), LedgerToCopy(7, "not ours", SCHEMA, 1000, 10, CopyOutcome.FAILED)),
        (metadata(**{OWNER_KEY: FORMER.encode()}), LedgerToCopy(7, "schema", SCHEMA, 1000, 10)),
        # Of Functions, or outside what was asked for.
        (metadata(holder=None), LedgerToCopy(7, "not ours", None, 1000, 10, CopyOutcome.LEFT_OUT)),
        (metadata(holder=DATA), LedgerToCopy(7, "not ours", DATA, 1000, 10, CopyOutcome.LEFT_OUT)),
        (None, LedgerToCopy(7, "unreadable", None, 0)),
    ],
)
def test_none_of_a_cluster_that_is_not_shared_is_left_out_silently(
    found: LedgerMetadata, expected: LedgerToCopy
) -> None:
    assert candidate_of(7, found, registry_with(unmarked_below=7), "a", wanted=Scope().wanted) == expected


@pytest.mark.parametrize(
    ("found", "holder"),
    [
        (metadata(holder=None), SCHEMA),
        (metadata(holder=None, **{COPY_KEY: b"9:1000"}), SCHEMA),
        (metadata(holder=None, application=b"DistributedLog"), None),
    ],
)
def test_a_ledger_that_does_not_say_whose_it_is_is_of_the_one_that_names_it(
    found: LedgerMetadata, holder: Holder | None
) -> None:
    told: dict[int, Holder] = {7: SCHEMA}
    one = candidate_of(7, found, registry_with(), "a", wanted=Scope().wanted, holder_of=told.get)
    assert one is not None
    assert (one.holder, one.outcome) == (holder, None if holder else CopyOutcome.LEFT_OUT)


@pytest.mark.parametrize(
    ("on_target", "outcome"),
    [
        (None, None),
        (COPY, CopyOutcome.COMPLETE),
        # The original that the source's copy is of.
        ({}, CopyOutcome.COMPLETE),
        ({COPY_KEY: b"8:900"}, None),
        ({COPY_KEY: b"unproven"}, None),
    ],
)
def test_what_the_target_has_whole_is_complete(on_target: dict[str, bytes] | None, outcome: CopyOutcome | None) -> None:
    clusters = TwoBookieClusters(MemoryStore())
    clusters.register()
    is_original = on_target == {}
    clusters.ledger("a", 7, **(COPY if is_original else {}))
    if on_target is not None:
        clusters.ledger("b", 7, **on_target)
    (reading,) = clusters.catalog.read_many([7])
    one = LedgerToCopy(7, "data", DATA, 1000, 10)
    assert with_target(one, reading, Route("a", "b")) == one._replace(outcome=outcome)
