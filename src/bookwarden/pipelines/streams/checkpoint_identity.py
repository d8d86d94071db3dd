"""The identity of the Pulsar cluster of a checkpoint, kept next to it: another cluster's checkpoint is refused.

It is a file of its own, so that a release that knows nothing of it reads the checkpoint as before; afterwards the file
is still true. A checkpoint without it, as of 0.1.0, is taken for that of the settings' cluster.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Protocol

from py4j.protocol import Py4JError, Py4JJavaError
from pydantic import Field
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from bookwarden.bookie_clusters.offline.record import MoveNode
from bookwarden.bookie_clusters.registry_node import RegistryNode
from bookwarden.clusters.bookkeeper.bookie_cluster import read_instance
from bookwarden.clusters.pulsar.rest.topic_positions import read_positions
from bookwarden.errors import FormatError, RefusedError, SparkError
from bookwarden.ledgers.cluster_identity import ClusterIdentity
from bookwarden.pipelines.folders import Folder
from bookwarden.records import decode_record, encode_record
from bookwarden.wiring.cluster import Cluster

logger = logging.getLogger(__name__)

IDENTITY_FILE: Final = "identity.json"
_FORMAT: Final = 1
# Of clusters in a cluster's metadata; it stands for all of them.
_GLOBAL: Final = "global"


@dataclass(frozen=True, slots=True)
class CheckpointIdentity(ClusterIdentity):
    """The identity of a checkpoint: that of its Pulsar cluster, and the facts that part its topics from others."""

    #: The first ledger of each partition; a topic's later ones have larger ids.
    first_ledgers: Annotated[Mapping[str, int], Field(alias="firstLedgers")] = field(default_factory=dict)

    def difference(self, found: ClusterIdentity) -> str | None:
        """Return what shows that `found` is not what this was recorded of; None where nothing does."""
        difference = ClusterIdentity.difference(self, found)
        if difference is not None or not isinstance(found, CheckpointIdentity):
            return difference
        for topic, first in sorted(self.first_ledgers.items()):
            now = found.first_ledgers.get(topic, first)
            if now < first:
                return f"it holds {first} as the first ledger of {topic}, and found was {now}, an older one"
        return None

    def serialize(self) -> bytes:
        """Return the contents of the file."""
        return encode_record(self, _FORMAT)

    @classmethod
    def parse(cls, value: bytes) -> CheckpointIdentity:
        """Parse the contents of the file; FormatError if it is of another format, or damaged."""
        return decode_record(cls, value, _FORMAT)


class IdentityFile(Protocol):
    """The file next to a checkpoint."""

    folder: str  #: The checkpoint's folder, for people.

    def read(self) -> bytes | None:
        """Read it; None if there is none."""

    def write(self, value: bytes) -> None:
        """Write it, whole or not at all."""

    def has_checkpoint(self) -> bool:
        """Return whether the checkpoint was begun."""


def identity_file_of(spark: SparkSession, location: str) -> IdentityFile:
    """Return the file in the folder of a query's checkpoint, on whatever file system Spark keeps that.

    SparkError if Spark has no such file system.
    """
    file = SparkIdentityFile(spark, location)
    # Spark's writer of checkpoints on a local file system (pipelines.session) replaces no file, and says so in its log
    # alone.
    path = file.local_path
    return file if path is None else FolderIdentityFile(path, begun=file.has_checkpoint())


class SparkIdentityFile:
    """The file in the folder of a query's checkpoint, on a file system that only Spark reaches."""

    def __init__(self, spark: SparkSession, location: str) -> None:
        jvm: Any = spark._jvm
        session: Any = spark._jsparkSession
        with _translated(location):
            self._path_of: Callable[..., Any] = jvm.org.apache.hadoop.fs.Path
            conf = session.sessionState().newHadoopConf()
            path = self._path_of(location)
            self._path = path.getFileSystem(conf).makeQualified(path)
            #: As Spark resolves it.
            self.folder = str(self._path.toString())
            # What Spark writes its own files of a checkpoint with: each is whole or absent.
            managers = jvm.org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager
            self._files = managers.create(self._path, conf)

    @property
    def local_path(self) -> str | None:
        """The folder on this machine's file system; None on another file system."""
        with _translated(self.folder):
            uri = self._path.toUri()
            return str(uri.getPath()) if uri.getScheme() == "file" else None

    def read(self) -> bytes | None:
        """Read it; None if there is none. SparkError if the file system does not answer."""
        with _translated(self.folder):
            path = self._path_of(self._path, IDENTITY_FILE)
            if not self._files.exists(path):
                return None
            stream = self._files.open(path)
            try:
                return bytes(stream.readAllBytes())
            finally:
                stream.close()

    def write(self, value: bytes) -> None:
        """Write it, whole or not at all; SparkError if that fails."""
        with _translated(self.folder):
            self._files.mkdirs(self._path)
            stream = self._files.createAtomic(self._path_of(self._path, IDENTITY_FILE), True)
            stream.write(value)
            stream.close()
        # Where a file system does not replace a file, Spark says so in its log alone.
        if self.read() != value:
            raise SparkError(f"{self.folder}/{IDENTITY_FILE} could not be replaced: see Spark's log")

    def has_checkpoint(self) -> bool:
        """Return whether a query began there; SparkError if the file system does not answer."""
        with _translated(self.folder):
            return bool(self._files.exists(self._path_of(self._path, "metadata")))


