"""Builds the adapters from the settings; the only place that knows both."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bookwarden.clusters.bookkeeper.bookies.addresses import BookieAddresses
from bookwarden.clusters.bookkeeper.bookies.last_entries import LastEntries
from bookwarden.clusters.bookkeeper.bookies.probe import ReplicaProbe
from bookwarden.clusters.bookkeeper.bookies.requests import BookieOptions, Bookies
from bookwarden.clusters.bookkeeper.bookies.tls import BookieTls
from bookwarden.clusters.bookkeeper.catalog import DEFAULT_LEDGERS_ROOT, BookKeeperCatalog
from bookwarden.clusters.bookkeeper.returning_ids import ReturningIds
from bookwarden.clusters.bookkeeper.service_uris import BookKeeperPlace, bookkeeper_place
from bookwarden.clusters.bookkeeper.undone import UndoneLedgers
from bookwarden.clusters.offload.limits import RequestLimits
from bookwarden.clusters.offload.opening import OffloadPlace, allowed_store
from bookwarden.clusters.offload.stores import OffloadStores
from bookwarden.clusters.pulsar.connection import PulsarConnection
from bookwarden.clusters.pulsar.messages.mark_decoder import MarkDecoder
from bookwarden.clusters.pulsar.messages.mark_sender import PendingDeletionSender
from bookwarden.clusters.pulsar.messages.readers import DeadLetterTopic
from bookwarden.clusters.pulsar.messages.retries import RetrySender
from bookwarden.clusters.pulsar.messages.waiting import WaitingMessages
from bookwarden.clusters.pulsar.metadata.managed_ledgers import ManagedLedgers
from bookwarden.clusters.pulsar.metadata.ownership import BundleOwnership
from bookwarden.clusters.pulsar.references.live import MetadataReferences
from bookwarden.clusters.pulsar.references.scan import ReferenceScan
from bookwarden.clusters.pulsar.rest.admin import PulsarAdmin
from bookwarden.clusters.pulsar.rest.backlog import SubscriptionBacklog
from bookwarden.clusters.pulsar.rest.brokers import Brokers
from bookwarden.clusters.pulsar.rest.deletion_topics import DeletionTopics
from bookwarden.clusters.pulsar.rest.schemas import SchemaRegistry
from bookwarden.clusters.pulsar.rest.topics import Topics
from bookwarden.config import OffloadStoreSettings, Settings
from bookwarden.deletion.dead_letters import DeadLetters
from bookwarden.deletion.inflight import DEFAULT_MAX_ENTRIES, InFlight, count_in_flight
from bookwarden.deletion.journal.reading import (
    JournalDamage,
    JournalFolder,
    JournalReader,
    SelectedDeletions,
    Selection,
)
from bookwarden.deletion.journal.writing import FileJournal, ObjectJournal
from bookwarden.deletion.phase_one.mark import Marker, MarkReport
from bookwarden.deletion.phase_one.removal import Removal
from bookwarden.deletion.phase_one.trimming import BrokerTrim, StoreTrim
from bookwarden.deletion.phase_two.decide import DeletionPolicy
from bookwarden.deletion.phase_two.sent_on import FileSentRecords, ObjectSentRecords
from bookwarden.deletion.phase_two.sweeping import Sweep, SweepLimits
from bookwarden.deletion.undo.operation import Undo
from bookwarden.errors import MissingExtraError
from bookwarden.ledgers.received import ReceivedMark, believed_properties
from bookwarden.metastore.following.all_stores import Migrations
from bookwarden.metastore.following.progress import MigrationTimes
from bookwarden.metastore.following.store import MigratingStore
from bookwarden.metastore.interface import MetadataStore
from bookwarden.metastore.store_clock import StoreClock
from bookwarden.metastore.urls import open_store, path_before, scheme_of, split_chroot
from bookwarden.metastore.wrappers import WriteProtectedStore, throttled
from bookwarden.metastore.write_conditions import ConditionalStore
from bookwarden.resources import Resources
from bookwarden.wire.avro import PendingDeletionCodec, registry_schema
from bookwarden.wire.ledger_metadata import decode_ledger_metadata

if TYPE_CHECKING:
    from bookwarden.clusters.journal_objects import S3Objects


def connection_of(settings: Settings) -> PulsarConnection:
    """Say how to reach the Pulsar cluster."""
    pulsar = settings.pulsar
    return PulsarConnection(
        service_url=pulsar.service_url,
        admin_url=pulsar.admin_url,
        auth=pulsar.auth,
        token=pulsar.token.get_secret_value() if pulsar.token else None,
        token_file=pulsar.token_file,
        tls_certificate_file=pulsar.tls_certificate_file,
        tls_private_key_file=pulsar.tls_private_key_file,
        tls_trust_certs_file=pulsar.tls_trust_certs_file,
        tls_allow_insecure=pulsar.tls_allow_insecure,
        tls_validate_hostname=pulsar.tls_validate_hostname,
        oauth2={name: value for name, value in pulsar.oauth2.model_dump().items() if value},
        client_options=dict(pulsar.client),
    )


def open_metadata_store(
    settings: Settings, url: str, *, one_of_many: bool = False, deletes: bool = False
) -> MetadataStore:
    """Make the metadata store of this URL, also where Pulsar moves it to; it connects at its first call.

    ``one_of_many`` is for tasks that write at the same time: one whose metadata moves to where only one may write
    (`has_one_writer`) gets StoreMovedError for each write. ``deletes`` is as for `open_single_store`.
    """
    source = open_single_store(settings, url, deletes=deletes)
    if not isinstance(source, ConditionalStore):
        return source

    def open_target(target: str) -> MetadataStore:
        protected = one_of_many and _takes_one_writer(settings, target)
        opened = open_single_store(settings, target, deletes=deletes and not protected)
        if not protected:
            return opened
        reason = f"the metadata of {url} was moved to {target}, which takes one writer, and this task is one of many"
        return WriteProtectedStore(opened, f"{reason}: the sweep starts it again as the only one")

    store = settings.metadata_store
    times = MigrationTimes(write_wait_s=store.migration_write_wait_seconds, drain_limit_s=store.migration_drain_seconds)
    return MigratingStore(source, open_target=open_target, times=times)


def open_single_store(settings: Settings, url: str, *, deletes: bool = False) -> MetadataStore:
    """Make the store that the URL names and no other, also while its metadata is moved and after it: to look at it.

    Nothing is to be written through it. It connects at its first call. ``deletes`` says that ledgers are deleted by
    what it reads: on Oxia each `sync` then proves that the leaders still lead.
    """
    store = settings.metadata_store
    scheme = scheme_of(url)
    if scheme not in ("zk", "oxia"):
        return open_store(url)
    options: dict[str, Any] = {
        "session_timeout_s": store.session_timeout_seconds,
        "operation_timeout_s": store.operation_timeout_seconds,
        "use_ssl": store.tls,
        "ca": store.tls_trust_certs_file,
        "certfile": store.tls_certificate_file,
        "keyfile": store.tls_private_key_file,
        "in_flight": store.batches_in_flight,
        "max_requests_per_second": store.max_requests_per_second,
    }
    if store.batch_size is not None:
        options["batch_size"] = store.batch_size
    if scheme == "oxia":
        options["use_ssl"] = store.tls if store.oxia_tls is None else store.oxia_tls
        options["token"] = store.oxia_token.get_secret_value() if store.oxia_token else None
        options["proves_leaders"] = deletes
        return open_store(url, **options)
    options["max_request_bytes"] = store.jute_maxbuffer
    options["max_latency_s"] = None if store.max_store_latency_ms is None else store.max_store_latency_ms / 1000
    if store.digest_user and store.digest_password:
        options["digest"] = (store.digest_user, store.digest_password.get_secret_value())
    return open_store(url, **options)


def bookkeeper_place_of(settings: Settings) -> BookKeeperPlace:
    """Say where BookKeeper's metadata is; ConfigError if the settings name no place that can be."""
    store = settings.metadata_store
    if store.bookkeeper_url is None:
        root = DEFAULT_LEDGERS_ROOT if store.ledgers_root is None else store.ledgers_root.rstrip("/")
        return BookKeeperPlace(store.urls[0], root)
    return bookkeeper_place(store.bookkeeper_url, store.ledgers_root)


