"""The jar for brokers that comes with an installation, and the lines that make a broker use it.

Formats: broker.conf, whose ``bookkeeper_X`` reaches BookKeeper's client as X; the environment of bin/pulsar, whose
BK_METADATA_OPTIONS replaces its default, so that the driver of Pulsar itself is named again.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Final, NamedTuple

from bookwarden.errors import NotFoundError

JAR_NAME: Final = "bookwarden-broker.jar"
_PULSAR: Final = "org.apache.pulsar.metadata.bookkeeper"
#: Where an installation has the jar, if it has one.
PACKAGED: Final = Path(__file__).with_name("jar") / JAR_NAME

#: What takes the place of two operations that PIP-470 names, and that nothing is left to do for.
SUPERSEDED: Final = {
    "set-read-mode": (
        "There is no read mode to set: brokers with the jar read every registered bookie cluster, always, and a "
        "ledger is where its metadata is. To see the places of a ledger: bookwarden ledger show LEDGER_ID"
    ),
    "close-client": (
        "There is no client to close: brokers with the jar close their connections to a bookie cluster "
        "once it left the registry: bookwarden bookie-clusters unregister NAME"
    ),
}


class BrokerLines(NamedTuple):
    """Lines for a broker."""

    broker_conf: tuple[str, ...]  #: For broker.conf, each in the place of the line with this name.
    environment: str  #: For the environment of bin/pulsar, as in conf/pulsar_env.sh.


def write_jar(target: Path, jar: Path = PACKAGED) -> int:
    """Write the jar to this file, replacing one that is there; return its bytes.

    Raises NotFoundError where the installation has none. The file appears whole or not at all.
    """
    if not jar.is_file():
        raise NotFoundError(
            f"this installation has no {JAR_NAME}: install the wheel of a release, or build it in a checkout with "
            "`make broker-jar` (Java 17 or newer)"
        )
    part = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        shutil.copyfile(jar, part)
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)
    return target.stat().st_size


def broker_lines(store_url: str, bookkeeper: str) -> BrokerLines:
    """Return the lines for brokers of this metadata store; ``bookkeeper`` is HOST:PORT/ROOT of the first cluster.

    The latter is only for Functions and packages, which stay there.
    """
    clients = f"{_PULSAR}.PulsarMetadataClientDriver:bookwarden.broker.BookieClustersDriver"
    options = (
        f"-Dbookkeeper.metadata.bookie.drivers={_PULSAR}.PulsarMetadataBookieDriver "
        f"-Dbookkeeper.metadata.client.drivers={clients}"
    )
    return BrokerLines(
        (
            f"bookkeeperMetadataServiceUri=bookwarden://{bookkeeper}",
            f"bookkeeper_bookwardenMetadataStoreUrl={store_url}",
        ),
        f'BK_METADATA_OPTIONS="{options}"',
    )
