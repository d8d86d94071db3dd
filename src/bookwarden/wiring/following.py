"""Wiring of what follows Pulsar's metadata, and looks for what brokers dropped."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from bookwarden.clusters.pulsar.messages.mark_sender import DelayedSender
from bookwarden.clusters.pulsar.references.live import MetadataReferences
from bookwarden.clusters.pulsar.rest.topics import Topics
from bookwarden.clusters.pulsar.trash import TrashedLedgers
from bookwarden.deletion.phase_one.mark import Marker
from bookwarden.follow.brokers import BrokersThatMark
from bookwarden.follow.checking import DropCheck, LaterMarks
from bookwarden.follow.following import DroppedLedgers, Keep, ReadNodes, SteadyClock
from bookwarden.follow.table import FollowedNodes
from bookwarden.ledgers.pending_deletion import MarkReport
from bookwarden.wiring.cluster import Cluster
from bookwarden.wiring.deletion import marker_of
from bookwarden.wiring.deletion_topics import mark_sender_of


def dropped_ledgers_of(
    cluster: Cluster,
    nodes: FollowedNodes,
    read: ReadNodes,
    keep: Keep,
    *,
    on_report: Callable[[MarkReport], None] = lambda _: None,
) -> DroppedLedgers:
    """Make what looks for ledgers that brokers dropped, over a state.

    ``read`` reads single nodes of the roots, ``keep`` keeps results and what changed, and ``on_report`` is called
    with each report of marks.
    """
    follow, deletion, topics = cluster.settings.follow, cluster.settings.deletion, cluster.topics
    marks = not follow.dry_run
    brokers = BrokersThatMark(
        cluster.stores,
        cluster.deletion_topics.entries,
        cluster.deletion_topics.requests_in_flight,
        delete_delay_s=deletion.delete_delay_seconds,
    )
    check = DropCheck(
        nodes,
        cluster.bookkeeper.catalog,
        # Shadow topics are among the nodes that are followed; what is in use unnamed the sweep asks for.
        MetadataReferences(list(cluster.stores.values())),
        cluster.offload_stores,
        marker_of(cluster, on_report) if marks else None,
        partial(topics.why_nothing_is_kept, deletion.topic, deletion.subscription),
        _later_marks_of(cluster, topics, on_report) if marks else None,
        brokers.doubles,
        TrashedLedgers(cluster.stores.values()).read,
    )
    return DroppedLedgers(
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


def _later_marks_of(cluster: Cluster, topics: Topics, on_report: Callable[[MarkReport], None]) -> LaterMarks:
    deletion = cluster.settings.deletion
    sender = cluster.keep(mark_sender_of(cluster.settings, deletion.retry_topic))
    return LaterMarks(
        lambda delay_s: Marker(
            DelayedSender(sender, delay_s, deletion.topic),
            enabled=deletion.topic_two_phase_deletion_enabled,
            on_report=on_report,
        ),
        partial(topics.why_nothing_is_kept, deletion.retry_topic, deletion.subscription),
    )
