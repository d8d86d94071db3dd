"""Sites whose servers files of tests share: brokers start anew for a file, bookies and stores run on."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import pytest

from bookwarden.bookie_clusters.registry import REGISTRY_PATH
from bookwarden.ledgers.metadata import DeleteResult
from bookwarden.metastore.interface import MetadataStore
from bookwarden.processes import command_line, descendants
from bookwarden_dev.devcluster import ServerProcess
from bookwarden_dev.devcluster.bookie_clusters import ClusterPlan, SwitchablePulsar
from bookwarden_dev.devcluster.ports import free_ports
from bookwarden_dev.devcluster.servers.settings import (
    PULSAR_VERSIONS,
    PULSARS_LEDGERS_ROOT,
    read_settings,
    write_settings,
)
from servers.metadata_tree import nodes_below
from servers.pool import ServerPool
from servers.switching.broker_jar import broker_jar
from servers.switching.site import SwitchingSite


@dataclass(frozen=True)
class SiteKind:
    """The servers of a site."""

    brokers: tuple[str, ...]  #: Their versions.
    clusters: tuple[ClusterPlan, ...]
    broker_settings: Mapping[str, str] = field(default_factory=dict)
    bookie_settings: Mapping[str, str] = field(default_factory=dict)
    bookie_rest: bool = False  #: Bookies have their REST, at the port that their settings have.


#: One more bookie of b than a ledger is on.
ONE_BROKER: Final = SiteKind(
    PULSAR_VERSIONS[:1],
    (ClusterPlan("a", PULSARS_LEDGERS_ROOT), ClusterPlan("b", "/bookies-b", bookies=3, own_zookeeper=True)),
    bookie_rest=True,
)
#: One more bookie of a than an ensemble needs.
BOTH_VERSIONS: Final = SiteKind(
    PULSAR_VERSIONS,
    (
        ClusterPlan("a", PULSARS_LEDGERS_ROOT, bookies=3),
        ClusterPlan("b", "/bookies-b"),
        ClusterPlan("c", "/bookies-c", own_zookeeper=True),
    ),
    # Few enough that a load fills several ledgers in some seconds.
    {"managedLedgerMaxEntriesPerLedger": "20"},
)
#: Auditors act as soon as a bookie's registration is gone.
REPLICATING: Final = SiteKind(
    PULSAR_VERSIONS,
    (ClusterPlan("a", PULSARS_LEDGERS_ROOT, bookies=3), ClusterPlan("b", "/bookies-b", bookies=3)),
    bookie_settings={
        "autoRecoveryDaemonEnabled": "true",
        "lostBookieRecoveryDelay": "0",
        # Milliseconds: those that are paused keep it.
        "zkTimeout": "40000",
        # In seconds.
        "auditorPeriodicBookieCheckInterval": "5",
        # In milliseconds: how long a ledger stays open whose bookie is lost.
        "openLedgerRereplicationGracePeriod": "1000",
        "rwRereplicateBackoffMs": "500",
    },
    bookie_rest=True,
)


class SharedServers:
    """The servers of a kind, and what their stores had before the first broker started."""

    def __init__(self, home: Path, kind: SiteKind) -> None:
        """Start stores and bookies."""
        self._pulsar = SwitchablePulsar(
            home,
            broker_jar(),
            clusters=kind.clusters,
            brokers=kind.brokers,
            broker_settings=kind.broker_settings,
            bookie_settings=kind.bookie_settings,
        )
        if kind.bookie_rest:
            for bookie, port in zip(self._bookies, free_ports(len(self._bookies)), strict=True):
                _override(bookie, {"httpServerEnabled": "true", "httpServerPort": str(port)})
        with ExitStack() as failed:
            failed.callback(self.kill)
            self._pulsar.start_bookies()
            with closing(SwitchingSite(self._pulsar)) as site:
                self._first = {url: _persistent(store) for url, store in site.stores.items()}
            failed.pop_all()

    @property
    def _bookies(self) -> list[ServerProcess]:
        return [bookie for cluster in self._pulsar.clusters.values() for bookie in cluster.processes]

    @property
    def servers(self) -> tuple[ServerProcess, ...]:
        """Those without which the others are of no use; the others are started again."""
        clusters = self._pulsar.clusters.values()
        return (self._pulsar.store, *(cluster.own_store for cluster in clusters if cluster.own_store is not None))

    def kill(self) -> None:
        """Kill all servers."""
        self._pulsar.kill()

    @contextmanager
    def site(self, broker_settings: Mapping[str, str], *, anew: bool) -> Iterator[SwitchingSite]:
        """Have all servers run for the block: see `shared_site`."""
        with closing(SwitchingSite(self._pulsar)) as site:
            for broker in self._pulsar.brokers:
                if anew or broker.settings != broker_settings:
                    broker.process.kill()
                    broker.settings.clear()
                    broker.settings.update(broker_settings)
            if anew:
                _end_spark_workers()
                self._bring_back(site)
            dead = [bookie for bookie in self._bookies if not bookie.is_running()]
            for bookie in dead:
                bookie.start(wait=False)
            for bookie in dead:
                bookie.wait_until_ready()
            if site.store.get(REGISTRY_PATH) is None:
                site.register(next(iter(self._pulsar.clusters)), "--bootstrap")
            self._pulsar.start_brokers()
            site.wait_until_followed()
            yield site

    def _bring_back(self, site: SwitchingSite) -> None:
        """Bring the stores back to what they had first, but for what running bookies registered, and ledger ids."""
        roots = tuple(f"{cluster.ledgers_root}/" for cluster in self._pulsar.clusters.values())
        for url, store in site.stores.items():
            first, now = self._first[url], nodes_below(store)
            # Bookies have known the ids that were given.
            gone = [
                path
                for path, node in now.items()
                if path not in first and "/idgen" not in path and not (node.ephemeral and path.startswith(roots))
            ]
            # What lies below something goes before it.
            for depth in sorted({path.count("/") for path in gone}, reverse=True):
                level = [(path, now[path].version) for path in gone if path.count("/") == depth]
                assert DeleteResult.LOST_RACE not in store.delete_many(level), level
            for path, value in first.items():
                if path not in now:
                    store.create(path, value)
                elif now[path].value != value:
                    store.put(path, value, now[path].version)


@contextmanager
def shared_site(
    pool: ServerPool,
    homes: pytest.TempPathFactory,
    kind: SiteKind,
    broker_settings: Mapping[str, str] | None = None,
    *,
    anew: bool = False,
) -> Iterator[SwitchingSite]:
    """Run a site of this kind for the block; other files have used its bookies, and perhaps its brokers.

    ``anew``: the first cluster alone is registered, and nothing of what was made before is there. Otherwise
    `SwitchingSite.ensure` brings the registry to where a test begins.
    """
    shared = pool.shared(repr(kind), lambda: SharedServers(homes.mktemp("switching"), kind))
    with shared.site(broker_settings or {}, anew=anew) as site:
        yield site


def _end_spark_workers() -> None:
    """Kill the Python workers of this process's Spark: producers that they keep would make topics that are gone.

    Spark's daemon stays, which reaps them, and so Spark gives no task to one that is dead.
    """
    for daemon in descendants(os.getpid()):
        if "pyspark.daemon" in command_line(daemon):
            for worker in descendants(daemon)[1:]:
                # It may end by itself.
                with suppress(ProcessLookupError):
                    os.kill(worker, signal.SIGKILL)


def _override(bookie: ServerProcess, settings: Mapping[str, str]) -> None:
    before = bookie.spec.command

    def command() -> list[str]:
        words = list(before())
        path = Path(words[-1])
        write_settings(path, {**read_settings(path), **settings})
        return words

    bookie.spec = replace(bookie.spec, command=command)


def _persistent(store: MetadataStore) -> dict[str, bytes]:
    return {path: node.value for path, node in nodes_below(store).items() if not node.ephemeral}
