"""Wiring of what follows Pulsar's metadata, and looks for what brokers dropped."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, partial

from bookwarden.clusters.pulsar.messages.mark_sender import DelayedSender
from bookwarden.clusters.pulsar.references.live import MetadataReferences
from bookwarden.clusters.pulsar.references.pieces import ReferencePieces
from bookwarden.clusters.pulsar.rest.topics import Topics
from bookwarden.clusters.pulsar.trash import TrashedLedgers
from bookwarden.config import Settings
from bookwarden.deletion.phase_one.mark import Marker
from bookwarden.follow.brokers import BrokersThatMark
from bookwarden.follow.checking import DropCheck, LaterMarks
from bookwarden.follow.following import DroppedLedgers, Keep, ReadNodes, SteadyClock
from bookwarden.follow.table import FollowedNodes
from bookwarden.ledgers.pending_deletion import MarkReport
from bookwarden.resources import Resources
from bookwarden.wiring.metadata import MetadataContext
from bookwarden.wiring.pulsar import TopicsContext, mark_sender_of
from bookwarden.wiring.stores import open_metadata_store


class RootsContext(Resources):
    """The metadata roots, to be read alone; close it, or use it in a with statement."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        store = settings.metadata_store
        with self._closed_on_error():
            self.stores = {url: self._keep(open_metadata_store(store, url)) for url in dict.fromkeys(store.urls)}
            self.pieces = ReferencePieces(self.stores)


class FollowContext(Resources):
    """Everything that looks for what brokers dropped, over a state; close it, or use it in a with statement.

    ``read`` reads single nodes of the roots, ``keep`` keeps results and what changed, and ``on_report`` is called
    with each report of marks.
    """

    def __init__(
        self,
        settings: Settings,
        metadata: MetadataContext,
        nodes: FollowedNodes,
        read: ReadNodes,
        keep: Keep,
        *,
        on_report: Callable[[MarkReport], None] = lambda _: None,
    ) -> None:
        super().__init__()
        self._settings = settings
        self._metadata = metadata
        self._on_report = on_report
        self._topics = Topics(metadata.admin)
        follow, deletion = settings.follow, settings.deletion
        brokers = BrokersThatMark(
            metadata.stores, lambda: self._in_flight, delete_delay_s=deletion.delete_delay_seconds
        )
        with self._closed_on_error():
            check = DropCheck(
                nodes,
                metadata.catalog,
                # Shadow topics are among the nodes that are followed; what is in use unnamed the sweep asks for.
                MetadataReferences(list(metadata.stores.values())),
                metadata.offload_stores,
                None if follow.dry_run else self._marker,
                partial(self._topics.why_nothing_is_kept, deletion.topic, deletion.subscription),
                None if follow.dry_run else self._later,
                brokers.doubles,
                TrashedLedgers(metadata.stores.values()).read,
            )
            self.dropped = DroppedLedgers(
                nodes,
                check,
                read,
                SteadyClock(),
                keep,
                brokers=brokers,
                most_due=follow.ledgers_per_batch,
                look_again_s=min(60.0, follow.grace_seconds),
                most_pending=follow.max_pending,
            )

    @cached_property
    def _in_flight(self) -> TopicsContext:
        return self._keep(TopicsContext(self._settings, self._metadata.admin))

    @cached_property
    def _marker(self) -> Marker:
        deletion = self._settings.deletion
        sender = self._keep(mark_sender_of(self._settings, deletion.topic))
        return Marker(sender, enabled=deletion.topic_two_phase_deletion_enabled, on_report=self._on_report)

    @cached_property
    def _later(self) -> LaterMarks:
        deletion = self._settings.deletion
        sender = self._keep(mark_sender_of(self._settings, deletion.retry_topic))
        return LaterMarks(
            lambda delay_s: Marker(
                DelayedSender(sender, delay_s, deletion.topic),
                enabled=deletion.topic_two_phase_deletion_enabled,
                on_report=self._on_report,
            ),
            partial(self._topics.why_nothing_is_kept, deletion.retry_topic, deletion.subscription),
        )