def has_one_writer(settings: Settings, moved_to: str | None = None) -> bool:
    """Say whether only one process at a time should delete ledgers: metadata is in an Oxia that may be old.

    Two that write at the same moment can make it refuse all writes: docs/oxia.md. ``moved_to`` is where BookKeeper's
    metadata was moved to, if it was.
    """
    written = (moved_to or bookkeeper_place_of(settings).url, *settings.metadata_store.urls)
    return any(_takes_one_writer(settings, url) for url in written)


def _takes_one_writer(settings: Settings, url: str) -> bool:
    return scheme_of(url) == "oxia" and not settings.metadata_store.oxia_concurrent_writers


def bookie_options_of(settings: Settings) -> BookieOptions:
    """Say how bookies are reached and read."""
    bookkeeper = settings.bookkeeper
    tls = BookieTls(
        trust_certs_file=bookkeeper.tls_trust_certs_file,
        certificate_file=bookkeeper.tls_certificate_file,
        private_key_file=bookkeeper.tls_private_key_file,
        validate_hostname=bookkeeper.tls_validate_hostname,
    )
    return BookieOptions(
        connect_timeout_s=bookkeeper.connect_timeout_seconds,
        request_timeout_s=bookkeeper.request_timeout_seconds,
        reads_in_flight=bookkeeper.reads_in_flight,
        bytes_in_flight=bookkeeper.bytes_in_flight,
        tls=tls if bookkeeper.tls else None,
    )


