"""The ledgers of all clusters, and what still writes outside the active one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from bookwarden.bookie_clusters.inventory import (
    LedgerCount,
    LedgerInventory,
    OpenLedger,
    OwnerUsage,
    UnloadResult,
    roll,
    take_inventory,
)
from bookwarden.bookie_clusters.registry import NOT_OURS, OTHER, UNFINISHED, UNREADABLE, BookieCluster, Registry
from bookwarden.errors import NotFoundError, PulsarUnavailableError
from bookwarden.ledgers.custom_metadata import COPY_KEY, OWNER_KEY, TRIAL_KEY, expected_custom_metadata
from bookwarden.ledgers.kinds import Holder
from bookwarden.ledgers.kinds.cursor import CursorHolder
from bookwarden.ledgers.kinds.managed_ledger import ManagedLedgerHolder
from bookwarden.ledgers.kinds.schema import SchemaHolder
from bookwarden.ledgers.metadata import LedgerMetadata, LedgerState
from bookwarden.metastore.memory import MemoryStore
from servers.switching.ground import OWNER, registry_of

TOPIC = ManagedLedgerHolder("t/n/persistent/topic")
CURSOR = CursorHolder("t/n/persistent/other-partition-3", "sub")
SCHEMA = SchemaHolder("t/n/topic")
OPEN, CLOSED = LedgerState.OPEN, LedgerState.CLOSED

OURS = {OWNER_KEY: OWNER.encode()}

Ledgers = Mapping[str, list[tuple[int, LedgerMetadata | None]]]


def ledger(state: LedgerState, holder: Holder | None = TOPIC, length: int = 0, **more: bytes) -> LedgerMetadata:
    custom = {} if holder is None else {name: text.encode() for name, text in expected_custom_metadata(holder).items()}
    return LedgerMetadata(3, state, 2, 2, 2, (), length, custom={**custom, **more})


LEDGERS: Ledgers = {
    "a": [
        (1, ledger(CLOSED, length=100)),
        (2, ledger(CLOSED, length=11)),
        (3, ledger(OPEN)),
        (4, ledger(LedgerState.IN_RECOVERY, CURSOR)),
        (5, ledger(OPEN, SCHEMA)),
        (6, ledger(OPEN, None)),
        (7, None),
    ],
    "b": [(8, ledger(OPEN, **OURS)), (9, ledger(CLOSED, SCHEMA, 7, **OURS))],
}


def inventory_of(registry: Registry, ledgers: Ledgers, *, by_holder: bool = False) -> LedgerInventory:
    return take_inventory(
        registry,
        store_of=lambda _: MemoryStore(),
        read=lambda _, root: ledgers[root.strip("/")],
        by_holder=by_holder,
    )


def test_ledgers_are_counted_by_cluster_and_kind() -> None:
    found = inventory_of(registry_of("b"), LEDGERS)
    assert set(found.counts) == {
        LedgerCount("a", TOPIC.ledgers_label, 1, 2, 111),
        LedgerCount("a", CURSOR.ledgers_label, 1, 0, 0),
        LedgerCount("a", SCHEMA.ledgers_label, 1, 0, 0),
        LedgerCount("a", OTHER, 1, 0, 0),
        LedgerCount("a", UNREADABLE, 1, 0, 0),
        LedgerCount("b", TOPIC.ledgers_label, 1, 0, 0),
        LedgerCount("b", SCHEMA.ledgers_label, 0, 1, 7),
    }


def test_what_is_not_ours_is_counted_where_no_other_pulsar_cluster_should_write() -> None:
    ledgers = {"a": [(1, ledger(OPEN))], "b": [(8, ledger(OPEN)), (9, ledger(CLOSED, SCHEMA, 7))]}
    found = inventory_of(registry_of(), ledgers, by_holder=True)
    assert set(found.counts) == {LedgerCount("a", TOPIC.ledgers_label, 1, 0, 0), LedgerCount("b", NOT_OURS, 1, 1, 7)}
    assert (found.left, found.held) == ((), ())


def test_a_trial_ledger_that_was_left_is_not_counted() -> None:
    ledgers = {"a": [(1, ledger(OPEN, None, **OURS, **{TRIAL_KEY: b"precheck"}))], "b": []}
    found = inventory_of(registry_of("b"), ledgers, by_holder=True)
    assert (found.counts, found.left, found.held) == ((), (), ())


def test_what_is_open_outside_the_active_cluster_is_named_with_its_topic() -> None:
    found = inventory_of(registry_of("b"), LEDGERS)
    assert found.left == (
        OpenLedger("a", 3, TOPIC),
        OpenLedger("a", 4, CURSOR),
        OpenLedger("a", 5, SCHEMA),
        OpenLedger("a", 6, None),
    )
    assert [one.topic for one in found.left] == [
        "persistent://t/n/topic",
        "persistent://t/n/other-partition-3",
        *(None, None),
    ]
    assert found.topics == ["persistent://t/n/other-partition-3", "persistent://t/n/topic"]


def test_unfinished_copies_are_none_that_a_topic_could_close() -> None:
    copies = {"a": [(1, ledger(OPEN, **{COPY_KEY: b"unproven"})), (2, ledger(CLOSED, **{COPY_KEY: b"unproven"}))]}
    found = inventory_of(registry_of("b"), {**copies, "b": []})
    assert (found.counts, found.left) == ((LedgerCount("a", UNFINISHED, 0, 2, 0),), ())


def test_whose_ledgers_are_outside_the_active_cluster_is_told_if_asked() -> None:
    found = inventory_of(registry_of("b"), LEDGERS, by_holder=True)
    assert found.held == (
        OwnerUsage("a", CURSOR.ledgers_label, str(CURSOR), 1),
        OwnerUsage("a", TOPIC.ledgers_label, str(TOPIC), 3),
        OwnerUsage("a", OTHER, None, 1),
        OwnerUsage("a", SCHEMA.ledgers_label, str(SCHEMA), 1),
        OwnerUsage("a", UNREADABLE, None, 1),
    )
    assert inventory_of(registry_of("b"), LEDGERS).held == ()


def test_foreign_ledgers_of_a_shared_cluster_are_not_ours() -> None:
    registry = registry_of("b")
    shared: BookieCluster = replace(registry.clusters["a"], shared=True)
    registry = replace(registry, clusters={**registry.clusters, "a": shared})
    ledgers: Ledgers = {
        "a": [
            (1, ledger(OPEN)),
            (2, ledger(OPEN, **{OWNER_KEY: b"00000000"})),
            (3, ledger(OPEN, **{OWNER_KEY: OWNER.encode()})),
        ],
        "b": [],
    }
    found = inventory_of(registry, ledgers)
    assert [one.ledger_id for one in found.left] == [3]
    assert found.counts == (LedgerCount("a", TOPIC.ledgers_label, 1, 0, 0),)


def test_topics_are_unloaded_one_after_another_and_a_failure_ends_nothing() -> None:
    asked: list[str] = []
    pauses: list[float] = []
    told: list[UnloadResult] = []

    def unload(topic: str) -> None:
        asked.append(topic)
        if topic == "absent":
            raise NotFoundError("no such topic")
        if topic == "stuck":
            raise PulsarUnavailableError("no answer")

    done = roll(["first", "absent", "stuck", "last"], unload, 4.0, told.append, sleep=pauses.append)
    assert asked == ["first", "absent", "stuck", "last"]
    assert pauses == [0.25] * 3
    assert told == done
    assert [one.error for one in done][::3] == ["", ""]
    assert "no broker has it loaded" in done[1].error
    assert done[2].error == "no answer"
