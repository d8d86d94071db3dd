"""Registration of a bookie cluster: everything that would make two clusters one, or one two, is refused before."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeVar

from bookwarden.bookie_clusters.brokers import UNMARKED_BELOW, await_reached, read_brokers, read_followers
from bookwarden.bookie_clusters.registry import (
    REGISTRY_PATH,
    BookieCluster,
    Registry,
    is_cluster_name,
    is_marked_as_ours,
    is_owner,
    owner_in,
)
from bookwarden.bookie_clusters.registry_node import ClusterRegistry, StoredRegistry
from bookwarden.clusters.bookkeeper.bookie_cluster import BookieClusterMetadata, ClusterStores
from bookwarden.clusters.bookkeeper.service_uris import LedgersRoot
from bookwarden.errors import LostRaceError, RefusedError, StoreError
from bookwarden.ledgers.custom_metadata import COPY_KEY
from bookwarden.ledgers.metadata import ClusterSeen
from bookwarden.metastore.interface import MetadataStore

#: Where ledger ids are counted if the first cluster's metadata is not in Pulsar's own store.
OWN_ID_ROOT: Final = "/bookwarden/ledger-ids"
# A bookie that comes or goes between two looks makes them differ.
_LOOKS: Final = 3
_SHOWN: Final = 3

PlanT = TypeVar("PlanT")
#: Entered before a plan is carried out; raises RefusedError if it may not be, else gives what is called with progress.
Confirm = Callable[[PlanT], AbstractContextManager[Callable[[int], object]]]


@contextmanager
def unasked(_: object) -> Iterator[Callable[[int], object]]:
    """Ask nothing before a plan is carried out, and show nothing of its progress."""
    yield lambda _: None


@dataclass(frozen=True, slots=True)
class ClusterSpec:
    """A bookie cluster to be registered, as the operator describes it."""

    name: str  #: Of letters, digits and ``._-``.
    uri: str  #: Its metadataServiceUri.
    place: LedgersRoot  #: Parsed from it.
    bootstrap: bool = False  #: It is the one that brokers use now; nothing is registered yet.
    shared: bool = False  #: Others with ledger ids of their own write there too.
    #: Owner marks that its ledgers have from earlier registries, with ``bootstrap``; the first stays the owner.
    owners: tuple[str, ...] = ()
    #: Of an earlier registry: its ledgers without an owner mark are ours below this id. None: as of a new cluster.
    unmarked_below: int | None = None


class IdsToRaise:
    """Base of plans for which the counter of ledger ids may be behind."""

    __slots__ = ()
    next_id: int
    free_id: int

    @property
    def behind(self) -> int:
        """How far the next id has to be raised; 0 if it is above all."""
        return max(0, self.free_id - self.next_id)


@dataclass(frozen=True, slots=True)
class RegistrationPlan(IdsToRaise):
    """A registration that nothing speaks against."""

    before: StoredRegistry | None  #: What the new registry replaces; None for the first.
    after: Registry  #: With the cluster in it.
    cluster: BookieCluster  #: As it will be registered.
    bookies: frozenset[str]  #: Its bookies.
    foreign: int  #: Ledgers there that are not ours.
    next_id: int  #: The id that the next ledger of any cluster gets now.
    free_id: int  #: The smallest that it must be: above every id of the cluster.
    leaps: bool  #: Raising it takes a leap to the next 2**32.
    closed: tuple[str, ...] = ()  #: Clusters whose range of ledgers without a mark ends with it.


class RegistrationResult(NamedTuple):
    """The result of a registration."""

    plan: RegistrationPlan
    raised: int  #: Number of ids that were left out; of a dry run: would be.
    dry_run: bool


@dataclass(frozen=True)
class Registration:
    """Plans and carries out registrations in one Pulsar cluster."""

    registry: ClusterRegistry  #: Of this Pulsar cluster.
    brokers_place: LedgersRoot  #: The bookie cluster that brokers without a registry use, from the settings.
    #: Returns the owner mark of the copies of a move to the cluster of this INSTANCEID.
    owner_of_move_to: Callable[[str], str | None]

    def plan(self, wanted: ClusterSpec) -> RegistrationPlan:
        """Look at everything, change nothing; RefusedError with all reasons, StoreError where a store is silent."""
        before = self.registry.read()
        candidate, seen = self.find(wanted)
        same = None if before is None else before.registry.clusters.get(wanted.name)
        if before is not None and same is not None and _is_registration_of(wanted, seen, same):
            # By a command that was killed before all brokers reached it.
            following = self.registry.ids_of(before.registry).next_id()
            return RegistrationPlan(before, before.registry, same, seen.bookies, 0, following, following, False)
        reasons = [*_of_form(wanted, before), *of_metadata(wanted.place, seen)]
        if before is None:
            reasons += self._against_bootstrap(wanted, seen)
        else:
            for other in before.registry.clusters.values():
                reasons += self.against_other(wanted, candidate, seen, other)
            # The first cluster may come back: the counter at its root is that of all.
            is_id_root = candidate.ledgers_root == before.registry.id_root
            if (
                candidate.url == self.registry.url
                and not is_id_root
                and overlap(candidate.ledgers_root, before.registry.id_root)
            ):
                known = [each.ledgers_root for each in before.registry.clusters.values() if each.store_url is None]
                if before.registry.id_root not in known:
                    reasons.append(f"{candidate.ledgers_root} is where ledger ids are counted: give it another root")
        is_own = candidate.url == self.registry.url
        if wanted.unmarked_below is not None and (wanted.shared or (before is None and is_own)):
            which = "none" if wanted.shared else "each"
            reasons.append(f"--unmarked-below is not for this cluster: {which} without an owner mark is ours there")
        if reasons:
            raise _refused(wanted.name, reasons)
        owners = self._owners(wanted, candidate, seen) if before is None else ()
        foreign = self._foreign(wanted, candidate, before)
        below = wanted.unmarked_below
        cluster = BookieCluster(
            wanted.name,
            wanted.uri,
            None if is_own else candidate.url,
            candidate.ledgers_root,
            seen.instance or "",
            since=1,
            bootstrap=wanted.bootstrap,
            shared=wanted.shared,
            unmarked_below=0 if below is None and not (wanted.bootstrap or wanted.shared) else below,
        )
        after = _first(cluster, owners) if before is None else before.registry.with_cluster(cluster)
        generator = self.registry.ids_of(after)
        closing = after.open_ranges()
        others = [self.registry.metadata_of(each) for each in closing if each != cluster]
        free = max(one.first_free_id() for one in (candidate, *others))
        following = generator.next_id()
        leaps = free > following and generator.needs_leap(free)
        if below is not None and below > max(free, following):
            raise _refused(wanted.name, [f"--unmarked-below is above the next ledger id, {max(free, following)}"])
        after = after.with_ranges_closed(max(free, following))
        closed = tuple(each.name for each in closing)
        plan = RegistrationPlan(
            *(before, after, after.clusters[wanted.name], seen.bookies, foreign, following, free, leaps, closed)
        )
        self._require_brokers(plan)
        return plan

    def _require_brokers(self, plan: RegistrationPlan) -> None:
        """Raise RefusedError while a broker lives that would lose ledgers by it."""
        name, refusal = plan.cluster.name, f"bookie cluster {plan.cluster.name!r} is not registered"
        if plan.leaps or (plan.before is None and plan.cluster.store_url is not None):
            self._require_no_stock_broker(name, leaps=plan.leaps)
        elif plan.closed:
            require_no_stock_broker(self.registry.store, refusal, plan.closed)
        if plan.before is not None:
            require_understanding(self.registry.store, refusal)

    def raise_ids(self, plan: RegistrationPlan, progress: Callable[[int], object] = lambda _: None) -> None:
        """Raise the next ledger id above every id of the cluster; ``progress`` is called with how many were passed.

        May be interrupted and repeated: ids that are passed are never given. StoreError if it did not get there.
        """
        self.registry.ids_of(plan.after).raise_to(plan.free_id, lambda reached: progress(reached - plan.next_id))

    def register(
        self,
        wanted: ClusterSpec,
        *,
        wait_s: float,
        dry_run: bool = False,
        confirm: Confirm[RegistrationPlan] = unasked,
        say: Callable[[str], object] = lambda _: None,
    ) -> RegistrationResult:
        """Register, or look only: what commands and REST do.

        ``confirm`` is entered before ids are raised, and may raise RefusedError. Else raises as `plan`, `raise_ids` and
        `carry_out` do.
        """
        plan = self.plan(wanted)
        raised = plan.behind
        if not dry_run:
            if raised:
                with confirm(plan) as progress:
                    self.raise_ids(plan, progress)
            plan = self.carry_out(wanted, wait_s=wait_s, say=say)
        return RegistrationResult(plan, raised, dry_run)

    def carry_out(
        self, wanted: ClusterSpec, *, wait_s: float, say: Callable[[str], object] = lambda _: None
    ) -> RegistrationPlan:
        """Look at everything again, register, and wait until all brokers reach it; return what was registered.

        RefusedError where a broker did not reach it in ``wait_s`` seconds: nothing is registered then, unless it was
        before. StoreError where ids are behind by now, LostRaceError where another process changed the registry
        meanwhile. May be killed and repeated.
        """
        plan = self.plan(wanted)
        if plan.behind:
            raise StoreError(
                f"bookie cluster {wanted.name!r} has ids up to {plan.free_id - 1}, and the next is {plan.next_id}: "
                "another client writes there. Nothing was registered; find out which, then try again"
            )
        is_new = plan.before is None or plan.after is not plan.before.registry
        if is_new:
            raise_own_counters(self.registry, plan.after, max(plan.free_id, plan.next_id))
            # That may have taken minutes.
            self._require_brokers(plan)
        if plan.before is None:
            # Brokers with the jar do not start before.
            self.registry.create(plan.after)
            return plan
        if is_new:
            self.registry.replace(plan.before, plan.after)
        say(f"{plan.cluster.name} is registered since epoch {plan.cluster.since}; waiting until all brokers reach it")
        late = await_reached(self.registry.store, plan.cluster, plan.cluster.since, wait_s)
        if late:
            taken_out = is_new and self._take_out(plan.cluster)
            place = self.registry.place_of(plan.cluster)
            raise RefusedError(
                f"bookie cluster {wanted.name!r} {'was taken out again' if taken_out else 'stays registered'}: within "
                f"{wait_s:g} s {place.ledgers_root} in {place.url} was not reached by "
                f"{', '.join(broker.described() for broker in late)}. Look for 'bookie cluster {wanted.name}' and "
                "'registry' in the log there, and let each broker reach it, with its credentials and certificates; "
                "then register it again"
                + ("" if taken_out else f", or take it out: `bookie-clusters unregister {wanted.name}`")
            )
        return plan

    def _take_out(self, cluster: BookieCluster) -> bool:
        """Take a cluster that was just registered out again, unless something may rest on it; return whether it was."""
        found = self.registry.require()
        # What was done since, a switch above all.
        if found.registry.epoch != cluster.since or found.registry.clusters.get(cluster.name) != cluster:
            return False
        try:
            self.registry.replace(found, found.registry.without_cluster(cluster.name))
        except LostRaceError:
            return False
        return True

    def find(self, wanted: ClusterSpec) -> tuple[BookieClusterMetadata, ClusterSeen]:
        """Find the cluster, in Pulsar's own store if that is where it is."""
        candidate = self.registry.stores.cluster_at(wanted.place)
        own_root = candidate.root_seen_from(self.registry.url)
        if own_root is None:
            return candidate, looked(candidate, wanted.name)
        own = self.registry.stores.cluster_at(LedgersRoot(self.registry.url, own_root))
        for _ in range(_LOOKS):
            seen, here = looked(candidate, wanted.name), looked(own, wanted.name)
            if seen.instance is None or seen.instance != here.instance:
                return candidate, seen
            if seen.is_same(here):
                return own, here
        raise _refused(
            wanted.name,
            [
                f"{candidate.url} and Pulsar's own store {self.registry.url} both have a cluster with the INSTANCEID "
                f"{seen.instance}, and with other bookies: one is a copy of the other. Name the original"
            ],
        )

    def _against_bootstrap(self, wanted: ClusterSpec, seen: ClusterSeen) -> Iterator[str]:
        followers = read_followers(self.registry.store)
        if followers:
            epochs = ", ".join(sorted({str(each.epoch) for each in followers}))
            yield (
                f"brokers follow a registry of epoch {epochs} although {REGISTRY_PATH} is gone: put it back with "
                "`bookie-clusters registry import`, since a new registry would begin with epoch 1, which they refuse"
            )
        if not wanted.bootstrap or seen.instance is None:
            return
        used = self.registry.stores.cluster_at(self.brokers_place)
        there = looked(used, "of the settings")
        if there.instance != seen.instance:
            yield (
                f"brokers use {self.brokers_place.ledgers_root} in {self.brokers_place.url}, as the settings "
                f"metadata_store.bookkeeper_url and ledgers_root say, whose INSTANCEID is {there.instance}, not "
                f"{seen.instance}: the first cluster to register is that one"
            )

    def against_other(
        self, wanted: ClusterSpec, candidate: BookieClusterMetadata, seen: ClusterSeen, other: BookieCluster
    ) -> Iterator[str]:
        registered = self.registry.metadata_of(other)
        if wanted.uri.strip() == other.metadata_service_uri.strip():
            yield f"{wanted.uri} is registered as {other.name!r}"
            return
        there = looked(registered, other.name)
        if there.instance != other.instance:
            yield (
                f"{other.ledgers_root} in {registered.url} of the registered cluster {other.name!r} has the INSTANCEID "
                f"{there.instance} instead of {other.instance}: put its metadata back first, or, if that is gone for "
                f"good, `bookie-clusters unregister --lost {other.name}`"
            )
        if seen.instance is not None and seen.instance == there.instance:
            yield (
                f"it is registered as {other.name!r}: both have the INSTANCEID {seen.instance}. Of two clusters one is "
                "a copy then, which must be initialised again"
            )
            return
        yield from why_confused(self.registry.stores, (candidate, seen), (registered, there), other.name)

    def _owners(self, wanted: ClusterSpec, candidate: BookieClusterMetadata, seen: ClusterSeen) -> tuple[str, ...]:
        """Return the owner marks of ours that the first cluster has; RefusedError where it has others.

        And where an earlier registry, which is not known, said which ledgers without a mark are ours.
        """
        moved = self.owner_of_move_to(seen.instance or "")
        owners = tuple(dict.fromkeys([*wanted.owners, *([] if moved is None else [moved])]))
        unknown: Counter[str] = Counter()
        unmarked, largest, had_registry = 0, -1, False
        for ledger_id, custom in candidate.custom_metadata():
            found = owner_in(custom)
            if found is not None and found not in owners:
                unknown[found] += 1
            elif found is None and custom is not None:
                unmarked, largest = unmarked + 1, max(largest, ledger_id)
            # A copier marks without a registry too.
            had_registry = had_registry or (found is not None and custom is not None and COPY_KEY not in custom)
        if unknown:
            counts = ", ".join(f"{owner} ({number:,} ledgers)" for owner, number in unknown.most_common(_SHOWN))
            raise _refused(
                wanted.name,
                [
                    f"ledgers there have owner marks that were not named: {counts}. If they are of an earlier registry "
                    "of this Pulsar cluster, name each with --owner, first the one that is to stay; if not, another "
                    "Pulsar cluster writes there, and bookwarden would take its ledgers for ours"
                ],
            )
        if had_registry and unmarked and wanted.unmarked_below is None and candidate.url != self.registry.url:
            raise _refused(
                wanted.name,
                [
                    f"{unmarked:,} ledgers there have no owner mark, the largest {largest}, and a registry that is not "
                    "there any more said below which id these are ours. Put it back (`bookie-clusters registry "
                    f"import`), or say it with --unmarked-below: {largest + 1} takes all of them for ours; what "
                    "another client made, such as Functions, is not read as ours if the id is smaller"
                ],
            )
        return owners

    def _foreign(self, wanted: ClusterSpec, candidate: BookieClusterMetadata, before: StoredRegistry | None) -> int:
        """Count the ledgers that are not ours; RefusedError where there must not be any."""
        if before is None:
            return 0
        owner, registry, below = before.registry.owner, before.registry, wanted.unmarked_below or 0
        foreign = [
            ledger_id
            for ledger_id, custom in candidate.custom_metadata()
            if not is_marked_as_ours(registry, custom)
            and (custom is None or owner_in(custom) is not None or ledger_id >= below)
        ]
        if foreign and not wanted.shared:
            raise _refused(
                wanted.name,
                [
                    f"{len(foreign):,} ledgers are there that this Pulsar cluster did not make, such as "
                    f"{', '.join(map(str, foreign[:_SHOWN]))}: brokers would take one for their own ledger of that "
                    "number. Use an empty cluster; or, if others write there, --shared: then only ledgers with the "
                    f"mark of this Pulsar cluster (bookwarden.owner={owner}) exist for it; or, if it was registered "
                    "before and its brokers made them without the jar, --unmarked-below"
                ],
            )
        return len(foreign)

    def _require_no_stock_broker(self, name: str, *, leaps: bool) -> None:
        """Raise RefusedError while a broker gives ledgers ids of another sequence."""
        stock = [broker.name for broker in read_brokers(self.registry.store) if broker.follower is None]
        if not stock:
            return
        why = (
            "ledger ids have to leap over 2**32, which BookKeeper's own client does not notice"
            if leaps
            else f"its metadata is not in Pulsar's own store, so ledger ids come from {OWN_ID_ROOT} from now on"
        )
        raise _refused(
            name,
            [
                f"{why}, but {_some(stock)} without the jar, and would give smaller ones, which sort before those in "
                "their topics' lists and lose data: stop these brokers, register, start all with the jar"
            ],
        )