def offload_stores_of(settings: Settings) -> OffloadStores:
    """Make what deletes offloaded copies; MissingExtraError if a driver's library is not installed."""
    offload = settings.offload
    limits = RequestLimits(
        attempts=offload.attempts,
        parallel=offload.parallel_requests,
        connect_timeout=offload.connect_timeout_seconds,
        read_timeout=offload.read_timeout_seconds,
        abort_uploads=offload.abort_uploads,
    )
    return OffloadStores([allowed_store(_place_of(store), limits) for store in offload.stores])


def _place_of(store: OffloadStoreSettings) -> OffloadPlace:
    fields: dict[str, Any] = store.model_dump()
    for name in ("secret_key", "account_key"):
        secret = fields[name]
        fields[name] = secret.get_secret_value() if secret else None
    return OffloadPlace(**fields)


def policy_of(settings: Settings) -> DeletionPolicy:
    """Give the limits of phase two."""
    deletion = settings.deletion
    return DeletionPolicy(
        retry_delay=deletion.two_phase_deletion_reconsume_later_in_seconds,
        max_retries=deletion.two_phase_deletion_max_retry_delete_count,
        still_referenced_grace=deletion.still_referenced_grace,
        unlisted_grace=deletion.unlisted_grace_seconds,
        delete_delay=deletion.delete_delay_seconds,
        bookie_cluster=deletion.bookie_cluster,
    )


def backlog_of(settings: Settings) -> dict[str, int]:
    """Count the broker entries behind the sweep's subscription, by partition of both topics."""
    deletion = settings.deletion
    with closing(PulsarAdmin(connection_of(settings))) as admin:
        backlog = SubscriptionBacklog(admin)
        return {
            partition: backlog.entries(partition, deletion.subscription)
            for topic in (deletion.topic, deletion.retry_topic)
            for partition in backlog.partitions(topic)
        }


def deletion_topics_of(settings: Settings) -> DeletionTopics:
    """Say which topics two-phase deletion runs on."""
    deletion = settings.deletion
    return DeletionTopics(
        topic=deletion.topic,
        retry_topic=deletion.retry_topic,
        dlq_topic=deletion.dlq_topic,
        subscription=deletion.subscription,
        partitions=deletion.two_phase_deletion_ledger_deletion_parallelism,
        schema=registry_schema(),
    )


def in_flight_of(settings: Settings, max_entries: int = DEFAULT_MAX_ENTRIES) -> InFlight:
    """Count the messages in flight on the deletion topic and its retry topic."""
    deletion = settings.deletion
    with closing(PulsarAdmin(connection_of(settings))) as admin:
        reader = SubscriptionBacklog(admin)
        return count_in_flight(reader, (deletion.topic, deletion.retry_topic), deletion.subscription, max_entries)


def journal_of(settings: Settings) -> FileJournal | ObjectJournal:
    """Make this process's writer of the journal; it opens a file, or connects, at its first record."""
    sweep = settings.sweep
    if "://" in sweep.journal:
        return ObjectJournal(_journal_objects(sweep.journal))
    return FileJournal(Path(sweep.journal), keep_days=sweep.journal_retention_days)


def sent_records_of(settings: Settings) -> FileSentRecords | ObjectSentRecords:
    """Make this process's record of what was sent on; it lies beside the journal."""
    journal = settings.sweep.journal
    return ObjectSentRecords(_journal_objects(journal)) if "://" in journal else FileSentRecords(Path(journal) / "sent")


def journal_reader_of(settings: Settings, damaged: Callable[[JournalDamage], object] | None = None) -> JournalReader:
    """Give access to the whole journal; ``damaged`` is told of damaged places in it."""
    journal = settings.sweep.journal
    return JournalReader(_journal_objects(journal) if "://" in journal else JournalFolder(Path(journal)), damaged)


