"""A saved registry goes back only where nothing contradicts it, with an epoch above all that brokers followed."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest

from bookwarden.bookie_clusters.operation import ORDER_PATH
from bookwarden.bookie_clusters.order import Order, Phase
from bookwarden.bookie_clusters.promoted import PROMOTION_PATH, Promotion
from bookwarden.bookie_clusters.registry import FOLLOWERS_PATH, REGISTRY_PATH, Registry, serialize_registry
from bookwarden.errors import ConfigError, FormatError, RefusedError, StoreUnavailableError
from bookwarden.leases import holder_here
from bookwarden.records import encode_record, record_fields
from unit.switching.registry_grounds import OTHER, A, B, Ground, first, further


class Lost(Ground):
    """With a, which is active, and b; the registry was saved, and then its node was lost."""

    def __init__(self) -> None:
        super().__init__()
        self.register(first())
        self.cluster(B, "instance-b", ("b1:3181",))
        self.register(further())
        self.saved = self.now

    @property
    def file(self) -> bytes:
        return serialize_registry(self.saved)

    def lose(self) -> None:
        node = self.pulsar.get(REGISTRY_PATH)
        assert node is not None
        self.pulsar.delete_many([(REGISTRY_PATH, node.version)])

    def order(self, target: str, after_epoch: int, phase: Phase) -> None:
        fields = record_fields(Order("a" if target == "b" else "b", target, after_epoch, "h:1", 5, phase))
        value = json.dumps({**fields, "holder": holder_here(), "isHeld": False}).encode()
        self.make(self.pulsar, ORDER_PATH, value)

    def refused(self, reason: str) -> None:
        with pytest.raises(RefusedError) as caught:
            self.registry_import.carry_out(self.file)
        assert re.search(reason, str(caught.value)), str(caught.value)


@pytest.fixture
def ground() -> Lost:
    return Lost()


def test_it_goes_back_as_it_was_with_an_epoch_that_brokers_take(ground: Lost) -> None:
    ground.broker("g:8080", 2)
    ground.broker("h:8080", 5)
    ground.lose()
    assert ground.registry_import.plan(ground.file).registry.epoch == 6
    assert ground.registry.read() is None
    ground.registry_import.carry_out(ground.file)
    assert ground.now == replace(ground.saved, epoch=6)


def test_a_damaged_node_is_replaced_and_what_was_promoted_is_void(ground: Lost) -> None:
    ground.make(ground.pulsar, PROMOTION_PATH, encode_record(Promotion("a", 2, 7, frozenset()), 1))
    node = ground.pulsar.get(REGISTRY_PATH)
    assert node is not None
    ground.pulsar.put(REGISTRY_PATH, b"{", node.version)
    ground.registry_import.carry_out(ground.file)
    assert ground.now == replace(ground.saved, epoch=3)
    assert ground.pulsar.get(PROMOTION_PATH) is None


def test_another_registry_stays(ground: Lost) -> None:
    ground.refused("has one, of epoch 2, with a, b")


def test_a_file_that_is_none_is_refused(ground: Lost) -> None:
    ground.lose()
    with pytest.raises(ConfigError, match="what is to be imported is no registry of bookie clusters"):
        ground.registry_import.plan(b"{}")


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"owner": "0badc0de"}, "brokers follow the registry of owner 0badc0de"),
        ({"active": "b"}, "follows epoch 4, in which b is active, and in the file, of epoch 2, it is a"),
        ({"instances": {"a": "instance-a", "c": "instance-c"}}, "follows epoch 4 with c, which the file does not have"),
        ({"instances": {"b": "another"}}, "follows epoch 4 with b, which the file does not have so"),
    ],
)
def test_what_brokers_follow_otherwise_is_a_refusal(ground: Lost, fields: dict[str, object], told: str) -> None:
    ground.broker("h:8080", 4, **fields)
    ground.lose()
    ground.refused(told)


def test_a_file_that_is_older_than_the_newest_switch_is_refused(ground: Lost) -> None:
    ground.order("b", 4, Phase.DONE)
    ground.lose()
    ground.refused("the newest order made b active in epoch 5, and in the file, of epoch 2, it is a: the file is older")


def test_an_order_that_was_never_carried_out_says_nothing_where_brokers_say_more(ground: Lost) -> None:
    ground.order("b", 2, Phase.SWITCH_TRIGGERED)
    ground.broker("h:8080", 2)
    ground.lose()
    assert ground.registry_import.plan(ground.file).registry.epoch == 4
    ground.pulsar.delete_many([("/loadbalance/brokers/h:8080", 0), ("/bookwarden/bookie-clusters-seen/1", 0)])
    ground.refused("the newest order made b active")


def test_a_broker_without_the_jar_knows_one_cluster_alone(ground: Lost) -> None:
    ground.broker("h:8080")
    ground.lose()
    ground.refused("brokers without the jar live, such as h:8080")
    alone: Registry = ground.saved.without_cluster("b")
    assert ground.registry_import.plan(serialize_registry(alone))


def test_each_cluster_has_to_be_the_one_of_the_file(ground: Lost) -> None:
    ground.lose()
    ground.stores[OTHER].put("/bookies-b/INSTANCEID", b"another", 0)
    ground.refused("of 'b' is the instance another, not instance-b")
    ground.stores[OTHER].close()
    with pytest.raises(StoreUnavailableError, match="'b'"):
        ground.registry_import.plan(ground.file)


def test_a_counter_that_was_lost_too_is_raised_above_every_id(ground: Lost) -> None:
    ground.lose()
    ground.ledger(B, 900, ground.saved.owner)
    plan = ground.registry_import.plan(ground.file)
    assert (plan.next_id, plan.free_id, plan.behind, ground.ids_at(A).next_id()) == (0, 901, 901, 0)
    assert ground.registry_import.carry_out(ground.file).behind == 0
    assert ground.ids_at(A).next_id() == 901
    assert ground.now.clusters == ground.saved.clusters


def test_no_broker_without_the_jar_may_live_over_a_leap(ground: Lost) -> None:
    ground.saved = ground.saved.without_cluster("b")
    ground.broker("h:8080")
    ground.lose()
    ground.ledger(A, 3_000_000)
    ground.refused("ids have to leap over 2.*2, which h:8080, without the jar, would not notice")


def test_a_registry_of_another_format_is_left_alone(ground: Lost) -> None:
    node = ground.pulsar.get(REGISTRY_PATH)
    assert node is not None
    ground.pulsar.put(REGISTRY_PATH, node.value.replace(b'"format": 1', b'"format": 2'), node.version)
    ground.refused("is no registry of bookie clusters: format 2 is not 1: use the bookwarden that wrote it")


def test_a_switch_there_and_back_after_the_file_was_saved_counts(ground: Lost) -> None:
    ground.order("a", 4, Phase.DONE)
    ground.lose()
    assert ground.saved.directive is None
    ground.registry_import.carry_out(ground.file)
    directive = ground.now.directive
    assert directive is not None
    assert (directive.source, directive.target, directive.epoch, ground.now.epoch) == ("b", "a", 5, 6)


def test_brokers_find_the_folder_of_what_they_follow(ground: Lost) -> None:
    for path in (REGISTRY_PATH, FOLLOWERS_PATH):
        node = ground.pulsar.get(path)
        assert node is not None
        ground.pulsar.delete_many([(path, node.version)])
    ground.registry_import.carry_out(ground.file)
    assert ground.pulsar.get(FOLLOWERS_PATH) is not None


def test_commands_name_the_way_back(ground: Lost) -> None:
    node = ground.pulsar.get(REGISTRY_PATH)
    assert node is not None
    ground.pulsar.put(REGISTRY_PATH, b"{", node.version)
    with pytest.raises(FormatError, match="`bookwarden bookie-clusters registry import`"):
        ground.registry.require()
    ground.lose()
    with pytest.raises(RefusedError, match="if there was a registry, `bookwarden bookie-clusters registry import`"):
        ground.registry.require()
