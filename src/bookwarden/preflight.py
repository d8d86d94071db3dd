"""Checks before marks are sent or swept, and before Spark is started: causes of failure, a line each."""

from __future__ import annotations

import importlib.util
import logging
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pulsar

from bookwarden.clusters.pulsar.client_errors import translate
from bookwarden.clusters.pulsar.rest.admin import PulsarAdmin
from bookwarden.clusters.pulsar.rest.topics import Topics
from bookwarden.config import Settings, SweepSettings
from bookwarden.errors import (
    ConfigError,
    MissingExtraError,
    NotFoundError,
    PulsarUnavailableError,
    ServerError,
    SparkError,
)
from bookwarden.java import find_java
from bookwarden.wiring.cluster import Cluster
from bookwarden.wiring.offload import offload_stores_of
from bookwarden.wiring.pulsar import connection_of

logger = logging.getLogger(__name__)
_PATIENCE_S = 10
_PAGE: Final = 4_096
_LOCAL_MASTER: Final = re.compile(r"local(\[[^\]]*\])?")
#: Said before it: it takes seconds, in which nothing is heard of it.
STARTING_SPARK: Final = "starting Spark"


def require_topics(admin: PulsarAdmin, settings: Settings, *topics: str) -> None:
    """Raise NotFoundError unless the deletion topics exist and have their subscription.

    A producer would let the broker create a topic without one, which keeps nothing.
    """
    found = Topics(admin)
    for topic in topics:
        missing = found.why_nothing_is_kept(topic, settings.deletion.subscription)
        if missing is not None:
            raise NotFoundError(missing)


def require_marking(cluster: Cluster) -> None:
    """Raise PulsarError or NotFoundError if marks could not be sent, or would not be kept."""
    require_topics(cluster.admin, cluster.settings, cluster.settings.deletion.topic)
    _require_service_url(cluster.settings)


def require_sweeping(cluster: Cluster) -> None:
    """Raise PulsarError, NotFoundError or StoreError where a broker, a topic or a metadata store is out of reach.

    Raises MissingExtraError where the library of an offload store is not installed.
    """
    settings, deletion = cluster.settings, cluster.settings.deletion
    offload_stores_of(settings.offload).close()
    require_topics(cluster.admin, settings, deletion.topic, deletion.retry_topic, deletion.dlq_topic)
    _require_service_url(settings)
    require_stores(cluster)


def require_stores(cluster: Cluster) -> None:
    """Raise StoreError where a metadata store is out of reach."""
    # This reads the ledgers root as well, where a wrong URL shows.
    cluster.bookkeeper.catalog.read_many([0])
    for store in cluster.stores.values():
        store.sync()


def require_folder(setting: str, folder: str) -> None:
    """Make a folder of the settings, and write into it; ConfigError, which names the setting, where that fails.

    Locations in object stores and other file systems of Spark are left to it.
    """
    if "://" in folder:
        return
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        write_into(Path(folder))
    except OSError as error:
        raise ConfigError(
            f"{setting} {Path(folder).absolute()} cannot be written: {error.strerror}; name a folder that this user "
            "may write to, on a disk with space"
        ) from error


def write_into(folder: Path) -> None:
    """Write a file without a name into a folder that is there; raises OSError, and leaves nothing."""
    with tempfile.TemporaryFile(dir=folder) as file:
        file.write(b"\0" * _PAGE)


def require_absolute_journal(sweep: SweepSettings, master: str) -> None:
    """Raise ConfigError for a folder that each executor of this Spark master would look for in its own place.

    Spark removes an executor's working folder, and then the journal would be gone with it.
    """
    if "://" in sweep.journal or Path(sweep.journal).is_absolute() or sweep.dry_run or _LOCAL_MASTER.fullmatch(master):
        return
    raise ConfigError(
        f"sweep.journal {sweep.journal!r} is a relative path, and the Spark master is {master}: each executor would "
        "keep a journal in its own working folder, which Spark removes, and nothing could be undone. Name the whole "
        "path of a folder that driver and executors share, or s3://bucket/prefix"
    )


def _require_service_url(settings: Settings) -> None:
    client = connection_of(settings.pulsar).client(operation_timeout_seconds=_PATIENCE_S)
    try:
        client.get_topic_partitions(settings.deletion.topic)
    except pulsar.PulsarException as error:
        raise translate(error, f"looking up {settings.deletion.topic} at {settings.pulsar.service_url}") from error
    finally:
        client.close()


def require_spark(*, java: bool = True) -> None:
    """Raise MissingExtraError or SparkError unless Spark can be started here; its own error has many lines.

    Without ``java`` PySpark alone is needed, for what a process does itself by Spark's classes.
    """
    if importlib.util.find_spec("pyspark") is None:
        raise MissingExtraError("Spark is not installed: pip install 'bookwarden[spark]'")
    if not java:
        return
    try:
        find_java()
    except ServerError as error:
        raise SparkError(f"Spark cannot start: {error}") from error


def unless_away(check: Callable[[], object], *, waits: bool) -> None:
    """Make a check before Spark starts, which takes seconds; the stream itself makes it again.

    A broker that does not answer is no error where the stream ``waits`` for it.
    """
    try:
        check()
    except PulsarUnavailableError as error:
        if not waits:
            raise
        logger.warning("starting all the same, to wait for it: %s", error)
