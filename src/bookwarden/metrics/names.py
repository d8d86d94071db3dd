"""The table of all metrics: name, kind, labels, unit, meaning, and the programs that publish it.

docs/metrics.md is made of it. Names and labels are formats: dashboards and alerts of others depend on them.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from bookwarden.follow.drops import DropCause
from bookwarden.ledgers.kinds import KINDS, PlaceKind
from bookwarden.ledgers.outcomes import CopyOutcome, DropOutcome, Outcome
from bookwarden.ledgers.shared_doubts import DoubtCause
from bookwarden.orphans.classes import Cause, LedgerClass


class Kind(enum.Enum):
    """The kind of a metric, in Prometheus's words."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Program(enum.Enum):
    """A program that publishes metrics, by what it is called in the document."""

    SWEEP = "sweep"
    FOLLOW = "follow"
    PHASE_ONE = "marking"
    BROKER = "broker"
    SERVE = "serve"
    RUN = "each run"
    SCAN = "orphans scan"
    APPLY = "orphans apply"
    BUILD = "bookie-clusters build"
    BUILD_VERIFY = "bookie-clusters build --verify"
    METADATA_VERIFY = "metadata-migration verify"
    CLIENTS_VERIFY = "cluster-migration verify"
    UNDO = "undo"
    DISK = "disk"

    @property
    def command(self) -> str:
        """The value of the label ``command``, and its part in names of files."""
        return self.value.replace(" --", "-").replace(" ", "-")


@dataclass(frozen=True, slots=True)
class MetricName:
    """A metric by its name and everything that is known of it beforehand."""

    name: str  #: As Prometheus has it: a counter ends with _total.
    kind: Kind  #: Counter, gauge or histogram.
    labels: tuple[str, ...]  #: Without those that Prometheus, a push gateway or metrics.cluster adds.
    unit: str  #: What is counted; "" where it is 1 or 0.
    meaning: str  #: For the document, in Markdown.
    programs: tuple[Program, ...]  #: Those that publish it.

    @property
    def help(self) -> str:
        """The meaning without Markdown, for HELP lines."""
        return re.sub(r"\[([^\]]+)\]\([^)]+\)", r"\1", self.meaning).replace("`", "")


class Sample(NamedTuple):
    """A value of a gauge that a program found once, with the values of its labels in the order of the table."""

    name: str
    value: float
    labels: tuple[str, ...] = ()


#: What a tenant is called beyond those that have a series of their own, and for what has none.
OTHER_TENANTS: Final = "(others)"

#: The places that may drop a ledger.
DROP_PLACES: Final = tuple(
    dict.fromkeys(place for kind in KINDS for place in kind.places if place is not PlaceKind.COMPACTED_NOW)
)


class _Row(NamedTuple):
    """A metric before its programs are known."""

    name: str
    kind: Kind
    unit: str
    meaning: str
    labels: tuple[str, ...]


def _counter(name: str, unit: str, meaning: str, *labels: str) -> _Row:
    return _Row(f"{name}_total", Kind.COUNTER, unit, meaning, labels)


def _gauge(name: str, unit: str, meaning: str, *labels: str) -> _Row:
    return _Row(name, Kind.GAUGE, unit, meaning, labels)


def _of(programs: tuple[Program, ...], *rows: _Row) -> Iterator[MetricName]:
    return (MetricName(row.name, row.kind, row.labels, row.unit, row.meaning, programs) for row in rows)


def _values(kind: Iterable[enum.Enum]) -> str:
    return ", ".join(f"`{one.value}`" for one in kind)


