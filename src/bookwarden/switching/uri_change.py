"""The address of a registered bookie cluster's metadata, changed once it is proven that the same cluster is there.

Its store moved to other hosts, say. Brokers go on with the same cluster: name, registration, instance and ledgers root
stay. A broker whose jar does not follow such a change would refuse this registry and every later one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import NamedTuple

from bookwarden.errors import RefusedError, StoreAccessError, StoreError
from bookwarden.findings import some
from bookwarden.ledgers.metadata import ClusterSeen
from bookwarden.metastore.interface import MetadataStore
from bookwarden.switching.brokers import await_reached, read_brokers
from bookwarden.switching.followers import STORE_URL
from bookwarden.switching.ports import ClusterMetadata
from bookwarden.switching.registering import Registration, Wanted, looked, of_metadata
from bookwarden.switching.registry import BookieCluster, Registry
from bookwarden.switching.registry_node import RegistryNode, StoredRegistry


@dataclass(frozen=True, slots=True)
class UriPlan:
    """A change of an address that nothing speaks against."""

    before: StoredRegistry  #: What the new registry replaces.
    after: Registry  #: With the cluster at its new address; the same as before where it has it already.
    cluster: BookieCluster  #: As it will be registered.
    bookies: frozenset[str]  #: That run there.


class UriResult(NamedTuple):
    """The result of changing an address."""

    plan: UriPlan
    behind: tuple[str, ...]  #: Brokers that did not reach the cluster there in time; none of a dry run.
    dry_run: bool


@dataclass(frozen=True)
class UriChange:
    """Plans and carries out such changes in one Pulsar cluster."""

    registry: RegistryNode  #: Of this Pulsar cluster.
    pulsar: MetadataStore  #: Its own metadata store.
    registration: Registration  #: Looks at clusters.

    def plan(self, wanted: Wanted) -> UriPlan:
        """Look at both addresses and at all other clusters, change nothing.

        Raises RefusedError with all reasons, and StoreError where the new address is silent.
        """
        before = self.registry.require()
        cluster = before.registry.cluster(wanted.name)
        candidate, seen = self.registration.find(wanted)
        store_url = None if candidate.url == self.registry.url else candidate.url
        changed = replace(cluster, metadata_service_uri=wanted.uri, store_url=store_url)
        reasons = [*of_metadata(wanted.place, seen), *self._not_the_same(cluster, candidate, seen)]
        for other in before.registry.clusters.values():
            if other.name != cluster.name and not reasons:
                # With one that is silent, as when several move, this same cluster was compared at its registration.
                with suppress(StoreError):
                    reasons += self.registration.against_other(wanted, candidate, seen, other)
        if store_url != cluster.store_url:
            reasons += self._of_brokers()
        if reasons:
            raise _refused(cluster.name, "; ".join(reasons))
        bookies = frozenset(bookie.name for bookie in seen.live)
        if changed == cluster:
            # By a command that was killed before all brokers reached it there.
            return UriPlan(before, before.registry, cluster, bookies)
        clusters = {**before.registry.clusters, cluster.name: changed}
        after = replace(before.registry, epoch=before.registry.epoch + 1, clusters=clusters)
        return UriPlan(before, after, changed, bookies)

    def change(
        self,
        wanted: Wanted,
        *,
        wait_s: float,
        dry_run: bool = False,
        confirm: Callable[[UriPlan], object] = lambda _: None,
        say: Callable[[str], object] = lambda _: None,
    ) -> UriResult:
        """Change the address and wait until all brokers reach the cluster there, or look only: of commands and REST.

        ``confirm`` is called before, and may raise RefusedError. The address stays changed where a broker does not
        reach it: what to do depends on whether the former one still answers. May be killed and repeated. Else raises
        as `plan`, and LostRaceError where another process changed the registry.
        """
        plan = self.plan(wanted)
        if dry_run:
            return UriResult(plan, (), dry_run)
        if plan.after is not plan.before.registry:
            confirm(plan)
            plan = self.plan(wanted)
        if plan.after is not plan.before.registry:
            self.registry.replace(plan.before, plan.after)
        say(f"{wanted.name} has this address since epoch {plan.after.epoch}; waiting until all brokers reach it there")
        late = await_reached(self.pulsar, plan.cluster, plan.after.epoch, wait_s)
        return UriResult(plan, tuple(broker.described() for broker in late), dry_run)

    def _not_the_same(self, cluster: BookieCluster, there: ClusterMetadata, seen: ClusterSeen) -> Iterator[str]:
        if there.ledgers_root != cluster.ledgers_root:
            yield f"its ledgers root is {cluster.ledgers_root}, and that of the URI is {there.ledgers_root}"
        if seen.instance != cluster.instance:
            yield f"it is the instance {cluster.instance}, and at the URI there is {seen.instance}: another cluster"
            return
        if not seen.live:
            yield (
                "no bookie is registered at the URI, as in a copy that nothing uses: start the cluster's bookies with "
                "this address first"
            )
        try:
            before = looked(self.registration.open_cluster(self.registry.place_of(cluster)), cluster.name)
        except StoreAccessError as error:
            yield f"what is at its present address may not be read ({error}), and may be in use"
            return
        except StoreError:
            reading = [broker.name for broker in read_brokers(self.pulsar) if broker.reads(cluster.name)]
            if reading and cluster.store_url != there.url:
                yield (
                    f"its present address does not answer this machine, and {some(reading)} reads it there: let this "
                    "machine reach it, so that the two can be compared, or stop it"
                )
            return
        if before.instance == cluster.instance and not before.is_same(seen):
            yield (
                "its present address answers too, and is another store, which clients may write to: one is a copy of "
                "the other. Stop the one that nothing is to use any more"
            )

    def _of_brokers(self) -> Iterator[str]:
        late = [
            broker.name
            for broker in read_brokers(self.pulsar)
            if broker.follower is None or STORE_URL not in broker.follower.understands
        ]
        if late:
            yield (
                f"brokers do not follow a change of an address: {some(late)}. Put the jar of this bookwarden into "
                "them and restart them, one after the other (`bookie-clusters jar`), or stop them"
            )


def _refused(name: str, reason: str) -> RefusedError:
    return RefusedError(f"the address of bookie cluster {name!r} is not changed: {reason}")