def _journal_objects(location: str) -> S3Objects:
    try:
        from bookwarden.clusters.journal_objects import S3Objects
    except ImportError as error:
        raise MissingExtraError(f"sweep.journal {location} needs a library: pip install 'bookwarden[s3]'") from error
    return S3Objects(location)


def dead_letters_of(settings: Settings) -> DeadLetters:
    """Give access to the DLQ."""
    deletion, connection = settings.deletion, connection_of(settings)
    box = DeadLetterTopic(
        connection, PulsarAdmin(connection), deletion.dlq_topic, deletion.topic, deletion.subscription
    )
    return DeadLetters(box)


def decoder_of(settings: Settings) -> MarkDecoder:
    """Make the decoder of messages on the deletion topics."""
    return _decoder(settings, SchemaRegistry(PulsarAdmin(connection_of(settings))))


def _decoder(settings: Settings, registry: SchemaRegistry) -> MarkDecoder:
    return MarkDecoder(registry, settings.deletion.topic, settings.deletion.retry_topic)


def waiting_messages_of(settings: Settings) -> Iterator[ReceivedMark]:
    """Read what is in flight now, on both topics, without taking it from the subscription; not decoded."""
    deletion, connection = settings.deletion, connection_of(settings)
    backlog = WaitingMessages(connection, PulsarAdmin(connection), deletion.subscription)
    for received in backlog.read((deletion.topic, deletion.retry_topic)):
        believed = believed_properties(received.properties, received.topic, deletion.retry_topic)
        yield replace(received, properties=believed)


class MetadataContext(Resources):
    """The metadata stores, and what is read through them; close it, or use it in a with statement.

    ``max_reads_per_second`` is for each store of this process; None sets no limit. ``one_of_many`` is as for
    `open_metadata_store`, and so is ``deletes``. ``migrations`` tells where the stores stand that Pulsar may move.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        max_reads_per_second: float | None = None,
        one_of_many: bool = False,
        deletes: bool = False,
    ) -> None:
        super().__init__()
        self._one_of_many = one_of_many
        self._deletes = deletes
        self._settings = settings
        self.migrations = Migrations()
        urls = settings.metadata_store.urls
        with self._closed_on_error():
            self.stores = {url: self._open(settings, url, max_reads_per_second) for url in dict.fromkeys(urls)}
            place = bookkeeper_place_of(settings)
            shared = next((url for url in self.stores if split_chroot(url) == split_chroot(place.url)), None)
            self._ledgers_url = shared or place.url
            bookkeeper = self.stores[shared] if shared else self._open(settings, place.url, max_reads_per_second)
            self.catalog = BookKeeperCatalog(bookkeeper, place.ledgers_root)
            self.bookkeeper_store = bookkeeper
            self.undone = UndoneLedgers(bookkeeper)
            self.ids = ReturningIds(bookkeeper, place.ledgers_root, self._ids_begin_anew)
            self.last_entries = LastEntries(self.catalog, lambda: self.bookies)
            self.references = MetadataReferences(
                list(self.stores.values()),
                Brokers(self._keep(PulsarAdmin(connection_of(settings)))),
                self.last_entries,
                shadow_refresh=settings.deletion.shadow_refresh_seconds,
                seen_from_ledgers=[path_before(place.url, url) for url in self.stores],
            )
            self._addresses = BookieAddresses(bookkeeper, place.ledgers_root)
            self._bookie_options = bookie_options_of(settings)

    def _open(self, settings: Settings, url: str, max_reads_per_second: float | None) -> MetadataStore:
        store = self._keep(open_metadata_store(settings, url, one_of_many=self._one_of_many, deletes=self._deletes))
        self.migrations.follow(url, store)
        return throttled(store, max_reads_per_second)

    @cached_property
    def bookies(self) -> Bookies:
        """The bookies behind the catalog, for one thread; connected as they are asked."""
        return self._keep(Bookies(self._addresses, self._bookie_options))

    @cached_property
    def offload_stores(self) -> OffloadStores:
        """The stores of offloaded copies; MissingExtraError if a driver's library is not installed."""
        return self._keep(offload_stores_of(self._settings))

    @property
    def ledgers_moved_to(self) -> str | None:
        """The URL of the store that BookKeeper's metadata was moved to, as far as this process knows; None before."""
        return self.migrations.moved_to(self._ledgers_url)

    def _ids_begin_anew(self) -> bool:
        return scheme_of(self.ledgers_moved_to or self._ledgers_url) == "oxia"

    @property
    def reference_scan(self) -> ReferenceScan:
        """Everything that names ledgers, in all metadata roots."""
        return ReferenceScan(self.stores, self.last_entries)

    @property
    def store(self) -> MetadataStore:
        """The first metadata root: the one of the cluster that the settings name."""
        return next(iter(self.stores.values()))