_QUERY: Final = (
    _Row(
        "bookwarden_batch_seconds",
        Kind.HISTOGRAM,
        "seconds",
        "start of a batch to its outcome rows",
        (),
    ),
    _gauge(
        "bookwarden_last_batch_timestamp_seconds",
        "seconds since 1970",
        "when the last batch was finished, 0 before the first; without messages there are no batches",
    ),
    _counter(
        "bookwarden_query_restarts", "restarts", "restarts of the query by the supervisor, after a failure or a stall"
    ),
    _gauge(
        "bookwarden_query_consecutive_failures",
        "failures",
        "failures and stalls since the query last finished a batch or found nothing to do; 0 while it makes progress",
    ),
    _gauge(
        "bookwarden_metadata_migration_state",
        "",
        "1 for the state in which the driver is with a `zk:` store that Pulsar may move, 0 for the others "
        "([states](metadata-migration-store.md))",
        "store",
        "state",
    ),
    _counter(
        "bookwarden_metadata_migration_blocked_seconds",
        "seconds",
        "for how long such a migration kept the driver from writing",
        "store",
    ),
)

_SENT: Final = _counter(
    "bookwarden_pending_deletions_sent",
    "messages",
    "messages that the broker confirmed; `retry` (delayed ones too) and `dlq` (*gave up*, *malformed*, "
    "*inside the list*, *damaged holder* and *poisonous*) from the sweep, `deletion` from what marks",
    "ledger_type",
    "destination",
)

_SWEEP: Final = (
    _counter(
        "bookwarden_pending_deletions_received",
        "messages",
        "messages taken from the deletion topic and its retry topic",
        "ledger_type",
    ),
    _counter("bookwarden_ledgers_deleted", "ledgers", "ledgers (or offloaded copies) deleted", "ledger_type"),
    _counter(
        "bookwarden_ledger_bytes_deleted",
        "bytes",
        "their length; the bookies free it at their next garbage collection",
    ),
    _counter(
        "bookwarden_ledger_deletions_failed",
        "messages",
        "attempts without success: *retry*, *gave up* and *poisonous*",
        "ledger_type",
    ),
    _counter(
        "bookwarden_pending_deletions_acked", "messages", "messages finished, whatever the outcome", "ledger_type"
    ),
    _counter(
        "bookwarden_pending_deletions_max_retry", "messages", "given up at the highest retry count", "ledger_type"
    ),
    _counter(
        "bookwarden_outcomes",
        "messages",
        f"messages by [outcome](sweep.md): {_values(Outcome)}",
        "outcome",
        "ledger_type",
    ),
    _gauge(
        "bookwarden_inflight_entries",
        "entries",
        "backlog of the subscription by partition of both topics, in broker entries, read every 15 s",
        "topic",
    ),
    _gauge(
        "bookwarden_inflight_outbox_nodes",
        "nodes",
        "what waits in the outbox of all [brokers that mark](broker-marks.md), before the deletion topic; "
        "read every 15 s",
    ),
    _gauge("bookwarden_inflight_outbox_bytes", "bytes", "the same in bytes"),
    _gauge("bookwarden_inflight_outbox_oldest_seconds", "seconds", "age of the oldest node there; 0 if there is none"),
    _gauge(
        "bookwarden_trash_rules",
        "rules",
        "rules in `trash.rules`; with 0 nothing is kept, and the lease is of no interest",
    ),
    _gauge("bookwarden_trash_records", "records", "records in the [trash](trash.md); read every 15 s"),
    _gauge("bookwarden_trash_bytes", "bytes", "their ledgers, as topics count them: one copy"),
    _gauge("bookwarden_trash_oldest_seconds", "seconds", "age of the oldest record; 0 if there is none"),
    _gauge(
        "bookwarden_trash_lease_seconds",
        "seconds",
        "how long brokers go on keeping what they drop if this sweep does not renew the lease; 0: they keep nothing",
    ),
    _gauge(
        "bookwarden_trash_missing_disk_bytes",
        "bytes",
        "what bookies lack for `trash.min_free_disk_ratio`, all together, which ends the lease; "
        "asked every minute while there are rules, or records",
    ),
    _gauge(
        "bookwarden_trash_overdue_seconds",
        "seconds",
        "for how long the oldest mark in flight has been due, which ends the lease; asked likewise",
    ),
    _gauge(
        "bookwarden_dlq_keeps_nothing",
        "",
        "1 while the DLQ, or its subscription, is missing, so that marks wait instead of being given up; "
        "looked at every 5 minutes",
    ),
    _gauge(
        "bookwarden_source_stuck_seconds",
        "seconds",
        "for how long a partition stands at an entry that the driver cannot read either; 0 otherwise. "
        "Looked at every 15 s once the subscription has not moved for a minute",
        "topic",
    ),
    _gauge(
        "bookwarden_sweep_waiting_seconds",
        "seconds",
        "for how long the running batch has waited for a doubt about very many marks, 0 otherwise: "
        f"{_values(DoubtCause)} (docs/sweep.md); the driver looks itself, every 15 s, at a batch that runs "
        "for more than 20 s",
        "cause",
    ),
)

