"""Records after a sweep: its outcomes, what is in flight, dead letters, and the entries of a ledger."""

from __future__ import annotations

from collections import defaultdict

from bookwarden.clusters.bookkeeper.bookies.reader import open_ledger
from bookwarden.config import Settings
from bookwarden.ledgers.metadata import StoredLedger
from bookwarden.ledgers.outcomes import DropOutcome
from bookwarden.ledgers.pending_deletion import LedgerType
from bookwarden.ledgers.received import decoded
from bookwarden.wire.broker_marks import decode_outbox_node
from bookwarden.wiring.cluster import Cluster
from bookwarden.wiring.deletion import BrokerMarks


class Evidence:
    """Reads the records with the sweep's own settings."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def outcomes(self, kind: LedgerType = LedgerType.LEDGER) -> dict[int, list[str]]:
        """Read the outcomes so far of each ledger, or of each ledger's offloaded copy, in their order."""
        # Imported late: it needs the extra `spark`, which the demo's help does not.
        from bookwarden.pipelines.streams.outcome_table import read_outcomes

        found: dict[int, list[str]] = defaultdict(list)
        for row in read_outcomes(self._settings.sweep.outcomes):
            if row["ledger_type"] == kind.value:
                found[row["ledger_id"]].append(row["outcome"])
        return found

    def dropped(self) -> set[int]:
        """Read the ledgers that were marked because the broker dropped them."""
        from bookwarden.pipelines.streams.outcome_table import read_outcomes

        rows = read_outcomes(self._settings.follow.outcomes)
        return {row["ledger_id"] for row in rows if row["outcome"] == DropOutcome.MARKED.value}

    def in_outbox(self) -> set[int]:
        """Read the ledgers that the broker has in its outbox."""
        with Cluster(self._settings) as cluster:
            outbox = BrokerMarks(cluster).outbox
            nodes = [node for folder in outbox.folders() for some in outbox.read(folder) for node in some]
        return {mark.ledger_id for found in nodes for mark in decode_outbox_node(found.node.value, "demo")}

    def in_flight(self) -> int:
        """Count the messages in flight."""
        with Cluster(self._settings) as cluster:
            return cluster.deletion_topics.in_flight().messages

    def dead_letters(self) -> tuple[tuple[int | None, str], ...]:
        """Read the ledger, None where the letter names none, and the reason of each dead letter."""
        with Cluster(self._settings) as cluster:
            topics = cluster.deletion_topics
            letters = [
                (decoded(letter.received, topics.decode).mark, letter.reason) for letter in topics.dead_letters.read()
            ]
        return tuple((mark.ledger_id if mark else None, reason) for mark, reason in letters)

    @staticmethod
    def count_entries(cluster: Cluster, ledger_id: int) -> int:
        """Count the entries of a ledger by reading them from the bookies; none if it has no metadata."""
        (reading,) = cluster.bookkeeper.catalog.read_many([ledger_id])
        if not isinstance(reading, StoredLedger):
            return 0
        return sum(1 for _ in open_ledger(reading, cluster.bookkeeper.bookies).read())
