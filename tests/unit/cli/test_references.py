"""What `ledger explain` tells of the references to a ledger, to people and to programs."""

from __future__ import annotations

import json
import time

import pytest
from click.testing import CliRunner

from bookwarden.cli.ledger import place_tables, reference_data, reference_pairs
from bookwarden.cli.main import cli
from bookwarden.cli.shell.output import Table
from bookwarden.clusters.bookkeeper.catalog import BookKeeperCatalog
from bookwarden.clusters.pulsar.references.live import MetadataReferences
from bookwarden.clusters.pulsar.references.pieces import ReferencePieces
from bookwarden.deletion.explaining import Explanation, find_everywhere
from bookwarden.deletion.phase_two.decide import DeletionPolicy
from bookwarden.ledgers.kinds import BucketHolder, CompactedHolder, Holder, ManagedLedgerHolder, PlaceKind
from bookwarden.metastore.memory import MemoryStore, shared_memory_store
from bookwarden.wire.pb import managed_ledger_pb2
from servers.population import Population
from servers.sweep_parts import explain_with

TOPIC = ManagedLedgerHolder("t/n/persistent/a")
COPY = "/managed-ledgers/t/n/persistent/copy"


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def population(store: MemoryStore) -> Population:
    return Population(store)


def explain(store: MemoryStore, ledger_id: int) -> Explanation:
    references = MetadataReferences([store], shadow_refresh=60)
    now_ms = int(time.time() * 1000) + 3_600_000
    return explain_with(ledger_id, BookKeeperCatalog(store), references, DeletionPolicy(), now_ms)


def make_shadow(store: MemoryStore, *ids: int) -> None:
    shadow = managed_ledger_pb2.ManagedLedgerInfo()
    for ledger_id in ids:
        shadow.ledgerInfo.add(ledgerId=ledger_id)
    shadow.properties.add(key="PULSAR.SHADOW_SOURCE", value="persistent://t/n/a")
    store.create(COPY, shadow.SerializeToString(), make_parents=True)


def test_a_shadow_that_names_the_ledger_is_told_apart_from_its_source(
    store: MemoryStore, population: Population
) -> None:
    population.ledger(7, TOPIC)
    population.names(TOPIC, [8])
    make_shadow(store, 7, 8)
    found = explain(store, 7)
    pairs = dict(reference_pairs(found))
    assert (pairs["names it"], pairs["shadow t/n/persistent/copy"]) == ("no", "names it")
    data = reference_data(found)
    assert (data["referenced"], data["shadows"], data["everywhere"]) == (True, ["t/n/persistent/copy"], None)
    assert place_tables(found) == []


@pytest.mark.parametrize(
    ("holder", "kind"),
    [
        (CompactedHolder(TOPIC.name), "compacted view compacted:t/n/persistent/a"),
        (BucketHolder(TOPIC.name, "s"), "delayed messages buckets:t/n/persistent/a/s"),
    ],
)
def test_a_ledger_that_may_be_in_use_unnamed_says_why(
    store: MemoryStore, population: Population, holder: Holder, kind: str
) -> None:
    population.ledger(7, holder)
    population.names(holder, [8])
    store.create("/namespace/t/n/0x00000000_0xffffffff", b"{}", make_parents=True)
    found = explain(store, 7)
    pairs = dict(reference_pairs(found))
    assert pairs["holder"] == kind
    assert pairs["in use unnamed"] == reference_data(found)["unnamed_use"]
    assert pairs["in use unnamed"] in found.reason


def test_all_places_and_doubts_are_listed_when_they_were_looked_for(store: MemoryStore, population: Population) -> None:
    population.ledger(7, TOPIC)
    population.names(TOPIC, [7])
    make_shadow(store, 7)
    store.create("/managed-ledgers/t/n/persistent/broken", b"\x0a\xff", make_parents=True)
    found = find_everywhere(explain(store, 7), ReferencePieces({"zk:one": store}))
    places, doubts = place_tables(found)
    assert isinstance(places, Table)
    assert isinstance(doubts, Table)
    assert set(places.rows) == {
        ("managed ledger", TOPIC.name, f"/managed-ledgers/{TOPIC.name}", "zk:one"),
        ("shadow topic", "t/n/persistent/copy", COPY, "zk:one"),
    }
    assert doubts.rows[0][:2] == ("/managed-ledgers/t/n/persistent/broken", "zk:one")
    data = reference_data(found)
    assert {place["kind"] for place in data["everywhere"]} == {PlaceKind.MANAGED_LEDGER, PlaceKind.SHADOW_TOPIC}
    assert [doubt["path"] for doubt in data["doubts"]] == ["/managed-ledgers/t/n/persistent/broken"]


def test_a_ledger_that_is_gone_is_looked_for_too(store: MemoryStore, population: Population) -> None:
    population.names(TOPIC, [7])
    found = find_everywhere(explain(store, 7), ReferencePieces({"zk:one": store}))
    assert [named.place.holder for named in found.everywhere or ()] == [TOPIC.name]
    nowhere = find_everywhere(explain(store, 9), ReferencePieces({"zk:one": store}))
    (table,) = place_tables(nowhere)
    assert isinstance(table, Table)
    assert table.rows == ()


def test_the_command_looks_everywhere_in_all_roots() -> None:
    stores = [shared_memory_store(f"explain-{name}") for name in ("one", "two")]
    for store in stores:
        Population(store).names(TOPIC, [7])
    Population(stores[0]).ledger(7, TOPIC)
    roots = "metadata_store.urls=['memory:explain-one','memory:explain-two']"
    arguments = ["--set", roots, "-o", "json", "ledger", "explain", "7", "--everywhere"]
    result = CliRunner().invoke(cli, arguments)
    assert result.exit_code == 0, result.stderr
    data = json.loads(result.stdout)
    assert [(place["kind"], place["root"]) for place in data["everywhere"]] == [
        ("managed ledger", "memory:explain-one"),
        ("managed ledger", "memory:explain-two"),
    ]
