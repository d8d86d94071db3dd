"""What blocks a switch: one line for each danger, and nothing else where all is well."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bookwarden.bookie_clusters.brokers import Broker, RegistryFollower
from bookwarden.bookie_clusters.checks.observing import Observer
from bookwarden.bookie_clusters.checks.precheck import (
    _LINES,
    BookieMap,
    BrokerSettings,
    NamespacePlacement,
    ObservedCluster,
    Precheck,
    PrecheckObservations,
    Quorums,
    TrialResult,
    judge,
)
from bookwarden.bookie_clusters.registry import Registry
from bookwarden.bookie_clusters.registry_node import ClusterRegistry
from bookwarden.clusters.bookkeeper.bookie_cluster import ClusterStores
from bookwarden.clusters.bookkeeper.bookies.requests import BookieOptions
from bookwarden.clusters.bookkeeper.ledger_ids import LedgerIds
from bookwarden.clusters.bookkeeper.ledger_paths import ledger_path
from bookwarden.clusters.pulsar.messages.topic_policies import TopicQuorums
from bookwarden.clusters.pulsar.rest.registered_brokers import RegisteredBroker
from bookwarden.disk_space import DiskSpace
from bookwarden.findings import Verdict
from bookwarden.ledgers.custom_metadata import OWNER_KEY
from bookwarden.ledgers.metadata import LedgerMetadata, LedgerState, Segment
from bookwarden.wire.ledger_metadata import encode_ledger_metadata
from servers.switching.ground import OWNER, Ground, registry_of

INSTANCES = {"a": "instance-a", "b": "instance-b"}
FOLLOWS = RegistryFollower(2, "a", OWNER, INSTANCES, jar="0.1.0")
SETTINGS = {
    "managedLedgerDefaultEnsembleSize": "2",
    "managedLedgerDefaultWriteQuorum": "2",
    "managedLedgerDefaultAckQuorum": "2",
    "managedLedgerDigestType": "CRC32C",
    "autoSkipNonRecoverableData": "false",
}
A = ObservedCluster("", "instance-a", frozenset({"a1", "a2", "a3"}), largest_ledger=700)
B = ObservedCluster("", "instance-b", frozenset({"b1", "b2", "b3"}), largest_ledger=650)
WELL = PrecheckObservations(
    registry=registry_of(),
    target="b",
    brokers=(Broker("br1", FOLLOWS), Broker("br2", FOLLOWS)),
    settings=(BrokerSettings("br1", SETTINGS), BrokerSettings("br2", SETTINGS)),
    next_ledger_id=701,
    clusters={"a": A, "b": B},
    namespaces=(),
    places=BookieMap({}, {}),
    disks={bookie: DiskSpace(100, 50) for bookie in ("b1", "b2", "b3")},
)
FAILS, WARNING = Verdict.FAILS, Verdict.WARNING


def judged(**seen: Any) -> Precheck:
    return judge(replace(WELL, **seen))


def shared(name: str) -> Registry:
    registry = registry_of()
    return replace(registry, clusters={**registry.clusters, name: replace(registry.clusters[name], shared=True)})


def closed_at(below: int | None) -> Registry:
    registry = registry_of()
    return replace(registry, clusters={**registry.clusters, "b": replace(registry.clusters["b"], unmarked_below=below)})


def told(**changed: str) -> tuple[BrokerSettings, ...]:
    return (WELL.settings[0], BrokerSettings("br2", {**SETTINGS, **changed}))


def follows(**changed: Any) -> tuple[Broker, ...]:
    return (WELL.brokers[0], Broker("br2", replace(FOLLOWS, **changed)))


def asks(groups: set[str], spare: set[str] | None = None, quorums: Quorums | None = None) -> NamespacePlacement:
    return NamespacePlacement("t/n", quorums, frozenset(groups), frozenset(spare or ()))


def in_groups(**groups: str) -> BookieMap:
    return BookieMap({name: frozenset(bookies.split()) for name, bookies in groups.items()}, {})


def test_where_all_is_well_each_line_says_so() -> None:
    result = judge(WELL)
    assert [(one.check, one.verdict) for one in result.findings if one.verdict is not Verdict.OK] == []
    assert {one.check for one in result.findings} == {
        *("target", "brokers", "metadata", "ledger ids", "bookies", "affinity groups", "racks", "broker settings"),
        "disk space",
    }
    data = result.as_json()
    assert data["ready"] is True
    assert data["idgenAdvancedBeyondSource"] is True
    assert (data["sourceClusterName"], data["targetClusterName"], data["epoch"]) == ("a", "b", 2)
    assert (data["sourceMaxHighOrderBit"], data["targetMaxHighOrderBit"]) == (0, 0)
    assert (data["nextLedgerId"], data["largestLedgerIds"]) == (701, {"a": 700, "b": 650})
    assert set(data["checks"][0]) == {"name", "severity", "evidence", "whatToDo"}


def test_each_line_is_in_the_document() -> None:
    document = (Path(__file__).parents[3] / "docs" / "bookie-clusters.md").read_text(encoding="utf-8")
    section = document.partition("\n## Precheck\n")[2].partition("\n## ")[0]
    assert re.findall(r"^\| `([a-z ]+)` \|", section, re.MULTILINE) == list(_LINES)


@pytest.mark.parametrize(
    ("seen", "check", "verdict", "text"),
    [
        ({"target": "a"}, "target", FAILS, "a is active already"),
        ({"registry": registry_of().with_deprecated("b", True), "brokers": ()}, "target", FAILS, "b is DEPRECATED"),
        ({"brokers": ()}, "brokers", FAILS, "no broker is registered"),
        ({"brokers": (WELL.brokers[0], Broker("br2"))}, "brokers", FAILS, "br2 does not follow the registry"),
        ({"brokers": (Broker("br1", error="no good"),)}, "brokers", FAILS, "br1: no good"),
        ({"brokers": follows(epoch=1)}, "brokers", FAILS, "br2 (epoch 1) acts by an older one"),
        ({"brokers": follows(owner="00000000")}, "brokers", FAILS, "br2 follows the registry of another"),
        ({"brokers": follows(instances={"a": "instance-a"})}, "brokers", FAILS, "br2 sees none"),
        ({"brokers": follows(instances={"b": "x"})}, "brokers", FAILS, "b is the instance instance-b, and br2 sees x"),
        ({"brokers": follows(unreachable=frozenset("b"))}, "brokers", FAILS, "br2 cannot read the metadata of b"),
        ({"brokers": follows(unreachable=frozenset("a"))}, "brokers", WARNING, "br2 not a"),
        ({"clusters": {"a": A, "b": ObservedCluster("no answer")}}, "metadata", FAILS, "b: no answer"),
        ({"clusters": {"a": ObservedCluster("no answer"), "b": B}}, "metadata", WARNING, "a: no answer"),
        ({"clusters": {"a": A, "b": replace(B, instance="")}}, "metadata", FAILS, "INSTANCEID of b says nothing"),
        ({"clusters": {"a": replace(A, instance="x"), "b": B}}, "metadata", FAILS, "INSTANCEID of a says x"),
        ({"next_ledger_id": 700}, "ledger ids", FAILS, "a has 700"),
        ({"next_ledger_id": None}, "ledger ids", FAILS, "no id was given yet"),
        ({"clusters": {"a": A, "b": replace(B, largest_ledger=701)}}, "ledger ids", FAILS, "b has 701"),
        (
            {"clusters": {"a": A, "b": replace(B, largest_ledger=9**9)}, "registry": shared("b")},
            *("ledger ids", WARNING, "of another Pulsar cluster"),
        ),
        (
            {"clusters": {"a": A, "b": replace(B, largest_of_others=9**9)}},
            *("ledger ids", WARNING, f"b has {9**9}, which is not ours"),
        ),
        (
            {"registry": closed_at(900), "clusters": {"a": A, "b": replace(B, own_next_id=17)}},
            *("ledger ids", WARNING, "b gives 17 next, and ledgers without an owner mark are ours below 900"),
        ),
        (
            {"registry": closed_at(None)},
            *("ledger ids", WARNING, "every ledger without an owner mark in b counts as ours, as with 0.1.0"),
        ),
        (
            {"clusters": {"a": ObservedCluster("no answer"), "b": B}},
            "ledger ids",
            WARNING,
            "the ids of a cannot be read",
        ),
        ({"clusters": {"a": A, "b": replace(B, writable=frozenset({"b1"}))}}, "bookies", FAILS, "1 writable bookies"),
        ({"clusters": {"a": A, "b": replace(B, writable=frozenset("12"))}}, "bookies", WARNING, "no spare"),
        ({"namespaces": (asks(set(), quorums=Quorums(5, 2, 2)),)}, "bookies", FAILS, "an ensemble of 5 (t/n)"),
        ({"settings": ()}, "bookies", WARNING, "no broker reported its quorums"),
        (
            {"clusters": {"a": A, "b": replace(B, read_only=frozenset({"b4"}))}},
            "bookies",
            WARNING,
            "read-only there: b4",
        ),
        ({"clusters": {"a": A, "b": replace(B, known=frozenset({"b5"}))}}, "bookies", WARNING, "not running there: b5"),
        ({"namespaces": (asks({"g"}),)}, "affinity groups", FAILS, "t/n: the groups g have 0 writable bookies in b"),
        (
            {"namespaces": (asks({"g"}),), "places": in_groups(g="a1 a2 b1")},
            *("affinity groups", FAILS, "t/n: the groups g have 1 writable"),
        ),
        (
            {"namespaces": (asks({"g"}, {"h"}),), "places": in_groups(g="b1", h="b2")},
            *("affinity groups", WARNING, "bookies of the secondary groups are taken"),
        ),
        (
            {"namespaces": (asks({"g"}, quorums=Quorums(3, 2, 2)),), "places": in_groups(g="b1 b2")},
            *("affinity groups", FAILS, "and an ensemble has 3"),
        ),
        ({"settings": told(bookkeeperClientIsolationGroups="g, h")}, "affinity groups", FAILS, "br2: the groups g, h"),
        ({"namespaces": None}, "affinity groups", WARNING, "no policies of namespaces"),
        ({"places": BookieMap({}, {"a1": "/r1"})}, "racks", WARNING, "without a rack, though others have one"),
        (
            {
                "settings": told(
                    bookkeeperClientEnforceMinNumRacksPerWriteQuorum="true",
                    bookkeeperClientMinNumRacksPerWriteQuorum="2",
                )
            },
            *("racks", FAILS, "br2 demands 2 racks"),
        ),
        ({"settings": told(autoSkipNonRecoverableData="true")}, "broker settings", FAILS, "acknowledged for ever"),
        ({"settings": told(managedLedgerDigestType="CRC32")}, "broker settings", WARNING, "CRC32, CRC32C"),
        (
            {"settings": (WELL.settings[0], BrokerSettings("br2", error="silent"))},
            *("broker settings", WARNING, "not reported by br2: silent"),
        ),
        (
            {"settings": (BrokerSettings("br1", SETTINGS, other_configuration="zk:other"),)},
            *("broker settings", WARNING, "configuration store is zk:other"),
        ),
        ({"disks": {"b1": DiskSpace(100, 14)}}, "disk space", WARNING, "b1 has"),
        ({"disks": {"b1": DiskSpace(error="no answer")}}, "disk space", WARNING, "not checked: b1: no answer"),
    ],
)
def test_each_danger_has_its_line(seen: dict[str, Any], check: str, verdict: Verdict, text: str) -> None:
    result = judged(**seen)
    (found,) = [one for one in result.findings if one.check == check and one.verdict is verdict]
    assert text in found.seen
    assert found.advice
    assert result.as_json()["ready"] is not any(one.verdict is FAILS for one in result.findings)
    if verdict is FAILS:
        assert result.failing
        assert result.as_json()["idgenAdvancedBeyondSource"] is (check != "ledger ids")


def test_groups_with_enough_bookies_are_no_danger() -> None:
    seen = replace(WELL, namespaces=(asks({"g"}),), places=in_groups(g="a1 a2 b1 b2"))
    assert all(one.verdict is Verdict.OK for one in judge(seen).findings)


def test_every_line_of_a_target_that_does_not_answer_is_about_it() -> None:
    """Nothing is said of bookies, groups and racks that were not seen."""
    result = judged(clusters={"a": A, "b": ObservedCluster("no answer")}, disks={})
    assert [one.check for one in result.failing] == ["metadata"]
    assert not {"bookies", "affinity groups", "racks", "disk space"} & {one.check for one in result.findings}


@pytest.mark.parametrize(
    ("trial", "verdicts", "says"),
    [
        (TrialResult(701, 3), [Verdict.OK], "ledger 701 was written to 3 bookies of b"),
        (
            TrialResult(701, 3, {"b1": "bookie b1 answered EIO"}),
            [WARNING],
            "ledger 701 in b: bookie b1 answered EIO; 2 oth",
        ),
        (
            TrialResult(701, 3, {"b1": "no answer", "b2": "EIO"}),
            [FAILS],
            "no answer, EIO; 1 others work, and the largest",
        ),
        (TrialResult(701, 3, {"b1": "EUA"}, frozenset({"b1"})), [WARNING], "b1 asked for credentials"),
        (
            TrialResult(701, 3, {"b1": "EUA", "b2": "bookie b2 is down"}, frozenset({"b1"})),
            [WARNING, WARNING],
            "b2 is down",
        ),
        (TrialResult(None, 3, error="no rights"), [FAILS], "could be made and closed in b: no rights"),
        (
            TrialResult(701, 3, left="trial ledger 701: no answer"),
            [WARNING, Verdict.OK],
            "left there: trial ledger 701",
        ),
    ],
)
def test_a_trial_ledger_is_judged(trial: TrialResult, verdicts: list[Verdict], says: str) -> None:
    found = [one for one in judged(trial=trial).findings if one.check == "trial ledger"]
    assert [one.verdict for one in found] == verdicts
    assert says in found[0].seen
    assert all(one.advice for one in found if one.verdict is not Verdict.OK)


def test_brokers_settings_say_how_a_trial_ledger_is_to_be() -> None:
    assert (WELL.settings[0].quorums, WELL.settings[0].digest) == (Quorums(2, 2, 2), "CRC32C")
    silent = BrokerSettings("br3", None, "no answer")
    assert (silent.quorums, silent.digest) == (None, "")


def test_single_topics_that_ask_for_more_bookies_count() -> None:
    many = ("persistent://t/n/many", Quorums(9, 2, 2))
    (found,) = judged(topics=(("persistent://t/n/few", Quorums(1, 1, 1)), many)).failing
    assert "3 writable bookies, too few for an ensemble of 9 (persistent://t/n/many)" in found.seen
    warned = [one for one in judged(unread_topics=("t/n: no answer",)).findings if one.verdict is WARNING]
    assert [one.seen for one in warned] == ["policies of topics were not read: t/n: no answer"]


def test_a_rollback_passes_brokers_that_are_late_and_know_both_clusters() -> None:
    # b is registered since epoch 1, and active in epoch 3.
    late = Broker("late", replace(FOLLOWS, epoch=2))
    registry = registry_of("b", epoch=3)
    seen = {"registry": registry, "target": "a", "brokers": (Broker("br1", replace(FOLLOWS, epoch=3)), late)}
    (refused,) = [one for one in judged(**seen).findings if one.check == "brokers" and one.verdict is FAILS]
    assert "late (epoch 2) acts by an older one" in refused.seen
    found = [one for one in judged(**seen, is_rollback=True).findings if one.check == "brokers"]
    assert [one.verdict for one in found] == [WARNING, Verdict.OK]
    assert "late (epoch 2) acts by an older one, in which both clusters are" in found[0].seen
    seen["registry"] = replace(registry, clusters={**registry.clusters, "b": replace(registry.clusters["b"], since=3)})
    assert [one.verdict for one in judged(**seen, is_rollback=True).findings if one.check == "brokers"] == [
        FAILS,
        Verdict.OK,
    ]


@pytest.mark.parametrize(
    ("largest", "is_marked", "verdict"),
    [([], False, FAILS), ([650], False, WARNING), ([650], True, FAILS), ([], True, FAILS)],
)
def test_ids_that_another_client_counts_are_no_danger(largest: list[int], is_marked: bool, verdict: Verdict) -> None:
    """Ledgers of b, from the next id on, without a mark: another client has b's URI, as Functions have."""
    ledgers = {*largest, *((750,) if not largest and not is_marked else range(701, 750))}
    custom = {701: {OWNER_KEY: OWNER.encode()}} if is_marked else {750: None} if not largest else {}
    store = Ground().store
    LedgerIds(store, "/a").raise_to(701)
    for name in "ab":
        store.create(f"/{name}/INSTANCEID", f"instance-{name}".encode(), make_parents=True)
    segments = (Segment(0, ("b1",)),)
    for ledger_id in ledgers:
        marks = custom.get(ledger_id, {})
        metadata = LedgerMetadata(3, LedgerState.CLOSED, 1, 1, 1, segments, 0, 0, "CRC32C", 5, custom=marks or {})
        value = b"garbage" if marks is None else encode_ledger_metadata(metadata)
        store.create(ledger_path("/b", ledger_id), value, make_parents=True)

    class Silent(Observer):
        def settings(self) -> list[RegisteredBroker]:
            return []

        def topic_quorums(self) -> TopicQuorums:
            return TopicQuorums((), ())

    registry = ClusterRegistry(ClusterStores(lambda _: store), "memory:")
    seen = Silent(registry, None, None, BookieOptions()).observe(WELL.registry, "b")
    found = {one.verdict for one in judge(seen).findings if one.check == "ledger ids" and "and b has" in one.seen}
    assert verdict in found
    assert (FAILS in found) == (verdict is FAILS)
    assert seen.clusters["b"].largest_ledger == (701 if is_marked else largest[0] if largest else 750)
