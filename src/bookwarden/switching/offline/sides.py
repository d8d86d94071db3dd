"""The two bookie clusters of a move without the jar, looked at; what would make them one is refused."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from bookwarden.errors import ConfigError, RefusedError, StoreError
from bookwarden.findings import some
from bookwarden.ledgers.custom_metadata import COPY_KEY
from bookwarden.ledgers.metadata import ClusterSeen
from bookwarden.switching.owners import is_marked
from bookwarden.switching.ports import ClusterMetadata, OpensCluster, Place
from bookwarden.switching.registering import looked, of_metadata, overlap, roots_in_one_store

_SOURCE, _TARGET = "that the settings name", "of --target-uri"
_ALL_IN_ONE = "metadata-store:"
_DEFAULT_ROOT = "/ledgers"
_SHOWN = 3


class TargetUri(NamedTuple):
    """The target as the operator names it."""

    uri: str  #: Its metadataServiceUri.
    place: Place  #: Parsed from it.
    authority: str  #: HOST:PORT/ROOT of it, as a URI has it after its scheme.


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two bookie clusters."""

    place: Place
    instance: str  #: What its INSTANCEID says.
    metadata: ClusterMetadata


@dataclass(frozen=True, slots=True)
class Sides:
    """The source and the target of a move."""

    source: Side
    target: Side
    broker_uri: str  #: The ``bookkeeperMetadataServiceUri`` by which stock brokers find the target.


def find_sides(open_cluster: OpensCluster, pulsar_url: str, source: Place, target: TargetUri) -> Sides:
    """Look at both; RefusedError with all reasons where they are not two clusters that stock brokers can use.

    StoreError where one does not answer.
    """
    one, other = open_cluster(source), open_cluster(target.place)
    here, there = looked(one, _SOURCE), looked(other, _TARGET)
    reasons = [*of_metadata(source, here), *of_metadata(target.place, there)]
    if not reasons:
        reasons += _not_two(open_cluster, (one, here), (other, there))
    uri = None if reasons else _broker_uri(open_cluster(Place(pulsar_url, _DEFAULT_ROOT)), there, target)
    if not reasons and uri is None:
        reasons.append(
            f"brokers without the jar take {_ALL_IN_ONE} for Pulsar's own store, whatever host it names, and would "
            f"never look into {target.place.url}: use a bookie cluster whose metadata is in a ZooKeeper, or the jar"
        )
    if reasons or uri is None:
        raise refused("; ".join(reasons))
    return Sides(
        Side(source, here.instance or "", one),
        Side(target.place, there.instance or "", other),
        uri,
    )


def require_no_foreign(target: Side, owner: str) -> None:
    """Raise RefusedError where the target has a ledger that is no copy of this move."""
    foreign: list[str] = []
    count = 0
    for ledger_id, custom in target.metadata.custom_metadata():
        if custom is None or COPY_KEY not in custom or not is_marked(custom, owner):
            count += 1
            if len(foreign) < _SHOWN:
                foreign.append(str(ledger_id))
    if count:
        raise refused(
            f"{count:,} ledgers are below {target.place.ledgers_root} in {target.place.url} that this move did not "
            f"copy there, such as {', '.join(foreign)}: a ledger of the source with such an id could not be copied, "
            "and brokers would read the other one. Use an empty bookie cluster"
        )


def instance_at(open_cluster: OpensCluster, place: Place) -> str | None:
    """Return the INSTANCEID at a place; None where it has none, or is not reached from here."""
    try:
        return open_cluster(place).look().instance
    except (StoreError, ConfigError):
        return None


def refused(reason: str) -> RefusedError:
    """Make the error of a move that does not begin, or does not go on."""
    return RefusedError(f"the ledgers are not moved: {reason}")


def _not_two(
    open_cluster: OpensCluster, source: tuple[ClusterMetadata, ClusterSeen], target: tuple[ClusterMetadata, ClusterSeen]
) -> Iterator[str]:
    (one, here), (_, there) = source, target
    if here.instance == there.instance:
        yield (
            f"{one.ledgers_root} in {one.url}, which metadata_store.bookkeeper_url and ledgers_root name, and the "
            f"target both have the INSTANCEID {here.instance}: they are one cluster, or one is a copy of the other"
        )
        return
    roots = roots_in_one_store(open_cluster, source, target)
    if roots is not None and overlap(*roots):
        yield (
            f"the roots {roots[0]} and {roots[1]} are in one store, and one begins with the other, so that brokers "
            "would take ledgers of one for those of the other: initialise the target at a root such as /bookies-b"
        )
    common = sorted(here.bookies & there.bookies)
    if common:
        yield (
            f"{some(common)} in both clusters (registered, or with a cookie): a bookie belongs to one cluster. "
            "Decommission it in one of them"
        )


def _broker_uri(own: ClusterMetadata, there: ClusterSeen, wanted: TargetUri) -> str | None:
    """Return the URI for broker.conf; None where there is none. ``own`` is what ``metadata-store:`` means to brokers.

    Source: AbstractMetadataDriver of pulsar-metadata 4.0: with ``metadata-store:`` a broker uses its own metadata
    store, of which the URI names nothing, and the ledgers root is ``/ledgers``.
    """
    if not wanted.uri.startswith(_ALL_IN_ONE):
        return wanted.uri
    if looked(own, "in Pulsar's own store").is_same(there):
        return wanted.uri
    return f"zk+hierarchical://{wanted.authority}" if wanted.place.url.startswith("zk:") else None
