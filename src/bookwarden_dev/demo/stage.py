"""The demo's servers: a Pulsar that offloads, the object store it offloads to, a bookie that collects on demand."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import urllib3

from bookwarden.bookie_clusters.broker_jar import PACKAGED
from bookwarden.errors import NotFoundError, ServerError
from bookwarden_dev.demo.topics import ENTRIES_PER_LEDGER
from bookwarden_dev.devcluster import ClusterOptions, DevCluster
from bookwarden_dev.devcluster.ports import LOOPBACK, free_ports
from bookwarden_dev.devcluster.releases.cache import Progress
from bookwarden_dev.devcluster.releases.distribution import ensure_distribution
from bookwarden_dev.devcluster.releases.versions import OFFLOADERS, marks_by_broker, offloads
from bookwarden_dev.devcluster.servers.object_store import ObjectStore
from bookwarden_dev.devcluster.servers.oxia import ensure_oxia
from bookwarden_dev.devcluster.servers.specs import load_runtime

BUCKET = "demo-archive"
#: By it a broker marks what leaves its metadata.
MARKING_STORAGE: Final = "bookwarden.broker.marks.MarkingManagedLedgerStorage"
# What it has not deleted by itself after some seconds it sends.
_BROKER_MARKS = {
    "managedLedgerStorageClassName": MARKING_STORAGE,
    "bookwardenMarksCheckAfterSeconds": "1",
    "bookwardenMarksSendAfterSeconds": "5",
}
_STORE_NAMES = {"zookeeper": "ZooKeeper", "oxia": "Oxia"}


@dataclass(frozen=True, slots=True)
class Stage:
    """The running servers."""

    cluster: DevCluster
    objects: ObjectStore
    garbage: GarbageOnDemand

    @property
    def offloads(self) -> bool:
        """Whether the broker has an offloader."""
        return self.cluster.options.offload

    @property
    def marks(self) -> bool:
        """Whether the broker marks what leaves its metadata."""
        return self.cluster.options.broker_jar is not None

    @property
    def store_name(self) -> str:
        """The metadata store's name for people."""
        return _STORE_NAMES[self.cluster.options.metadata]

    @property
    def offload_settings(self) -> dict[str, Any]:
        """The settings of bookwarden's section `offload`."""
        return {"stores": [self.objects.sweep_settings(BUCKET)]}


def packaged_jar() -> Path:
    """Return the jar for brokers of this installation; raise NotFoundError where it has none."""
    if not PACKAGED.is_file():
        raise NotFoundError(f"there is no {PACKAGED}: run `make broker-jar`, or install the wheel of a release")
    return PACKAGED


@contextmanager
def running_stage(home: Path, progress: Progress, servers: ClusterOptions) -> Iterator[Stage]:
    """Run the servers for the block, with all their files in this home.

    ``servers`` says of which version they are, and where their metadata is. The broker offloads and marks where this
    version does.
    """
    ports, version = free_ports(2), servers.pulsar
    objects, garbage = ObjectStore(home, ports[0]), GarbageOnDemand(ports[1])
    options = replace(
        servers,
        max_entries_per_ledger=ENTRIES_PER_LEDGER,
        offload=offloads(version),
        broker_settings={
            **(objects.broker_settings(BUCKET) if offloads(version) else {}),
            **(_BROKER_MARKS if marks_by_broker(version) else {}),
        },
        broker_jar=str(packaged_jar()) if marks_by_broker(version) else None,
        broker_environment=objects.broker_environment,
        bookie_settings=garbage.bookie_settings,
    )
    cluster = DevCluster(home, options, avoid=ports, progress=progress)
    # First the requirements that may be missing, such as Java.
    load_runtime(version, progress)
    if options.offload:
        ensure_distribution(OFFLOADERS[version], progress=progress)
    if options.metadata == "oxia":
        ensure_oxia(progress=progress)
    progress(f"starting an object store on {objects.endpoint}")
    # It starts while Pulsar does.
    with objects, cluster:
        objects.create_bucket(BUCKET)
        yield Stage(cluster, objects, garbage)


class GarbageOnDemand:
    """Lets a bookie collect its garbage when asked, and by itself only after an hour.

    For clusters made with ``bookie_settings`` among their options.
    """

    def __init__(self, port: int) -> None:
        self._url = f"http://{LOOPBACK}:{port}/api/v1/bookie/gc"
        self.bookie_settings = {
            "httpServerEnabled": "true",
            "httpServerHost": LOOPBACK,
            "httpServerPort": str(port),
            # Milliseconds, also before the first; a bookie does not start with more than minorCompactionInterval.
            "gcWaitTime": "3600000",
        }

    def collect(self) -> None:
        """Start a collection of the bookie, unless one is under way; raise ServerError if it does not."""
        with urllib3.PoolManager(retries=False, timeout=10.0) as pool:
            try:
                status = pool.request("PUT", self._url).status
            except urllib3.exceptions.HTTPError as error:
                raise ServerError(f"the bookie cannot be asked to collect its garbage: {error}") from error
        if status != 200:
            raise ServerError(f"the bookie answered {status} when asked to collect its garbage: see its log")
