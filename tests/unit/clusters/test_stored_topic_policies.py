"""Policies of single topics in nodes of the metadata store, as a broker of Pulsar 4.2.4 writes them."""

from __future__ import annotations

import json
from contextlib import closing
from typing import Any

import pytest

from bookwarden.clusters.pulsar.connection import PulsarConnection
from bookwarden.clusters.pulsar.messages.topic_policies import read_topic_quorums
from bookwarden.clusters.pulsar.metadata.topic_policies import namespaces_with_stored_policies, stored_policies
from bookwarden.clusters.pulsar.rest.admin import PulsarAdmin
from bookwarden.errors import FormatError
from bookwarden.metastore.memory import MemoryStore

CONNECTION = PulsarConnection("pulsar://127.0.0.1:1", "http://127.0.0.1:1")
QUOTA = {"limit": 1000, "limitSize": 1000, "limitTime": -1, "policy": "producer_exception"}
# As it was written, shortened by what is alike.
WRITTEN: dict[str, Any] = {
    "backLogQuotaMap": {"destination_storage": QUOTA},
    "subscriptionTypesEnabled": ["Exclusive", "Shared"],
    "replicationClusters": ["dev"],
    "isGlobal": False,
    "persistence": {
        "bookkeeperEnsemble": 5,
        "bookkeeperWriteQuorum": 3,
        "bookkeeperAckQuorum": 2,
        "managedLedgerMaxMarkDeleteRate": 0.0,
    },
    "messageTTLInSeconds": 60,
    "subscriptionPolicies": {},
    "globalPolicies": False,
    "delayedDeliveryEnabledSet": True,
    "replicationClustersSet": ["dev"],
    "retentionSet": True,
}
FOR_ALL = {
    "backLogQuotaMap": {"message_age": QUOTA},
    "subscriptionTypesEnabled": [],
    "isGlobal": True,
    "retentionPolicies": {"retentionTimeInMinutes": 61, "retentionSizeInMB": 101},
    "messageTTLInSeconds": 7,
    "subscriptionPolicies": {},
    "globalPolicies": True,
    "retentionSet": True,
}


def store_with(**nodes: dict[str, Any] | bytes) -> MemoryStore:
    """Make a store with the policies of topics of the namespace t/n, by ``own`` or ``all`` and the encoded name."""
    store = MemoryStore()
    for name, value in nodes.items():
        root, _, topic = name.partition("_")
        path = f"/admin/topic-policies/{'local' if root == 'own' else 'global'}/t/n/persistent/{topic}"
        store.create(path, value if isinstance(value, bytes) else json.dumps(value).encode(), make_parents=True)
    return store


def test_a_topics_own_policies_come_before_those_that_it_has_for_all_clusters() -> None:
    store = store_with(**{"own_a%2Bb+c": WRITTEN, "all_a%2Bb+c": FOR_ALL, "all_other": FOR_ALL})
    found = stored_policies(store, "t/n")
    assert set(found) == {"persistent://t/n/a+b c", "persistent://t/n/other"}
    own = found["persistent://t/n/a+b c"]
    assert own["messageTTLInSeconds"] == 60
    assert own["retentionPolicies"]["retentionTimeInMinutes"] == 61
    assert own["subscriptionTypesEnabled"] == ["Exclusive", "Shared"]
    # By kind, as brokers take them; the deprecated name of the size is none of an event's.
    assert own["backLogQuotaMap"] == {
        kind: {"limitSize": 1000, "limitTime": -1, "policy": "producer_exception"}
        for kind in ("destination_storage", "message_age")
    }
    assert not {name for name in own if name.endswith("Set") or name == "globalPolicies"}
    # What is empty is not set.
    some = {"subscriptionTypesEnabled": ["Failover"], "replicationClusters": ["dev"]}
    store = store_with(all_a=some, own_a={"subscriptionTypesEnabled": [], "replicationClusters": None})
    assert stored_policies(store, "t/n")["persistent://t/n/a"] == some
    assert namespaces_with_stored_policies(store) == {"t/n"}
    assert stored_policies(MemoryStore(), "t/n") == {}


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ({**WRITTEN, "newPolicy": 7, "newPolicySet": True}, "not known here: newPolicy"),
        (b"", "no JSON"),
        (b"[]", "no JSON object"),
    ],
)
def test_what_is_not_understood_is_an_error_that_names_the_node(value: Any, says: str) -> None:
    with pytest.raises(FormatError, match=says) as found:
        stored_policies(store_with(own_a=value), "t/n")
    assert "/admin/topic-policies/local/t/n/persistent/a" in str(found.value)


def test_another_layout_of_the_nodes_is_an_error() -> None:
    store = store_with(own_a=WRITTEN)
    store.create("/admin/topic-policies/t", b"")
    for read in (lambda: stored_policies(store, "t/n"), lambda: namespaces_with_stored_policies(store)):
        with pytest.raises(FormatError, match="/admin/topic-policies/t"):
            read()


def test_the_quorums_that_topics_ask_for_are_read_from_the_nodes_too() -> None:
    store = store_with(own_a=WRITTEN, own_b={"persistence": {}}, all_c={**WRITTEN, "isGlobal": True})
    with closing(PulsarAdmin(CONNECTION)) as admin:
        found = read_topic_quorums(store, CONNECTION, admin)
        assert (sorted(found.asked), found.unread) == (
            [("persistent://t/n/a", (5, 3, 2)), ("persistent://t/n/c", (5, 3, 2))],
            (),
        )
        for value, says in (
            ({"persistence": {"bookkeeperEnsemble": 3}}, "as Pulsar writes"),
            ({"x": 1}, "known here: x"),
        ):
            found = read_topic_quorums(store_with(own_a=value), CONNECTION, admin)
            assert found.asked == ()
            assert "t/n" in found.unread[0]
            assert says in found.unread[0]
        store.create("/admin/topic-policies/t", b"")
        assert "layout" in read_topic_quorums(store, CONNECTION, admin).unread[0]


def test_the_nodes_of_a_namespace_that_keeps_its_policies_in_a_topic_are_not_read() -> None:
    store = store_with(own_a=WRITTEN)
    store.create("/admin/policies/t/n", b"{}", make_parents=True)
    store.create("/managed-ledgers/t/n/persistent/__change_events", b"", make_parents=True)
    with closing(PulsarAdmin(CONNECTION)) as admin:
        found = read_topic_quorums(store, CONNECTION, admin)
    assert found.asked == ()
    # No broker answers here.
    assert [text.partition(":")[0] for text in found.unread] == ["t/n"]
