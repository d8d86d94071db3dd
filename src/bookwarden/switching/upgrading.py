"""Upgrade of a registry of 0.1.0: former owners, and the ids below which ledgers without a mark are ours.

With 0.1.0 every ledger of a cluster that is not shared counted as ours. A client with the cluster's own URI makes
ledgers there whose ids are those of ours elsewhere, and brokers read them in place of ours.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from bookwarden.errors import RefusedError
from bookwarden.metastore.interface import MetadataStore
from bookwarden.switching.ports import IdGenerator, OpensCluster, Place
from bookwarden.switching.registering import (
    looked,
    raise_own_counters,
    require_no_stock_broker,
    require_understanding,
)
from bookwarden.switching.registry import BookieCluster, Registry, is_owner
from bookwarden.switching.registry_node import RegistryNode, StoredRegistry

_REFUSAL = "the registry is not upgraded"


@dataclass(frozen=True, slots=True)
class UpgradePlan:
    """An upgrade that nothing speaks against."""

    before: StoredRegistry
    after: Registry  #: The same as before, with its epoch, where nothing is to be written.
    closed: tuple[str, ...]  #: The clusters whose range of ledgers without a mark is ended.
    below: int  #: The id at which it is.
    added: tuple[str, ...]  #: Former owners that are named now.

    @property
    def changes(self) -> bool:
        """Whether there is anything to write."""
        return bool(self.closed or self.added)


@dataclass(frozen=True)
class Upgrade:
    """Upgrades the registry of one Pulsar cluster."""

    registry: RegistryNode  #: Of this Pulsar cluster.
    pulsar: MetadataStore  #: Its own metadata store.
    open_cluster: OpensCluster  #: Opens a place.
    generator_at: Callable[[Place], IdGenerator]  #: Of ids below the ledgers root of a place.

    def plan(self, owners: Sequence[str] = ()) -> UpgradePlan:
        """Look at everything, change nothing.

        Raises RefusedError while a broker lives that would not heed it, or where the ids of all clusters are behind;
        StoreError where a store does not answer.
        """
        before = self.registry.require()
        registry = before.registry
        wrong = [owner for owner in owners if not is_owner(owner)]
        if wrong:
            raise RefusedError(f"{_REFUSAL}: the owner {wrong[0]!r} is not eight hexadecimal digits")
        known = (registry.owner, *registry.former_owners)
        added = tuple(owner for owner in dict.fromkeys(owners) if owner not in known)
        # A cluster that is registered alone has no other's ledgers to be taken for.
        closing = registry.open_ranges() if len(registry.clusters) > 1 else []
        if not (added or closing):
            return UpgradePlan(before, registry, (), 0, ())
        require_understanding(self.pulsar, _REFUSAL)
        after = replace(registry, epoch=registry.epoch + 1, former_owners=(*registry.former_owners, *added))
        if closing:
            require_no_stock_broker(self.pulsar, _REFUSAL, [each.name for each in closing])
        # The counter comes after the clusters, in which brokers make ledgers meanwhile.
        free = {each: self._first_free_id(each) for each in registry.clusters.values()} if closing else {}
        below = self.generator_at(Place(self.registry.url, registry.id_root)).next_id()
        for each, first in free.items():
            if first > below and not each.shared:
                raise RefusedError(
                    f"{_REFUSAL}: bookie cluster {each.name!r} has ids up to {first - 1}, as another client may give "
                    f"there, and the next one of all clusters is {below}: raise that first, with `bookie-clusters "
                    "raise-ids`"
                )
        if closing:
            after = after.with_ranges_closed(below)
        return UpgradePlan(before, after, tuple(each.name for each in closing), below, added)

    def upgrade(
        self,
        owners: Sequence[str] = (),
        *,
        dry_run: bool = False,
        confirm: Callable[[UpgradePlan], object] = lambda _: None,
    ) -> UpgradePlan:
        """Upgrade, or look only: what commands and REST do.

        ``confirm`` is called before, and may raise RefusedError. Else raises as `plan` and `carry_out` do.
        """
        plan = self.plan(owners)
        if dry_run or not plan.changes:
            return plan
        confirm(plan)
        return self.carry_out(owners)

    def carry_out(self, owners: Sequence[str] = ()) -> UpgradePlan:
        """Look at everything again, raise the counters that clusters have themselves, and write the registry.

        May be killed and repeated. LostRaceError where another process changed the registry meanwhile.
        """
        plan = self.plan(owners)
        if plan.closed:
            raise_own_counters(self.generator_at, self.registry, plan.after, plan.below)
            # That may have taken minutes.
            require_no_stock_broker(self.pulsar, _REFUSAL, plan.closed)
            require_understanding(self.pulsar, _REFUSAL)
        if plan.changes:
            self.registry.replace(plan.before, plan.after)
        return plan

    def _first_free_id(self, cluster: BookieCluster) -> int:
        name, metadata = cluster.name, self.open_cluster(self.registry.place_of(cluster))
        instance = looked(metadata, name).instance
        if instance != cluster.instance:
            raise RefusedError(
                f"{_REFUSAL}: bookie cluster {name!r} has the INSTANCEID {instance} instead of {cluster.instance}, so "
                "its ids are not known: put its metadata back"
            )
        return metadata.first_free_id()
