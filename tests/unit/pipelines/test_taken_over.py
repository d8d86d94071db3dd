"""The state that 0.1.0 left on disk, taken over as it is; with servers so in test_checkpoints."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from bookwarden.cli.main import cli
from bookwarden.deletion.journal.entries import JournalEntry
from bookwarden.deletion.journal.reading import JournalDamage, JournalFolder, JournalReader
from bookwarden.deletion.journal.writing import DriverFile, FileJournal
from bookwarden.deletion.phase_two.sent_on import FileSentRecords
from bookwarden.follow.table import FollowedNodes
from bookwarden.pipelines.follow.state import KeptState
from bookwarden.pipelines.pulsar_source.offsets import dump_offsets, load_offsets
from bookwarden.pipelines.streams.checkpoint_identity import (
    IDENTITY_FILE,
    CheckpointIdentity,
    FolderIdentityFile,
    require_own,
)

RECORDED = Path(__file__).parents[2] / "data" / "state_0_1_0"
TOPICS = json.loads((RECORDED / "topics.json").read_text())
LEDGERS = [5_000_000_000, 5_000_000_001, 5_000_000_002, 5_000_000_003]


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """A copy that may be written to."""
    shutil.copytree(RECORDED, tmp_path / "state")
    return tmp_path / "state"


def test_offsets_are_read_and_written_as_they_were() -> None:
    for file in (RECORDED / "checkpoint" / "offsets").iterdir():
        line = file.read_text().splitlines()[-1]
        assert json.dumps(dump_offsets(load_offsets(json.loads(line)))) == line
        assert load_offsets(json.loads(line)).keys() == TOPICS["topics"].keys()


def test_the_journal_is_read_and_written_on(state: Path) -> None:
    folder, damaged = state / "journal", list[JournalDamage]()

    def ids() -> list[int]:
        records = JournalReader(JournalFolder(folder), damaged.append)
        return [record.ledger_id for record in records if isinstance(record, JournalEntry)]

    assert (ids(), damaged) == (LEDGERS, [])
    query = json.loads((RECORDED / "checkpoint" / "metadata").read_text())["id"]
    (sent,) = FileSentRecords(folder / "sent").read(f"{query}/0")
    assert sent.outcome == "retry"
    entry = next(record for record in JournalReader(JournalFolder(folder)) if isinstance(record, JournalEntry))
    journal = FileJournal(folder, driver_file=DriverFile(folder).write())
    journal.append([entry])
    journal.close()
    assert (sorted(ids()), damaged) == (sorted([*LEDGERS, entry.ledger_id]), [])


def test_undo_lists_its_runs(state: Path) -> None:
    options = ["--set", "metadata_store.urls=['memory:taken-over']", "--set", f"sweep.journal={state / 'journal'}"]
    listed = json.loads(CliRunner().invoke(cli, [*options, "-o", "json", "undo", "--list"]).stdout)
    assert [(run["run"].rpartition("/")[2], run["ledgers"]) for run in listed["runs"]] == [("1", 2), ("0", 2)]
    assert (listed["hosts"], listed["unseen"], listed["damaged"]) == (["vm"], [], [])


def test_the_state_of_follow_comes_back_and_says_whose_it_is_from_then_on(
    state: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    folder, ours = state / "follow", CheckpointIdentity(frozenset({"dev"}), "", frozenset({"i-1"}))
    for _ in range(2):
        nodes, kept = FollowedNodes(600_000), KeptState(str(folder))
        begun = kept.load(nodes, {TOPICS["store"]: TOPICS["store"]})
        assert begun
        assert [key for key, _ in nodes.timers.items()] == [5_000_000_010]
        named = f"/managed-ledgers/{TOPICS['namespace']}/persistent/named"
        assert named in {path for _, path, _ in nodes.items()}
        require_own(FolderIdentityFile(str(folder), begun=begun), ours, "follow.checkpoint")
    assert [line for line in caplog.messages if "does not say whose checkpoint" in line] == caplog.messages[:1]
    # What 0.1.0 reads of the folder.
    assert sorted(path.name for path in folder.iterdir()) == [
        "000000000000-more.arrow",
        "000000000001-more.arrow",
        IDENTITY_FILE,
    ]
