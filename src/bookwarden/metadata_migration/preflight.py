"""Would a migration of the metadata store succeed? Judged from observations, before anything is begun.

The lines rest on DualMetadataStore, MigrationCoordinator and MetadataMigrationBase of Pulsar 4.2.4; the remedy for each
is in docs/metadata-migration.md, under the line's name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from bookwarden.clusters.pulsar.rest.registered_brokers import RegisteredBroker
from bookwarden.findings import Finding, Found, fails, ok, some, warns
from bookwarden.metadata_migration.control import SourceObservations
from bookwarden.metadata_migration.watching import PARTICIPANTS_LIMIT_SECONDS, PROPOSED_BYTES, PROPOSED_SECONDS
from bookwarden.metastore.interface import TargetSeen

_PROPOSED_BYTES_PER_SECOND: Final = PROPOSED_BYTES / PROPOSED_SECONDS
# Measured of a broker of 4.2.4 (docs/metadata-migration.md, "size"): 20,250 nodes in 1.9 s.
_NODES_PER_SECOND: Final = 10_000.0
_WAITED: Final = f"{PARTICIPANTS_LIMIT_SECONDS:.0f} s"
# The copy ends after a second without further nodes.
_LAST_LOOK_SECONDS: Final = 1.0
_OLDEST: Final = (4, 2)
# The most that Oxia's clients accept in a response, less the overhead of a value.
_LARGEST_VALUE: Final = 4 * 1024 * 1024 - 16 * 1024


# While the first fails no migration is possible; with the second it would be another cluster's; with the third topics
# would lose ledgers.
NEVER_SKIPPED: Final = frozenset({"flag", "cluster", "bookie clusters"})


def evaluate(seen: SourceObservations) -> list[Finding]:
    """List all lines, in the best order to deal with them."""
    return [Finding(check, *found) for check, line in _LINES.items() for found in line(seen)]


def estimate_seconds(nodes: int, size: int) -> float:
    """Estimate the seconds that it takes to copy these nodes and bytes."""
    return max(size / _PROPOSED_BYTES_PER_SECOND, nodes / _NODES_PER_SECOND) + _LAST_LOOK_SECONDS


def _flag(seen: SourceObservations) -> Iterator[Found]:
    if seen.phase is None:
        yield ok("no migration was begun before")
        return
    advice = {
        "PREPARATION": "one is under way: `bookwarden metadata-migration watch`",
        "COPYING": "one is under way: `bookwarden metadata-migration watch`",
        "COMPLETED": "this store was moved already; never remove that flag",
        "FAILED": "restart all brokers and bookies, empty the target, then remove the flag",
    }.get(seen.phase, "find out who wrote it, then remove it")
    yield fails(f"there is a flag already: {seen.phase}, to {seen.flag_target or '-'}", advice)


def _brokers(seen: SourceObservations) -> Iterator[Found]:
    if not seen.brokers:
        yield fails(
            "no broker is registered in the source",
            "name the brokers' metadataStoreUrl with --source; start the brokers",
        )
        return
    old = [broker for broker in seen.brokers if broker.version and not is_new_enough(broker.version)]
    unknown = [broker for broker in seen.brokers if not broker.version]
    if old:
        text = some([f"{broker.name} is {broker.version}" for broker in old])
        yield fails(text, "upgrade all brokers to 4.2 or newer first")
    elif seen.admin_error:
        yield fails(seen.admin_error, "check pulsar.admin_url and the rights of our role")
    elif unknown:
        text = some([f"{broker.name}: {broker.error}" for broker in unknown])
        yield warns(f"of unknown version: {text}", "make sure that it is 4.2 or newer")
    else:
        versions = ", ".join(sorted({broker.version or "" for broker in seen.brokers}))
        yield ok(f"{len(seen.brokers)} registered, of version {versions}")


def _cluster(seen: SourceObservations) -> Iterator[Found]:
    if not seen.brokers or not seen.admin_brokers:
        return
    if {broker.name for broker in seen.brokers}.isdisjoint(seen.admin_brokers):
        yield fails(
            f"the broker of pulsar.admin_url is of a cluster with {some(list(seen.admin_brokers))}, none of which is "
            "registered in the source: another cluster would be moved",
            "set pulsar.admin_url to a broker of this cluster, or --source to its store",
        )
    else:
        yield ok("the broker of pulsar.admin_url is of the cluster that uses the source")


def _bookie_clusters(seen: SourceObservations) -> Iterator[Found]:
    registered = seen.registered
    if registered.problem:
        yield fails(registered.problem, "put the registry back first: `bookie-clusters registry import`")
    elif len(registered.names) > 1:
        yield fails(
            f"the bookie clusters {', '.join(registered.names)} are registered, and brokers with the jar do not follow "
            "a move of the metadata: without it each broker finds the ledgers of one cluster alone, and topics forget "
            "all others",
            "leave all clusters but one first (docs/howto/leave-bookie-clusters.md); no broker without the "
            "jar before that",
        )
    elif registered.names:
        yield ok(f"{registered.names[0]} alone is registered, and ids are counted below {registered.id_root}")


def _broker_settings(seen: SourceObservations) -> Iterator[Found]:
    faults = [fault for broker in seen.brokers for fault in _faults_of(broker, seen)]
    silent = [f"{broker.name}: {broker.error}" for broker in seen.brokers if broker.settings is None]
    yield from faults
    if silent:
        yield warns(
            f"not reported by {some(silent)}",
            "check zookeeperSessionExpiredPolicy and bookkeeperMetadataServiceUri there",
        )
    elif seen.brokers and not faults:
        yield ok("all brokers follow with BookKeeper's metadata too, and stay up without the source's session")


def _faults_of(broker: RegisteredBroker, seen: SourceObservations) -> Iterator[Found]:
    settings = broker.settings or {}
    if settings.get("zookeeperSessionExpiredPolicy") == "shutdown":
        yield fails(
            f"{broker.name} has zookeeperSessionExpiredPolicy=shutdown: it ends when the migration begins",
            "set it to reconnect and restart the broker",
        )
    uri = settings.get("bookkeeperMetadataServiceUri", "")
    if uri and not uri.startswith("metadata-store:"):
        yield fails(f"{broker.name} reaches BookKeeper's metadata by {uri}, which does not follow", _way_to(seen))


def _way_to(seen: SourceObservations) -> str:
    """Return how to have brokers reach BookKeeper's metadata in a way that follows; never where ledgers get lost."""
    registered = seen.registered
    if registered.problem or len(registered.names) > 1:
        return "leave it as it is: see the line on bookie clusters"
    if not registered.counts_itself:
        return (
            f"stop all brokers, then `bookie-clusters raise-ids --name {registered.names[0]}`, since ids are counted "
            f"below {registered.id_root}; then set bookkeeperMetadataServiceUri to metadata-store: and the source's "
            "URL, and start all brokers so (docs/howto/leave-bookie-clusters.md)"
        )
    return "set bookkeeperMetadataServiceUri to metadata-store: and the source's URL, or leave it empty; restart"