def require_understanding(pulsar: MetadataStore, refusal: str) -> None:
    """Raise RefusedError while a broker lives whose jar takes each ledger without a mark for ours."""
    old = [
        broker.name
        for broker in read_brokers(pulsar)
        if broker.follower is not None and UNMARKED_BELOW not in broker.follower.understands
    ]
    if old:
        raise RefusedError(
            f"{refusal}: {_some(old)} with the jar of an earlier bookwarden, which takes every ledger without an owner "
            "mark for ours. Install the jar of this one (`bookie-clusters jar`), and start these brokers again"
        )


def require_no_stock_broker(pulsar: MetadataStore, refusal: str, closing: Sequence[str]) -> None:
    """Raise RefusedError while a broker makes ledgers without a mark where such ledgers are not ours from now on."""
    stock = [broker.name for broker in read_brokers(pulsar) if broker.follower is None]
    if stock:
        raise RefusedError(
            f"{refusal}: {_some(stock)} without the jar, and makes ledgers without an owner mark in "
            f"{', '.join(closing)}, which would not be read from now on: stop these brokers, try "
            "again, start them with the jar"
        )


def raise_own_counters(node: ClusterRegistry, registry: Registry, below: int) -> None:
    """Raise the counter that each cluster has itself to this id, so that no client takes one that is ours by its id.

    One that would have to leap is left as it is, since running clients would not notice; the precheck says so.
    """
    for each in registry.clusters.values():
        if not each.shared and not registry.counts_ids_in(each):
            generator = node.stores.ids_at(node.place_of(each))
            if generator.next_id() < below and not generator.needs_leap(below):
                generator.raise_to(below)


