"""What the pre-flight of a metadata migration makes of what was seen: each line, and that none is without advice."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest

from bookwarden.clusters.pulsar.rest.registered_brokers import RegisteredBroker
from bookwarden.findings import Finding, Verdict, failing
from bookwarden.metadata_migration.control import RegisteredClusters, SizedNode, SourceObservations, Survey
from bookwarden.metadata_migration.preflight import _LINES, NEVER_SKIPPED, estimate_seconds, evaluate
from bookwarden.metastore.interface import TargetSeen

OK, WARNING, FAILS = Verdict.OK, Verdict.WARNING, Verdict.FAILS
BROKER = RegisteredBroker("b1:8080", "4.2.4", {"metadataStoreSessionTimeoutMillis": "30000"})
SURVEY = Survey(1_000, 1_000_000, 3, SizedNode("/large", 900), {1: ("/loadbalance/brokers/b1:8080",)}, ("/a",))
GOOD = SourceObservations(
    source_url="zk:zk1:2181",
    target_url="oxia://o1:6648/default",
    chroot="",
    ledgers_root="/ledgers",
    phase=None,
    flag_target=None,
    participants={"id-0": "", "id-1": "bookwarden host 1 abc"},
    not_taking_part={},
    survey=SURVEY,
    brokers=(BROKER,),
    admin_error=None,
    admin_brokers=("b1:8080",),
    has_numbered_ledgers=False,
    bookies=("k1:3181",),
    bookies_known=("k1:3181",),
    target=TargetSeen((), True, True),
    other_stores=(),
    session_timeout_s=30,
    drain_limit_s=20,
    own_locks=("/bookwarden/sweeps", "/bookwarden/follow"),
)


def broker(**changes: Any) -> tuple[RegisteredBroker, ...]:
    settings = {**(BROKER.settings or {}), **changes.pop("settings", {})}
    return (BROKER._replace(settings=settings, **changes),)


def silent(version: str | None = None) -> tuple[RegisteredBroker, ...]:
    return (RegisteredBroker("b1:8080", version, error="no answer"),)


def test_a_cluster_that_is_ready_has_no_warning() -> None:
    findings = evaluate(GOOD)
    assert {one.verdict for one in findings} == {OK}
    assert failing(findings) == []
    assert len({one.check for one in findings}) == len(findings) >= 13


@pytest.mark.parametrize("phase", ["NOT_STARTED", "PREPARATION", "COPYING", "COMPLETED", "FAILED", "no such phase"])
def test_any_flag_fails_and_is_never_skipped(phase: str) -> None:
    (found,) = failing(evaluate(dataclasses.replace(GOOD, phase=phase, flag_target="oxia://o/x")))
    assert found.check == "flag"
    assert found.check in NEVER_SKIPPED
    assert f"{phase}, to oxia://o/x" in found.seen


CASES: list[tuple[str, Verdict, dict[str, Any], str]] = [
    ("brokers", FAILS, {"brokers": ()}, "no broker is registered"),
    ("brokers", FAILS, {"brokers": broker(version="4.0.8")}, "b1:8080 is 4.0.8"),
    ("brokers", FAILS, {"brokers": broker(version="3.10.1")}, "3.10.1"),
    ("brokers", FAILS, {"brokers": broker(version="unreleased")}, "unreleased"),
    ("brokers", WARNING, {"brokers": silent()}, "b1:8080: no answer"),
    ("brokers", FAILS, {"admin_error": "the role is no superuser"}, "no superuser"),
    ("cluster", FAILS, {"admin_brokers": ("other:8080",)}, "of a cluster with other:8080"),
    ("broker settings", WARNING, {"brokers": silent(version="4.2.0")}, "b1:8080: no answer"),
    (
        "broker settings",
        FAILS,
        {"brokers": broker(settings={"zookeeperSessionExpiredPolicy": "shutdown"})},
        "it ends when the migration begins",
    ),
    (
        "broker settings",
        FAILS,
        {"brokers": broker(settings={"bookkeeperMetadataServiceUri": "zk+hierarchical://zk1:2181/ledgers"})},
        "which does not follow",
    ),
    ("bookie clusters", FAILS, {"registered": RegisteredClusters(("a", "b"), "/ledgers")}, "a, b are registered"),
    ("bookie clusters", FAILS, {"registered": RegisteredClusters(problem="no registry")}, "no registry"),
    ("participants", FAILS, {"participants": {}}, "no process has registered"),
    ("participants", FAILS, {"not_taking_part": {7: ("/namespace/x",)}}, "keeps /namespace/x"),
    # As the line on bookwarden says, its own sweep does not stand in the way.
    (
        "participants",
        WARNING,
        {"not_taking_part": {7: ("/bookwarden/sweeps/driver-0000000003",)}},
        "bookwarden's own process that keeps /bookwarden/sweeps/driver-0000000003",
    ),
    (
        "participants",
        FAILS,
        {"not_taking_part": {7: ("/bookwarden/sweeps/driver-0000000003", "/namespace/x")}},
        "a process that has not registered",
    ),
    ("bookies", FAILS, {"not_taking_part": {7: ("/ledgers/available/k1:3181",)}}, "bookie k1:3181 did not register"),
    ("bookies", FAILS, {"not_taking_part": {7: ("/ledgers/available/readonly/k2:1",)}}, "bookie k2:1 did not"),
    ("bookies", WARNING, {"bookies_known": ("k1:3181", "k9:3181")}, "k9:3181 has a cookie and does not run"),
    ("bookies", WARNING, {"bookies": (), "bookies_known": ()}, "none is registered below /ledgers"),
    ("ledger ids", WARNING, {"has_numbered_ledgers": True}, "begin at 1 again"),
    ("chroot", WARNING, {"chroot": "/pulsar"}, "has the chroot /pulsar"),
    ("target", FAILS, {"target": "Oxia o1 cannot be reached"}, "cannot be reached"),
    ("target", FAILS, {"target": TargetSeen(("admin", "ledgers"), True, True)}, "/admin, /ledgers"),
    ("key sorting", FAILS, {"target": TargetSeen((), False, True)}, "natural order"),
    ("key sorting", WARNING, {"target": TargetSeen((), None, True)}, "does not show"),
    ("oxia version", WARNING, {"target": TargetSeen((), True, False)}, "older than 0.15"),
    ("size", WARNING, {"survey": dataclasses.replace(SURVEY, size=600_000_000)}, "600.0 MB"),
    ("size", WARNING, {"survey": dataclasses.replace(SURVEY, nodes=3_000_000)}, "3,000,000 nodes"),
    (
        "node size",
        FAILS,
        {"survey": dataclasses.replace(SURVEY, largest=SizedNode("/x", 5_000_000))},
        "/x with 5,000,000",
    ),
    ("configuration store", WARNING, {"brokers": broker(other_configuration="zk:conf:2181")}, "zk:conf:2181"),
    ("other stores", WARNING, {"other_stores": ("zk:other:2181",)}, "zk:other:2181"),
    (
        "session timeouts",
        WARNING,
        {"brokers": broker(settings={"metadataStoreSessionTimeoutMillis": "60000"})},
        "b1:8080: 60000 ms",
    ),
]


@pytest.mark.parametrize(("check", "verdict", "changes", "seen"), CASES)
def test_each_fault_is_a_line_with_advice(check: str, verdict: Verdict, changes: dict[str, Any], seen: str) -> None:
    findings = evaluate(dataclasses.replace(GOOD, **changes))
    (found,) = [one for one in findings if one.check == check and one.verdict is verdict]
    assert seen in found.seen
    assert found.advice
    # Nothing else is blamed for it, but what cannot be seen either.
    others = {one.check for one in findings if one.verdict is FAILS} - {check}
    assert not others


@pytest.mark.parametrize(
    ("registered", "advice"),
    [
        (RegisteredClusters(), "set bookkeeperMetadataServiceUri to metadata-store: and the source's URL, or leave it"),
        (RegisteredClusters(("a",), "/ledgers"), "set bookkeeperMetadataServiceUri to metadata-store:"),
        (RegisteredClusters(("a",), "/x", counts_itself=False), "stop all brokers, then `bookie-clusters raise-ids"),
        (RegisteredClusters(("a", "b"), "/ledgers"), "leave it as it is: see the line on bookie clusters"),
        (RegisteredClusters(problem="no registry"), "leave it as it is"),
    ],
)
def test_a_stock_broker_is_advised_only_where_one_cluster_has_all_and_counts_on(
    registered: RegisteredClusters, advice: str
) -> None:
    brokers = broker(settings={"bookkeeperMetadataServiceUri": "bookwarden://zk1:2181/ledgers"})
    findings = evaluate(dataclasses.replace(GOOD, brokers=brokers, registered=registered))
    (found,) = [one for one in findings if one.check == "broker settings" and one.verdict is FAILS]
    assert found.advice.startswith(advice)
    several = [one for one in failing(findings) if one.check == "bookie clusters"]
    assert bool(several) == (len(registered.names) > 1 or bool(registered.problem))
    assert "bookie clusters" in NEVER_SKIPPED


def test_a_line_is_given_for_each_session_that_does_not_take_part() -> None:
    sessions = {1: ("/namespace/a",), 2: ("/namespace/b", "/namespace/c")}
    found = failing(evaluate(dataclasses.replace(GOOD, not_taking_part=sessions)))
    assert [one.seen.partition(" keeps ")[2].partition(":")[0] for one in found] == [
        "/namespace/a",
        "/namespace/b, /namespace/c",
    ]


def test_a_sweep_of_our_own_does_not_stand_in_the_way() -> None:
    # As the line on bookwarden says in the same table.
    sessions = {7: ("/bookwarden/sweeps/driver-0000000003",)}
    findings = evaluate(dataclasses.replace(GOOD, not_taking_part=sessions))
    assert failing(findings) == []
    assert [one.verdict for one in findings if one.check == "participants"] == [WARNING]


def test_long_lists_are_cut() -> None:
    names = tuple(f"n{number}" for number in range(9))
    (found,) = failing(evaluate(dataclasses.replace(GOOD, target=TargetSeen(names, True, True))))
    assert found.seen == "not empty: it has /n0, /n1, /n2 and 6 more"


def test_the_estimate_keeps_to_the_proposal_for_its_size() -> None:
    assert 30 <= estimate_seconds(1_000, 500_000_000) <= 32
    assert estimate_seconds(0, 0) < 2


def test_every_line_that_is_not_ok_is_in_the_runbook() -> None:
    text = (Path(__file__).parents[3] / "docs" / "metadata-migration.md").read_text(encoding="utf-8")
    section = text.partition("## What to do about each line")[2].partition("\n## ")[0]
    assert set(_LINES) - set(re.findall(r"^### (.+)$", section, re.MULTILINE)) == set()
    # These two have tests of their own.
    assert set(_LINES) - {check for check, *_ in CASES} == {"flag", "bookwarden"}


def test_a_finding_goes_into_json_as_it_is() -> None:
    assert Finding("flag", FAILS, "seen")._asdict() == {"check": "flag", "verdict": FAILS, "seen": "seen", "advice": ""}
