"""A saved registry goes back only where nothing contradicts it, with an epoch above all that brokers followed."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest

from bookwarden.errors import FormatError, RefusedError, StoreUnavailableError
from bookwarden.leases import holder_here
from bookwarden.switching.order import Order, Phase, order_fields
from bookwarden.switching.promoted import PROMOTION_PATH, Promotion, serialize_promotion
from bookwarden.switching.record import ORDER_PATH
from bookwarden.switching.registry import REGISTRY_PATH, Registry, serialize_registry
from unit.switching.registry_grounds import OTHER, B, Ground, first, further


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
        fields = order_fields(Order("a" if target == "b" else "b", target, after_epoch, "h:1", 5, phase))
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
    ground.make(ground.pulsar, PROMOTION_PATH, serialize_promotion(Promotion("a", 2, 7, frozenset())))
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
    with pytest.raises(FormatError):
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


def test_the_counter_has_to_be_above_every_id(ground: Lost) -> None:
    ground.lose()
    ground.ledger(B, 900, ground.saved.owner)
    ground.refused("the next ledger id below /ledgers is 0, and there are ids up to 900")
