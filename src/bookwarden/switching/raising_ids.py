"""The counter of ids that one bookie cluster has itself, raised before brokers count there again.

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
from bookwarden.switching.registry import BookieCluster
from bookwarden.switching.registry_node import RegistryNode


@dataclass(frozen=True, slots=True)
class RaisePlan:
    """A counter that may be raised."""

    cluster: BookieCluster  #: Whose counter it is.
    place: Place  #: Where it is.
    next_id: int  #: The id that it gives next.
    free_id: int  #: The smallest that it must give: above every id of every registered cluster.
    leaps: bool  #: Raising it takes a leap to the next 2**32.

    @property
    def behind(self) -> int:
        """How far it has to be raised; 0 if it is above all."""
        return max(0, self.free_id - self.next_id)


class RaiseResult(NamedTuple):
    """The result of raising a counter."""

    plan: RaisePlan
    raised: int  #: By so many ids it was raised; of a dry run: would be.
    dry_run: bool


@dataclass(frozen=True)
class IdRaising:
    """Raises the counters of registered clusters."""

    registry: RegistryNode  #: Of this Pulsar cluster.
    pulsar: MetadataStore  #: Its own metadata store.
    open_cluster: OpensCluster  #: Opens a place.
    generator_at: Callable[[Place], IdGenerator]  #: Of ids below the ledgers root of a place.

    def raise_ids(self, name: str, *, dry_run: bool = False, confirm: Confirm[RaisePlan] = unasked) -> RaiseResult:
        """Raise the counter if it is behind, or look only: what commands and REST do.

        ``confirm`` is entered before, and may raise RefusedError. Else raises as `plan` and `carry_out` do.
        """
        plan = self.plan(name)
        raised = plan.behind
        if raised and not dry_run:
            with confirm(plan) as progress:
                plan = self.carry_out(plan, progress)
        return RaiseResult(plan, raised, dry_run)

    def plan(self, name: str) -> RaisePlan:
        """Look at the counter, and at all ids; change nothing.

        Raises RefusedError while a broker lives, or where the cluster is another than was registered, and StoreError
        where any registered cluster does not answer.
        """
        registry = self.registry.require().registry
        cluster = registry.cluster(name)
        # First, so that none has given an id since the ids were read.
        live = [broker.name for broker in read_brokers(self.pulsar)]
        if live:
            raise _refused(
                name,
                f"brokers are live, such as {live[0]}, and take ids below {registry.id_root}: stop all of them first, "
                "and start them again with the stock lines afterwards",
            )
        free_id = self.generator_at(Place(self.registry.url, registry.id_root)).next_id()
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
        place = self.registry.place_of(cluster)
        generator = self.generator_at(place)
        next_id = generator.next_id()
        return RaisePlan(cluster, place, next_id, free_id, free_id > next_id and generator.needs_leap(free_id))

    def carry_out(self, plan: RaisePlan, progress: Callable[[int], object] = lambda _: None) -> RaisePlan:
        """Raise the counter, and look at everything again; ``progress`` is called with how many ids were passed.

        May be interrupted and repeated: ids that nobody gets are left out. RefusedError where a broker came meanwhile:
        what it took is not above the counter then. StoreError if it did not get there.
        """
        if plan.behind:
            self.generator_at(plan.place).raise_to(plan.free_id, lambda reached: progress(reached - plan.next_id))
        after = self.plan(plan.cluster.name)
        if after.behind:
            raise _refused(plan.cluster.name, f"ids up to {after.free_id - 1} were given meanwhile: find out by whom")
        return after


def _refused(name: str, reason: str) -> RefusedError:
    return RefusedError(f"the ids of bookie cluster {name!r} are not raised: {reason}")
