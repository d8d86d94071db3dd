"""The metrics of switches and moves, as Prometheus reads them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from prometheus_client.parser import text_string_to_metric_families

from bookwarden.bookie_clusters.brokers import Broker
from bookwarden.bookie_clusters.documents import Overview
from bookwarden.bookie_clusters.moving.build import Build, CopyCounts, CopyPace, FoundBuild
from bookwarden.bookie_clusters.moving.scope import Scope
from bookwarden.bookie_clusters.operation import FoundOrder, SwitchState
from bookwarden.bookie_clusters.order import Order, Phase
from bookwarden.bookie_clusters.promoted import Promotion
from bookwarden.ledgers.outcomes import CopyOutcome
from bookwarden.metadata_migration.watching import StorePhase
from bookwarden.server.metrics import metrics_text
from servers.switching.ground import registry_of

BEFORE = "bookwarden_bookie_clusters_"
NOTHING = Overview(SwitchState(Phase.NOT_REGISTERED, None, None, ()), None, None, None)
SWITCHED = registry_of().switched("b", "one", 1)


def values(overview: Overview) -> dict[str, float]:
    """Return all values, each by its name and labels."""
    return {
        " ".join([sample.name.removeprefix(BEFORE), *sample.labels.values()]): sample.value
        for family in text_string_to_metric_families(metrics_text(overview).decode())
        for sample in family.samples
    }


def test_everything_is_0_before_anything_was_done() -> None:
    found = values(NOTHING)
    assert found.pop("switch_phase NOT_REGISTERED") == 1
    assert set(found.values()) == {0}
    assert {"build_running", "build_ledgers_done", "move_phase DONE", "brokers_behind"} <= found.keys()
    # No value rather than an untrue one.
    assert "build_left_seconds" not in found


def test_a_build_is_seen_while_it_runs_and_when_it_was_stopped() -> None:
    counts = CopyCounts()
    counts.add(CopyOutcome.COPIED, "schema", 100)
    counts.add(CopyOutcome.FAILED, "data", 0)
    build = Build("a", "b", Scope(), "/f", 1, None, True, 9, 900, 3, 300, counts, CopyPace(2.0, 200.0))
    through = replace(build, ended_ms=1_700_000_000_000)
    running = values(NOTHING._replace(build=FoundBuild(build, through, 1, "somebody", False)))
    expected = {
        "build_running": 1,
        "build_stopped": 0,
        "build_ledgers": 9,
        "build_bytes": 900,
        "build_ledgers_done": 3,
        "build_bytes_done": 300,
        "build_left_seconds": 3,
        "build_outcomes schema copied": 1,
        "build_outcomes data failed": 1,
        "build_ended_timestamp_seconds": 1_700_000_000,
    }
    assert {name: value for name, value in running.items() if name.startswith("build_")} == expected
    stopped = values(NOTHING._replace(build=FoundBuild(build, None, 1, "somebody", True)))
    assert (stopped["build_running"], stopped["build_stopped"], "build_left_seconds" in stopped) == (0, 1, False)
    ended = values(NOTHING._replace(build=FoundBuild(through, through, 1, "somebody", True)))
    assert (ended["build_running"], ended["build_stopped"]) == (0, 0)


@pytest.mark.parametrize(
    ("phase", "is_free", "stopped"),
    [(Phase.LIVE_DUAL_READ, True, 1), (Phase.LIVE_DUAL_READ, False, 0), (Phase.DONE, True, 0)],
)
def test_a_switch_that_no_process_carries_out_is_seen(phase: Phase, is_free: bool, stopped: int) -> None:
    found = FoundOrder(Order("a", "b", 1, "somebody", 5, phase), 1, "somebody", is_free)
    state = SwitchState(phase, SWITCHED, found, ())
    assert values(NOTHING._replace(state=state))["switch_stopped"] == stopped


def test_a_store_that_pulsar_moves_shows_its_phase_alone() -> None:
    phases = (StorePhase("zk:a", "COPYING", "oxia://o"), StorePhase("zk:b", "unknown", problem="no answer"))
    text = metrics_text(NOTHING, phases).decode()
    found = [line for line in text.splitlines() if line.startswith("bookwarden_metadata_migration_phase")]
    assert found == [
        'bookwarden_metadata_migration_phase{phase="COPYING",store="zk:a"} 1.0',
        'bookwarden_metadata_migration_phase{phase="unknown",store="zk:b"} 1.0',
    ]


def test_brokers_that_do_not_follow_and_what_is_promoted_are_told() -> None:
    state = SwitchState(Phase.DONE, SWITCHED, None, (Broker("without the jar"),))
    found = values(NOTHING._replace(state=state, promotion=Promotion("b", 3, 5_000, frozenset())))
    told = [found[name] for name in ("switch_phase DONE", "brokers_behind", "promoted_timestamp_seconds")]
    assert (told, found["registry_epoch"]) == ([1, 1, 5], SWITCHED.epoch)