def _participants(seen: SourceObservations) -> Iterator[Found]:
    others = {
        session: paths
        for session, paths in seen.not_taking_part.items()
        if not _bookies_in(paths, seen) and not _is_bookwardens(paths, seen)
    }
    own = [paths for paths in seen.not_taking_part.values() if _is_bookwardens(paths, seen)]
    if not seen.participants:
        yield fails(
            "no process has registered: the copy would begin at once, and no process would follow",
            "restart all brokers and bookies: after a migration that failed they register when they start",
        )
    for paths in own:
        yield warns(
            f"bookwarden's own process that keeps {some(list(paths))} has not registered: it does within seconds once "
            f"a broker of 4.2 runs, and leaves within {seen.drain_limit_s:g} s of a migration's begin",
            "nothing before brokers are of 4.2; after that look again, and restart it if it is still named here",
        )
    for paths in others.values():
        yield fails(
            f"a process that has not registered keeps {some(list(paths))}: it would stay on the source",
            "find it by these nodes; restart it, upgrade it to 4.2, or stop it",
        )
    if seen.participants and not others and not own:
        ours = sum(whose.startswith("bookwarden") for whose in seen.participants.values())
        said = (
            f"{len(seen.participants)} registered, {ours} of them bookwarden's"
            if ours
            else (f"{len(seen.participants)} registered")
        )
        yield ok(f"{said}; every process with a session that keeps nodes is among them")


