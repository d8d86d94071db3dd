"""The record of a move without the jar: a node in Pulsar's own store, and who works at it.

It says which clusters, by which owner mark copies are known, and how far the move is. What was copied is
read from the clusters themselves, so that the same command carries on wherever it was killed.
"""

from __future__ import annotations

import enum
import json
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any, Final

from bookwarden.bookie_clusters.offline.checking import Sides, refused
from bookwarden.clusters.bookkeeper.service_uris import LedgersRoot
from bookwarden.errors import FormatError, LostRaceError, OutcomeUnknownError, StoreError
from bookwarden.leases import describe_holder, holder_here
from bookwarden.metastore.interface import MetadataStore
from bookwarden.processes import has_certainly_ended

MOVE_PATH: Final = "/bookwarden/bookie-clusters-move"
_FORMAT: Final = 1
_OWNER: Final = re.compile(r"[0-9a-f]{8}")


class MovePhase(enum.Enum):
    """The phase of a move; a later command may find that it has to go back."""

    AHEAD = "COPYING_AHEAD"  #: Brokers write to the source, and what is closed is copied.
    STOPPING = "WAITING_FOR_STOP"  #: Brokers have to be stopped.
    REST = "COPYING_REST"  #: They were seen stopped; the rest is recovered, copied and compared.
    DONE = "DONE"  #: Everything was found the same; brokers may start on the target.
    ABANDONED = "ABANDONED"  #: It was given up; brokers use the source.


@dataclass(frozen=True, slots=True)
class MoveRecord:
    """A move."""

    owner: str  #: In the custom metadata of each copy, eight hexadecimal digits; the same for all moves.
    source: LedgersRoot  #: Where ledgers are copied from.
    source_instance: str  #: Its INSTANCEID.
    target: LedgersRoot  #: Where they are copied to.
    target_instance: str  #: Its INSTANCEID.
    uri: str  #: The target's metadataServiceUri for brokers.
    folder: str  #: Where nodes are saved.
    phase: MovePhase  #: How far it is.
    saved: str = ""  #: The file with the nodes as they were when the brokers had stopped, or, before that, at first.
    #: INSTANCEIDs of clusters that ledgers were moved from: what is there is ours.
    former: frozenset[str] = frozenset()

    def is_between(self, sides: Sides) -> bool:
        """Return whether it is a move between these two, in this direction."""
        return (self.source_instance, self.target_instance) == (sides.source.instance, sides.target.instance)


@dataclass(frozen=True, slots=True)
class FoundMove:
    """The record as it was read."""

    record: MoveRecord
    version: int


def next_record(found: FoundMove | None, sides: Sides, folder: str) -> MoveRecord:
    """Return the record of a move between these two, begun or carried on; RefusedError while another is under way."""
    before = None if found is None else found.record
    if before is not None and before.is_between(sides):
        if before.phase in (MovePhase.DONE, MovePhase.ABANDONED):
            before = replace(before, phase=MovePhase.AHEAD, saved="")
        return replace(before, folder=folder, uri=sides.broker_uri)
    if before is not None and before.phase not in (MovePhase.DONE, MovePhase.ABANDONED):
        raise refused(
            f"a move from {before.source.ledgers_root} in {before.source.url} to {before.target.ledgers_root} in "
            f"{before.target.url} is under way ({before.phase.value}): carry it on, or give it up with --abandon"
        )
    former = frozenset[str]() if before is None else before.former
    if before is not None and before.phase is MovePhase.DONE:
        former |= {before.source_instance}
    return MoveRecord(
        secrets.token_hex(4) if before is None else before.owner,
        sides.source.place,
        sides.source.instance,
        sides.target.place,
        sides.target.instance,
        sides.broker_uri,
        folder,
        MovePhase.AHEAD,
        former=former,
    )


def owner_of_move_to(store: MetadataStore, instance: str) -> str | None:
    """Return the owner mark of the copies that a move made in the cluster of this INSTANCEID; None if none did."""
    found = MoveNode(store).read()
    return None if found is None or found.record.target_instance != instance else found.record.owner


class MoveNode:
    """The record's node."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    def read(self) -> FoundMove | None:
        """Read it, never older than this call; None if nothing was ever moved, FormatError if it is no record."""
        self._store.sync()
        node = self._store.get(MOVE_PATH)
        return None if node is None else FoundMove(_parse(node.value), node.version)

    def write(self, record: MoveRecord) -> None:
        """Write it; RefusedError where another client writes at the same time."""
        found = self.read()
        value = _serialize(record)
        try:
            if found is None:
                self._store.create(MOVE_PATH, value, make_parents=True)
            elif record != found.record:
                self._store.put(MOVE_PATH, value, found.version)
        except (LostRaceError, OutcomeUnknownError) as error:
            now = self.read()
            if now is None or now.record != record:
                raise refused(f"{MOVE_PATH} was written by another client, or could not be: {error}") from error

    @contextmanager
    def held(self) -> Iterator[None]:
        """Work alone for the block; RefusedError while another process does.

        Two that work at once would do no harm, since each write is a compare-and-set; they would fail each other's.
        """
        own = self._store.ephemeral_sequential(f"{MOVE_PATH}/holder-", json.dumps(holder_here()).encode())
        try:
            other = self._holder_before(own)
            if other is not None:
                raise refused(f"{other} works at it: wait for its end, or stop it (its session ends some time later)")
            yield
        finally:
            # It ends with the session in any case.
            with suppress(StoreError):
                node = self._store.get(own)
                if node is not None:
                    self._store.delete_many([(own, node.version)])

    def _holder_before(self, own: str) -> str | None:
        for name in self._store.children_of(MOVE_PATH):
            path = f"{MOVE_PATH}/{name}"
            if path >= own:
                break
            node = self._store.get(path)
            if node is not None:
                holder = _json(node.value)
                if not isinstance(holder, dict) or not has_certainly_ended(holder):
                    return describe_holder(holder)
        return None


def _json(value: bytes) -> Any:
    try:
        return json.loads(value)
    except ValueError:
        return None


def _serialize(record: MoveRecord) -> bytes:
    fields = {
        "format": _FORMAT,
        "owner": record.owner,
        "source": _side(record.source, record.source_instance),
        "target": {**_side(record.target, record.target_instance), "metadataServiceUri": record.uri},
        "folder": record.folder,
        "phase": record.phase.value,
        "saved": record.saved,
        "former": sorted(record.former),
    }
    return json.dumps(fields, indent=1).encode()


def _side(place: LedgersRoot, instance: str) -> dict[str, str]:
    return {"storeUrl": place.url, "ledgersRoot": place.ledgers_root, "instance": instance}


def _parse(value: bytes) -> MoveRecord:
    try:
        fields: Any = json.loads(value)
        if fields["format"] != _FORMAT or _OWNER.fullmatch(fields["owner"]) is None:
            raise FormatError("another format")
        source, target = fields["source"], fields["target"]
        return MoveRecord(
            fields["owner"],
            LedgersRoot(source["storeUrl"], source["ledgersRoot"]),
            source["instance"],
            LedgersRoot(target["storeUrl"], target["ledgersRoot"]),
            target["instance"],
            target["metadataServiceUri"],
            fields["folder"],
            MovePhase(fields["phase"]),
            fields["saved"],
            frozenset(fields["former"]),
        )
    except (ValueError, KeyError, TypeError, FormatError) as error:
        raise FormatError(f"{MOVE_PATH} is no record of a move: {error}; find out who wrote it") from error