_FOLLOW: Final = (
    _counter(
        "bookwarden_follow_dropped",
        "ledgers",
        "ledgers and copies that left their last node, looked at after the time of grace, by the place that "
        f"named them: {_values(DROP_PLACES)}; and by cause: {_values(DropCause)}",
        "kind",
        "cause",
    ),
    _counter(
        "bookwarden_follow_still_there",
        "ledgers",
        "those of them that were not gone: what would have leaked",
        "kind",
        "cause",
    ),
    _counter("bookwarden_follow_outcomes", "ledgers", f"the same by outcome: {_values(DropOutcome)}", "outcome"),
    _counter(
        "bookwarden_follow_doubles",
        "marks",
        "marks of what a [broker that marks](broker-marks.md) had in its outbox, or in flight, already; "
        "not counted while more than 10,000 entries are in flight",
    ),
    _gauge("bookwarden_follow_nodes", "nodes", "nodes whose ledgers are known"),
    _gauge("bookwarden_follow_pending", "ledgers", "dropped ledgers and copies that will be looked at"),
    _gauge("bookwarden_follow_lag_seconds", "seconds", "age of the oldest change of the last batch that had any"),
    _counter("bookwarden_follow_unreadable_nodes", "readings", "readings of nodes that said nothing"),
)

_BROKER: Final = (
    _gauge("bookwarden_bookie_clusters_epoch", "", "epoch of the registry that is followed"),
    _gauge(
        "bookwarden_bookie_clusters_active",
        "",
        "1 for the bookie cluster that takes new ledgers, 0 for the others",
        "bookie_cluster",
    ),
    _gauge(
        "bookwarden_bookie_clusters_unreachable",
        "",
        "1 while the metadata of this bookie cluster cannot be read",
        "bookie_cluster",
    ),
    _counter(
        "bookwarden_bookie_clusters_registry_errors",
        "readings",
        "readings of the registry that were of no use; the last good state was kept",
    ),
    _counter("bookwarden_bookie_clusters_ledgers_created", "ledgers", "ledgers created", "bookie_cluster"),
    _counter(
        "bookwarden_bookie_clusters_ledger_reads",
        "readings",
        "readings of a ledger's metadata, by the bookie cluster that had it",
        "bookie_cluster",
    ),
    _counter(
        "bookwarden_bookie_clusters_refusals",
        "requests",
        "creations and writes of ledger metadata that were refused: `create_in_no_one_cluster`, "
        "`write_adds_bookies_of_another_cluster`, `replacement_in_no_one_cluster`",
        "reason",
    ),
    _counter(
        "bookwarden_unmarked_writes",
        "writes",
        "writes that went on unmarked: `store` (the outbox could not be written), `full`, `read` (the former value "
        "could not be read from the store), `error` (ours: the log has it)",
        "reason",
    ),
    _counter(
        "bookwarden_outbox_ledgers_stored",
        "ledgers",
        "ledgers put into the outbox before they left the metadata, by component, and `OFFLOADED_COPY`",
        "kind",
    ),
    _counter("bookwarden_outbox_ledgers_gone", "ledgers", "of these, deleted by the broker itself: no mark was sent"),
    _gauge("bookwarden_outbox_nodes", "nodes", "nodes of the outbox that this broker forwards"),
    _gauge("bookwarden_outbox_bytes", "bytes", "what this broker has in the outbox"),
    _gauge(
        "bookwarden_outbox_oldest_seconds",
        "seconds",
        "age of the oldest node that this broker forwards; 0 if there is none",
    ),
    _gauge(
        "bookwarden_outbox_waiting_for_topic",
        "",
        "1 while there are marks to send and no deletion topic that keeps them",
    ),
    _counter("bookwarden_ledgers_left_to_sweep", "ledgers", "mode `two-phase`: ledgers that the broker did not delete"),
    _counter(
        "bookwarden_ledgers_kept_in_trash",
        "ledgers",
        "mode `two-phase`: ledgers that the broker did not delete, since the [trash](trash.md) keeps them; "
        "they are not left to the sweep",
    ),
    _gauge(
        "bookwarden_left_to_sweep_ledgers", "ledgers", "ledgers left to the sweep that it has not deleted yet, about"
    ),
    _gauge("bookwarden_left_to_sweep_bytes", "bytes", "the same in bytes, with their copies"),
    _gauge("bookwarden_left_to_sweep_oldest_seconds", "seconds", "age of the oldest of them; 0 if there is none"),
    _gauge(
        "bookwarden_left_to_sweep_limit_exceeded",
        "",
        "1 while the sweep is behind by more than a limit, `age` or `bytes`, so that the broker deletes by itself",
        "limit",
    ),
)

