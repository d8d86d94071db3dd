"""Checks of both clusters as such: versions, settings and names of brokers, flags, and what moves topics by itself."""

from __future__ import annotations

import re
from typing import Final

from bookwarden.cluster_migration.readiness.findings import Results, good, loses, or_good, stalls, warns
from bookwarden.cluster_migration.sides.values import ClusterInfo, Observations
from bookwarden.findings import some

INTERVAL: Final = "clusterMigrationCheckDurationSeconds"
AUTO_RESOURCES: Final = "clusterMigrationAutoResourceCreation"
THREADS: Final = "numExecutorThreadPoolSize"
BALANCING: Final = "loadBalancerEnabled"
SHEDDING: Final = "loadBalancerSheddingEnabled"
SPLITTING: Final = "loadBalancerAutoBundleSplitEnabled"
#: Without the repairs of ap#23764 and ap#23767 the flag of a namespace is lost, and brokers gate their own topics.
_OLDEST: Final = ((3, 3, 4), (4, 0, 2))
# Before ap#26051 brokers wait for an address in the pool that has to bring it (AbstractTopic.getMigratedClusterUrl).
_REDIRECTS_WITHOUT_WAITING: Final = (4, 2, 4)
# A rolling restart takes less than this from one broker to the next.
_JUST_STARTED_S: Final = 600
_PREPARE: Final = "`bookwarden cluster-migration prepare`"


def versions(seen: Observations) -> Results:
    """Check that blue's brokers are new enough to be migrated."""
    brokers = seen.blue.brokers
    if not brokers:
        yield stalls(
            "no broker of blue is registered", "start the brokers; check cluster_migration.blue.metadata_store"
        )
        return
    old = [f"{one.name} is {one.version}" for one in brokers if one.version and not is_new_enough(one.version)]
    unknown = [f"{one.name}: {one.error}" for one in brokers if not one.version]
    if old:
        yield stalls(f"too old: {some(old)}", "upgrade blue's brokers to 4.0.2 or newer (3.3.4 in 3.3)", evidence=old)
    if unknown:
        yield stalls(f"of unknown version: {some(unknown)}", "make sure of it: blue needs 4.0.2", evidence=unknown)
    if not old and not unknown:
        yield good(f"{len(brokers)} of blue, of version {', '.join(sorted({one.version or '' for one in brokers}))}")


def intervals(seen: Observations) -> Results:
    """Check that every broker of blue looks for topics to migrate, all of them equally often."""
    settings = seen.blue.settings(INTERVAL)
    if not settings:
        yield loses("no broker of blue reported its settings", "start the brokers")
    silent = [f"{name}: {_error(seen.blue, name)}" for name, value in settings.items() if value is None]
    off = [name for name, value in settings.items() if value is not None and not _positive(value)]
    if silent:
        yield loses(f"{INTERVAL} is not known of {some(silent)}", "let our role read it (superuser)", evidence=silent)
    if off:
        yield loses(
            f"{INTERVAL} is 0 on {some(off)}: topics that are loaded stay on blue, others go to green",
            f"set {INTERVAL}=60 in broker.conf of all of blue's brokers and restart them, days before",
            evidence=off,
        )
    yield from _redirecting_threads(seen)
    values = seen.blue.values_of(INTERVAL)
    if len(values) > 1:
        yield loses(
            f"{INTERVAL} differs: {some([f'{name} has {value}' for name, value in settings.items()])}",
            "set one value on all brokers of blue, and restart them",
        )
    creating = [name for name, value in seen.blue.settings(AUTO_RESOURCES).items() if (value or "").lower() == "true"]
    if creating:
        yield warns(
            f"{AUTO_RESOURCES} is on on {some(creating)}: what fails of it keeps topics on blue, with a line in a log",
            f"set it to false: {_PREPARE} makes what green lacks, and more of it",
            evidence=creating,
        )
    if settings and not silent and not off and len(values) == 1:
        yield good(f"all brokers of blue look every {min(values)} s")


def _redirecting_threads(seen: Observations) -> Results:
    """Judge whether brokers can redirect all clients at once: each takes a thread, which waits for another of them."""
    clients = sum(
        topic.producers + sum(one.consumers for one in topic.subscriptions)
        for ours, _ in seen.pairs()
        for topic in ours.topics.values()
    )
    few = [
        f"{one.name} has {threads}"
        for one in seen.blue.brokers
        if (_numbers(one.version or "") or (0,)) < _REDIRECTS_WITHOUT_WAITING
        and (threads := (one.settings or {}).get(THREADS, "")).isdigit()
        and int(threads) <= clients
    ]
    if few:
        yield warns(
            f"{THREADS}: {some(few)}, and {clients} clients are connected: while as many are sent to green at once "
            "the broker waits for itself, 30 s each time, and they get errors",
            f"set {THREADS} to more than the clients that move at once in broker.conf of blue, {_threads_for(clients)} "
            "here, and restart; or move fewer at once",
            evidence=few,
        )


