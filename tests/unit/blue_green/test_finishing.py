"""A topic is removed from blue only while it still accepts no message, whoever else is at work on it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bookwarden.cluster_migration.finishing import (
    FinishPlan,
    MigrationFinisher,
    MigrationVerification,
    RemovableTopic,
    TopicVerification,
)
from bookwarden.cluster_migration.record import MigrationRecord
from bookwarden.deletion.phase_one.mark import Marker
from bookwarden.deletion.phase_one.removal import Removal
from bookwarden.ledgers.metadata import AbsentLedger, LedgerMetadata, LedgerReading, LedgerState, StoredLedger
from bookwarden.ledgers.names import TopicName
from unit.blue_green.scripted_blue import TOPIC, ScriptedBlue, cursor, node

NAME = TopicName.parse(TOPIC).managed_ledger
PLAN = FinishPlan((RemovableTopic(TOPIC, (TOPIC,)),), {}, ())


class Phase:
    """Phase one over blue's store: what was sent and deleted; ``on_sent`` is called once all is marked."""

    def __init__(self, blue: ScriptedBlue) -> None:
        self._blue = blue
        self.sent: list[int] = []
        self.deleted: list[str] = []
        self.on_sent: Callable[[], object] = lambda: None

    def removal(self) -> Removal:
        marker: Any = Marker(self)
        return Removal(marker, self, self)  # type: ignore[arg-type]

    def send_all(self, marks: Any) -> list[None]:
        self.sent += [mark.ledger_id for mark in marks]
        self.on_sent()
        return [None] * len(marks)

    def read(self, managed_ledger: str) -> Any:
        nodes = self._blue.nodes.topic(managed_ledger)
        return None if nodes is None else SimpleNamespace(info=nodes.info)

    def cursors(self, _managed_ledger: str) -> dict[str, Any]:
        return {}

    def schema(self, _schema_id: str) -> None:
        return None

    def partitions(self, topic: str) -> list[str]:
        return [topic]

    def delete_topic(self, topic: str, *, force: bool) -> None:
        assert force
        self.deleted.append(topic)


@pytest.fixture
def blue(tmp_path: Path) -> ScriptedBlue:
    made = ScriptedBlue(tmp_path)
    made.put_topic(node(), app=cursor(6, 2))
    made.flag()
    return made


def finishing(blue: ScriptedBlue, phase: Phase, record: MigrationRecord | None = None) -> MigrationFinisher:
    return MigrationFinisher(blue, blue, blue.observer, phase.removal(), record or blue.record)


def test_a_drained_topic_is_marked_and_removed(blue: ScriptedBlue) -> None:
    phase = Phase(blue)
    (found,) = finishing(blue, phase).carry_out(PLAN)
    assert (found.done, found.marks, found.problem) == (True, 2, "")
    assert (phase.sent, phase.deleted) == ([5, 6], [TOPIC])


@pytest.mark.parametrize("state", ["PRODUCERS LEFT", "CONSUMERS LEFT"])
def test_a_topic_whose_clients_are_not_on_green_is_kept_unless_accepted(blue: ScriptedBlue, state: str) -> None:
    verified = MigrationVerification((TopicVerification(TOPIC, state, 13, 13, 0, 20),))
    plan = finishing(blue, Phase(blue)).plan([], verified)
    assert plan.removable == ()
    assert f"{state}: " in plan.kept[TOPIC]
    assert "--accept late-clients" in plan.kept[TOPIC]
    assert finishing(blue, Phase(blue)).plan([], verified, ["late-clients"]).kept == {}


def test_the_plan_has_the_bytes_of_a_last_ledger_that_only_its_metadata_tells(blue: ScriptedBlue) -> None:
    def read(ledger_ids: Sequence[int]) -> list[LedgerReading]:
        metadata = LedgerMetadata(3, LedgerState.CLOSED, 1, 1, 1, (), length=900)
        return [StoredLedger(ledger_ids[0], "", 0, 0, b"", metadata), AbsentLedger(ledger_ids[1])]

    verified = MigrationVerification(
        (TopicVerification(TOPIC, "DRAINED", 13, 13, 0, 20, bytes_on_blue=50, unsized=(6, 7)),)
    )
    blue.read_ledgers = read
    assert [one.size for one in finishing(blue, Phase(blue)).plan([], verified).removable] == [950]


def test_a_topic_that_is_reopened_while_it_is_marked_is_not_removed(blue: ScriptedBlue) -> None:
    phase = Phase(blue)

    def reopen_elsewhere() -> None:
        # On another machine, whose record is another.
        blue.flag(on=False)
        path = f"/managed-ledgers/{NAME}"
        found = blue.store.get(path)
        assert found is not None
        blue.store.put(path, node(terminated=False, migrated=False), found.version)

    phase.on_sent = reopen_elsewhere
    (found,) = finishing(blue, phase).carry_out(PLAN)
    assert (found.done, phase.deleted) == (False, [])
    assert "accepts messages again" in found.problem
    # What is there already is told before anything is marked.
    phase.sent.clear()
    (found,) = finishing(blue, phase).carry_out(PLAN)
    assert (found.done, phase.sent, phase.deleted) == (False, [], [])