def _bookies(seen: SourceObservations) -> Iterator[Found]:
    native = sorted({bookie for paths in seen.not_taking_part.values() for bookie in _bookies_in(paths, seen)})
    if native:
        yield fails(
            f"{some(native)} did not register: of another metadataServiceUri than metadata-store:, or older than 4.2",
            "set metadataServiceUri=metadata-store:zk:... on each bookie, upgrade it to 4.2, restart",
        )
    absent = sorted(set(seen.bookies_known) - set(seen.bookies))
    if absent:
        yield warns(
            f"{some(absent)} has a cookie and does not run",
            "start it, or decommission it; when it comes back later, let its metadataServiceUri name the target",
        )
    if not seen.bookies and not native:
        yield warns(
            f"none is registered below {seen.ledgers_root} of the source",
            "BookKeeper's metadata elsewhere is not moved; check that the bookies run",
        )
    elif not native and not absent:
        yield ok(f"{len(seen.bookies)} registered, all of them as participants")


def _ledger_ids(seen: SourceObservations) -> Iterator[Found]:
    if not seen.has_numbered_ledgers:
        yield ok("no ledger of the source was numbered yet, or BookKeeper is elsewhere")
        return
    yield warns(
        "the counter of ledger ids is not copied: they begin at 1 again in the target, and ids of deleted ledgers come "
        "again while bookies may still have their entries",
        "right after COMPLETED: `bookwarden metadata-migration counters --execute`; read 'Counters' in "
        "docs/metadata-migration.md before",
    )


def _chroot(seen: SourceObservations) -> Iterator[Found]:
    if not seen.chroot:
        yield ok("the source has none")
        return
    yield warns(
        f"the source has the chroot {seen.chroot}: brokers and bookies of 4.2.4 delete their participant node by a "
        f"wrong path, and stay on the list; writes are blocked two minutes longer",
        "look in their logs for `Failed during migration preparation` before you trust the copy",
    )


def _target(seen: SourceObservations) -> Iterator[Found]:
    if isinstance(seen.target, str):
        yield fails(seen.target, "start it, check --target and the section metadata_store")
    elif seen.target.names:
        yield fails(
            f"not empty: it has {some([f'/{name}' for name in seen.target.names])}",
            "take an empty namespace; what is in this one would come alive with the cluster",
        )
    else:
        yield ok("answers, and is empty")


def _key_order(seen: SourceObservations) -> Iterator[Found]:
    if not isinstance(seen.target, TargetSeen):
        return
    if seen.target.hierarchical is None:
        yield warns(
            "an empty namespace does not show how it sorts its keys",
            "leave out --read-only: one key is written there, and deleted",
        )
    elif seen.target.hierarchical:
        yield ok("hierarchical")
    else:
        yield fails(
            "the target sorts its keys in natural order, and Pulsar finds no children there",
            "make the namespace with --key-sorting hierarchical",
        )


def _oxia_version(seen: SourceObservations) -> Iterator[Found]:
    if not isinstance(seen.target, TargetSeen):
        return
    if seen.target.is_0_15:
        yield ok("0.15 or newer")
        return
    yield warns(
        "older than 0.15; brokers that write at the same time can stop a shard of 0.14.0 and 0.14.1 for good, and "
        "versions and counts of modifications are not kept",
        "run 0.15 or newer",
    )


def _size(seen: SourceObservations) -> Iterator[Found]:
    survey = seen.survey
    seconds = estimate_seconds(survey.nodes, survey.size)
    text = (
        f"{survey.nodes:,} nodes, {survey.size / 1e6:,.1f} MB: copied in about {seconds:,.0f} s "
        f"(the proposal: {PROPOSED_SECONDS:.0f} s for 500 MB)"
    )
    if seconds <= PROPOSED_SECONDS:
        yield ok(text)
        return
    yield warns(
        text,
        "no topic, subscription, ledger or policy can be made or changed meanwhile: choose the hour; "
        "delete what is not needed first (`bookwarden orphans scan`)",
    )


