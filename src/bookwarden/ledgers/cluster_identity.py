"""The identity of a cluster: whose a checkpoint, a plan, a journal or a followed root is (docs/safety.md).

A BookKeeper is known by its INSTANCEID, which a move of its metadata to another store keeps. A Pulsar cluster is known
by the owner mark of its registry of bookie clusters, or else by its names, and by the BookKeepers that it has, or had.
No URL is part of it, since one cluster has many, and neither is a node's creation time, since Pulsar makes all nodes
again when it moves its metadata.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from bookwarden.errors import FormatError
from bookwarden.records import Names

#: Below a ledgers root.
INSTANCE_NODE = "INSTANCEID"


@dataclass(frozen=True, slots=True)
class ClusterIdentity:
    """The facts that part a Pulsar cluster from others; what is empty is not known."""

    #: Names of the Pulsar clusters in its metadata: itself, and those that it replicates with.
    clusters: Annotated[Names, Field(alias="pulsarClusters")] = frozenset()
    owner: Annotated[str, Field(alias="registryOwner")] = ""  #: Owner mark of its registry of bookie clusters.
    #: INSTANCEIDs of its BookKeepers: of the settings, of registered ones, and of those that ledgers moved between.
    instances: Annotated[Names, Field(alias="bookkeeperInstances")] = frozenset()

    def difference(self, found: ClusterIdentity) -> str | None:
        """Return what shows that `found` is not what this was recorded of; None where nothing does."""
        if self.owner and found.owner:
            if self.owner != found.owner:
                return f"it holds the registry's owner {self.owner}, and that of the settings' cluster is {found.owner}"
        elif self.clusters and found.clusters and self.clusters.isdisjoint(found.clusters):
            return f"it holds Pulsar cluster {_listed(self.clusters)}, and the settings name {_listed(found.clusters)}"
        elif self.instances and found.instances and self.instances.isdisjoint(found.instances):
            return (
                f"it holds BookKeeper instance {_listed(self.instances)}, and the settings' cluster has, or had, "
                f"{_listed(found.instances)}"
            )
        return None

    @property
    def text(self) -> str:
        """The facts, for people."""
        parts = [f"Pulsar cluster {_listed(self.clusters)}"] if self.clusters else []
        parts += [f"owner {self.owner}"] if self.owner else []
        parts += [f"BookKeeper instance {_listed(self.instances)}"] if self.instances else []
        return ", ".join(parts) or "the cluster that the settings name"


def instance_id_in(value: bytes | None) -> str:
    """Return the id that an INSTANCEID node holds; "" without one. FormatError for what is no text."""
    try:
        return "" if value is None else value.decode().strip()
    except UnicodeDecodeError as error:
        raise FormatError(f"{INSTANCE_NODE} is no text: it is not BookKeeper's") from error


def _listed(names: Collection[str]) -> str:
    return ", ".join(sorted(names))