def _first(cluster: BookieCluster, owners: Sequence[str]) -> Registry:
    id_root = OWN_ID_ROOT if cluster.store_url is not None else cluster.ledgers_root
    owner, *former = owners or (secrets.token_hex(4),)
    return Registry(1, owner, id_root, cluster.name, {cluster.name: cluster}, former_owners=tuple(former))


def _is_registration_of(wanted: ClusterSpec, seen: ClusterSeen, known: BookieCluster) -> bool:
    asked = (wanted.uri.strip(), seen.instance, wanted.bootstrap, wanted.shared)
    return not known.bootstrap and asked == (
        known.metadata_service_uri.strip(),
        known.instance,
        known.bootstrap,
        known.shared,
    )


def _of_form(wanted: ClusterSpec, before: StoredRegistry | None) -> Iterator[str]:
    if not is_cluster_name(wanted.name):
        yield "a name begins with a letter or digit, and goes on with up to 62 of those and ._-"
    if before is None and not wanted.bootstrap:
        yield "nothing is registered yet: register the cluster that brokers use now first, with --bootstrap"
    if before is not None and wanted.bootstrap:
        yield f"--bootstrap is for the first, and {', '.join(sorted(before.registry.clusters))} are registered"
    if before is not None and wanted.name in before.registry.clusters:
        yield "a cluster of this name is registered already"
    if wanted.bootstrap and wanted.shared:
        yield "the first cluster cannot be --shared: its ledgers have no mark, and would not exist for brokers"
    if before is not None and wanted.owners:
        yield "--owner is for the first cluster; `bookie-clusters upgrade --owner` names owners later"
    for owner in wanted.owners:
        if not is_owner(owner):
            yield f"the owner {owner!r} is not eight hexadecimal digits"


