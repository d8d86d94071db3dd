"""The record of a promotion: of which ledgers no broker passes over the copy in the active bookie cluster any more.

Brokers with the jar read a whole copy from the active cluster as soon as they open the ledger. A handle that they have
open since before the copy goes on reading the former place, until its topic is unloaded. So a ledger is promoted if
its copy was closed before its topic was last unloaded by us. What no unloading closes is promoted if all brokers were
started after the copy was closed, and after the switch. One node keeps all that is needed for this: the time before
which copies were closed, by the clock of the store that has them, the topics that were not unloaded, and since when
all brokers run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from bookwarden.bookie_clusters.registry import Registry
from bookwarden.errors import FormatError, LostRaceError
from bookwarden.ledgers.kinds import Holder, LedgerComponent
from bookwarden.ledgers.metadata import ActiveCluster, Condition, Conditions, DeleteResult, StoredLedger
from bookwarden.metastore.interface import MetadataStore
from bookwarden.records import RECORD, Names, decode_record, encode_record

PROMOTION_PATH: Final = "/bookwarden/bookie-clusters-promotion"
_FORMAT: Final = 1
# MLTransactionLogImpl of Pulsar 4.0: opened by the transaction coordinator, and by no topic.
_TRANSACTION_LOG: Final = "pulsar/system/persistent/__transaction_log_"
_GONE: Final = (DeleteResult.DELETED, DeleteResult.ABSENT)
_TRIES: Final = 5
NOT_PROMOTED: Final = "not promoted: `bookie-clusters promote`"


@dataclass(frozen=True, slots=True)
class Promotion:
    """The newest pass over all topics whose ledgers have a copy in the active cluster."""

    __pydantic_config__ = RECORD

    target: str  #: The bookie cluster that was active.
    epoch: int  #: Of the registry that the switch to it made: another switch, and back, makes the promotion void.
    through_ms: int  #: What was closed in the target before is promoted; by the clock of the target's store.
    failed: Names  #: Managed ledgers whose topics were not unloaded: of these nothing is promoted.
    started_ms: int = 0  #: When the first of all brokers was started, or before; 0 where that is not known.

    def counts_for(self, active: str, epoch: int) -> bool:
        """Return whether it is about the cluster that is active since the switch that made this epoch."""
        return (self.target, self.epoch) == (active, epoch)


def promotion_that_counts(registry: Registry | None, promotion: Promotion | None) -> Promotion | None:
    """Return the promotion if it is about the cluster that is active by this registry; else None."""
    directive = None if registry is None else registry.directive
    if directive is None or promotion is None:
        return None
    return promotion if promotion.counts_for(directive.target, directive.epoch) else None


def why_kept_open(holder: Holder) -> str | None:
    """Return why no unloading of topics closes what brokers have open of this holder; None if that does."""
    if holder.component is LedgerComponent.DELAYED_INDEX_BUCKET:
        # BookkeeperBucketSnapshotStorage of Pulsar 4.0 keeps each handle until its bucket is deleted.
        return "brokers keep a bucket of delayed messages open until they are restarted, all of them"
    if holder.component is not LedgerComponent.SCHEMA_STORAGE and holder.topic.startswith(_TRANSACTION_LOG):
        return "transaction coordinators keep their log open until brokers are restarted, all of them"
    return None


def is_opened_since(kept: StoredLedger, active: ActiveCluster, started_ms: int) -> bool:
    """Return whether brokers that were all started since then read this ledger of the active cluster there."""
    # What a broker opened before the switch it opened in the former cluster, although the copy was there.
    return 0 < kept.modified_ms < started_ms and active.since_ms is not None and active.since_ms < started_ms


def why_not_promoted(
    kept: StoredLedger, holder: Holder, promotion: Promotion | None, active: ActiveCluster
) -> str | None:
    """Return why brokers may still read this ledger of the active cluster elsewhere; None if it is promoted."""
    if active.since_ms is None:
        # Nothing was ever switched, so that brokers have always read the active cluster first.
        return None
    kept_open = why_kept_open(holder)
    if promotion is None or not promotion.counts_for(active.name, active.epoch):
        return NOT_PROMOTED if kept_open is None else f"not promoted: {kept_open}"
    if kept_open is not None:
        return None if is_opened_since(kept, active, promotion.started_ms) else f"not promoted: {kept_open}"
    if not 0 < kept.modified_ms < promotion.through_ms:
        return NOT_PROMOTED
    # Brokers close the ledger of a schema as soon as it was read.
    if holder.component is not LedgerComponent.SCHEMA_STORAGE and holder.topic in promotion.failed:
        return f"{NOT_PROMOTED}, which could not unload its topic"
    return None


@dataclass(frozen=True, slots=True)
class PromotionSnapshot:
    """The newest promotion as it was read; ``problem`` says why what is there is none."""

    promotion: Promotion | None
    conditions: Conditions = ()  #: Its node, where the ledgers' store has it too.
    problem: str = ""  #: Empty where it could be read.

    def why_not(self, kept: StoredLedger, holder: Holder, active: ActiveCluster) -> str | None:
        """Return why brokers may still read this ledger of the active cluster elsewhere; None if it is promoted."""
        return self.problem or why_not_promoted(kept, holder, self.promotion, active)


class Promotions:
    """Reads the newest promotion in Pulsar's own store.

    ``prefix`` is that of the store's paths as the store of the ledgers has them; None where that is another one.
    """

    def __init__(self, store: MetadataStore, prefix: str | None = None) -> None:
        self._store = store
        self._prefix = prefix

    def newest(self) -> PromotionSnapshot:
        """Read it now."""
        try:
            promotion, version = find_promotion(self._store)
        except FormatError as error:
            return PromotionSnapshot(None, problem=f"{NOT_PROMOTED}: {error}")
        demanded = self._prefix is not None and version >= 0
        return PromotionSnapshot(
            promotion, (Condition(f"{self._prefix}{PROMOTION_PATH}", version),) if demanded else ()
        )


def read_promotion(store: MetadataStore) -> Promotion | None:
    """Return the newest one, as `find_promotion` does."""
    return find_promotion(store)[0]


def find_promotion(store: MetadataStore) -> tuple[Promotion | None, int]:
    """Read the newest one from Pulsar's own store, with the version of its node; -1 as version where there is none.

    Raises FormatError if the node has something else.
    """
    store.sync()
    node = store.get(PROMOTION_PATH)
    if node is None:
        return None, -1
    try:
        found = decode_record(Promotion, node.value, _FORMAT)
    except FormatError as error:
        raise FormatError(f"{PROMOTION_PATH} is no record of a promotion: {error}; find out who wrote it") from error
    return found, node.version


def keep_promotion(store: MetadataStore, promotion: Promotion, version: int) -> None:
    """Write it over the version that was read; LostRaceError where another client wrote meanwhile."""
    value = encode_record(promotion, _FORMAT)
    if version < 0:
        store.create(PROMOTION_PATH, value, make_parents=True)
    else:
        store.put(PROMOTION_PATH, value, version)


def void_promotion(store: MetadataStore) -> None:
    """Take the newest promotion away, whatever it is: nothing is superseded until another one is kept.

    A process that promotes at the same time finds that it is gone, or that brokers were switched. Raises LostRaceError
    while other processes go on writing it.
    """
    for _ in range(_TRIES):
        store.sync()
        node = store.get(PROMOTION_PATH)
        if node is None or store.delete_many([(PROMOTION_PATH, node.version)])[0] in _GONE:
            return
    raise LostRaceError(f"{PROMOTION_PATH} is being written by another process: see that none promotes, and try again")