_BUILD: Final = (
    _gauge("bookwarden_bookie_clusters_build_ledgers", "ledgers", "what the newest build has to look at"),
    _gauge("bookwarden_bookie_clusters_build_bytes", "bytes", "the same in bytes"),
    _gauge("bookwarden_bookie_clusters_build_ledgers_done", "ledgers", "what of it is through, whatever came of it"),
    _gauge("bookwarden_bookie_clusters_build_bytes_done", "bytes", "the same in bytes"),
    _gauge(
        "bookwarden_bookie_clusters_build_outcomes",
        "ledgers",
        f"ledgers of the newest build: {_values(CopyOutcome)}; among `complete` and `failed` is what PIP-477 counts as "
        "`migration_ledger_id_conflict_total`",
        "outcome",
        "kind",
    ),
    _gauge(
        "bookwarden_bookie_clusters_build_ended_timestamp_seconds",
        "seconds since 1970",
        "when the newest build that was through ended, 0 before the first",
    ),
)

_SERVE: Final = (
    _gauge("bookwarden_bookie_clusters_switch_phase", "", "1 for the phase of the newest switch", "phase"),
    _gauge(
        "bookwarden_bookie_clusters_switch_stopped",
        "",
        "1 while a switch was begun, and no process carries it out",
    ),
    _gauge("bookwarden_bookie_clusters_registry_epoch", "", "epoch of the registry, 0 without one"),
    _gauge(
        "bookwarden_bookie_clusters_brokers_behind", "brokers", "live brokers that do not act by the registry as it is"
    ),
    _gauge(
        "bookwarden_bookie_clusters_build_running",
        "",
        "1 while a [build](moving-ledgers.md#build) runs, also that of a drain",
    ),
    _gauge("bookwarden_bookie_clusters_build_stopped", "", "1 if the newest was stopped on its way"),
    _gauge(
        "bookwarden_bookie_clusters_build_left_seconds",
        "seconds",
        "until the build under way ends, at its pace; no value before that can be estimated",
    ),
    _gauge(
        "bookwarden_bookie_clusters_promoted_timestamp_seconds",
        "seconds since 1970",
        "copies that were closed before are promoted; 0 while nothing is",
    ),
    _gauge("bookwarden_bookie_clusters_move_phase", "", "1 for the phase of the newest `move --offline`", "phase"),
    _gauge(
        "bookwarden_metadata_migration_phase",
        "",
        "of each `zk:` store that Pulsar may move, 1 for the [phase](metadata-migration.md#what-happens) in its flag, "
        "or `unknown`: the store does not answer",
        "store",
        "phase",
    ),
    _gauge(
        "bookwarden_cluster_migration_topics",
        "topics",
        "where `cluster_migration.green` is set, of every namespace whose move was begun: topics and partitions in "
        "each [state](cluster-migration.md#states)",
        "namespace",
        "state",
    ),
    _gauge(
        "bookwarden_cluster_migration_unread_entries",
        "entries",
        "entries left to read on blue, as far as they are known",
        "namespace",
    ),
    _gauge("bookwarden_cluster_migration_flagged", "", "1 while blue sends clients to green", "namespace"),
    _gauge(
        "bookwarden_cluster_migration_troubles",
        "errors",
        "what could not be found out, as brokers that do not answer",
    ),
)

