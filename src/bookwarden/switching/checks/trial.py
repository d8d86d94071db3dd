"""The trial ledger of a precheck: made on the target as a broker would, written to every writable bookie, removed.

A node in Pulsar's own store names it before it is made, and is removed after it. Whatever a killed precheck leaves is
so known to the next one, which removes it; nobody needs it, so another that is under way loses nothing but its trial.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from bookwarden.errors import BookwardenError, FormatError, StoreError
from bookwarden.ledgers.custom_metadata import OWNER_KEY, TRIAL_KEY
from bookwarden.ledgers.metadata import DeleteResult, LedgerMetadata, LedgerState, Segment
from bookwarden.metastore.interface import MetadataStore
from bookwarden.switching.checks.observations import Quorums, TrialSeen
from bookwarden.switching.registry import BookieCluster, Registry

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