def of_metadata(place: LedgersRoot, seen: ClusterSeen) -> Iterator[str]:
    """Yield why what is at this place is no bookie cluster whose ledgers brokers find."""
    where = f"{place.url} has"
    if not seen.exists:
        yield f"{where} no {place.ledgers_root}: initialise the cluster (`bookkeeper shell initnewcluster`)"
    elif seen.instance is None:
        yield (
            f"{where} no {place.ledgers_root}/INSTANCEID: it is another root, or was not initialised "
            "(`bookkeeper shell initnewcluster`)"
        )
    if seen.layout_problem:
        yield f"{seen.layout_problem}: Pulsar's ledger manager has the paths of hierarchical alone"


def looked(cluster: BookieClusterMetadata, name: str) -> ClusterSeen:
    """Look at the cluster; the StoreError of one that does not answer names it."""
    try:
        return cluster.look()
    except StoreError as error:
        raise type(error)(f"bookie cluster {name!r}, {cluster.ledgers_root} in {cluster.url}: {error}") from error


def why_confused(
    stores: ClusterStores,
    one: tuple[BookieClusterMetadata, ClusterSeen],
    other: tuple[BookieClusterMetadata, ClusterSeen],
    name: str | None = None,
) -> Iterator[str]:
    """Yield why brokers, or bookies, would take ledgers of one of these clusters for those of the other.

    ``name`` is the name under which the other one is registered.
    """
    (first, seen), (second, there) = one, other

    def has(root: LedgersRoot, wanted: ClusterSeen) -> bool:
        return wanted.instance is not None and stores.cluster_at(root).look().instance == wanted.instance

    roots = None
    if (path := second.root_seen_from(first.url)) is not None and has(LedgersRoot(first.url, path), there):
        roots = first.ledgers_root, path
    elif (path := first.root_seen_from(second.url)) is not None and has(LedgersRoot(second.url, path), seen):
        roots = path, second.ledgers_root
    if roots is not None and overlap(*roots):
        whose = "the other" if name is None else repr(name)
        yield (
            f"its root {roots[0]} and the root {roots[1]} of {whose} are in one store, and one begins with the other, "
            "so that brokers would take ledgers of one for those of the other: initialise it at a root of another "
            "beginning, such as /bookies-b"
        )
    common = sorted(seen.bookies & there.bookies)
    if common:
        both = "clusters" if name is None else f"this cluster and {name!r}"
        yield (
            f"{_some(common)} in both {both} (registered, or with a cookie): a bookie belongs to one cluster. "
            "Decommission it in one of them"
        )


def overlap(one: str, other: str) -> bool:
    """Return whether one of two roots begins with the other: then brokers confuse their ledgers."""
    return one.startswith(other) or other.startswith(one)


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more are" if len(names) > _SHOWN else " are" if len(names) > 1 else " is"
    return ", ".join(names[:_SHOWN]) + more


def _refused(name: str, reasons: Sequence[str]) -> RefusedError:
    return RefusedError(f"bookie cluster {name!r} is not registered: {'; '.join(reasons)}")