_RUN: Final = (
    _gauge("bookwarden_run_started_timestamp_seconds", "seconds since 1970", "when the newest run began", "command"),
    _gauge("bookwarden_run_ended_timestamp_seconds", "seconds since 1970", "when it ended", "command"),
    _gauge(
        "bookwarden_run_exit_code",
        "",
        "its [exit code](cli.md#exit-codes): 1 to 19 are errors, 20 to 29 results, 130 and above a signal",
        "command",
    ),
)

_SCAN: Final = (
    _gauge(
        "bookwarden_scan_begun_timestamp_seconds",
        "seconds since 1970",
        "when the newest scan that made a plan began to list ledgers, or of what time its snapshot is",
    ),
    _gauge("bookwarden_scan_plan_timestamp_seconds", "seconds since 1970", "when its plan was made"),
    _gauge(
        "bookwarden_scan_ledgers",
        "ledgers",
        f"ledgers by [class](orphan-plans.md#which-class-a-ledger-is-in) ({_values(LedgerClass)}) and tenant: the 50 "
        f"with the most bytes of orphans, then of all; `{OTHER_TENANTS}` has the others",
        "class",
        "tenant",
    ),
    _gauge("bookwarden_scan_bytes", "bytes", "their length, counted once and not for each replica", "class", "tenant"),
    _gauge(
        "bookwarden_scan_leaked_ledgers",
        "ledgers",
        f"candidates of the plan by [cause](orphans.md#where-orphans-come-from): {_values(Cause)}",
        "cause",
    ),
    _gauge("bookwarden_scan_leaked_bytes", "bytes", "their length", "cause"),
    _gauge("bookwarden_scan_leaked_copies", "copies", "offloaded copies of the plan"),
    _gauge("bookwarden_scan_leaked_copy_bytes", "bytes", "their length"),
    _gauge(
        "bookwarden_scan_missing_ledgers",
        "ledgers",
        "ledgers that nodes name and BookKeeper does not have: [lost data](orphans.md#missing-ledgers)",
    ),
    _gauge(
        "bookwarden_scan_gap_ledgers",
        "ledgers",
        "ledgers that the lists of topics [lost](orphans.md#inside-the-list): gaps",
    ),
    _gauge(
        "bookwarden_scan_unreadable_nodes",
        "nodes",
        "nodes and topics that could not be read, as damaged ones; what they may name is in no plan",
    ),
)

_APPLY: Final = (
    _gauge(
        "bookwarden_apply_plan_timestamp_seconds",
        "seconds since 1970",
        "when the plan was made that was applied last, with `--execute`",
    ),
    _gauge(
        "bookwarden_apply_candidates",
        "ledgers",
        "its `ledger`s and offloaded `copy`s, of the newest run: `marked`, `marked before`, `failed`, `dropped`, "
        "`held back` and `left`",
        "kind",
        "outcome",
    ),
)

