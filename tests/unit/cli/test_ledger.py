"""What is said of a ledger, and which ledgers can be marked by id."""

from __future__ import annotations

import json
import time
from uuid import uuid4

import pytest
from click.testing import CliRunner

from bookwarden.cli.ledger import _describe, _Past
from bookwarden.cli.main import cli
from bookwarden.clusters.bookkeeper.catalog import BookKeeperCatalog
from bookwarden.clusters.pulsar.references.live import MetadataReferences
from bookwarden.deletion.explaining import Explanation, explain_ledger, in_trash
from bookwarden.deletion.phase_one.named_ledgers import marks_of_ids
from bookwarden.deletion.phase_two.decide import DeletionPolicy
from bookwarden.errors import FormatError, NotFoundError, RefusedError
from bookwarden.ledgers.kinds import (
    BucketHolder,
    CompactedHolder,
    CursorHolder,
    Holder,
    ManagedLedgerHolder,
    SchemaHolder,
)
from bookwarden.ledgers.metadata import LedgerState
from bookwarden.ledgers.outcomes import Outcome
from bookwarden.metastore.memory import MemoryStore
from bookwarden.metastore.urls import open_store
from servers.population import ROOT, Population
from servers.sweep_parts import explain_with, verifier_with
from unit.switching.two_bookie_clusters import COPY, TwoBookieClusters

TOPIC = ManagedLedgerHolder("tenant/ns/persistent/a%2Fb")
HOLDERS: list[Holder] = [
    TOPIC,
    CursorHolder(TOPIC.name, "sub%3A1"),
    SchemaHolder("tenant/ns/a%2Fb"),
    CompactedHolder("tenant/ns/persistent/a+b"),
    CompactedHolder("tenant/cluster/ns/persistent/a"),
    BucketHolder("tenant/ns/persistent/a+b-partition-1", "sub%3A1"),
]
# The nodes are made by the test, on the clock of this machine.
NOW_MS = int(time.time() * 1000) + 3_600_000


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def population(store: MemoryStore) -> Population:
    return Population(store)


def explain(store: MemoryStore, ledger_id: int, *, grace: float = 0.0) -> Explanation:
    policy = DeletionPolicy(unlisted_grace=grace)
    return explain_with(ledger_id, BookKeeperCatalog(store, ROOT), MetadataReferences([store]), policy, NOW_MS)


@pytest.mark.parametrize("holder", HOLDERS)
def test_a_mark_by_id_names_the_holder_that_the_ledger_names(
    store: MemoryStore, population: Population, holder: Holder
) -> None:
    population.ledger(7, holder)
    (mark,) = marks_of_ids(BookKeeperCatalog(store, ROOT), [7, 7])
    mark.validate()
    assert (mark.ledger_id, mark.holder()) == (7, holder)


def test_one_ledger_that_cannot_be_marked_keeps_all_and_one_that_has_gone_does_not(
    store: MemoryStore, population: Population
) -> None:
    catalog = BookKeeperCatalog(store, ROOT)
    population.ledger(7, TOPIC)
    population.tagged_ledger(8, {"application": b"pulsar", "component": b"compacted-ledger"})
    broken = population.ledger(9, TOPIC)
    node = store.get(broken)
    assert node is not None
    store.put(broken, b"\x00nonsense", node.version)
    with pytest.raises(RefusedError, match="compacted-ledger"):
        marks_of_ids(catalog, [7, 8])
    with pytest.raises(FormatError, match="ledger 9"):
        marks_of_ids(catalog, [7, 9])
    assert [mark.ledger_id for mark in marks_of_ids(catalog, [10, 7])] == [7]
    with pytest.raises(NotFoundError, match="no ledger 10, 11: nothing was marked"):
        marks_of_ids(catalog, [10, 11])
    assert explain(store, 9).outcome is None
    assert "retried" in explain(store, 9).verdict


@pytest.mark.parametrize("holder", HOLDERS)
def test_a_ledger_that_nobody_names_would_be_deleted(
    store: MemoryStore, population: Population, holder: Holder
) -> None:
    population.ledger(7, holder)
    found = explain(store, 7)
    assert (found.outcome, found.holder, found.referenced) == (Outcome.DELETED, holder, False)
    assert "does not exist" in found.reason


@pytest.mark.parametrize("holder", HOLDERS)
def test_a_ledger_that_its_holder_names_is_kept(store: MemoryStore, population: Population, holder: Holder) -> None:
    population.ledger(7, holder)
    population.names(holder, [7])
    found = explain(store, 7)
    assert (found.outcome, found.referenced) == (Outcome.STILL_REFERENCED, True)
    assert "kept" in found.verdict


def test_a_young_ledger_is_not_decided_about_yet(store: MemoryStore, population: Population) -> None:
    population.ledger(7, TOPIC)
    assert explain(store, 7, grace=10**9).outcome is Outcome.RETRY


def test_what_is_not_pulsars_is_kept_and_what_is_absent_is_said_to_be(
    store: MemoryStore, population: Population
) -> None:
    population.tagged_ledger(7, {"application": b"other"})
    assert explain(store, 7).outcome is None
    assert "kept" in explain(store, 7).verdict
    assert "gone" in explain(store, 8).verdict


def test_show_says_which_bookie_clusters_have_the_ledger_and_which_one_is_read() -> None:
    text = " ".join(shown_in_two_clusters(2).split())
    assert "read from a; also b (an unfinished copy, /bookies-b/00/0000/L0002)" in text
    assert json.loads(shown_in_two_clusters(1, "-o", "json"))["bookie_clusters"] == [
        {"name": "b", "path": "/bookies-b/00/0000/L0001", "version": 0, "unfinished_copy": False},
        {"name": "a", "path": "/ledgers/00/0000/L0001", "version": 0, "unfinished_copy": False},
    ]


def test_explain_says_of_an_unfinished_copy_that_is_left_alone_what_the_sweep_does(
    store: MemoryStore, population: Population
) -> None:
    site = TwoBookieClusters(store)
    site.register()
    site.ledger("b", 3, state=LedgerState.OPEN, last=None, length=0, **COPY)
    verifier = verifier_with(site.catalog, MetadataReferences([store]), DeletionPolicy(unlisted_grace=0))
    shown = _describe(explain_ledger(3, verifier), _Past([], None, ()))
    assert (shown.data["outcome"], shown.data["present"]) == (Outcome.DELETED, True)
    assert ("bookie clusters", "b (an unfinished copy, /bookies-b/00/0000/L0003)") in shown.parts[0].pairs


def shown_in_two_clusters(ledger_id: int, *options: str) -> str:
    """Show a ledger of two registered clusters, in a store that the command closes; return the output."""
    url = f"memory:{uuid4()}"
    site = TwoBookieClusters(open_store(url))
    site.register()
    site.ledger("a", 1)
    site.ledger("b", 1, **COPY)
    site.ledger("a", 2)
    site.ledger("b", 2, state=LedgerState.OPEN, last=None, length=0, **COPY)
    urls = ["--set", f"metadata_store.urls=['{url}']"]
    result = CliRunner().invoke(cli, [*urls, *options, "ledger", "show", str(ledger_id)], terminal_width=200)
    assert result.exit_code == 0, result.output
    return result.output


def test_a_ledger_in_the_trash_is_said_to_be_there(store: MemoryStore, population: Population) -> None:
    population.ledger(7, TOPIC)
    found = explain(store, 7)
    assert in_trash(found, {8}) == found
    assert in_trash(found, {7}).verdict.startswith("it is kept in the trash")
    gone = explain(store, 9)
    assert in_trash(gone, {9}) == gone
