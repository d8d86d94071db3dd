"""The cluster that is scanned, and in which plans are applied."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bookwarden.ledgers.cluster_identity import INSTANCE_NODE, instance_id_in
from bookwarden.metastore.interface import MetadataStore
from bookwarden.orphans.plan import ScannedCluster


@dataclass(frozen=True, slots=True)
class PlanCluster:
    """The cluster that the settings name."""

    #: The store, or the snapshot, with BookKeeper's metadata.
    bookkeeper: MetadataStore
    bookkeeper_url: str  #: Of that store, as the settings name it.
    ledgers_root: str  #: In it.
    #: The URLs of all metadata roots.
    roots: Sequence[str]
    #: Proves that these roots belong to the BookKeeper, and are all that do: `RootsProof.require`.
    prove_roots: Callable[[], list[str]]
    #: Returns the identity of all bookie clusters, where several are registered; else an empty text.
    bookie_clusters: Callable[[], str] = lambda: ""

    def identity(self) -> ScannedCluster:
        """Read the cluster's identity now.

        Without an INSTANCEID its part is empty, and no plan of it can be applied. Raises StoreError when the store does
        not answer, FormatError when the INSTANCEID is no text.
        """
        self.bookkeeper.sync()
        node = self.bookkeeper.get(f"{self.ledgers_root}/{INSTANCE_NODE}")
        instance_id = instance_id_in(None if node is None else node.value)
        several = self.bookie_clusters()
        if instance_id and several:
            instance_id = f"{instance_id} of {several}"
        return ScannedCluster.of(instance_id, self.bookkeeper_url, self.ledgers_root, self.roots)
