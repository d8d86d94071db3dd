"""Who owns a topic, told from the metadata store alone; a doubt counts as owned."""

from __future__ import annotations

import json

import pytest

from bookwarden.clusters.pulsar.metadata.ownership import CLOCK_SKEW_MS, BundleOwnership, bundle_hash, read_all_started
from bookwarden.metastore.memory import MemoryStore

TOPIC = "persistent://t/n/a"
EXTENSIBLE = "org.apache.pulsar.broker.loadbalance.extensions.ExtensibleLoadManagerImpl"
MODULAR = "org.apache.pulsar.broker.loadbalance.impl.ModularLoadManagerImpl"


def owner_with(nodes: dict[str, bytes]) -> str | None:
    store = MemoryStore()
    for path, value in nodes.items():
        store.create(path, value, make_parents=True)
    return BundleOwnership(store).owner(TOPIC)


def bundle(lower: int, upper: int) -> str:
    return f"/namespace/t/n/0x{lower:08x}_0x{upper:08x}"


def broker(manager: str) -> dict[str, bytes]:
    return {"/loadbalance/brokers/b:8080": json.dumps({"loadManagerClassName": manager}).encode()}


OWNED = b'{"nativeUrl":"pulsar://b:6650"}'
HASH = bundle_hash(TOPIC)


def test_the_hash_is_the_crc32_of_the_full_name():
    assert bundle_hash("123456789") == 0xCBF43926


@pytest.mark.parametrize(
    ("lower", "upper", "owner"),
    [
        (HASH, HASH + 1, "pulsar://b:6650"),
        (0, 0xFFFFFFFF, "pulsar://b:6650"),
        (HASH + 1, 0xFFFFFFFF, None),
        (0, HASH, None),
    ],
)
def test_the_owner_is_that_of_the_bundle_that_covers_the_topic(lower, upper, owner):
    assert owner_with({bundle(lower, upper): OWNED, **broker(MODULAR)}) == owner


def test_without_brokers_nobody_owns_it():
    assert owner_with({}) is None


@pytest.mark.parametrize("value", [json.dumps({"loadManagerClassName": EXTENSIBLE}).encode(), b"?", b"{}", b"[]"])
def test_a_broker_that_does_not_announce_bundles_may_own_it(value):
    assert owner_with({"/loadbalance/brokers/b:8080": value}) == "b:8080"


def test_an_owner_that_cannot_be_read_is_an_owner_still():
    assert owner_with({bundle(0, 0xFFFFFFFF): b"?"}) == bundle(0, 0xFFFFFFFF)
    assert owner_with({"/namespace/t/n/of-a-new-kind": OWNED}) == "pulsar://b:6650"


def started(name: str, at: int | None, manager: str = MODULAR) -> dict[str, bytes]:
    data = {"loadManagerClassName": manager, "pulsarServiceUrl": f"pulsar://{name}:6650", "startTimestamp": at}
    return {f"/loadbalance/brokers/{name}:8080": json.dumps(data).encode()}


ALL = {bundle(0, 0xFFFFFFFF): OWNED}


@pytest.mark.parametrize(
    ("nodes", "since"),
    [
        (started("b", 500), None),
        ({**ALL, **started("b", 500), **started("other", 300)}, 500),
        ({**ALL, **started("b", None)}, 0),
        ({**ALL, **started("other", 300)}, 0),
        ({**ALL, **broker(MODULAR)}, 0),
        ({**ALL, "/loadbalance/brokers/b:8080": b"?"}, 0),
        ({bundle(0, 0xFFFFFFFF): b"?", **started("b", 500)}, 0),
        ({**started("b", 500, EXTENSIBLE), **started("other", 300, EXTENSIBLE)}, 300),
        ({**started("b", 500, EXTENSIBLE), "/loadbalance/brokers/c:8080": b"?"}, 0),
    ],
    ids=[
        "nobody owns it",
        "its owner",
        "an owner that does not say when it started",
        "an owner that is not there",
        "an owner without its address",
        "an owner that cannot be read",
        "a bundle that cannot be read",
        "any of brokers that hide their bundles",
        "any of brokers of which one cannot be read",
    ],
)
def test_it_is_loaded_at_the_earliest_since_its_owner_started(nodes, since):
    store = MemoryStore()
    for path, value in nodes.items():
        store.create(path, value, make_parents=True)
    assert BundleOwnership(store).loaded_since(TOPIC) == since


def test_a_start_that_lies_after_its_node_was_made_was_told_by_a_clock_that_is_ahead():
    store = MemoryStore(clock=lambda: 400.0)
    for path, value in {**ALL, **started("b", 1_000_000)}.items():
        store.create(path, value, make_parents=True)
    assert BundleOwnership(store).loaded_since(TOPIC) == 400_000


@pytest.mark.parametrize(
    ("nodes", "since"),
    [
        ({**started("b", 500_000), **started("other", 300_000)}, 300_000 - CLOCK_SKEW_MS),
        ({**started("b", 500_000), **started("other", 300_000, EXTENSIBLE)}, 300_000 - CLOCK_SKEW_MS),
        ({**started("b", 500_000), **started("other", None)}, 0),
        ({**started("b", 500_000), "/loadbalance/brokers/c:8080": b"?"}, 0),
        ({**started("b", 500)}, 0),
        ({}, 0),
    ],
    ids=[
        "the first counts",
        "of any load manager",
        "one does not say it",
        "one cannot be read",
        "long ago",
        "no broker",
    ],
)
def test_all_brokers_run_since_the_first_of_them_was_started(nodes, since):
    store = MemoryStore(clock=lambda: 600.0)
    for path, value in nodes.items():
        store.create(path, value, make_parents=True)
    assert read_all_started(store) == since
