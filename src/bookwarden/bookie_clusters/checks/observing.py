"""Everything that a switch depends on, observed: the brokers, the bookie clusters, and what Pulsar asks of bookies.

And the trial ledger of a precheck: made on the target as a broker would, written to every writable bookie, removed. A
node in Pulsar's own store names it before it is made, and is removed after it. Whatever a killed precheck leaves is so
known to the next one, which removes it; another that is under way loses nothing but its trial.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from bookwarden.bookie_clusters.brokers import read_brokers
from bookwarden.bookie_clusters.checks.precheck import (
    BookieMap,
    BrokerSettings,
    NamespacePlacement,
    ObservedCluster,
    Precheck,
    PrecheckObservations,
    Quorums,
    TrialResult,
    judge,
)
from bookwarden.bookie_clusters.registry import BookieCluster, Registry, can_have_others, is_ours
from bookwarden.bookie_clusters.registry_node import ClusterRegistry
from bookwarden.clusters.bookkeeper.bookie_cluster import read_instance, read_members
from bookwarden.clusters.bookkeeper.bookies.disk_space import read_disk_space_at
from bookwarden.clusters.bookkeeper.bookies.requests import BookieOptions
from bookwarden.clusters.bookkeeper.ledger_ids import largest_ledger_id, next_ledger_id
from bookwarden.clusters.bookkeeper.listing import read_custom_metadata
from bookwarden.clusters.bookkeeper.trial_ledgers import TrialLedgers
from bookwarden.clusters.pulsar.connection import PulsarConnection
from bookwarden.clusters.pulsar.messages.topic_policies import TopicQuorums, read_topic_quorums
from bookwarden.clusters.pulsar.metadata.bookie_placement import Placement, read_bookie_map, read_placements
from bookwarden.clusters.pulsar.rest.admin import PulsarAdmin
from bookwarden.clusters.pulsar.rest.registered_brokers import RegisteredBroker, read_registered_brokers
from bookwarden.disk_space import DiskSpace
from bookwarden.errors import BookwardenError, FormatError, StoreError
from bookwarden.ledgers.custom_metadata import OWNER_KEY, TRIAL_KEY
from bookwarden.ledgers.metadata import DeleteResult, LedgerMetadata, LedgerState, Segment
from bookwarden.ledgers.pending_deletion import MAX_LEDGER_ID

#: A node for each trial ledger that is there, or may be: its name is the id, its value the cluster's name.
TRIALS_PATH: Final = "/bookwarden/bookie-clusters-trials"
_MARK: Final = b"precheck"
_ID: Final = re.compile(r"\d{1,19}", re.ASCII)
# In a shared cluster, and where another client has ids of its own, many in a row may be taken; brokers try without end.
_TRIES: Final = 1_000


@dataclass(frozen=True)
class Trials:
    """Makes trial ledgers, and removes those that were left."""

    node: ClusterRegistry  #: The registry, with the stores of its clusters.
    options: BookieOptions  #: Of connections to bookies.

    def make(
        self, registry: Registry, target: str, bookies: Iterable[str], quorums: Quorums, digest: str
    ) -> TrialResult:
        """Write a ledger to all of these bookies, read it back and remove it; what fails is in the result."""
        left = self._remove_left(registry)
        ledgers = self._ledgers_of(registry.cluster(target))
        marks = _marks(registry)
        metadata = trial_metadata(sorted(bookies), quorums, digest, marks)
        count = len(metadata.segments) * metadata.ensemble_size
        ledger_id, failed, denied, problem = None, dict[str, str](), frozenset[str](), ""
        try:
            ledger_id = self._create(registry, target, ledgers, metadata)
            failed, denied, length = ledgers.fill(ledger_id, metadata, count)
            if not failed:
                ledgers.close(ledger_id, metadata, count - 1, length)
        except BookwardenError as error:
            problem = str(error)
        if ledger_id is not None:
            left += self._removed(ledger_id, ledgers, marks)
        return TrialResult(ledger_id, len(set(bookies)), failed, denied, problem, "; ".join(left))

    def _create(self, registry: Registry, target: str, ledgers: TrialLedgers, metadata: LedgerMetadata) -> int:
        for _ in range(_TRIES):
            ledger_id = self.node.ids_of(registry).take()
            # From here on the ledger is found again, whatever becomes of this process.
            record = json.dumps({"cluster": target}).encode()
            self.node.store.create(f"{TRIALS_PATH}/{ledger_id}", record, make_parents=True)
            if ledgers.create(ledger_id, metadata):
                return ledger_id
            self._forget(ledger_id)
        raise StoreError(
            f"{_TRIES:,} ledger ids in a row are taken in {target}, by another client: pass them with `bookie-clusters "
            "raise-ids`"
        )

    def _remove_left(self, registry: Registry) -> list[str]:
        """Remove what earlier prechecks left; return why any of that is still there."""
        left: list[str] = []
        for name in self.node.store.children_of(TRIALS_PATH):
            node = self.node.store.get(f"{TRIALS_PATH}/{name}")
            if node is None:
                continue
            try:
                if _ID.fullmatch(name) is None:
                    raise FormatError(f"{TRIALS_PATH}/{name} is no ledger's: find out who wrote it")
                cluster = registry.clusters.get(_cluster_in(name, node.value))
            except FormatError as error:
                left.append(str(error))
                continue
            if cluster is None:
                # It could not be unregistered with a ledger of ours in it.
                self._forget(int(name))
            else:
                left += self._removed(int(name), self._ledgers_of(cluster), _marks(registry))
        return left

    def _removed(self, ledger_id: int, ledgers: TrialLedgers, marks: Mapping[str, bytes]) -> list[str]:
        """Remove a trial ledger, then its node; return why it is still there."""
        try:
            ledgers.remove(ledger_id, marks)
            self._forget(ledger_id)
        except BookwardenError as error:
            return [f"trial ledger {ledger_id}: {error}"]
        return []

    def _ledgers_of(self, cluster: BookieCluster) -> TrialLedgers:
        return TrialLedgers(self.node.store_of(cluster), cluster.ledgers_root, self.options)

    def _forget(self, ledger_id: int) -> None:
        path = f"{TRIALS_PATH}/{ledger_id}"
        node = self.node.store.get(path)
        if node is None:
            return
        (result,) = self.node.store.delete_many([(path, node.version)])
        if result not in (DeleteResult.DELETED, DeleteResult.ABSENT):
            raise StoreError(f"{path} was not deleted ({result.value})")


def trial_metadata(bookies: Sequence[str], quorums: Quorums, digest: str, marks: Mapping[str, bytes]) -> LedgerMetadata:
    """Make the metadata of an open ledger with as many ensembles as it takes to have each of these bookies in one.

    Each ensemble gets as many entries as it has bookies, so that each bookie is the first of a write set once.
    """
    size = min(quorums.ensemble, len(bookies))
    write = min(quorums.write, size)
    twice = [*bookies, *bookies]
    ensembles = [tuple(twice[start : start + size]) for start in range(0, len(bookies), size)]
    segments = tuple(Segment(number * size, ensemble) for number, ensemble in enumerate(ensembles))
    return LedgerMetadata(
        format_version=3,
        state=LedgerState.OPEN,
        ensemble_size=size,
        write_quorum=write,
        ack_quorum=min(quorums.acknowledged, write),
        segments=segments,
        digest_type=digest,
        ctime_ms=int(time.time() * 1000),
        custom=marks,
    )


def _marks(registry: Registry) -> dict[str, bytes]:
    return {OWNER_KEY: registry.owner.encode(), TRIAL_KEY: _MARK}


def _cluster_in(name: str, value: bytes) -> str:
    try:
        fields: Any = json.loads(value)
        return str(fields["cluster"])
    except (ValueError, KeyError, TypeError) as error:
        raise FormatError(f"{TRIALS_PATH}/{name} names no bookie cluster: find out who wrote it") from error


# As brokers have it where nothing is set.
_DEFAULT_QUORUMS: Final = Quorums(2, 2, 2)
# Some seconds of reading. Of more than these the next one counts as ours.
_MOST_OF_OTHERS: Final = 1_000
# As ledgers' metadata names what brokers' settings do.
_DIGESTS: Final = {"CRC32": "CRC32", "MAC": "HMAC", "DUMMY": "DUMMY"}


class Observer:
    """Observes what a switch, or a move, depends on.

    Every call may raise BookwardenError; of a bookie cluster that is a finding, else it ends the observation. ``admin``
    is the REST of the brokers, ``options`` are of connections to bookies.
    """

    def __init__(
        self, registry: ClusterRegistry, connection: PulsarConnection, admin: PulsarAdmin, options: BookieOptions
    ) -> None:
        self.registry = registry
        self.options = options
        self._connection = connection
        self._admin = admin

    def observe(self, registry: Registry, target: str) -> PrecheckObservations:
        """Observe everything for a switch to this cluster; raises RefusedError if it is not registered."""
        cluster, store = registry.cluster(target), self.registry.store
        brokers = tuple(read_brokers(store))
        clusters = {name: self._cluster(each) for name, each in registry.clusters.items()}
        # After the ledgers, so that none of them is newer than it.
        next_id = next_ledger_id(store, registry.id_root)
        clusters = {
            name: self._without_others(registry, registry.cluster(name), each, next_id or 0)
            for name, each in clusters.items()
        }
        placements = read_placements(store)
        topics = self.topic_quorums()
        return PrecheckObservations(
            registry=registry,
            target=target,
            brokers=brokers,
            settings=tuple(
                BrokerSettings(one.name, one.settings, one.error, one.other_configuration) for one in self.settings()
            ),
            next_ledger_id=next_id,
            clusters=clusters,
            namespaces=None if placements is None else tuple(map(_placement, placements)),
            places=BookieMap(*read_bookie_map(store)),
            topics=tuple((name, Quorums(*quorums)) for name, quorums in topics.asked),
            unread_topics=topics.unread,
            disks=self._disks_of(cluster, clusters[target]),
        )

    def settings(self) -> Sequence[RegisteredBroker]:
        """Ask each live broker for its settings."""
        return read_registered_brokers(self.registry.store, self._connection)

    def topic_quorums(self) -> TopicQuorums:
        """Read the quorums that single topics ask for."""
        return read_topic_quorums(self.registry.store, self._connection, self._admin)

    def disks(self, cluster: BookieCluster, bookies: Sequence[str]) -> Mapping[str, DiskSpace]:
        """Ask bookies of a cluster for the space on their disks."""
        return read_disk_space_at(self.registry.store_of(cluster), cluster.ledgers_root, bookies, options=self.options)

    def _cluster(self, cluster: BookieCluster) -> ObservedCluster:
        root = cluster.ledgers_root
        try:
            store = self.registry.store_of(cluster)
            store.sync()
            instance, members = read_instance(store, root), read_members(store, root)
            largest = largest_ledger_id(store, root, 0, MAX_LEDGER_ID + 1)
            own_next_id = next_ledger_id(store, root)
        except BookwardenError as error:
            return ObservedCluster(error=str(error))
        return ObservedCluster("", instance, *members, own_next_id, largest)

    def _without_others(
        self, registry: Registry, cluster: BookieCluster, seen: ObservedCluster, next_id: int
    ) -> ObservedCluster:
        """Pass over the largest ids if they are not ours: another client there has a counter of its own."""
        largest, root = seen.largest_ledger, cluster.ledgers_root
        if largest is None or largest < next_id or cluster.shared or not can_have_others(cluster):
            return seen
        try:
            store = self.registry.store_of(cluster)
            for _ in range(_MOST_OF_OTHERS):
                if largest is None or largest < next_id:
                    break
                if is_ours(registry, cluster, largest, read_custom_metadata(store, root, largest)):
                    break
                largest = largest_ledger_id(store, root, 0, largest)
        except BookwardenError as error:
            return ObservedCluster(error=str(error))
        others = seen.largest_ledger if largest != seen.largest_ledger else None
        return replace(seen, largest_ledger=largest, largest_of_others=others)

    def _disks_of(self, cluster: BookieCluster, seen: ObservedCluster) -> Mapping[str, DiskSpace]:
        if not seen.writable:
            return {}
        try:
            return self.disks(cluster, sorted(seen.writable))
        except BookwardenError as error:
            return {bookie: DiskSpace(error=str(error)) for bookie in seen.writable}


def run_precheck(observer: Observer, target: str, *, with_trial: bool = True, is_rollback: bool = False) -> Precheck:
    """Observe everything that a switch to this cluster depends on, and judge it.

    Where no check blocks it a trial ledger is written there, and removed, unless ``with_trial`` is False; else nothing
    is changed. Raises RefusedError if the cluster is not registered.
    """
    seen = observer.observe(observer.registry.require().registry, target)
    seen = replace(seen, is_rollback=is_rollback)
    result = judge(seen)
    # A ledger is not written where it may be another cluster's, or where its id may be one that is in use.
    writable = seen.clusters[target].writable
    if result.failing or not with_trial or not writable:
        return result
    quorums = max((one.quorums for one in seen.settings if one.quorums), key=_ensemble, default=_DEFAULT_QUORUMS)
    digest = next((_DIGESTS[one.digest] for one in seen.settings if one.digest in _DIGESTS), "CRC32C")
    trial = Trials(observer.registry, observer.options).make(seen.registry, target, writable, quorums, digest)
    return judge(replace(seen, trial=trial))


def _ensemble(quorums: Quorums) -> int:
    return quorums.ensemble


def _placement(asked: Placement) -> NamespacePlacement:
    quorums = None if asked.quorums is None else Quorums(*asked.quorums)
    return NamespacePlacement(asked.name, quorums, asked.groups, asked.spare_groups)
