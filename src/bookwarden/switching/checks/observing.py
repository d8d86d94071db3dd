"""Everything that a switch depends on, observed: the brokers, the bookie clusters, and what Pulsar asks of bookies."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

from bookwarden.disk_space import DiskSpace
from bookwarden.errors import BookwardenError, FormatError, StoreError
from bookwarden.ledgers.custom_metadata import OWNER_KEY, TRIAL_KEY
from bookwarden.ledgers.metadata import DeleteResult, LedgerMetadata, LedgerState, Segment
from bookwarden.ledgers.pending_deletion import MAX_LEDGER_ID
from bookwarden.metastore.interface import MetadataStore
from bookwarden.switching.brokers import read_brokers
from bookwarden.switching.checks.precheck import (
    BookiePlaces,
    BrokerSettings,
    ClusterSeen,
    NamespacePlacement,
    Observations,
    Precheck,
    Quorums,
    TrialSeen,
    judge,
)
from bookwarden.switching.registry import BookieCluster, Registry, can_have_others, is_ours
from bookwarden.switching.registry_node import RegistryNode

#: A node for each trial ledger that is there, or may be: its name is the id, its value the cluster's name.
TRIALS_PATH: Final = "/bookwarden/bookie-clusters-trials"
_MARK: Final = b"precheck"
_ID: Final = re.compile(r"\d{1,19}", re.ASCII)
# In a shared cluster, and where another client has ids of its own, many in a row may be taken; brokers try without end.
_TRIES: Final = 1_000


class TrialLedgers(Protocol):
    """The ledgers of one bookie cluster; every call may raise StoreError."""

    def create(self, ledger_id: int, metadata: LedgerMetadata) -> bool:
        """Create the metadata of an open ledger; False if there is another ledger of this id."""

    def fill(self, ledger_id: int, metadata: LedgerMetadata, count: int) -> tuple[dict[str, str], frozenset[str], int]:
        """Write so many entries, and read each back from every bookie that should have it.

        Return which bookies did not take or give one, and why, by bookie id, which of them asked for credentials, and
        the ledger's length in bytes.
        """

    def close(self, ledger_id: int, metadata: LedgerMetadata, last_entry_id: int, length: int) -> None:
        """Close it; LostRaceError if it is gone."""

    def remove(self, ledger_id: int, marks: Mapping[str, bytes]) -> bool:
        """Delete the metadata if the ledger has these marks; False if it has others, and stays."""


class TakesIds(Protocol):
    """The generator of ledger ids below a root of Pulsar's own store; may raise StoreError."""

    def take(self) -> int:
        """Take the next id: nobody else gets it."""


@dataclass(frozen=True)
class Trials:
    """Makes trial ledgers, and removes those that were left."""

    store: MetadataStore  #: Pulsar's own.
    ids: Callable[[str], TakesIds]  #: The generator of ids below a root of it.
    store_of: Callable[[BookieCluster], MetadataStore]  #: Returns the store that a cluster's metadata is in.
    ledgers_at: Callable[[MetadataStore, str], TrialLedgers]  #: Opens the ledgers at a ledgers root.

    def make(self, registry: Registry, target: str, bookies: Iterable[str], quorums: Quorums, digest: str) -> TrialSeen:
        """Write a ledger to all of these bookies, read it back and remove it; what fails is in the result."""
        left = self._remove_left(registry)
        ledgers = self._ledgers_of(registry.cluster(target))
        marks = _marks(registry)
        metadata = trial_metadata(sorted(bookies), quorums, digest, marks)
        count = len(metadata.segments) * metadata.ensemble_size
        ledger_id, failed, denied, trouble = None, dict[str, str](), frozenset[str](), ""
        try:
            ledger_id = self._create(registry, target, ledgers, metadata)
            failed, denied, length = ledgers.fill(ledger_id, metadata, count)
            if not failed:
                ledgers.close(ledger_id, metadata, count - 1, length)
        except BookwardenError as error:
            trouble = str(error)
        if ledger_id is not None:
            left += self._removed(ledger_id, ledgers, marks)
        return TrialSeen(ledger_id, len(set(bookies)), failed, denied, trouble, "; ".join(left))

    def _create(self, registry: Registry, target: str, ledgers: TrialLedgers, metadata: LedgerMetadata) -> int:
        for _ in range(_TRIES):
            ledger_id = self.ids(registry.id_root).take()
            # From here on the ledger is found again, whatever becomes of this process.
            self.store.create(f"{TRIALS_PATH}/{ledger_id}", json.dumps({"cluster": target}).encode(), make_parents=True)
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
        for name in self.store.children_of(TRIALS_PATH):
            node = self.store.get(f"{TRIALS_PATH}/{name}")
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
        return self.ledgers_at(self.store_of(cluster), cluster.ledgers_root)

    def _forget(self, ledger_id: int) -> None:
        path = f"{TRIALS_PATH}/{ledger_id}"
        node = self.store.get(path)
        if node is None:
            return
        (result,) = self.store.delete_many([(path, node.version)])
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