def _node_size(seen: SourceObservations) -> Iterator[Found]:
    largest = seen.survey.largest
    if largest is None:
        return
    text = f"the largest is {largest.path} with {largest.size:,} bytes"
    if largest.size > _LARGEST_VALUE:
        yield fails(
            f"{text}, more than the {_LARGEST_VALUE:,} that Oxia's clients can read",
            "make it smaller: compress managedLedgerInfo and managedCursorInfo, trim the topic",
        )
    else:
        yield ok(text)


def _configuration_store(seen: SourceObservations) -> Iterator[Found]:
    others = sorted({broker.other_configuration for broker in seen.brokers if broker.other_configuration})
    if others:
        yield warns(
            f"the brokers' configurationMetadataStoreUrl is {some(others)}, and is not moved",
            "keep that ZooKeeper, and the setting, after the migration",
        )
    elif any(broker.settings is not None for broker in seen.brokers):
        yield ok("the same as the source, and moved with it")


def _other_stores(seen: SourceObservations) -> Iterator[Found]:
    if seen.other_stores:
        yield warns(
            f"the settings name {some(list(seen.other_stores))} as well, which is not moved",
            "each store is migrated by itself, by brokers that use it; keep those that are not",
        )


def _timeouts(seen: SourceObservations) -> Iterator[Found]:
    limit_ms = PARTICIPANTS_LIMIT_SECONDS * 1000
    timeouts = [
        (broker, (broker.settings or {}).get("metadataStoreSessionTimeoutMillis", "")) for broker in seen.brokers
    ]
    long = [f"{broker.name}: {value} ms" for broker, value in timeouts if value.isdigit() and int(value) >= limit_ms]
    if long:
        yield warns(
            f"metadataStoreSessionTimeoutMillis of {some(long)}: a broker that dies just before is waited for in vain",
            f"the copy begins after {_WAITED} all the same; see before that all brokers are well",
        )
    elif any(value.isdigit() for _, value in timeouts):
        yield ok(f"below the {_WAITED} that are waited for all")


def _bookwarden(seen: SourceObservations) -> Iterator[Found]:
    yield ok(
        f"a sweep leaves within {seen.drain_limit_s:g} s, or when its session of {seen.session_timeout_s:g} s ends"
    )


def is_new_enough(version: str) -> bool:
    """Return whether a broker of this version takes part in migrations; one that cannot be read does not."""
    found = re.match(r"(\d+)\.(\d+)", version)
    return found is not None and (int(found[1]), int(found[2])) >= _OLDEST


def _is_bookwardens(paths: tuple[str, ...], seen: SourceObservations) -> bool:
    """Return whether these are all nodes that bookwarden's own commands keep."""
    return bool(paths) and all(path.startswith(tuple(f"{lock}/" for lock in seen.own_locks)) for path in paths)


def _bookies_in(paths: tuple[str, ...], seen: SourceObservations) -> list[str]:
    """List the bookies whose registrations are among these paths."""
    available = f"{seen.ledgers_root}/available/"
    names = [path.removeprefix(available).removeprefix("readonly/") for path in paths if path.startswith(available)]
    return [f"bookie {name}" for name in names]


_LINES: Final[Mapping[str, Callable[[SourceObservations], Iterator[Found]]]] = {
    "flag": _flag,
    "brokers": _brokers,
    "cluster": _cluster,
    "bookie clusters": _bookie_clusters,
    "broker settings": _broker_settings,
    "participants": _participants,
    "bookies": _bookies,
    "ledger ids": _ledger_ids,
    "chroot": _chroot,
    "target": _target,
    "key sorting": _key_order,
    "oxia version": _oxia_version,
    "size": _size,
    "node size": _node_size,
    "configuration store": _configuration_store,
    "other stores": _other_stores,
    "session timeouts": _timeouts,
    "bookwarden": _bookwarden,
}
