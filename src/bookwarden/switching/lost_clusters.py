"""Unregistration of a bookie cluster whose metadata is gone for good: what is lost with it is counted before.

While such a cluster is registered, no ledger can be found absent or removed anywhere. Once it has left, brokers take
for deleted what only it had: topics drop those ledgers from their lists, cursors go back to the position in their node.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from bookwarden.errors import LostRaceError, RefusedError, StoreAccessError, StoreError
from bookwarden.ledgers.custom_metadata import is_unfinished
from bookwarden.ledgers.metadata import LedgerReading, StoredLedger, UnreadableLedger
from bookwarden.switching.brokers import read_brokers
from bookwarden.switching.offline.named import ReadsAllReferences
from bookwarden.switching.owners import is_ours
from bookwarden.switching.ports import ClusterMetadata
from bookwarden.switching.registry import BookieCluster, Registry
from bookwarden.switching.registry_node import StoredRegistry
from bookwarden.switching.unregistering import Unregistration

#: The journal: a node for each cluster that left so, by its name and the epoch of the registry without it.
LOST_PATH: Final = "/bookwarden/bookie-clusters-lost"
_READ_AT_ONCE: Final = 1_000
_SHOWN: Final = 5


@dataclass(frozen=True, slots=True)
class LostPlan:
    """An unregistration of a lost cluster, and what is lost with it."""

    before: StoredRegistry  #: What the new registry replaces.
    after: Registry  #: Without the cluster.
    cluster: BookieCluster  #: Which leaves it.
    reason: str  #: Why its metadata counts as gone.
    references: Mapping[str, int]  #: That name no ledger of any other cluster, by kind.
    ledgers: int  #: Number of ledgers that these name.
    examples: tuple[str, ...]  #: Some of them.
    doubts: tuple[str, ...]  #: What could not be read, which may name more.
    silent: tuple[str, ...]  #: Other clusters that do not answer: what only they have is counted too.


@dataclass(frozen=True)
class LostClusters:
    """Plans and carries out such unregistrations."""

    unregistration: Unregistration  #: Knows the registry, and who may still write there.
    read_references: ReadsAllReferences  #: Reads all that names ledgers, and no bookie.

    def plan(self, name: str) -> LostPlan:
        """Count what is lost; change nothing.

        Raises RefusedError while the cluster is active, or its metadata answers us or a broker, or a broker is late.
        """
        operation = self.unregistration
        before = operation.registry.require()
        after, cluster = before.registry.without_cluster(name), before.registry.cluster(name)
        operation.require_unused(before, cluster)
        reason = self._why_lost(cluster)
        others, silent = self._others(after)
        references, examples, doubts = Counter[str](), list[str](), list[str]()
        ledgers = set[int]()
        for part in self.read_references():
            doubts += [f"{doubt.path}: {doubt.reason}" for doubt in part.doubts]
            rows = [row for row in part.rows if row.ledger_id is not None and not row.gone]
            absent = self._absent({row.ledger_id for row in rows if row.ledger_id is not None}, others, after)
            for row in rows:
                if row.ledger_id in absent:
                    references[row.place] += 1
                    if len(examples) < _SHOWN:
                        examples.append(f"ledger {row.ledger_id} of {row.holder}")
            ledgers |= absent
        return LostPlan(
            *(before, after, cluster, reason, references, len(ledgers)),
            *(tuple(examples), tuple(doubts), tuple(silent)),
        )

    def carry_out(self, plan: LostPlan, confirmed: str) -> None:
        """Journal it, and put the registry without the cluster into its node; ``confirmed`` is its name, as typed.

        Raises RefusedError for another name, or where the metadata answers by now or a broker is late, and
        LostRaceError where another process changed the registry. May be repeated.
        """
        name = plan.cluster.name
        if confirmed != name:
            raise _refused(name, f"{confirmed!r} was typed to confirm it: nothing was changed")
        self.unregistration.require_unused(plan.before, plan.cluster)
        self._why_lost(plan.cluster)
        self._journal(plan)
        self.unregistration.registry.replace(plan.before, plan.after)

    def _why_lost(self, cluster: BookieCluster) -> str:
        name, operation = cluster.name, self.unregistration
        for broker in read_brokers(operation.pulsar):
            if broker.reads(name):
                raise _refused(name, f"broker {broker.name} reads its metadata: use `unregister` without --lost")
        metadata = operation.open_cluster(operation.registry.place_of(cluster))
        where = f"{cluster.ledgers_root} in {metadata.url}"
        try:
            instance = metadata.look().instance
        except StoreAccessError as error:
            raise _refused(name, f"{where} is there, and may not be read: {error}") from error
        except StoreError as error:
            return f"{where} does not answer: {error}"
        if instance == cluster.instance:
            raise _refused(name, f"{where} answers, and is this cluster: use `unregister` without --lost")
        return (
            f"{where} has {f'the INSTANCEID {instance}' if instance else 'no INSTANCEID'} instead of {cluster.instance}"
        )

    def _others(self, rest: Registry) -> tuple[list[tuple[BookieCluster, ClusterMetadata]], list[str]]:
        found, silent = list[tuple[BookieCluster, ClusterMetadata]](), list[str]()
        for cluster in rest.in_reading_order():
            metadata = self.unregistration.open_cluster(self.unregistration.registry.place_of(cluster))
            try:
                is_there = metadata.look().instance == cluster.instance
            except StoreError:
                is_there = False
            if is_there:
                found.append((cluster, metadata))
            else:
                silent.append(cluster.name)
        return found, silent

    @staticmethod
    def _absent(
        ledger_ids: Iterable[int], others: Sequence[tuple[BookieCluster, ClusterMetadata]], rest: Registry
    ) -> set[int]:
        """Return the ledgers that brokers would find in none of the other clusters."""
        left = sorted(ledger_ids)
        for cluster, metadata in others:
            found: list[LedgerReading] = []
            for at in range(0, len(left), _READ_AT_ONCE):
                found += metadata.read_many(left[at : at + _READ_AT_ONCE])
            left = [one.ledger_id for one in found if not _is_read(one, cluster, rest)]
        return set(left)

    def _journal(self, plan: LostPlan) -> None:
        cluster = plan.cluster
        path = f"{LOST_PATH}/{cluster.name}-{plan.after.epoch}"
        fields = {
            "format": 1,
            "cluster": cluster.name,
            "metadataServiceUri": cluster.metadata_service_uri,
            "ledgersRoot": cluster.ledgers_root,
            "instance": cluster.instance,
            "epoch": plan.after.epoch,
            "reason": plan.reason,
            "ledgers": plan.ledgers,
            "references": dict(plan.references),
            "doubts": len(plan.doubts),
            "silent": list(plan.silent),
        }
        store, value = self.unregistration.pulsar, json.dumps(fields, indent=1).encode()
        node = store.get(path)
        try:
            if node is None:
                store.create(path, value, make_parents=True)
            else:
                store.put(path, value, node.version)
        except LostRaceError as error:
            raise _refused(cluster.name, f"another process does the same now: {error}") from error


def _is_read(reading: LedgerReading, cluster: BookieCluster, registry: Registry) -> bool:
    """Return whether brokers find it there; metadata that cannot be understood is an error for them, not absence."""
    if isinstance(reading, StoredLedger):
        custom = reading.metadata.custom
        return not is_unfinished(reading.metadata) and is_ours(registry, cluster, reading.ledger_id, custom)
    return isinstance(reading, UnreadableLedger)


def _refused(name: str, reason: str) -> RefusedError:
    return RefusedError(f"bookie cluster {name!r} is not unregistered as lost: {reason}")