_Bookies = frozenset[str]
_Quorums = tuple[int, int, int]
# As brokers have it where nothing is set.
_DEFAULT_QUORUMS: Final = Quorums(2, 2, 2)
# Some seconds of reading. Of more than these the next one counts as ours.
_MOST_OF_OTHERS: Final = 1_000
# As ledgers' metadata names what brokers' settings do.
_DIGESTS: Final = {"CRC32": "CRC32", "MAC": "HMAC", "DUMMY": "DUMMY"}


@dataclass(frozen=True, slots=True)
class Sources:
    """The sources. Every call may raise BookwardenError; of a bookie cluster that is a finding, else it ends all."""

    #: Pulsar's own metadata store.
    store: MetadataStore
    #: Returns the store that a cluster's metadata is in.
    store_of: Callable[[BookieCluster], MetadataStore]
    #: Read at a ledgers root: the bookies that take new ledgers, those that do not, and all with a cookie.
    members: Callable[[MetadataStore, str], tuple[_Bookies, _Bookies, _Bookies]]
    #: Reads the instance id at a ledgers root; "" if there is none.
    instance: Callable[[MetadataStore, str], str]
    #: Finds the largest id of a ledger at a ledgers root that is smaller than this one.
    largest_ledger: Callable[[MetadataStore, str, int], int | None]
    #: Reads a ledger's custom metadata at a ledgers root; None where its metadata cannot be understood.
    custom_metadata: Callable[[MetadataStore, str, int], Mapping[str, bytes] | None]
    #: Reads the next id that is given below a root of Pulsar's own store.
    next_ledger: Callable[[MetadataStore, str], int | None]
    #: Asks each live broker: name, version, settings, why it did not tell them, its configuration store if another.
    settings: Callable[[], Iterable[tuple[str, str | None, Mapping[str, str] | None, str | None, str | None]]]
    #: Reads what namespaces ask for: name, quorums, groups, secondary groups; None where there are no policies.
    placements: Callable[[MetadataStore], Sequence[tuple[str, _Quorums | None, _Bookies, _Bookies]] | None]
    #: Reads the quorums that single topics ask for, and why that is not known of a namespace's.
    topic_quorums: Callable[[MetadataStore], tuple[Sequence[tuple[str, _Quorums]], Sequence[str]]]
    #: Reads the bookies by group, and the rack by bookie.
    places: Callable[[MetadataStore], tuple[Mapping[str, _Bookies], Mapping[str, str]]]
    #: Asks bookies at a ledgers root for the space on their disks.
    disks: Callable[[MetadataStore, str, Sequence[str]], Mapping[str, DiskSpace]]


class Checks:
    """The checks before a switch by a registry."""

    def __init__(self, sources: Sources, registry: RegistryNode, trials: Trials) -> None:
        self._sources = sources
        self._registry = registry
        self._trials = trials

    def precheck(self, target: str, *, with_trial: bool = True, is_rollback: bool = False) -> Precheck:
        """Look at everything that a switch to this cluster depends on, and judge it.

        Where nothing stands in the way a trial ledger is written there, and removed, unless ``with_trial`` is False;
        else nothing is changed. Raises RefusedError if the cluster is not registered.
        """
        seen = replace(observe(self._sources, self._registry.require().registry, target), is_rollback=is_rollback)
        result = judge(seen)
        # A ledger is not written where it may be another cluster's, or where its id may be one that is in use.
        writable = seen.clusters[target].writable
        if result.failing or not with_trial or not writable:
            return result
        quorums = max((one.quorums for one in seen.settings if one.quorums), key=_ensemble, default=_DEFAULT_QUORUMS)
        digest = next((_DIGESTS[one.digest] for one in seen.settings if one.digest in _DIGESTS), "CRC32C")
        trial = self._trials.make(seen.registry, target, writable, quorums, digest)
        return judge(replace(seen, trial=trial))