_BUILD_VERIFY: Final = (
    _gauge(
        "bookwarden_bookie_clusters_verified_ledgers",
        "ledgers",
        "ledgers that were read back from their bookies: `complete` is whole",
        "outcome",
        "kind",
    ),
)

_METADATA_VERIFY: Final = (
    _gauge(
        "bookwarden_metadata_verify_nodes",
        "nodes",
        "nodes that differ, by [class](metadata-migration-verify.md); all but `changed after the switch` are faults",
        "difference",
    ),
    _gauge("bookwarden_metadata_verify_compared_nodes", "nodes", "nodes that were compared"),
)

_CLIENTS_VERIFY: Final = (
    _gauge(
        "bookwarden_cluster_migration_verify_topics",
        "topics",
        "topics that are `done`, `not done`, and `late`: subscriptions came too late to green",
        "result",
    ),
)

_UNDO: Final = (
    _gauge(
        "bookwarden_undo_ledgers",
        "ledgers",
        "ledgers of the newest undo by [outcome](undo.md)",
        "outcome",
    ),
)

_DISK: Final = (
    _gauge("bookwarden_disk_measured_timestamp_seconds", "seconds since 1970", "when the ledgers were listed"),
    _gauge(
        "bookwarden_disk_bytes",
        "bytes",
        f"what ledgers take on the disks of bookies, every copy counted, of the 50 largest tenants; "
        f"`{OTHER_TENANTS}` has the others",
        "tenant",
    ),
    _gauge(
        "bookwarden_disk_unnamed_bytes", "bytes", "of these, what neither a node names nor the trash keeps", "tenant"
    ),
    _gauge("bookwarden_disk_ledgers", "ledgers", "number of their ledgers", "tenant"),
    _gauge("bookwarden_disk_bookie_size_bytes", "bytes", "disks of a bookie, as it tells", "bookie"),
    _gauge("bookwarden_disk_bookie_free_bytes", "bytes", "of these, free", "bookie"),
    _gauge(
        "bookwarden_disk_full_timestamp_seconds",
        "seconds since 1970",
        "day on which the disks of all bookies are full if they "
        "[fill as they did](disk.md#growth-and-when-the-disks-are-full); no value where none is foreseen",
    ),
)


def _all() -> Iterator[MetricName]:
    # The section of a metric in the document is that of its first program.
    yield from _of((Program.SWEEP,), *_SWEEP)
    yield from _of((Program.SWEEP, Program.FOLLOW, Program.PHASE_ONE, Program.BROKER), _SENT)
    yield from _of((Program.SWEEP, Program.FOLLOW), *_QUERY)
    yield from _of((Program.FOLLOW,), *_FOLLOW)
    yield from _of(
        (Program.PHASE_ONE, Program.FOLLOW, Program.BROKER),
        _counter(
            "bookwarden_marks_failed",
            "messages",
            "marks that the broker did not confirm: their ledgers stay; a broker that marks sends them again "
            "after 30 s",
            "ledger_type",
        ),
    )
    yield from _of((Program.BROKER,), *_BROKER)
    yield from _of((Program.SERVE,), *_SERVE)
    yield from _of((Program.SERVE, Program.BUILD), *_BUILD)
    yield from _of((Program.RUN,), *_RUN)
    yield from _of((Program.SCAN,), *_SCAN)
    yield from _of((Program.APPLY,), *_APPLY)
    yield from _of((Program.BUILD_VERIFY,), *_BUILD_VERIFY)
    yield from _of((Program.METADATA_VERIFY,), *_METADATA_VERIFY)
    yield from _of((Program.CLIENTS_VERIFY,), *_CLIENTS_VERIFY)
    yield from _of((Program.UNDO,), *_UNDO)
    yield from _of((Program.DISK,), *_DISK)


#: Every metric by its name, in the order of the document.
METRICS: Final = {one.name: one for one in _all()}
