"""Who owns a topic, told from the metadata store alone; a doubt counts as owned."""

from __future__ import annotations

import json

import pytest

from bookwarden.clusters.pulsar.ownership import BundleOwnership, bundle_hash
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


def test_it_is_owned_since_its_bundles_node_was_made():
    store = MemoryStore()
    ownership = BundleOwnership(store)
    assert ownership.owned_since(TOPIC) is None
    store.create(bundle(0, 0xFFFFFFFF), OWNED, make_parents=True)
    node = store.get(bundle(0, 0xFFFFFFFF))
    assert ownership.owned_since(TOPIC) == node.created_ms > 0


def test_a_broker_that_does_not_announce_bundles_may_have_owned_it_for_ever():
    store = MemoryStore()
    ((path, value),) = broker(EXTENSIBLE).items()
    store.create(path, value, make_parents=True)
    assert BundleOwnership(store).owned_since(TOPIC) == 0