class PhaseOneContext(Resources):
    """Everything that phase one needs; close it, or use it in a with statement.

    ``on_report`` is told of each report of marks: ``MarkMetrics(registry).count`` of `pipelines.metrics` counts them.
    """

    def __init__(self, settings: Settings, *, on_report: Callable[[MarkReport], None] = lambda _: None) -> None:
        super().__init__()
        connection, deletion = connection_of(settings), settings.deletion
        with self._closed_on_error():
            self.metadata = self._keep(MetadataContext(settings))
            admin = self._keep(PulsarAdmin(connection))
            sender = self._keep(PendingDeletionSender(connection, deletion.topic, PendingDeletionCodec()))
            self.marker = Marker(sender, enabled=deletion.topic_two_phase_deletion_enabled, on_report=on_report)
            store, topics = ManagedLedgers(self.metadata.store), Topics(admin)
            migrations = self.metadata.migrations
            self.removal = Removal(self.marker, store, topics, migrations=migrations)
            self.broker_trim = BrokerTrim(self.marker, store, topics, migrations=migrations)
            self.store_trim = StoreTrim(self.marker, store, BundleOwnership(self.metadata.store), self.metadata.catalog)


class UndoContext(Resources):
    """Everything that undo needs; close it, or use it in a with statement.

    ``damaged`` is told of damaged places in the journal; ``name`` is that of this undo in the journal.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        discard_partial: bool = False,
        damaged: Callable[[JournalDamage], object] | None = None,
    ) -> None:
        super().__init__()
        self.name = time.strftime("undo-%Y%m%dT%H%M%S-", time.gmtime()) + uuid.uuid4().hex[:8]
        with self._closed_on_error():
            self._reader = self._keep(journal_reader_of(settings, damaged))
            metadata = self._keep(MetadataContext(settings))
            self.undo = Undo(
                metadata.catalog,
                ReplicaProbe(metadata.bookies),
                metadata.migrations,
                self._keep(journal_of(settings)),
                decode_ledger_metadata,
                self.name,
                undone=metadata.undone,
                discard_partial=discard_partial,
            )

    def select(self, selection: Selection) -> SelectedDeletions:
        """Find deletions in the journal; StoreError if it cannot be read."""
        return SelectedDeletions(self._reader, selection)


class SweepContext(Resources):
    """Everything that phase two needs in one process; its sessions and clients do not survive a fork.

    ``one_of_many`` says that others sweep other shares at the same time, as for `open_metadata_store`.
    """

    def __init__(self, settings: Settings, *, one_of_many: bool = False) -> None:
        super().__init__()
        deletion = settings.deletion
        connection = connection_of(settings)
        with self._closed_on_error():
            registry = SchemaRegistry(self._keep(PulsarAdmin(connection)))
            deletes = not settings.sweep.dry_run
            metadata = self._keep(MetadataContext(settings, one_of_many=one_of_many, deletes=deletes))
            journal = self._keep(journal_of(settings))
            # A dry run writes nothing, and deletes nothing by a wrong age.
            clock = time.time if settings.sweep.dry_run else StoreClock(metadata.bookkeeper_store)
            outbox = self._keep(
                RetrySender(
                    connection,
                    *(deletion.retry_topic, deletion.dlq_topic, deletion.subscription),
                    registry=registry,
                    clock=clock,
                )
            )
            sent = self._keep(sent_records_of(settings))
            copies = self._keep(offload_stores_of(settings))
            self.decode = _decoder(settings, registry).decode
            self.sweep = Sweep(
                metadata.catalog,
                metadata.references,
                journal,
                outbox,
                policy_of(settings),
                SweepLimits(settings.sweep.ledgers_per_step, settings.sweep.max_unreachable_seconds),
                copies=copies,
                entries=metadata.last_entries,
                migrations=metadata.migrations,
                sent=sent,
                undone=metadata.undone,
                ids=metadata.ids,
                verify_owner=settings.offload.verify_owner,
                dry_run=settings.sweep.dry_run,
                clock=clock,
            )
