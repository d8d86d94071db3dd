"""Promotion: the topics whose ledgers have a copy in the active bookie cluster are unloaded, so that all read it there.

Nothing but the place changes that entries are read from: no node of a topic, subscription or schema is written by us.

A stamp is the key by which PIP-477 attributes a cursor's ledger, a hint for the plug-in of that proposal. Nothing of
ours reads it: a ledger is where its metadata is. Only the broker that has a topic loaded may write to its cursors.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass
from typing import Final, NamedTuple

from bookwarden.bookie_clusters.bookie_clusters import MultiClusterCatalog
from bookwarden.bookie_clusters.inventory import UnloadResult, roll
from bookwarden.bookie_clusters.moving.former import FormerClusters, KeptLedger, UnfinishedCopy
from bookwarden.bookie_clusters.operation import Switch
from bookwarden.bookie_clusters.order import Phase
from bookwarden.bookie_clusters.promoted import (
    Promotion,
    find_promotion,
    is_opened_since,
    keep_promotion,
    why_kept_open,
    why_not_promoted,
)
from bookwarden.clusters.pulsar.connection import PulsarConnection
from bookwarden.clusters.pulsar.metadata.managed_ledgers import ManagedLedgers
from bookwarden.clusters.pulsar.metadata.ownership import read_all_started
from bookwarden.clusters.pulsar.references.shadows import read_shadows
from bookwarden.clusters.pulsar.rest.registered_brokers import read_loaded_topics
from bookwarden.clusters.pulsar.rest.topics import Topics
from bookwarden.errors import BookwardenError, LostRaceError, NotFoundError, RefusedError
from bookwarden.ledgers.kinds import LedgerComponent
from bookwarden.ledgers.managed_ledger import CursorInfo
from bookwarden.ledgers.metadata import ActiveCluster, StoredLedger
from bookwarden.ledgers.names import TopicName, decode_local_name
from bookwarden.metastore.interface import MetadataStore
from bookwarden.metastore.store_clock import StoreClock

#: The proposal's key, in the properties of a cursor.
ATTRIBUTION_KEY: Final = "_pulsar.bookieClusterName"
# ManagedCursorImpl of Pulsar 4.0 keeps properties of this prefix by itself, and refuses them from others.
_INTERNAL: Final = "#pulsar.internal."


class BrokerTopics:
    """The topics that brokers have loaded, by Pulsar's own store and each broker's REST."""

    def __init__(self, store: MetadataStore, connection: PulsarConnection, topics: Topics) -> None:
        self._store = store
        self._connection = connection
        self.unload = topics.unload
        self.set_subscription_properties = topics.set_subscription_properties

    def loaded(self) -> frozenset[str]:
        """Ask all brokers for the topics that they have loaded; loads none. Raises PulsarError."""
        return read_loaded_topics(self._store, self._connection)

    def started_ms(self) -> int:
        """Return when the first of the live brokers was started, or before (ms since the epoch); 0 if unknown."""
        return read_all_started(self._store)


class StampFailure(NamedTuple):
    """A subscription that was not stamped, and why; of a whole topic its name is empty."""

    topic: str
    subscription: str
    reason: str


@dataclass(frozen=True, slots=True)
class StampResult:
    """The result for all subscriptions of loaded topics."""

    written: int  #: How many were stamped.
    right: int  #: How many were before.
    failed: tuple[StampFailure, ...]


@dataclass(frozen=True)
class Stamper:
    """Stamps the subscriptions of loaded topics."""

    nodes: ManagedLedgers
    topics: BrokerTopics
    catalog: MultiClusterCatalog  #: Over all registered bookie clusters.

    def stamp(self, active: str, per_second: float, *, sleep: Callable[[float], None] = time.sleep) -> StampResult:
        """Stamp them with the cluster that has the cursor's ledger, or the active one where a cursor has none.

        At most ``per_second`` topics are processed in a second. A failure ends nothing. Properties that others write in
        the same moment can be lost, as with any two who replace them.
        """
        written, right = 0, 0
        failed: list[StampFailure] = []
        for number, topic in enumerate(sorted(self.topics.loaded())):
            if number:
                sleep(1 / per_second)
            try:
                name = TopicName.parse(topic).managed_ledger
                cursors = self.nodes.cursors(name)
            except BookwardenError as error:
                failed.append(StampFailure(topic, "", str(error)))
                continue
            for encoded, cursor in cursors.items():
                subscription = decode_local_name(encoded)
                try:
                    done = self._stamp(topic, name, encoded, cursor.info, active)
                except NotFoundError:
                    # A cursor of the broker's own, as for replication, or deleted meanwhile.
                    continue
                except BookwardenError as error:
                    failed.append(StampFailure(topic, subscription, str(error)))
                    continue
                if isinstance(done, str):
                    failed.append(StampFailure(topic, subscription, done))
                elif done:
                    written += 1
                else:
                    right += 1
        return StampResult(written, right, tuple(failed))

    def _stamp(self, topic: str, name: str, encoded: str, info: CursorInfo, active: str) -> bool | str:
        """Return whether it was stamped, which is not needed if it is right; else why not."""
        cluster = self._cluster_of(info, active)
        if cluster is None:
            return f"its ledger {info.cursors_ledger_id} is in no bookie cluster that is known"
        if info.cursor_properties.get(ATTRIBUTION_KEY) == cluster:
            return False
        if info.delayed_bucket_ids:
            return "it has buckets of delayed messages, which its broker notes in the same place"
        wanted = {**_of_users(info), ATTRIBUTION_KEY: cluster}
        self.topics.set_subscription_properties(topic, decode_local_name(encoded), wanted)
        now = self.nodes.cursors(name).get(encoded)
        if now is None or _of_users(now.info) != wanted:
            return "its properties are not as written: another client changed them in the same moment, look at them"
        return True

    def _cluster_of(self, info: CursorInfo, active: str) -> str | None:
        if info.cursors_ledger_id is None:
            return active
        (reading,) = self.catalog.read_many([info.cursors_ledger_id])
        return reading.bookie_cluster if isinstance(reading, StoredLedger) else None


def _of_users(info: CursorInfo) -> dict[str, str]:
    return {key: value for key, value in info.cursor_properties.items() if not key.startswith(_INTERNAL)}


#: Where more topics than these were not unloaded, nothing counts as promoted.
MOST_FAILED: Final = 1000
# MLPendingAckStore of Pulsar 4.0: TOPIC-SUBSCRIPTION and this; a topic opens it for each of its subscriptions.
_PENDING_ACK: Final = "__transaction_pending_ack"


@dataclass(frozen=True, slots=True)
class PromotionPlan:
    """The ledgers that are to be promoted, and the topics that have to be unloaded for it."""

    active: ActiveCluster  #: The cluster that they will be read from.
    version: int  #: Of the node of the newest promotion; -1 if there is none.
    through_ms: int  #: What was closed in the active cluster before will be promoted.
    ledgers: Counter[tuple[str, str]]  #: What is to be promoted, by former cluster and kind.
    promoted: int  #: How many are already.
    stays: Counter[KeptLedger]  #: What is not, by former cluster and reason.
    readers: Mapping[str, Set[str]]  #: For each managed ledger, those that have its ledgers open if they are loaded.
    topics: tuple[str, ...]  #: Those that are loaded, and so have to be unloaded.
    started_ms: int  #: Since when all brokers run; 0 where that is not known.


@dataclass(frozen=True, slots=True)
class PromotionPass:
    """The result of a pass."""

    promotion: Promotion
    unloaded: tuple[UnloadResult, ...]

    @property
    def failed(self) -> list[UnloadResult]:
        """The topics that were not unloaded."""
        return [one for one in self.unloaded if one.failed]


class PromotionResult(NamedTuple):
    """The result of an order to promote."""

    plan: PromotionPlan
    done: PromotionPass | None  #: None where nothing was to be promoted, and after a dry run.
    stamped: StampResult | None  #: None unless it was asked for, and after a dry run.
    dry_run: bool

    @property
    def failures(self) -> list[str]:
        """What was not done, and why."""
        failures = [f"{one.topic} was not unloaded: {one.error}" for one in (self.done.failed if self.done else ())]
        stamps = self.stamped.failed if self.stamped else ()
        return failures + [f"{one.topic} {one.subscription}: {one.reason}" for one in stamps]


@dataclass(frozen=True)
class Promoter:
    """Plans and carries out promotions."""

    former: FormerClusters  #: Finds what former clusters have.
    store: MetadataStore  #: Pulsar's own.
    switch: Switch  #: Says where the newest switch stands.
    topics: BrokerTopics  #: Unloads topics.
    clock_of: Callable[[MetadataStore], Callable[[], float]] = StoreClock  #: Seconds since the epoch, by a store.

    def plan(self) -> PromotionPlan:
        """Find what is to be promoted; changes nothing, and reads the metadata of every ledger of former clusters.

        Raises RefusedError where there is no former cluster, or a switch is under way.
        """
        active = self.former.active()
        if active.since_ms is None:
            raise RefusedError("nothing is promoted: nothing was switched yet, so that brokers read nothing elsewhere")
        phase = self.switch.state().phase
        if phase is not Phase.DONE:
            raise RefusedError(
                f"nothing is promoted: the newest switch is in the phase {phase.value}, so that brokers may read by "
                "another registry: carry it on with `bookie-clusters switch --resume` first"
            )
        promotion, version = find_promotion(self.store)
        # Before anything is listed, so that a copy that is closed meanwhile is younger.
        target = self.former.active_store(active)
        through_ms = int(self.clock_of(target)() * 1000)
        started_ms = self.topics.started_ms()
        if target is not self.store:
            # Brokers' starts go by Pulsar's own store, copies by the target's: where that one's clock is behind, a copy
            # seems closed before a start that it was closed after.
            behind_ms = int(self.clock_of(self.store)() * 1000) - through_ms
            started_ms = max(0, started_ms - max(0, behind_ms))
        known = read_shadows(self.store)
        ledgers, stays = Counter[tuple[str, str]](), Counter[KeptLedger]()
        readers: dict[str, set[str]] = {}
        promoted = 0
        for one in self.former.found(active):
            if isinstance(one, KeptLedger):
                stays[one] += 1
                continue
            if isinstance(one, UnfinishedCopy):
                # No broker reads it.
                continue
            cluster, holder = one.former.bookie_cluster, one.holder
            kept_open = why_kept_open(holder)
            if why_not_promoted(one.kept, holder, promotion, active) is None:
                promoted += 1
            elif kept_open is not None:
                if is_opened_since(one.kept, active, started_ms):
                    ledgers[cluster, holder.ledgers_label] += 1
                else:
                    stays[KeptLedger(cluster, kept_open)] += 1
            elif not 0 < one.kept.modified_ms < through_ms:
                stays[KeptLedger(cluster, "its copy was closed while this was looked at: promote once more")] += 1
            else:
                ledgers[cluster, holder.ledgers_label] += 1
                if holder.component is not LedgerComponent.SCHEMA_STORAGE:
                    names = known.readers_of(holder.topic, one.former.ledger_id)
                    readers.setdefault(holder.topic, set()).update(names)
        # Last, so that what is loaded later is loaded after the copies were closed.
        topics = _of_loaded(readers, _by_managed_ledger(self.topics.loaded()))
        return PromotionPlan(
            active, version, through_ms, ledgers, promoted, stays, readers, tuple(sorted(topics)), started_ms
        )

    def promote(
        self,
        per_second: float,
        *,
        stamping: Stamper | None = None,
        dry_run: bool = False,
        confirm: Callable[[PromotionPlan], object] = lambda _: None,
        tell: Callable[[UnloadResult], object] = lambda _: None,
    ) -> PromotionResult:
        """Promote what can be, and stamp subscriptions where ``stamping`` is given; or look only.

        It is what commands and REST do. ``confirm`` is called before anything is changed, and may raise RefusedError.
        Where nothing is to be promoted the newest promotion stays as it is. Else as `plan` and `carry_out`.
        """
        plan = self.plan()
        total = plan.ledgers.total()
        if dry_run or not (total or stamping):
            return PromotionResult(plan, None, None, dry_run)
        confirm(plan)
        done = self.carry_out(plan, per_second, tell) if total else None
        stamped = None if stamping is None else stamping.stamp(plan.active.name, per_second)
        return PromotionResult(plan, done, stamped, dry_run)

    def carry_out(
        self, plan: PromotionPlan, per_second: float, tell: Callable[[UnloadResult], object] = lambda _: None
    ) -> PromotionPass:
        """Unload at most ``per_second`` topics in a second, and record what is promoted; ``tell`` gets each topic.

        Interrupted or killed, it has promoted nothing, and may be repeated. Raises RefusedError where brokers were
        switched meanwhile, another process promoted, or too many topics were not unloaded.
        """
        done = roll(plan.topics, self.topics.unload, per_second, tell)
        # A topic that was being loaded when brokers were asked is in no answer, and may have opened ledgers before.
        late = _of_loaded(plan.readers, _by_managed_ledger(self.topics.loaded())) - set(plan.topics)
        done += roll(sorted(late), self.topics.unload, per_second, tell)
        not_unloaded = _by_managed_ledger(one.topic for one in done if one.failed)
        failed = frozenset(name for name, readers in plan.readers.items() if _among(readers, not_unloaded))
        if len(failed) > MOST_FAILED:
            raise RefusedError(
                f"{len(not_unloaded)} topics were not unloaded, too many to record: nothing counts as promoted, run it "
                "again when brokers answer"
            )
        active = self.former.active()
        promotion = Promotion(plan.active.name, plan.active.epoch, plan.through_ms, failed, plan.started_ms)
        if not promotion.counts_for(active.name, active.epoch):
            raise RefusedError("nothing is promoted: brokers were switched meanwhile")
        try:
            keep_promotion(self.store, promotion, plan.version)
        except LostRaceError as error:
            raise RefusedError(f"another process has just promoted: {error}") from error
        return PromotionPass(promotion, tuple(done))


def _by_managed_ledger(topics: Iterable[str]) -> dict[str, str]:
    return {TopicName.parse(topic).managed_ledger: topic for topic in topics}


def _of_loaded(readers: Mapping[str, Set[str]], loaded: Mapping[str, str]) -> set[str]:
    return {topic for names in readers.values() for topic in _among(names, loaded)}


def _among(names: Iterable[str], loaded: Mapping[str, str]) -> set[str]:
    """Return the topics, of these by their managed ledgers, that have one of the named open if they are loaded."""
    found: set[str] = set()
    for name in names:
        openers = [name]
        if name.endswith(_PENDING_ACK):
            # The subscription's name may have any hyphens too.
            openers += [name[:at] for at, sign in enumerate(name) if sign == "-"]
        found.update(loaded[opener] for opener in openers if opener in loaded)
    return found
