"""Counters of ledger ids, raised: that of all clusters, or the one that a cluster has itself before brokers use it.

Brokers with the jar count at the registry's ``idRoot``; brokers without it count in the cluster that they know. A topic
sorts its ledgers by id: one that gets a smaller id than those before it loses them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from bookwarden.errors import RefusedError
from bookwarden.metastore.interface import MetadataStore
from bookwarden.switching.brokers import read_brokers
from bookwarden.switching.ports import Confirm, IdGenerator, OpensCluster, Place, unasked
from bookwarden.switching.registering import looked
from bookwarden.switching.registry_node import RegistryNode


@dataclass(frozen=True, slots=True)
class RaisePlan:
    """A counter that may be raised."""

    name: str | None  #: Of the cluster whose counter it is; None for that of all clusters.
    place: Place  #: Where it is.
    next_id: int  #: The id that it gives next.
    free_id: int  #: The smallest that it must give: above every id of the registered clusters.
    leaps: bool  #: Raising it takes a leap to the next 2**32.

    @property
    def behind(self) -> int:
        """How far it has to be raised; 0 if it is above all."""
        return max(0, self.free_id - self.next_id)


class RaiseResult(NamedTuple):
    """The result of raising a counter."""

    plan: RaisePlan
    raised: int  #: How far it was raised; of a dry run: would be.
    dry_run: bool


@dataclass(frozen=True)
class IdRaising:
    """Raises counters of ledger ids; of no name: the one of all clusters."""

    registry: RegistryNode  #: Of this Pulsar cluster.
    pulsar: MetadataStore  #: Its own metadata store.
    open_cluster: OpensCluster  #: Opens a place.
    generator_at: Callable[[Place], IdGenerator]  #: Of ids below the ledgers root of a place.

    def raise_ids(
        self, name: str | None, *, dry_run: bool = False, confirm: Confirm[RaisePlan] = unasked
    ) -> RaiseResult:
        """Raise the counter if it is behind, or look only: what commands and REST do.

        ``confirm`` is entered before, and may raise RefusedError. Else raises as `plan` and `carry_out` do.
        """
        plan = self.plan(name)
        raised = plan.behind
        if raised and not dry_run:
            with confirm(plan) as progress:
                plan = self.carry_out(plan, progress)
        return RaiseResult(plan, raised, dry_run)

    def plan(self, name: str | None) -> RaisePlan:
        """Look at the counter, and at all ids; change nothing.

        Raises RefusedError while a broker lives that would give smaller ids, or where a cluster is another than was
        registered, and StoreError where any registered cluster does not answer.
        """
        registry = self.registry.require().registry
        of_all = Place(self.registry.url, registry.id_root)
        place = of_all if name is None else self.registry.place_of(registry.cluster(name))
        # First, so that none has given an id since the ids were read.
        live = read_brokers(self.pulsar)
        if name is not None and live:
            raise _refused(
                name,
                f"brokers are live, such as {live[0].name}, and take ids below {registry.id_root}: stop all of them "
                "first, and start them again with the stock lines afterwards",
            )
        free_id = self.generator_at(of_all).next_id()
        for each in registry.clusters.values():
            metadata = self.open_cluster(self.registry.place_of(each))
            instance = looked(metadata, each.name).instance
            if instance != each.instance:
                raise _refused(
                    name,
                    f"{each.ledgers_root} in {metadata.url} of {each.name!r} has the INSTANCEID {instance} instead of "
                    f"{each.instance}, so its ids are not known: put its metadata back",
                )
            free_id = max(free_id, metadata.first_free_id())
        generator = self.generator_at(place)
        next_id = generator.next_id()
        leaps = free_id > next_id and generator.needs_leap(free_id)
        stock = [broker.name for broker in live if broker.follower is None]
        if leaps and stock:
            raise _refused(
                name,
                f"they have to leap over 2**32, which {stock[0]}, without the jar, would not notice: stop brokers "
                "without the jar first",
            )
        return RaisePlan(name, place, next_id, free_id, leaps)

    def carry_out(self, plan: RaisePlan, progress: Callable[[int], object] = lambda _: None) -> RaisePlan:
        """Raise the counter, and look at everything again; ``progress`` is called with how many ids were passed.

        May be interrupted and repeated: ids that nobody gets are left out. RefusedError where a broker came meanwhile:
        what it took is not above the counter then. StoreError if it did not get there.
        """
        if plan.behind:
            self.generator_at(plan.place).raise_to(plan.free_id, lambda reached: progress(reached - plan.next_id))
        after = self.plan(plan.name)
        if after.behind:
            raise _refused(plan.name, f"ids up to {after.free_id - 1} were given meanwhile: find out by whom")
        return after


def _refused(name: str | None, reason: str) -> RefusedError:
    whose = "all clusters" if name is None else f"bookie cluster {name!r}"
    return RefusedError(f"the ids of {whose} are not raised: {reason}")
