"""A place of a test's own for two-phase deletion on a shared cluster: topics, settings, sweeps, outcomes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from bookwarden.clusters.pulsar.messages.mark_sender import PendingDeletionSender
from bookwarden.clusters.pulsar.rest.admin import PulsarAdmin
from bookwarden.config import Settings, load_settings
from bookwarden.ledgers.pending_deletion import PendingDeletion
from bookwarden.pipelines.streams.outcome_table import read_outcomes
from bookwarden.pipelines.streams.supervisor import Pulse, StreamLimits, Supervisor, attach
from bookwarden.pipelines.streams.task_beats import figures_of
from bookwarden.pipelines.sweep.query import LedgerDeletion, outcomes_location
from bookwarden.wire.avro import PendingDeletionCodec
from bookwarden.wiring.pulsar import connection_of
from bookwarden_dev.devcluster import DevCluster

PARTITIONS = 4


@dataclass
class DeletionSite:
    """Deletion topics in a namespace, and the settings to sweep them; ``folder`` holds checkpoint and outcomes."""

    service_url: str
    admin_url: str
    store_url: str
    namespace: str
    folder: Path
    overrides: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(
        cls, cluster: DevCluster, namespace: str, folder: Path, overrides: Mapping[str, str] | None = None
    ) -> DeletionSite:
        """Return the one of a cluster that runs on this machine."""
        return cls(cluster.service_url, cluster.admin_url, cluster.store_url, namespace, folder, overrides or {})

    @property
    def settings(self) -> Settings:
        """The settings that commands and queries of this site use."""
        topic = f"persistent://{self.namespace}/deletion"
        values = {
            "pulsar.service_url": self.service_url,
            "pulsar.admin_url": self.admin_url,
            "metadata_store.urls": f"['{self.store_url}']",
            "deletion.topic": topic,
            "deletion.retry_topic": f"{topic}-RETRY",
            "deletion.dlq_topic": f"{topic}-DLQ",
            "deletion.unlisted_grace_seconds": "0",
            "deletion.two_phase_deletion_reconsume_later_in_seconds": "2",
            "sweep.checkpoint": str(self.folder / "checkpoint"),
            "sweep.outcomes": str(self.folder / "outcomes"),
            "sweep.journal": str(self.folder / "journal"),
            **self.overrides,
        }
        return load_settings(overrides=values)

    def create_topics(self) -> None:
        """Make the topics and the subscription as `bookwarden init` does."""
        admin = PulsarAdmin(connection_of(self.settings.pulsar), timeout_s=60)
        subscription = self.settings.deletion.subscription
        for name in ("deletion", "deletion-RETRY"):
            admin.put(f"/persistent/{self.namespace}/{name}/partitions", PARTITIONS)
            admin.put(f"/persistent/{self.namespace}/{name}/subscription/{subscription}")
        admin.put(f"/persistent/{self.namespace}/deletion-DLQ")
        admin.put(f"/persistent/{self.namespace}/deletion-DLQ/subscription/{subscription}")

    def mark(self, *marks: PendingDeletion) -> None:
        """Send marks as phase one does; each must be confirmed."""
        with PendingDeletionSender(
            connection_of(self.settings.pulsar), self.settings.deletion.topic, PendingDeletionCodec()
        ) as sender:
            assert sender.send_all(marks) == [None] * len(marks)

    def sweep_once(self, spark: SparkSession, *, stall: float = 300.0) -> None:
        """Drain what is due; a query that shows no progress for so many seconds is an error."""
        pulse = Pulse()
        attach(spark, pulse)
        query = LedgerDeletion(spark, self.settings, pulse, epoch=lambda: 0)
        try:
            limits, progress = StreamLimits(stall=stall, max_failures=1), figures_of(spark)
            Supervisor(lambda: query.start(once=True), pulse, limits, once=True, progress=progress).run()
        finally:
            spark.streams.removeListener(pulse)

    def outcomes(self) -> list[dict[str, Any]]:
        """Read the outcome table, oldest first."""
        return read_outcomes(outcomes_location(self.settings))

    def counts(self) -> Counter[str]:
        """Count the outcomes."""
        return Counter(row["outcome"] for row in self.outcomes())

    def outcome_of(self, ledger_id: int) -> list[str]:
        """Give the outcomes of one ledger, oldest first."""
        return [row["outcome"] for row in self.outcomes() if row["ledger_id"] == ledger_id]

    def backlog_of_dlq(self) -> int:
        """Count the entries in the DLQ."""
        stats = PulsarAdmin(connection_of(self.settings.pulsar), timeout_s=60).get_json(
            f"/persistent/{self.namespace}/deletion-DLQ/stats"
        )
        backlog: int = stats["subscriptions"][self.settings.deletion.subscription]["msgBacklog"]
        return backlog

    def backlog(self) -> int:
        """Count the entries that the sweep's subscription has not passed."""
        admin = PulsarAdmin(connection_of(self.settings.pulsar), timeout_s=60)
        total = 0
        for topic in ("deletion", "deletion-RETRY"):
            stats = admin.get_json(
                f"/persistent/{self.namespace}/{topic}/partitioned-stats", params={"getPreciseBacklog": True}
            )
            total += stats["subscriptions"][self.settings.deletion.subscription]["msgBacklog"]
        return total
