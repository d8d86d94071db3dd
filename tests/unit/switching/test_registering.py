"""What is registered, and each thing that must not be, with its reason."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from bookwarden.bookie_clusters import registering
from bookwarden.bookie_clusters.brokers import BROKERS_PATH
from bookwarden.bookie_clusters.registering import OWN_ID_ROOT, ClusterSpec, RegistrationPlan
from bookwarden.bookie_clusters.registry import FOLLOWERS_PATH, REGISTRY_PATH, Registry, Status
from bookwarden.bookie_clusters.registry_node import StoredRegistry
from bookwarden.clusters.bookkeeper.service_uris import LedgersRoot
from bookwarden.errors import LostRaceError, RefusedError, StoreError, StoreUnavailableError
from bookwarden.metastore.memory import MemoryStore
from servers.switching.ground import follower_value, registry_of
from unit.switching.registry_grounds import OTHER, PULSAR, A, B, Ground, first, further

ALIAS = "memory:alias"
MANAGERS = b"2\norg.apache.bookkeeper.meta."
HYBRID = MANAGERS + b"HierarchicalLedgerManagerFactory:1"


@pytest.fixture
def ground() -> Ground:
    return Ground()


@pytest.fixture
def begun(ground: Ground) -> Ground:
    """With a registered, and b there to be."""
    ground.register(first())
    ground.cluster(B, "instance-b", ("b1:3181", "b2:3181"), HYBRID)
    return ground


def refused(ground: Ground, wanted: ClusterSpec, *reasons: str) -> None:
    before = ground.registry.read()
    with pytest.raises(RefusedError) as caught:
        ground.registration.plan(wanted)
    for reason in reasons:
        assert re.search(reason, str(caught.value)), str(caught.value)
    with pytest.raises(RefusedError):
        ground.registration.carry_out(wanted, wait_s=0)
    assert ground.registry.read() == before


def test_the_first_is_active_and_gives_the_registry_its_ids(ground: Ground) -> None:
    ground.give_ids(A, 5)
    ground.ledger(A, 4)
    registry = ground.register(first())
    assert (registry.epoch, registry.active, registry.id_root) == (1, "a", "/ledgers")
    assert re.fullmatch("[0-9a-f]{8}", registry.owner)
    cluster = registry.cluster("a")
    assert (cluster.store_url, cluster.ledgers_root, cluster.instance) == (None, "/ledgers", "instance-a")
    assert (cluster.metadata_service_uri, cluster.bootstrap, cluster.since) == ("uri-of-a", True, 1)
    assert registry.status_of("a") is Status.ACTIVE
    assert ground.ids("/ledgers").next_id() == 5


def test_pulsars_own_store_is_known_by_what_is_in_it_and_not_by_its_name(ground: Ground) -> None:
    ground.stores[ALIAS] = ground.pulsar
    ground.brokers_place = LedgersRoot(ALIAS, "/ledgers")
    registry = ground.register(first(LedgersRoot(ALIAS, "/ledgers")))
    assert (registry.cluster("a").store_url, registry.id_root) == (None, "/ledgers")
    # And so is that of a further one, whose roots are then in one store.
    ground.cluster(LedgersRoot(ALIAS, "/bookies-b"), "instance-b")
    assert ground.register(further(LedgersRoot(ALIAS, "/bookies-b"))).cluster("b").store_url is None


def test_another_store_gets_its_url_and_a_further_cluster_the_next_epoch(begun: Ground) -> None:
    registry = begun.register(further())
    cluster = registry.cluster("b")
    assert (cluster.store_url, cluster.ledgers_root, cluster.instance, cluster.since) == (
        *(OTHER, "/bookies-b"),
        *("instance-b", 2),
    )
    assert (registry.epoch, registry.active, registry.status_of("b")) == (2, "a", Status.STANDBY)
    assert (registry.id_root, registry.cluster("a").since) == ("/ledgers", 1)


def test_ids_go_on_above_every_id_of_a_further_cluster(begun: Ground) -> None:
    begun.give_ids(A, 3)
    begun.give_ids(B, 40)
    plan = begun.registration.plan(further())
    assert (plan.next_id, plan.free_id, plan.behind, plan.leaps) == (3, 40, 37, False)
    with pytest.raises(StoreError, match=r"has ids up to 39, and the next is 3: another client writes there"):
        begun.registration.carry_out(further(), wait_s=0)
    assert set(begun.now.clusters) == {"a"}
    told: list[int] = []
    begun.registration.raise_ids(plan, told.append)
    assert told
    assert begun.registration.carry_out(further(), wait_s=0).behind == 0
    assert begun.ids("/ledgers").next_id() == 40
    assert not [name for name in begun.pulsar.list_children("/ledgers/idgen") if name.startswith("ID-")]


def test_ids_are_raised_only_once_that_is_confirmed(begun: Ground) -> None:
    begun.give_ids(A, 3)
    begun.give_ids(B, 40)
    asked: list[int] = []

    @contextmanager
    def confirm(plan: RegistrationPlan) -> Iterator[Callable[[int], object]]:
        asked.append(plan.behind)
        if len(asked) == 1:
            raise RefusedError("no")
        yield lambda _: None

    looked = begun.registration.register(further(), wait_s=0, dry_run=True, confirm=confirm)
    assert (looked.raised, looked.dry_run, asked) == (37, True, [])
    with pytest.raises(RefusedError, match="no"):
        begun.registration.register(further(), wait_s=0, confirm=confirm)
    assert (set(begun.now.clusters), begun.ids("/ledgers").next_id()) == ({"a"}, 3)
    done = begun.registration.register(further(), wait_s=0, confirm=confirm)
    assert (done.raised, done.plan.behind, asked) == (37, 0, [37, 37])
    assert (set(begun.now.clusters), begun.ids("/ledgers").next_id()) == ({"a", "b"}, 40)


def test_a_ledger_above_the_clusters_own_counter_counts_as_given(begun: Ground) -> None:
    begun.give_ids(B, 2)
    begun.ledger(B, 90, begun.now.owner)
    assert begun.registration.plan(further()).free_id == 91
    begun.register(further())
    assert begun.ids("/ledgers").next_id() == 91


def test_ids_of_a_first_cluster_elsewhere_come_from_a_root_of_their_own(ground: Ground) -> None:
    ground.cluster(B, "instance-b")
    ground.brokers_place = B
    ground.give_ids(B, 12)
    registry = ground.register(first(B))
    assert (registry.id_root, registry.cluster("a").store_url) == (OWN_ID_ROOT, OTHER)
    assert ground.ids(OWN_ID_ROOT).next_id() == 12
    ground.cluster(LedgersRoot(PULSAR, "/bookwarden"), "instance-c")
    refused(
        ground, further(LedgersRoot(PULSAR, "/bookwarden"), name="c"), "/bookwarden is where ledger ids are counted"
    )


def test_no_broker_may_give_ids_of_another_sequence_meanwhile(ground: Ground) -> None:
    ground.cluster(B, "instance-b")
    ground.brokers_place = B
    ground.broker("x:8080")
    refused(ground, first(B), "x:8080 is without the jar, and would give smaller ones", OWN_ID_ROOT)


def test_a_leap_that_stock_brokers_do_not_notice_waits_for_them(begun: Ground) -> None:
    begun.ledger(B, 5_000_000_000, begun.now.owner)
    begun.reaching("w:8080")
    begun.broker("x:8080")
    begun.broker("y:8080")
    refused(begun, further(), r"leap over 2\*\*32", "x:8080, y:8080 are without the jar")
    begun.pulsar.delete_many([(f"{BROKERS_PATH}/{name}:8080", 0) for name in "xy"])
    plan = begun.registration.plan(further())
    assert plan.leaps
    begun.register(further())
    assert begun.ids("/ledgers").next_id() == 2 << 32


@pytest.mark.parametrize(
    ("wanted", "reason"),
    [
        (further(name="a"), "a cluster of this name is registered already"),
        (further(name="b/c"), "a name begins with a letter or digit"),
        (further(uri=" uri-of-a"), "uri-of-a is registered as 'a'"),
        (ClusterSpec("b", "uri-of-b", B, bootstrap=True), "--bootstrap is for the first, and a are registered"),
        (further(A), "it is registered as 'a': both have the INSTANCEID instance-a"),
        (further(LedgersRoot(ALIAS, "/ledgers")), "it is registered as 'a': both have the INSTANCEID instance-a"),
        (further(LedgersRoot(OTHER, "/nothing")), "memory:other has no /nothing: initialise the cluster"),
        (
            further(LedgersRoot(OTHER, "/empty")),
            "memory:other has no /empty/INSTANCEID: it is another root, or was not",
        ),
        (
            further(LedgersRoot(OTHER, "/flat")),
            "its LAYOUT is flat, .*: Pulsar's ledger manager has the paths of hierarchical",
        ),
        (further(LedgersRoot(OTHER, "/long")), "its LAYOUT is longhierarchical"),
        (further(LedgersRoot(OTHER, "/ours")), "its LAYOUT is hierarchical, .*org.example.Hierarchical"),
        (further(LedgersRoot(OTHER, "/legacy")), "its LAYOUT is legacyhierarchical"),
        (further(LedgersRoot(OTHER, "/strange")), "names no layout that is known"),
        (
            further(LedgersRoot(PULSAR, "/ledgers-b")),
            "its root /ledgers-b and the root /ledgers of 'a' are in one store",
        ),
        (further(LedgersRoot(ALIAS, "/ledgers/b")), "its root /ledgers/b and the root /ledgers of 'a'"),
        (further(LedgersRoot(PULSAR, "/led")), "such as /bookies-b"),
        (further(LedgersRoot(OTHER, "/common")), "a2:3181 is in both this cluster and 'a'"),
        (further(LedgersRoot(OTHER, "/cookie")), "a1:3181 is in both this cluster and 'a'"),
        (further(LedgersRoot(OTHER, "/readonly")), "a1:3181 is in both this cluster and 'a'"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_what_would_make_two_clusters_one_or_one_two_is_refused(
    begun: Ground, wanted: ClusterSpec, reason: str
) -> None:
    begun.stores[ALIAS] = begun.pulsar
    other = begun.stores[OTHER]
    begun.make(other, "/empty/idgen")
    begun.cluster(LedgersRoot(OTHER, "/flat"), "flat", layout=b"1\nflat:1")
    begun.cluster(LedgersRoot(OTHER, "/legacy"), "legacy", layout=b"1\nhierarchical:1")
    begun.cluster(LedgersRoot(OTHER, "/long"), "long", layout=MANAGERS + b"LongHierarchicalLedgerManagerFactory:1")
    begun.cluster(LedgersRoot(OTHER, "/ours"), "ours", layout=b"2\norg.example.HierarchicalLedgerManagerFactory:1")
    begun.cluster(LedgersRoot(OTHER, "/strange"), "strange", layout=b"2\norg.example.OurOwnManagerFactory:1")
    begun.cluster(LedgersRoot(OTHER, "/common"), "common", ("c1:3181", "a2:3181"))
    for root in ("/ledgers-b", "/ledgers/b", "/led"):
        begun.cluster(LedgersRoot(PULSAR, root), f"in {root}")
    begun.cluster(LedgersRoot(OTHER, "/cookie"), "cookie")
    begun.make(other, "/cookie/cookies/a1:3181")
    begun.cluster(LedgersRoot(OTHER, "/readonly"), "readonly")
    begun.make(other, "/readonly/available/readonly/a1:3181")
    refused(begun, wanted, reason)


def test_roots_of_two_clusters_in_a_store_that_is_not_pulsars_are_compared_too(begun: Ground) -> None:
    begun.register(further())
    begun.stores[ALIAS] = begun.stores[OTHER]
    begun.cluster(LedgersRoot(OTHER, "/bookies-b2"), "instance-b2")
    refused(
        begun,
        further(LedgersRoot(ALIAS, "/bookies-b2"), name="b2", uri="x"),
        "the root /bookies-b of 'b' are in one",
    )


@pytest.mark.parametrize("value", [b"", b"\xff"])
def test_an_instance_that_is_no_text_is_none(ground: Ground, value: bytes) -> None:
    ground.pulsar.put("/ledgers/INSTANCEID", value, 0)
    refused(ground, first(), "memory:pulsar has no /ledgers/INSTANCEID")


def test_an_instance_is_kept_as_it_is_since_brokers_compare_it_so(ground: Ground) -> None:
    ground.pulsar.put("/ledgers/INSTANCEID", b"instance-a\n", 0)
    assert ground.register(first()).cluster("a").instance == "instance-a\n"


def test_all_reasons_are_told_at_once(begun: Ground) -> None:
    begun.cluster(LedgersRoot(PULSAR, "/ledgers-b"), "other", ("a1:3181",))
    refused(
        begun,
        further(LedgersRoot(PULSAR, "/ledgers-b"), name="a"),
        "of this name",
        "in one store",
        "a1:3181 is in both",
    )


def test_nothing_is_registered_before_the_cluster_that_brokers_use(ground: Ground) -> None:
    ground.cluster(B, "instance-b")
    refused(ground, further(), "register the cluster that brokers use now first, with --bootstrap")
    refused(ground, first(B), "brokers use /ledgers in memory:pulsar.* INSTANCEID is instance-a, not instance-b")
    refused(ground, first(shared=True), "the first cluster cannot be --shared")


def test_a_registry_that_brokers_follow_is_not_begun_anew(begun: Ground) -> None:
    node = begun.registry.require()
    begun.make(begun.pulsar, f"{FOLLOWERS_PATH}/1", follower_value(registry_of(epoch=7)))
    begun.pulsar.delete_many([(REGISTRY_PATH, node.version)])
    refused(
        begun, first(), "brokers follow a registry of epoch 7 although .* is gone: put it back with `bookie-clusters"
    )


@pytest.mark.parametrize(("seconds", "bookies"), [(7.0, ("a1:3181", "a2:3181")), (5.0, ("a1:3181",)), (5.0, ())])
def test_a_copy_of_pulsars_own_store_is_not_taken_for_it(seconds: float, bookies: tuple[str, ...]) -> None:
    ground = Ground(clock=lambda: 5.0)
    ground.stores[ALIAS] = MemoryStore(clock=lambda: seconds)
    ground.cluster(LedgersRoot(ALIAS, "/ledgers"), "instance-a", bookies)
    ground.brokers_place = LedgersRoot(ALIAS, "/ledgers")
    refused(ground, first(LedgersRoot(ALIAS, "/ledgers")), "one is a copy of the other")


def test_a_registered_cluster_that_is_not_what_it_was_is_put_right_first(begun: Ground) -> None:
    begun.pulsar.put("/ledgers/INSTANCEID", b"formatted anew", 0)
    refused(begun, further(), "of the registered cluster 'a' has the INSTANCEID formatted anew instead of instance-a")


def test_ledgers_of_others_need_a_shared_cluster(begun: Ground) -> None:
    begun.ledger(B, 3, begun.now.owner)
    assert begun.registration.plan(further()).foreign == 0
    for ledger_id, owner in ((7, None), (8, "0badc0de")):
        begun.ledger(B, ledger_id, owner)
    begun.make(begun.stores[OTHER], "/bookies-b/00/0000/L0009", b"garbage")
    refused(begun, further(), r"3 ledgers are there that this Pulsar cluster did not make, such as 7, 8, 9", "--shared")
    plan = begun.registration.plan(further(shared=True))
    assert (plan.foreign, plan.free_id, plan.cluster.shared) == (3, 10, True)
    assert begun.register(further(shared=True)).cluster("b").shared


@pytest.mark.parametrize("silent", [PULSAR, OTHER])
def test_a_store_that_does_not_answer_leaves_all_as_it_is(begun: Ground, silent: str) -> None:
    begun.register(further())
    begun.cluster(LedgersRoot("memory:pulsar", "/bookies-c"), "instance-c")
    begun.stores[silent].close()
    with pytest.raises(StoreUnavailableError):
        begun.registration.plan(further(LedgersRoot(PULSAR, "/bookies-c"), name="c", uri="x"))


def test_the_error_of_a_silent_store_names_its_cluster(begun: Ground) -> None:
    begun.stores[OTHER].close()
    with pytest.raises(StoreUnavailableError, match=r"bookie cluster 'b', /bookies-b in memory:other: .*closed"):
        begun.registration.plan(further())


@pytest.mark.parametrize(
    "between", [lambda ground: ground.register(further(LedgersRoot(OTHER, "/c"), name="c", uri="x"))]
)
def test_a_change_by_somebody_else_in_between_is_not_overwritten(
    begun: Ground, between: Callable[[Ground], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    begun.cluster(LedgersRoot(OTHER, "/c"), "instance-c")
    registration = begun.registration
    plan = registration.plan(further())
    between(begun)
    monkeypatch.setattr(type(registration), "plan", lambda *_: plan)
    with pytest.raises(LostRaceError, match="epoch 2"):
        registration.carry_out(further(), wait_s=0)
    assert set(begun.now.clusters) == {"a", "c"}


def test_a_further_cluster_has_no_ledger_of_ours_without_a_mark(begun: Ground) -> None:
    registry = begun.register(further())
    assert {name: each.unmarked_below for name, each in registry.clusters.items()} == {"a": None, "b": 0}


def test_the_counter_that_a_further_cluster_has_itself_is_raised_too(begun: Ground) -> None:
    begun.cluster(LedgersRoot(PULSAR, "/bookies-c"), "instance-c")
    begun.give_ids(A, 40)
    begun.register(further())
    assert begun.ids_at(B).next_id() == 40
    begun.give_ids(A, 10)
    registry = begun.registry.require()
    open_ = replace(registry.registry.clusters["b"], unmarked_below=None)
    clusters = {**registry.registry.clusters, "b": open_}
    begun.registry.replace(registry, replace(registry.registry, epoch=3, clusters=clusters))
    begun.register(further(LedgersRoot(PULSAR, "/bookies-c"), name="c", uri="uri-of-c"))
    # Where the range of ledgers without a mark ends, the counter begins.
    assert begun.now.cluster("b").unmarked_below == 50
    assert begun.ids_at(B).next_id() == 50


def test_a_first_cluster_in_a_store_of_its_own_owns_what_is_below_the_first_id_of_all(ground: Ground) -> None:
    ground.cluster(B, "instance-b")
    ground.brokers_place = B
    ground.give_ids(B, 9)
    registry = ground.register(first(B))
    assert (registry.id_root, registry.cluster("a").unmarked_below) == (OWN_ID_ROOT, 9)
    assert ground.ids(OWN_ID_ROOT).next_id() == 9


def test_what_brokers_without_the_jar_wrote_in_a_cluster_that_was_alone_stays_ours(begun: Ground) -> None:
    begun.register(further())
    seen = begun.registry.require()
    begun.registry.replace(seen, seen.registry.switched("b", "h:1", 5))
    begun.unregistration.carry_out(begun.unregistration.plan("a"))
    assert begun.now.cluster("b").unmarked_below is None
    begun.give_ids(B, 30)
    begun.ledger(B, 29)
    c = LedgersRoot(PULSAR, "/bookies-c")
    begun.cluster(c, "instance-c")
    begun.broker("h:8080")
    refused(begun, further(c, name="c", uri="uri-of-c"), "h:8080 is without the jar, and makes ledgers without")
    begun.pulsar.delete_many([(f"{BROKERS_PATH}/h:8080", 0)])
    registry = begun.register(further(c, name="c", uri="uri-of-c"))
    assert {name: each.unmarked_below for name, each in registry.clusters.items()} == {"b": 30, "c": 0}
    assert begun.ids("/ledgers").next_id() == 30
    assert begun.ids_at(c).next_id() == 30


def test_a_broker_with_an_older_jar_keeps_a_further_cluster_out(begun: Ground) -> None:
    begun.broker("h:8080", 1, understands=[])
    refused(begun, further(), "h:8080 is with the jar of an earlier bookwarden")


@pytest.mark.parametrize("named", [(), ("0badc0de",), ("1badc0de",)])
def test_a_mark_in_the_first_cluster_that_was_not_named_is_refused(ground: Ground, named: tuple[str, ...]) -> None:
    for ledger_id, owner in ((3, "0badc0de"), (4, "0badc0de"), (5, "1badc0de")):
        ground.ledger(A, ledger_id, owner)
    left = {"0badc0de": 2, "1badc0de": 1}
    for owner in named:
        del left[owner]
    told = ", ".join(rf"{owner} \({number} ledgers\)" for owner, number in left.items())
    refused(ground, replace(first(), owners=named), f"owner marks that were not named: {told}", "with --owner")


def test_the_owner_of_an_earlier_registry_is_taken_over(ground: Ground) -> None:
    ground.ledger(A, 4, "0badc0de")
    ground.ledger(A, 5, "1badc0de")
    registry = ground.register(replace(first(), owners=("1badc0de", "0badc0de")))
    assert (registry.owner, registry.former_owners) == ("1badc0de", ("0badc0de",))


@pytest.mark.parametrize(
    ("named", "owner", "former"), [((), "2badc0de", ()), (("0badc0de",), "0badc0de", ("2badc0de",))]
)
def test_the_owner_of_a_move_to_the_cluster_is_taken_over(
    ground: Ground, named: tuple[str, ...], owner: str, former: tuple[str, ...]
) -> None:
    ground.moved["instance-a"] = "2badc0de"
    ground.ledger(A, 4, "2badc0de")
    registry = ground.register(replace(first(), owners=named))
    assert (registry.owner, registry.former_owners) == (owner, former)


@pytest.fixture
def outside(ground: Ground) -> Ground:
    """The first cluster is in a store of its own, an earlier registry is gone: Functions made 7, brokers 3 and 5."""
    ground.brokers_place = B
    ground.cluster(B, "instance-b")
    ground.ledger(B, 3)
    ground.ledger(B, 5, "0badc0de")
    ground.ledger(B, 7)
    return ground


def test_which_ledgers_without_a_mark_are_ours_is_not_guessed(outside: Ground) -> None:
    wanted = replace(first(B), owners=("0badc0de",))
    refused(outside, wanted, r"2 ledgers there have no owner mark, the largest 7, .*`bookie-clusters registry import`")
    refused(outside, replace(wanted, unmarked_below=9), "--unmarked-below is above the next ledger id, 8")
    registry = outside.register(replace(wanted, unmarked_below=5))
    assert (registry.cluster("a").unmarked_below, registry.id_root) == (5, OWN_ID_ROOT)


def test_copies_of_a_move_tell_of_no_earlier_registry(outside: Ground) -> None:
    outside.stores[OTHER].delete_many([("/bookies-b/00/0000/L0005", 0)])
    outside.ledger(B, 5, "0badc0de", **{"bookwarden.copy": b"7:1000"})
    outside.moved["instance-b"] = "0badc0de"
    assert outside.register(first(B)).cluster("a").unmarked_below == 8


def test_a_further_cluster_that_was_alone_under_an_earlier_registry_keeps_its_range(begun: Ground) -> None:
    begun.ledger(B, 3)
    begun.ledger(B, 7)
    refused(begun, further(), r"2 ledgers are there that this Pulsar cluster did not make, .*--unmarked-below")
    refused(begun, replace(further(), unmarked_below=7), "1 ledgers are there .* such as 7")
    assert begun.register(replace(further(), unmarked_below=8)).cluster("b").unmarked_below == 8


def test_it_is_not_said_where_it_cannot_be_true(ground: Ground) -> None:
    refused(ground, replace(first(), unmarked_below=0), "--unmarked-below is not for this cluster: each without an")
    ground.register(first())
    ground.cluster(B, "instance-b")
    shared = replace(further(shared=True), unmarked_below=0)
    refused(ground, shared, "--unmarked-below is not for this cluster: none without")


def test_an_owner_is_named_for_the_first_alone(begun: Ground) -> None:
    refused(begun, replace(further(), owners=("0badc0de",)), "--owner is for the first cluster")


def test_a_broker_that_came_while_counters_were_raised_keeps_it_back(
    begun: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registering, "raise_own_counters", lambda *_: begun.broker("h:8080", 1, understands=[]))
    with pytest.raises(RefusedError, match="h:8080 is with the jar of an earlier bookwarden"):
        begun.registration.carry_out(further(), wait_s=0)
    assert set(begun.now.clusters) == {"a"}


def test_all_brokers_with_the_jar_have_to_reach_it(begun: Ground) -> None:
    begun.reaching("g:8080")
    begun.broker("stock:8080")
    said: list[str] = []
    begun.registration.carry_out(further(), wait_s=0, say=said.append)
    assert (set(begun.now.clusters), begun.now.epoch) == ({"a", "b"}, 2)
    assert said == ["b is registered since epoch 2; waiting until all brokers reach it"]


@pytest.mark.parametrize("how", ["behind", "another instance", "silent", "broken"])
def test_one_that_a_broker_does_not_reach_is_taken_out_again(begun: Ground, how: str) -> None:
    begun.reaching("g:8080")
    node = begun.broker("h:8080", 1)
    values = {
        "behind": follower_value(begun.now),
        "another instance": follower_value(begun.now, epoch=2, instances={"a": "instance-a", "b": "another"}),
        "silent": follower_value(
            begun.now, epoch=2, instances={"a": "instance-a", "b": "instance-b"}, unreachable=["b"]
        ),
        "broken": b"{",
    }
    begun.pulsar.put(node, values[how], 0)
    with pytest.raises(
        RefusedError, match=r"'b' was taken out again: within 0 s .*not reached by h:8080 \(.*\)\. Look"
    ):
        begun.registration.carry_out(further(), wait_s=0)
    assert (set(begun.now.clusters), begun.now.epoch) == ({"a"}, 3)


def test_a_broker_that_reaches_it_late_is_waited_for(begun: Ground) -> None:
    node = begun.broker("g:8080", 1)
    reached = threading.Timer(0.3, lambda: begun.pulsar.put(node, follower_value(begun.now), 0))
    reached.start()
    begun.registration.carry_out(further(), wait_s=60)
    reached.join()
    assert set(begun.now.clusters) == {"a", "b"}


def test_a_registration_that_was_killed_while_it_waited_is_carried_on(begun: Ground) -> None:
    begun.register(further())
    node = begun.broker("g:8080", 2)
    begun.pulsar.put(node, follower_value(begun.now, instances={}), 0)
    registered = begun.now
    assert begun.registration.plan(further()).after == registered
    for another in (further(shared=True), further(uri="another")):
        with pytest.raises(RefusedError, match="a cluster of this name is registered already"):
            begun.registration.plan(another)
    assert begun.registration.plan(further()).behind == 0
    # What this command did not register it does not take out: it may have been there for long.
    with pytest.raises(RefusedError, match=r"'b' stays registered: .*g:8080.*or take it out: `bookie-clusters unreg"):
        begun.registration.carry_out(further(), wait_s=0)
    assert begun.now == registered
    begun.pulsar.put(node, follower_value(registered), 1)
    begun.registration.carry_out(further(), wait_s=0)
    assert begun.now == registered


def test_one_that_another_process_changes_while_it_is_taken_out_stays(
    begun: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun.broker("g:8080", 1)
    made, replaced = begun.registry.replace, list[int]()

    def replace_late(seen: StoredRegistry, changed: Registry) -> None:
        if replaced:
            made(seen, seen.registry.with_deprecated("b", True))
        replaced.append(changed.epoch)
        made(seen, changed)

    monkeypatch.setattr(begun.registry, "replace", replace_late)
    with pytest.raises(RefusedError, match=r"'b' stays registered: .*not reached by g:8080"):
        begun.registration.carry_out(further(), wait_s=0)
    assert begun.now.clusters["b"].deprecated


def test_one_that_may_have_been_used_since_stays_although_a_broker_does_not_reach_it(begun: Ground) -> None:
    begun.register(further())
    seen = begun.registry.require()
    begun.registry.replace(seen, seen.registry.switched("b", "host:1", 5))
    begun.broker("g:8080", 1)
    with pytest.raises(
        RefusedError, match=r"'b' stays registered: .*g:8080 \(epoch 1\).*`bookie-clusters unregister b`"
    ):
        begun.registration.carry_out(further(), wait_s=0)
    assert (set(begun.now.clusters), begun.now.epoch) == ({"a", "b"}, 3)


def test_the_first_cluster_comes_back_to_the_root_where_ids_are_counted(begun: Ground) -> None:
    begun.register(further())
    seen = begun.registry.require()
    begun.registry.replace(seen, seen.registry.switched("b", "h:1", 5))
    begun.unregistration.carry_out(begun.unregistration.plan("a"))
    begun.cluster(LedgersRoot(PULSAR, "/ledgers/c"), "instance-c")
    refused(
        begun,
        further(LedgersRoot(PULSAR, "/ledgers/c"), name="c", uri="c"),
        "/ledgers/c is where ledger ids are counted",
    )
    begun.give_ids(B, 30)
    after = begun.register(further(A, name="a", uri="uri-of-a"))
    assert (after.cluster("a").unmarked_below, after.cluster("b").unmarked_below) == (0, 30)
    assert begun.ids("/ledgers").next_id() == 30
