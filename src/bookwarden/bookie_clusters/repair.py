"""Repairs of a registry: ids raised, the rule of ownership upgraded, an address changed, a saved registry put back.

Ids: brokers with the jar count at the registry's ``idRoot``; brokers without it count in the cluster that they know. A
topic sorts its ledgers by id: one that gets a smaller id than those before it loses them.

Upgrade: with 0.1.0 every ledger of a cluster that is not shared counted as ours. A client with the cluster's own URI
makes ledgers there whose ids are those of ours elsewhere, and brokers read them in place of ours.

Address: only where the same cluster is proven to be there; name, registration, instance and ledgers root stay.

Import: only where the registry's node is gone or damaged, with an epoch above all that brokers ever followed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import NamedTuple

from bookwarden.bookie_clusters.brokers import STORE_URL, await_reached, read_brokers, read_followers
from bookwarden.bookie_clusters.operation import find_order
from bookwarden.bookie_clusters.promoted import void_promotion
from bookwarden.bookie_clusters.registering import (
    ClusterSpec,
    Confirm,
    IdsToRaise,
    Registration,
    looked,
    of_metadata,
    raise_own_counters,
    require_no_stock_broker,
    require_understanding,
    unasked,
)
from bookwarden.bookie_clusters.registry import (
    BookieCluster,
    Directive,
    OtherFormatError,
    Registry,
    is_owner,
    parse_registry,
)
from bookwarden.bookie_clusters.registry_node import ClusterRegistry, StoredRegistry
from bookwarden.clusters.bookkeeper.bookie_cluster import BookieClusterMetadata
from bookwarden.clusters.bookkeeper.service_uris import LedgersRoot
from bookwarden.errors import ConfigError, FormatError, RefusedError, StoreAccessError, StoreError
from bookwarden.findings import some
from bookwarden.ledgers.metadata import ClusterSeen


@dataclass(frozen=True, slots=True)
class RaisePlan(IdsToRaise):
    """A counter that may be raised."""

    name: str | None  #: Of the cluster whose counter it is; None for that of all clusters.
    place: LedgersRoot  #: Where it is.
    next_id: int  #: The id that it gives next.
    free_id: int  #: The smallest that it must give: above every id of the registered clusters.
    leaps: bool  #: Raising it takes a leap to the next 2**32.


class RaiseResult(NamedTuple):
    """The result of raising a counter."""

    plan: RaisePlan
    raised: int  #: How far it was raised; of a dry run: would be.
    dry_run: bool


@dataclass(frozen=True)
class IdRaiser:
    """Raises counters of ledger ids; of no name: the one of all clusters."""

    registry: ClusterRegistry  #: Of this Pulsar cluster.

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
        of_all = LedgersRoot(self.registry.url, registry.id_root)
        place = of_all if name is None else self.registry.place_of(registry.cluster(name))
        # First, so that none has given an id since the ids were read.
        live = read_brokers(self.registry.store)
        if name is not None and live:
            raise _not_raised(
                name,
                f"brokers are live, such as {live[0].name}, and take ids below {registry.id_root}: stop all of them "
                "first, and start them again with the stock lines afterwards",
            )
        free_id = self.registry.ids_of(registry).next_id()
        for each in registry.clusters.values():
            metadata = self.registry.metadata_of(each)
            instance = looked(metadata, each.name).instance
            if instance != each.instance:
                raise _not_raised(
                    name,
                    f"{each.ledgers_root} in {metadata.url} of {each.name!r} has the INSTANCEID {instance} instead of "
                    f"{each.instance}, so its ids are not known: put its metadata back",
                )
            free_id = max(free_id, metadata.first_free_id())
        generator = self.registry.stores.ids_at(place)
        next_id = generator.next_id()
        leaps = free_id > next_id and generator.needs_leap(free_id)
        stock = [broker.name for broker in live if broker.follower is None]
        if leaps and stock:
            raise _not_raised(
                name,
                f"they have to leap over 2**32, which {stock[0]}, without the jar, would not notice: stop brokers "
                "without the jar first",
            )
        return RaisePlan(name, place, next_id, free_id, leaps)

    def carry_out(self, plan: RaisePlan, progress: Callable[[int], object] = lambda _: None) -> RaisePlan:
        """Raise the counter, and look at everything again; ``progress`` is called with how many ids were passed.

        May be interrupted and repeated: ids that are passed are never given. RefusedError where a broker came
        meanwhile: what it took is not above the counter then. StoreError if it did not get there.
        """
        if plan.behind:
            generator = self.registry.stores.ids_at(plan.place)
            generator.raise_to(plan.free_id, lambda reached: progress(reached - plan.next_id))
        after = self.plan(plan.name)
        if after.behind:
            raise _not_raised(plan.name, f"ids up to {after.free_id - 1} were given meanwhile: find out by whom")
        return after


def _not_raised(name: str | None, reason: str) -> RefusedError:
    whose = "all clusters" if name is None else f"bookie cluster {name!r}"
    return RefusedError(f"the ids of {whose} are not raised: {reason}")


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

    registry: ClusterRegistry  #: Of this Pulsar cluster.

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
        require_understanding(self.registry.store, _REFUSAL)
        after = replace(registry, epoch=registry.epoch + 1, former_owners=(*registry.former_owners, *added))
        if closing:
            require_no_stock_broker(self.registry.store, _REFUSAL, [each.name for each in closing])
        # The counter comes after the clusters, in which brokers make ledgers meanwhile.
        free = {each: self._first_free_id(each) for each in registry.clusters.values()} if closing else {}
        below = self.registry.ids_of(registry).next_id()
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
            raise_own_counters(self.registry, plan.after, plan.below)
            # That may have taken minutes.
            require_no_stock_broker(self.registry.store, _REFUSAL, plan.closed)
            require_understanding(self.registry.store, _REFUSAL)
        if plan.changes:
            self.registry.replace(plan.before, plan.after)
        return plan

    def _first_free_id(self, cluster: BookieCluster) -> int:
        name, metadata = cluster.name, self.registry.metadata_of(cluster)
        instance = looked(metadata, name).instance
        if instance != cluster.instance:
            raise RefusedError(
                f"{_REFUSAL}: bookie cluster {name!r} has the INSTANCEID {instance} instead of {cluster.instance}, so "
                "its ids are not known: put its metadata back"
            )
        return metadata.first_free_id()


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
    """Plans and carries out changes of addresses in one Pulsar cluster."""

    registration: Registration  #: Looks at clusters.

    @property
    def registry(self) -> ClusterRegistry:
        """The registry of this Pulsar cluster."""
        return self.registration.registry

    def plan(self, wanted: ClusterSpec) -> UriPlan:
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
            raise _uri_refused(cluster.name, "; ".join(reasons))
        bookies = frozenset(bookie.name for bookie in seen.live)
        if changed == cluster:
            # By a command that was killed before all brokers reached it there.
            return UriPlan(before, before.registry, cluster, bookies)
        clusters = {**before.registry.clusters, cluster.name: changed}
        after = replace(before.registry, epoch=before.registry.epoch + 1, clusters=clusters)
        return UriPlan(before, after, changed, bookies)

    def change(
        self,
        wanted: ClusterSpec,
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
        late = await_reached(self.registry.store, plan.cluster, plan.after.epoch, wait_s)
        return UriResult(plan, tuple(broker.described() for broker in late), dry_run)

    def _not_the_same(self, cluster: BookieCluster, there: BookieClusterMetadata, seen: ClusterSeen) -> Iterator[str]:
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
            before = looked(self.registry.metadata_of(cluster), cluster.name)
        except StoreAccessError as error:
            yield f"what is at its present address may not be read ({error}), and may be in use"
            return
        except StoreError:
            reading = [broker.name for broker in read_brokers(self.registry.store) if broker.reads(cluster.name)]
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
            for broker in read_brokers(self.registry.store)
            if broker.follower is None or STORE_URL not in broker.follower.understands
        ]
        if late:
            yield (
                f"brokers do not follow a change of an address: {some(late)}. Put the jar of this bookwarden into "
                "them and restart them, one after the other (`bookie-clusters jar`), or stop them"
            )


def _uri_refused(name: str, reason: str) -> RefusedError:
    return RefusedError(f"the address of bookie cluster {name!r} is not changed: {reason}")


@dataclass(frozen=True, slots=True)
class ImportPlan(IdsToRaise):
    """A registry that can be put back."""

    registry: Registry  #: As it will be written.
    saved_epoch: int  #: Of the file.
    damaged_version: int | None  #: Of the node that it replaces, which has no registry; None where there is no node.
    next_id: int  #: The id that the next ledger of any cluster gets now.
    free_id: int  #: The smallest that it must be: above every id of the clusters.


class ImportResult(NamedTuple):
    """The result of putting a registry back."""

    plan: ImportPlan
    before: ImportPlan  #: Before ids were raised.
    dry_run: bool


@dataclass(frozen=True)
class RegistryImport:
    """Puts saved registries back into one Pulsar cluster."""

    registry: ClusterRegistry  #: Of this Pulsar cluster.

    def plan(self, saved: bytes) -> ImportPlan:
        """Compare the file with the clusters, the brokers and the newest switch; change nothing.

        Raises RefusedError where a registry is there, or the file contradicts any of these, ConfigError for a file
        that has no registry, and StoreError where a store does not answer.
        """
        try:
            registry = parse_registry(saved)
        except FormatError as error:
            raise ConfigError(f"what is to be imported is {error}") from error
        damaged = self._require_no_registry()
        reasons, free_id = self._against_clusters(registry)
        generator = self.registry.ids_of(registry)
        next_id = generator.next_id()
        leaps = free_id > next_id and generator.needs_leap(free_id)
        reasons += self._against_followers(registry, leaps=leaps)
        followers = read_followers(self.registry.store)
        epochs = [registry.epoch, *(each.epoch for each in followers if each.epoch is not None)]
        last = find_order(self.registry.store)
        if last is not None:
            epochs.append(last.order.epoch)
            # One that is under way may not have been carried out; then those who follow tell.
            is_made = not last.order.is_under_way or not followers
            if is_made and last.order.epoch > registry.epoch and last.order.target != registry.active:
                reasons.append(
                    f"the newest order made {last.order.target} active in epoch {last.order.epoch}, and in the file, "
                    f"of epoch {registry.epoch}, it is {registry.active}: the file is older than that switch"
                )
            elif last.order.epoch > registry.epoch and last.order.target == registry.active:
                # Brokers wrote elsewhere since the file was saved, and came back: what they opened there counts.
                order = last.order
                newest = Directive(order.source, order.target, order.origin, order.epoch, order.time_ms)
                registry = replace(registry, directive=newest)
        if reasons:
            raise RefusedError(f"the registry is not imported: {'; '.join(reasons)}")
        return ImportPlan(replace(registry, epoch=max(epochs) + 1), registry.epoch, damaged, next_id, free_id)

    def put_back(self, saved: bytes, *, dry_run: bool, confirm: Confirm[ImportPlan] = unasked) -> ImportResult:
        """Put a saved registry back, or compare it only: what commands and REST do.

        ``confirm`` is entered before, and may raise RefusedError. Else raises as `plan` and `carry_out`.
        """
        plan = before = self.plan(saved)
        if not dry_run:
            with confirm(plan) as progress:
                plan = self.carry_out(saved, progress)
        return ImportResult(plan, before, dry_run)

    def carry_out(self, saved: bytes, progress: Callable[[int], object] = lambda _: None) -> ImportPlan:
        """Compare again, raise the next ledger id if it is behind, and write the registry.

        ``progress`` is called with how many ids were passed. May be killed and repeated. LostRaceError if the node is
        not as it was.
        """
        plan = self.plan(saved)
        if plan.behind:
            next_id, generator = plan.next_id, self.registry.ids_of(plan.registry)
            generator.raise_to(plan.free_id, lambda reached: progress(reached - next_id))
            plan = self.plan(saved)
        # What was promoted before may have been void.
        void_promotion(self.registry.store)
        self.registry.write_imported(plan.registry, plan.damaged_version)
        return plan

    def _require_no_registry(self) -> int | None:
        """Return the version of a damaged node, None without a node; RefusedError where there is a registry."""
        try:
            found = self.registry.read()
        except OtherFormatError as error:
            raise RefusedError(f"the registry is not imported: {error}") from error
        except FormatError:
            return self.registry.version()
        if found is None:
            return None
        raise RefusedError(
            f"the registry is not imported: {self.registry.url} has one, of epoch {found.registry.epoch}, with "
            f"{', '.join(sorted(found.registry.clusters))}"
        )

    def _against_clusters(self, registry: Registry) -> tuple[list[str], int]:
        """Return what contradicts the file, and the smallest id above all that the clusters have."""
        reasons, free_id = list[str](), 0
        for name, cluster in sorted(registry.clusters.items()):
            metadata = self.registry.metadata_of(cluster)
            instance = looked(metadata, name).instance
            if instance != cluster.instance:
                where = f"{cluster.ledgers_root} in {metadata.url} of {name!r}"
                reasons.append(f"{where} is the instance {instance}, not {cluster.instance}")
            elif not cluster.shared:
                free_id = max(free_id, metadata.first_free_id())
        return reasons, free_id

    def _against_followers(self, registry: Registry, *, leaps: bool) -> Iterator[str]:
        brokers = read_brokers(self.registry.store)
        stock = [broker.name for broker in brokers if broker.follower is None]
        if stock and len(registry.clusters) > 1:
            yield f"brokers without the jar live, such as {stock[0]}, and know one cluster alone: stop them"
        elif stock and leaps:
            yield f"ledger ids have to leap over 2**32, which {stock[0]}, without the jar, would not notice: stop it"
        followers = [each.follower for each in read_followers(self.registry.store) if each.follower is not None]
        owners = {each.owner for each in followers} - {registry.owner}
        if owners:
            yield f"brokers follow the registry of owner {some(sorted(owners))}, and the file is of {registry.owner}"
        for each in followers:
            unknown = {
                name
                for name, instance in each.instances.items()
                if name not in registry.clusters or registry.clusters[name].instance != instance
            }
            if unknown:
                names = some(sorted(unknown))
                yield f"a broker follows epoch {each.epoch} with {names}, which the file does not have so"
                return
            if each.active != registry.active and each.epoch >= registry.epoch:
                yield (
                    f"a broker follows epoch {each.epoch}, in which {each.active} is active, and in the file, of epoch "
                    f"{registry.epoch}, it is {registry.active}"
                )
                return