def _threads_for(clients: int) -> int:
    return min(1024, max(64, 1 << clients.bit_length()))


def names(seen: Observations) -> Results:
    """Check that blue's name is that of its brokers, and is registered; brokers take any other without a word."""
    name = seen.blue.cluster
    others = sorted({one for one in seen.blue.settings("clusterName").values() if one} - {name})
    if name not in seen.blue.clusters:
        yield stalls(
            f"blue is called {name!r} in the settings, and its clusters are {some(sorted(seen.blue.clusters))}",
            "correct cluster_migration.blue.cluster, or leave it empty",
        )
    elif others:
        yield stalls(
            f"blue's brokers call their cluster {some(others)}, the settings {name!r}",
            "correct cluster_migration.blue.cluster, or leave it empty",
        )
    else:
        yield good(f"blue is {name}, green is {seen.green.cluster}")


@or_good("neither cluster is migrated, nor a namespace of the scope")
def flags(seen: Observations) -> Results:
    """Check that green is not migrated itself, and of blue not everything at once."""
    green = seen.green.flag
    if green is not None and green.migrated:
        yield loses(
            f"green is migrated itself, to {green.urls.broker_service_url or green.urls.broker_service_url_tls}",
            "take its flag off, on green: `pulsar-admin clusters update-cluster-migration --migrated false`",
        )
    onward = [name for name in seen.scope if name in seen.green.flagged]
    if onward:
        yield loses(
            f"migrated on green itself: {some(onward)}",
            "take the flag of these namespaces off on green",
            evidence=onward,
        )
    elif seen.green.flagged:
        yield warns(
            f"namespaces of green are migrated: {some(list(seen.green.flagged))}",
            "they are not of this migration; know where they go",
            evidence=seen.green.flagged,
        )
    if seen.blue.flag is not None and seen.blue.flag.migrated:
        yield stalls(
            "the whole of blue is flagged as migrated: no topic of it that is not loaded can be loaded any more",
            "take the cluster's flag off, and move namespaces",
        )
    for name in seen.scope:
        if name in seen.blue.flagged:
            yield warns("its flag is on already", "follow it: `cluster-migration watch`", name)


def balancing(seen: Observations) -> Results:
    """Check that nothing moves or splits bundles of blue, and no restart is under way: a topic that is loaded again
    never comes back.
    """
    side = seen.blue
    if not side.brokers:
        yield loses("no broker of blue reported its settings", "start the brokers")
        return
    yield from _just_started(seen)
    if side.all_have(BALANCING, "false"):
        yield good("blue's load balancer is off; restart none of its brokers")
        return
    silent = [name for name, value in side.settings(BALANCING).items() if value is None]
    if silent:
        yield loses(f"{BALANCING} is not known of {some(silent)}", "let our role read it (superuser)", evidence=silent)
    moving = [name for name, value in side.settings(SHEDDING).items() if (value or "true").lower() == "true"]
    splitting = [name for name, value in side.settings(SPLITTING).items() if (value or "true").lower() == "true"]
    for brokers, setting in ((moving, SHEDDING), (splitting, SPLITTING)):
        if brokers:
            yield loses(
                f"{setting} is on on {some(brokers)}: the backlog of each topic that it moves is stranded",
                f"`pulsar-admin brokers update-dynamic-config --config {setting} --value false`, or {BALANCING}=false "
                "in broker.conf and a restart before",
                evidence=brokers,
            )
    if not silent and not moving and not splitting:
        yield good("blue's load balancer moves and splits nothing; restart none of its brokers")


def _just_started(seen: Observations) -> Results:
    since = {one.name: (seen.at_ms - one.registered_ms) / 1000 for one in seen.blue.brokers if one.registered_ms}
    young = [f"{name} {seconds / 60:.0f} min ago" for name, seconds in since.items() if seconds < _JUST_STARTED_S]
    if young:
        yield warns(
            f"started just now: {some(young)}; a broker that restarts behind the flag strands what it had loaded",
            "let a rolling restart end before `start`",
            evidence=young,
        )


def is_new_enough(version: str) -> bool:
    """Return whether a broker of this version can be migrated; one that cannot be read cannot."""
    numbers = _numbers(version)
    if numbers is None:
        return False
    return numbers >= _OLDEST[1] or (numbers[:2] == (3, 3) and numbers >= _OLDEST[0])


def _numbers(version: str) -> tuple[int, ...] | None:
    found = re.match(r"(\d+)\.(\d+)(?:\.(\d+))?", version)
    return None if found is None else tuple(int(part or 0) for part in found.groups())


def _positive(value: str) -> bool:
    return value.lstrip("-").isdigit() and int(value) > 0


def _error(side: ClusterInfo, name: str) -> str:
    return next((one.error or "not reported" for one in side.brokers if one.name == name), "not reported")