@contextmanager
def _translated(location: str) -> Iterator[None]:
    """Raise SparkError for an error of the JVM's in the block, or if there is no JVM any more."""
    try:
        yield
    except (Py4JError, PySparkException, OSError) as error:
        said = str(error.java_exception.toString() if isinstance(error, Py4JJavaError) else error)
        raise SparkError(f"checkpoint {location} cannot be reached by Spark: {said.partition(chr(10))[0]}") from error


class FolderIdentityFile:
    """The file in a folder of state files; ``begun`` says whether there were any."""

    def __init__(self, location: str, *, begun: bool) -> None:
        self._files = Folder(location)
        self._begun = begun
        #: As the settings name it.
        self.folder = self._files.location

    def read(self) -> bytes | None:
        """Read it; None if there is none."""
        try:
            return self._files.read(IDENTITY_FILE)
        except FileNotFoundError:
            return None

    def write(self, value: bytes) -> None:
        """Write it, whole or not at all."""
        self._files.write(IDENTITY_FILE, lambda sink: sink.write(value), durable=True)

    def has_checkpoint(self) -> bool:
        """Return whether there were state files."""
        return self._begun


def require_own(file: IdentityFile, found: CheckpointIdentity, setting: str) -> None:
    """Raise RefusedError if a checkpoint is another cluster's, else record whose it is; ``setting`` names its folder.

    FormatError if what was recorded cannot be read.
    """
    written = file.read()
    if written is None:
        if file.has_checkpoint():
            logger.warning(
                "%s does not say whose checkpoint it is, as those of 0.1.0 do not: it is taken for that of %s",
                *(file.folder, found.text),
            )
        file.write(found.serialize())
        return
    try:
        recorded = CheckpointIdentity.parse(written)
    except FormatError as error:
        raise FormatError(
            f"{file.folder}/{IDENTITY_FILE} says whose checkpoint it is, and cannot be read: {error}; move the folder "
            "away, or remove that file if the checkpoint is certainly this cluster's"
        ) from error
    difference = recorded.difference(found)
    if difference is not None:
        raise RefusedError(
            f"{file.folder} is the checkpoint of another cluster or of topics that were made again: {difference}. "
            f"Give each cluster a {setting} of its own, or move this folder away, and start again; if it is certainly "
            f"this cluster's, remove {IDENTITY_FILE} in it"
        )
    if recorded != found:
        file.write(found.serialize())


def identity_of(cluster: Cluster) -> CheckpointIdentity:
    """Read the identity of the cluster now, without its topics.

    Raises StoreError when a store does not answer, FormatError for a registry or record that cannot be read.
    """
    bookkeeper, store = cluster.bookkeeper, cluster.store
    registry = RegistryNode(store, cluster.url).read()
    move = MoveNode(store).read()
    instance = read_instance(bookkeeper.store, bookkeeper.place.ledgers_root)
    instances = {instance} if instance else set()
    if registry is not None:
        instances |= {known.instance.strip() for known in registry.registry.clusters.values()}
    if move is not None:
        record = move.record
        instances |= {one.strip() for one in (record.source_instance, record.target_instance, *record.former)}
    return CheckpointIdentity(
        frozenset(store.children_of("/admin/clusters")) - {_GLOBAL},
        "" if registry is None else registry.registry.owner,
        frozenset(instances),
    )


def first_ledgers(cluster: Cluster, *topics: str) -> dict[str, int]:
    """Read the first ledger of each partition of these topics; raises PulsarError."""
    partitions = [partition for topic in topics for partition in cluster.topics.partitions(topic)]
    return {partition: read_positions(cluster.admin, partition).earliest.ledger_id for partition in partitions}
