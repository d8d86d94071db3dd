"""What following keeps: a row of each look that is told, start after start, and then the state."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from bookwarden.config import Settings, load_settings
from bookwarden.errors import StateTakenOverError
from bookwarden.follow.checking import CheckedDrop
from bookwarden.follow.drops import Drop, DropCause
from bookwarden.follow.table import FollowedNodes, NodeNow
from bookwarden.ledgers.kinds import PlaceKind
from bookwarden.ledgers.naming import pack, pack_ids
from bookwarden.ledgers.outcomes import DropOutcome
from bookwarden.pipelines.follow.query import FollowRecord
from bookwarden.pipelines.follow.state import KeptState
from bookwarden.pipelines.streams.outcome_table import MERGE_AFTER, read_outcomes

PATH = "/managed-ledgers/t/n/persistent/orders"


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    folders = {"follow.checkpoint": str(tmp_path / "state"), "follow.outcomes": str(tmp_path / "outcomes")}
    return load_settings(None, folders)


def marked(ledger_id: int) -> CheckedDrop:
    drop = Drop(ledger_id, PlaceKind.MANAGED_LEDGER, DropCause.TRIMMED, PATH, "zk:one", 7)
    return CheckedDrop(drop, DropOutcome.MARKED, "dropped")


def rows(settings: Settings) -> list[int]:
    return [row["ledger_id"] for row in read_outcomes(settings.follow.outcomes)]


def test_each_start_goes_on_behind_the_rows_of_the_former_ones(settings: Settings) -> None:
    """As of `follow --once`, several times a day."""
    for start in range(3):
        record = FollowRecord(settings, FollowedNodes(0), None)
        record.keep([marked(start)])
        record.keep([])
        record.keep([marked(10 + start)])
    assert rows(settings) == [0, 10, 1, 11, 2, 12]


def test_the_small_files_of_many_starts_are_merged(settings: Settings) -> None:
    for start in range(MERGE_AFTER + 2):
        FollowRecord(settings, FollowedNodes(0), None).keep([marked(start)])
    assert sorted(rows(settings)) == list(range(MERGE_AFTER + 2))
    assert len(list(Path(settings.follow.outcomes).rglob("*.parquet"))) < 5


def test_rows_are_written_before_the_state_and_a_sign_of_life_follows(settings: Settings) -> None:
    nodes, beats = FollowedNodes(0), list[int]()
    state = KeptState(settings.follow.checkpoint)
    record = FollowRecord(settings, nodes, state, lambda: beats.append(len(rows(settings))))
    nodes.take([NodeNow("zk:one", PATH, pack("topic", pack_ids([1])), 5)], 0)
    record.keep([marked(1)])
    assert (beats, len(nodes.changes)) == ([1], 0)
    known = FollowedNodes(0)
    assert KeptState(settings.follow.checkpoint).load(known, {"zk:one": "zk:one"})
    assert [path for _, path, _ in known.items()] == [PATH]


def test_a_dry_run_keeps_rows_and_no_changes(settings: Settings, tmp_path: Path) -> None:
    settings = settings.model_copy(update={"follow": settings.follow.model_copy(update={"dry_run": True})})
    nodes = FollowedNodes(0)
    nodes.take([NodeNow("zk:one", PATH, pack("topic", pack_ids([1])), 5)], 0)
    FollowRecord(settings, nodes, None).keep([marked(1)])
    assert (len(nodes.changes), sorted(one.name for one in tmp_path.iterdir())) == (0, ["outcomes-dry-run"])


def test_one_whose_state_another_process_has_taken_over_writes_nothing_more(settings: Settings) -> None:
    """As where the store of the lock does not answer, or refuses its node."""
    first, second = (FollowedNodes(1000) for _ in range(2))
    states = [KeptState(settings.follow.checkpoint) for _ in range(2)]
    records = [FollowRecord(settings, nodes, state) for nodes, state in zip((first, second), states, strict=True)]
    states[0].take_over()
    first.take([NodeNow("zk:one", PATH, pack("topic", pack_ids([1, 2])), 5)], 0)
    records[0].keep([marked(1)])
    states[1].take_over()
    states[1].load(second, {"zk:one": "zk:one"})
    # Both see ledger 1 dropped, and would write the same file.
    first.take([NodeNow("zk:one", PATH, pack("topic", pack_ids([2])), 5)], 0)
    with pytest.raises(StateTakenOverError, match=r"taken over .*as process"):
        records[0].keep([marked(11)])
    second.take([NodeNow("zk:one", PATH, pack("topic", pack_ids([2])), 5)], 0)
    records[1].keep([marked(12)])
    assert rows(settings) == [1, 12]
    known = FollowedNodes(1000)
    KeptState(settings.follow.checkpoint).load(known, {"zk:one": "zk:one"})
    assert [key for key, _ in known.timers.items()] == [1]


def test_a_state_whose_folder_was_removed_is_begun_anew(settings: Settings) -> None:
    nodes, state = FollowedNodes(0), KeptState(settings.follow.checkpoint)
    assert not state.is_begun()
    state.take_over()
    shutil.rmtree(settings.follow.checkpoint)
    nodes.take([NodeNow("zk:one", PATH, pack("topic", pack_ids([1])), 5)], 0)
    FollowRecord(settings, nodes, state).keep([])
    assert state.is_begun()
    state.require_own()
