"""Unregistration of a bookie cluster, refused as long as a ledger may be there that this Pulsar cluster made.

A broker that finds a ledger in no registered cluster takes it for deleted, and its topic forgets it: what is there must
be gone, or elsewhere, before the cluster leaves the registry.

A cluster whose metadata is gone for good is unregistered as lost: what is lost with it is counted before. While it is
registered, no ledger can be found absent or removed anywhere. Once it has left, topics drop the ledgers that only it
had from their lists, and cursors go back to the position in their node.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Final

from bookwarden.bookie_clusters.brokers import Broker, await_brokers, read_brokers
from bookwarden.bookie_clusters.operation import find_order
from bookwarden.bookie_clusters.registering import looked
from bookwarden.bookie_clusters.registry import BookieCluster, Registry, is_ours, is_trial
from bookwarden.bookie_clusters.registry_node import ClusterRegistry, StoredRegistry
from bookwarden.clusters.bookkeeper.bookie_cluster import BookieClusterMetadata
from bookwarden.clusters.pulsar.references.pieces import ReferencePieces
from bookwarden.errors import LostRaceError, RefusedError, StoreAccessError, StoreError
from bookwarden.ledgers.custom_metadata import is_unfinished
from bookwarden.ledgers.metadata import AbsentLedger, LedgerReading, StoredLedger, UnreadableLedger

# A ledger whose bookies were chosen before a switch has its metadata after that long, or never.
_CREATE_SECONDS: Final = 60.0
_SHOWN: Final = 3
_READ_AT_ONCE: Final = 1_000


@dataclass(frozen=True, slots=True)
class UnregistrationPlan:
    """An unregistration that nothing speaks against."""

    before: StoredRegistry  #: What the new registry replaces.
    after: Registry  #: Without the cluster.
    cluster: BookieCluster  #: Which leaves it.
    foreign: int  #: Ledgers there that others made.


@dataclass(frozen=True)
class Unregistration:
    """Plans and carries out unregistrations in one Pulsar cluster."""

    registry: ClusterRegistry  #: Of this Pulsar cluster.
    clock: Callable[[], float]  #: Returns seconds since the epoch, as the store of Pulsar does.
    sleep: Callable[[float], None] = time.sleep

    def plan(
        self, name: str, *, wait_s: float = 0.0, say: Callable[[str], object] = lambda _: None
    ) -> UnregistrationPlan:
        """List all ledgers of the cluster, and change nothing.

        Up to ``wait_s`` each it waits for brokers that are late, and until a switch is long enough ago.

        Raises RefusedError where one may be ours, the cluster is active, or a broker is late, and StoreError where a
        store does not answer.
        """
        before = self.registry.require()
        registry = before.registry
        after, cluster = registry.without_cluster(name), registry.cluster(name)
        self.require_unused(before, cluster, wait_s, say)
        metadata = self.registry.metadata_of(cluster)
        seen = looked(metadata, name)
        if seen.instance != cluster.instance:
            raise _refused(
                name,
                f"{cluster.ledgers_root} in {metadata.url} has the INSTANCEID {seen.instance} instead of "
                f"{cluster.instance}, so its ledgers cannot be counted: put its metadata back, or, if that is gone for "
                f"good, `bookie-clusters unregister --lost {name}`",
            )
        ours, foreign = [], 0
        for ledger_id, custom in metadata.custom_metadata():
            if is_trial(registry, custom):
                continue
            if custom is None or is_ours(registry, cluster, ledger_id, custom):
                ours.append(ledger_id)
            else:
                foreign += 1
        if ours:
            alone = ours
            for other in map(self.registry.metadata_of, after.in_reading_order()):
                alone = [one.ledger_id for one in _read(other, alone) if isinstance(one, AbsentLedger)]
            raise _refused(
                name,
                f"{len(ours):,} ledgers are there that this Pulsar cluster made, or may have made, such as "
                f"{', '.join(map(str, ours[:_SHOWN]))}; {len(alone):,} of them are in no other registered cluster. "
                "Brokers would take them for deleted, and their topics would forget them: `bookie-clusters drain "
                f"--from {name}` moves them, or wait until they are trimmed or deleted",
            )
        return UnregistrationPlan(before, after, cluster, foreign)

    def unregister(
        self,
        name: str,
        *,
        wait_s: float = 0.0,
        dry_run: bool = False,
        confirm: Callable[[UnregistrationPlan], object] | None = None,
        say: Callable[[str], object] = lambda _: None,
    ) -> UnregistrationPlan:
        """Unregister, or look only: what commands and REST do.

        ``confirm`` is called before, and may raise RefusedError; all is looked at again then, since an answer may take
        long. Else raises as `plan` and `carry_out` do.
        """
        plan = self.plan(name, wait_s=wait_s, say=say)
        if dry_run:
            return plan
        if confirm is not None:
            confirm(plan)
            plan = self.plan(name, wait_s=wait_s, say=say)
        self.carry_out(plan)
        return plan

    def carry_out(self, plan: UnregistrationPlan) -> None:
        """Put the registry without the cluster into its node, if it is still as it was when the ledgers were listed."""
        self.registry.replace(plan.before, plan.after)

    def require_unused(
        self,
        before: StoredRegistry,
        cluster: BookieCluster,
        wait_s: float = 0.0,
        say: Callable[[str], object] = lambda _: None,
    ) -> None:
        """Raise RefusedError where a broker may write there now: by an order, an older epoch, or begun before."""
        name = cluster.name
        self._require_no_order(before.registry, name)
        self._require_followed(before.registry, cluster, wait_s)
        directive = before.registry.directive
        if directive is None or (directive.epoch != before.registry.epoch and directive.source != name):
            return
        left = _CREATE_SECONDS - (self.clock() - before.changed_ms / 1000)
        why = (
            f"brokers were switched from {directive.source} to {directive.target}, and until the registry is "
            f"{_CREATE_SECONDS:.0f} s old a ledger that was begun before may still come to {name}"
        )
        if left > wait_s:
            raise _refused(name, f"{why}: try again in {ceil(left)} s")
        if left > 0:
            say(f"{why}: waiting {ceil(left)} s")
            self.sleep(left)

    def _require_no_order(self, registry: Registry, name: str) -> None:
        last = find_order(self.registry.store)
        if last is None or not last.order.is_under_way or name not in (last.order.source, last.order.target):
            return
        order = last.order
        if order.is_in(registry) or order.after_epoch == registry.epoch:
            raise _refused(
                name,
                f"the switch from {order.source} to {order.target} is not over ({order.phase.value}): see "
                "`bookwarden bookie-clusters status`",
            )

    def _require_followed(self, registry: Registry, cluster: BookieCluster, wait_s: float) -> None:
        """Raise RefusedError while a broker may write there that does not act by this registry.

        One whose registry is older than the cluster does not know it, and so cannot.
        """

        def is_late(broker: Broker) -> bool:
            return not broker.follows(registry.epoch) and (broker.follower is None or broker.knows(cluster))

        late = await_brokers(self.registry.store, is_late, wait_s)
        if late:
            raise _refused(
                cluster.name,
                f"{len(late)} brokers do not follow epoch {registry.epoch}, such as {late[0].described()}, and "
                "may still write there: wait, or stop them",
            )


def _read(metadata: BookieClusterMetadata, ledger_ids: Sequence[int]) -> Iterator[LedgerReading]:
    for at in range(0, len(ledger_ids), _READ_AT_ONCE):
        yield from metadata.read_many(list(ledger_ids[at : at + _READ_AT_ONCE]))


def _refused(name: str, reason: str) -> RefusedError:
    return RefusedError(f"bookie cluster {name!r} is not unregistered: {reason}")


#: The journal: a node for each cluster that left so, by its name and the epoch of the registry without it.
LOST_PATH: Final = "/bookwarden/bookie-clusters-lost"
_SHOWN_LOST: Final = 5


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
    references: ReferencePieces  #: Reads all that names ledgers, and no bookie.

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
        for part in self.references.read_all():
            doubts += [f"{doubt.path}: {doubt.reason}" for doubt in part.doubts]
            rows = [row for row in part.rows if row.ledger_id is not None and not row.gone]
            absent = sorted({row.ledger_id for row in rows if row.ledger_id is not None})
            for other, metadata in others:
                absent = [one.ledger_id for one in _read(metadata, absent) if not _is_read(one, other, after)]
            lost = frozenset(absent)
            for row in rows:
                if row.ledger_id in lost:
                    references[row.place] += 1
                    if len(examples) < _SHOWN_LOST:
                        examples.append(f"ledger {row.ledger_id} of {row.holder}")
            ledgers |= lost
        return LostPlan(
            *(before, after, cluster, reason, references, len(ledgers)),
            *(tuple(examples), tuple(doubts), tuple(silent)),
        )

    def unregister(self, name: str, *, dry_run: bool, confirm: Callable[[LostPlan], str]) -> LostPlan:
        """Unregister, or look only: what commands and REST do.

        ``confirm`` returns the name as it was typed, and may raise RefusedError. Else raises as `plan` and `carry_out`.
        """
        plan = self.plan(name)
        if not dry_run:
            self.carry_out(plan, confirm(plan))
        return plan

    def carry_out(self, plan: LostPlan, confirmed: str) -> None:
        """Journal it, and put the registry without the cluster into its node; ``confirmed`` is its name, as typed.

        Raises RefusedError for another name, or where the metadata answers by now or a broker is late, and
        LostRaceError where another process changed the registry. May be repeated.
        """
        name = plan.cluster.name
        if confirmed != name:
            raise _not_lost(name, f"{confirmed!r} was typed to confirm it: nothing was changed")
        self.unregistration.require_unused(plan.before, plan.cluster)
        self._why_lost(plan.cluster)
        self._journal(plan)
        self.unregistration.registry.replace(plan.before, plan.after)

    def _why_lost(self, cluster: BookieCluster) -> str:
        name, operation = cluster.name, self.unregistration
        for broker in read_brokers(operation.registry.store):
            if broker.reads(name):
                raise _not_lost(name, f"broker {broker.name} reads its metadata: use `unregister` without --lost")
        metadata = operation.registry.metadata_of(cluster)
        where = f"{cluster.ledgers_root} in {metadata.url}"
        try:
            instance = metadata.look().instance
        except StoreAccessError as error:
            raise _not_lost(name, f"{where} is there, and may not be read: {error}") from error
        except StoreError as error:
            return f"{where} does not answer: {error}"
        if instance == cluster.instance:
            raise _not_lost(name, f"{where} answers, and is this cluster: use `unregister` without --lost")
        return (
            f"{where} has {f'the INSTANCEID {instance}' if instance else 'no INSTANCEID'} instead of {cluster.instance}"
        )

    def _others(self, rest: Registry) -> tuple[list[tuple[BookieCluster, BookieClusterMetadata]], list[str]]:
        found, silent = list[tuple[BookieCluster, BookieClusterMetadata]](), list[str]()
        for cluster in rest.in_reading_order():
            metadata = self.unregistration.registry.metadata_of(cluster)
            try:
                is_there = metadata.look().instance == cluster.instance
            except StoreError:
                is_there = False
            if is_there:
                found.append((cluster, metadata))
            else:
                silent.append(cluster.name)
        return found, silent

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
        store, value = self.unregistration.registry.store, json.dumps(fields, indent=1).encode()
        node = store.get(path)
        try:
            if node is None:
                store.create(path, value, make_parents=True)
            else:
                store.put(path, value, node.version)
        except LostRaceError as error:
            raise _not_lost(cluster.name, f"another process does the same now: {error}") from error


def _is_read(reading: LedgerReading, cluster: BookieCluster, registry: Registry) -> bool:
    """Return whether brokers find it there; metadata that cannot be understood is an error for them, not absence."""
    if isinstance(reading, StoredLedger):
        custom = reading.metadata.custom
        return not is_unfinished(reading.metadata) and is_ours(registry, cluster, reading.ledger_id, custom)
    return isinstance(reading, UnreadableLedger)


def _not_lost(name: str, reason: str) -> RefusedError:
    return RefusedError(f"bookie cluster {name!r} is not unregistered as lost: {reason}")