def observe(sources: Sources, registry: Registry, target: str) -> Observations:
    """Observe everything for a switch to this cluster; raises RefusedError if it is not registered."""
    cluster = registry.cluster(target)
    brokers = tuple(read_brokers(sources.store))
    clusters = {name: _look(sources, each) for name, each in registry.clusters.items()}
    # After the ledgers, so that none of them is newer than it.
    next_id = sources.next_ledger(sources.store, registry.id_root)
    clusters = {
        name: _without_others(sources, registry, registry.cluster(name), each, next_id or 0)
        for name, each in clusters.items()
    }
    placements = sources.placements(sources.store)
    topics, unread = sources.topic_quorums(sources.store)
    return Observations(
        registry=registry,
        target=target,
        brokers=brokers,
        settings=tuple(
            BrokerSettings(name, settings, trouble, other) for name, _, settings, trouble, other in sources.settings()
        ),
        next_ledger_id=next_id,
        clusters=clusters,
        namespaces=None if placements is None else tuple(map(_placement, placements)),
        places=BookiePlaces(*sources.places(sources.store)),
        topics=tuple((name, Quorums(*quorums)) for name, quorums in topics),
        unread_topics=tuple(unread),
        disks=_disks(sources, cluster, clusters[target]),
    )


def _look(sources: Sources, cluster: BookieCluster) -> ClusterSeen:
    try:
        store = sources.store_of(cluster)
        store.sync()
        instance = sources.instance(store, cluster.ledgers_root)
        writable, read_only, known = sources.members(store, cluster.ledgers_root)
        largest = sources.largest_ledger(store, cluster.ledgers_root, MAX_LEDGER_ID + 1)
        own_next_id = sources.next_ledger(store, cluster.ledgers_root)
    except BookwardenError as error:
        return ClusterSeen(trouble=str(error))
    return ClusterSeen("", instance, writable, read_only, known, own_next_id, largest)


def _without_others(
    sources: Sources, registry: Registry, cluster: BookieCluster, seen: ClusterSeen, next_id: int
) -> ClusterSeen:
    """Pass over the largest ids if they are not ours: another client there has a counter of its own."""
    largest = seen.largest_ledger
    if largest is None or largest < next_id or cluster.shared or not can_have_others(cluster):
        return seen
    try:
        store = sources.store_of(cluster)
        for _ in range(_MOST_OF_OTHERS):
            if largest is None or largest < next_id:
                break
            custom = sources.custom_metadata(store, cluster.ledgers_root, largest)
            if is_ours(registry, cluster, largest, custom):
                break
            largest = sources.largest_ledger(store, cluster.ledgers_root, largest)
    except BookwardenError as error:
        return ClusterSeen(trouble=str(error))
    others = seen.largest_ledger if largest != seen.largest_ledger else None
    return replace(seen, largest_ledger=largest, largest_of_others=others)


def _ensemble(quorums: Quorums) -> int:
    return quorums.ensemble


def _placement(asked: tuple[str, _Quorums | None, _Bookies, _Bookies]) -> NamespacePlacement:
    name, quorums, groups, spare = asked
    return NamespacePlacement(name, None if quorums is None else Quorums(*quorums), groups, spare)


def _disks(sources: Sources, cluster: BookieCluster, seen: ClusterSeen) -> Mapping[str, DiskSpace]:
    if not seen.writable:
        return {}
    try:
        return sources.disks(sources.store_of(cluster), cluster.ledgers_root, sorted(seen.writable))
    except BookwardenError as error:
        return {bookie: DiskSpace(trouble=str(error)) for bookie in seen.writable}
