"""Publishing while the deletion topic takes no marks: sending denied, or its owner hanging; by turns with neither."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from pathlib import Path
from typing import Final

import pulsar
from benchmarks.publishing import latencies, quantile

from bookwarden.clusters.pulsar.connection import PulsarConnection
from bookwarden.clusters.pulsar.rest.admin import PulsarAdmin
from bookwarden.clusters.pulsar.rest.topic_positions import topic_path
from bookwarden.metastore.urls import open_store
from bookwarden_dev.devcluster import ClusterOptions, DevCluster
from bookwarden_dev.devcluster.credentials import ORDINARY_ROLE, broker_credentials
from servers.blue_green.further_broker import further_broker
from servers.deletion_site import PARTITIONS, DeletionSite
from servers.marking_brokers import MarkingGround, nodes_in_outbox
from servers.short_lived import running_until_killed
from servers.waiting import eventually

_COUNT: Final = 2_000
_ROUNDS: Final = 3
_TOPIC: Final = "persistent://public/published/topic"
_EMPTIED_S: Final = 240.0
#: Longer than a round, so that a broker that hangs is not gone.
_SESSION_S: Final = 60

Fault = Callable[[], AbstractContextManager[None]]
#: Makes a cluster in a folder.
Make = Callable[[Path, ClusterOptions], DevCluster]


def publish_without_deletion_topic(home: Path, make: Make, options: ClusterOptions, say: Callable[[str], None]) -> None:
    """Say how long confirmations take with and without each fault; all marks are to arrive in the end."""
    _while_denied(home / "pulsar-denied", make, options, say)
    _while_the_owner_hangs(home / "pulsar-owner", make, options, say)


def _while_denied(home: Path, make: Make, options: ClusterOptions, say: Callable[[str], None]) -> None:
    credentials = broker_credentials(home / "credentials")
    # The broker's own client has no rights but those that are given to it below.
    lines = {"brokerClientAuthenticationParameters": credentials.ordinary_token.as_uri()}
    options = dataclasses.replace(options, auth="token", broker_settings={**options.broker_settings, **lines})
    with running_until_killed(make(home, options)) as cluster:
        connection = cluster.connection()
        overrides = {
            "pulsar.auth": "token",
            "pulsar.token_file": str(connection.token_file),
            "pulsar.tls_trust_certs_file": str(connection.tls_trust_certs_file),
        }
        with closing(PulsarAdmin(connection, timeout_s=60)) as admin:
            for tenant in ("public", "pulsar"):
                admin.post(f"/tenants/{tenant}", {"adminRoles": [ORDINARY_ROLE], "allowedClusters": ["dev"]})
            admin.put("/tenants/marks", {"allowedClusters": ["dev"]})
            admin.put("/namespaces/marks/n")
            rights = f"/namespaces/marks/n/permissions/{ORDINARY_ROLE}"
            admin.post(rights, ["produce", "consume"])
            site = DeletionSite.of(cluster, "marks/n", home, overrides)
            admin.put("/namespaces/public/published")
            with closing(MarkingGround(connection, site)):

                @contextmanager
                def denied() -> Iterator[None]:
                    admin.delete(rights)
                    # A producer that is connected is not asked again.
                    for partition in range(PARTITIONS):
                        admin.put(f"{topic_path(f'{site.settings.deletion.topic}-partition-{partition}')}/unload")
                    yield
                    admin.post(rights, ["produce", "consume"])

                _measure(cluster, admin, denied, "sending denied", say)


def _while_the_owner_hangs(home: Path, make: Make, options: ClusterOptions, say: Callable[[str], None]) -> None:
    options = dataclasses.replace(options, session_seconds=_SESSION_S)
    with (
        running_until_killed(make(home, options)) as cluster,
        further_broker(cluster, home / "further") as (owner, connection),
        closing(PulsarAdmin(cluster.connection(), timeout_s=60)) as admin,
        closing(PulsarAdmin(connection, timeout_s=60)) as owners_admin,
    ):
        site = DeletionSite(connection.service_url, connection.admin_url, cluster.store_url, "public/marks", home)
        _place(owners_admin, f"{site.settings.deletion.topic}-partition-0", connection)
        _place(admin, _TOPIC, cluster.connection())
        with closing(MarkingGround(connection, site)):
            _measure(cluster, admin, owner.paused, "the owner of the deletion topic stopped", say)


def _place(admin: PulsarAdmin, topic: str, owner: PulsarConnection) -> None:
    """Make the namespace of a topic, and have the broker that is asked own all of it."""
    namespace = topic.removeprefix("persistent://").rpartition("/")[0]
    admin.put(f"/namespaces/{namespace}", {"bundles": {"numBundles": 1}})

    def is_placed() -> bool:
        if admin.get_json(f"/lookup/v2/topic{topic_path(topic)}")["brokerUrl"] == owner.service_url:
            return True
        # 4.2.4 chooses among brokers by chance; of 4.0.8 the one that is asked first takes a bundle.
        broker = owner.admin_url.partition("//")[2]
        admin.put(f"/namespaces/{namespace}/0x00000000_0xffffffff/unload", params={"destinationBroker": broker})
        return False

    eventually(is_placed, 60, 0.5)


def _measure(cluster: DevCluster, admin: PulsarAdmin, fault: Fault, what: str, say: Callable[[str], None]) -> None:
    """Publish to a topic that is trimmed all the time."""
    with (
        closing(open_store(cluster.store_url)) as store,
        closing(cluster.connection().client()) as client,
        closing(client.subscribe(_TOPIC, "reader", message_listener=acknowledge)),
        closing(client.create_producer(_TOPIC, batching_enabled=False, block_if_queue_full=True)) as producer,
    ):
        latencies(producer, _COUNT)
        found: dict[str, list[float]] = {"without": [], "with": []}
        for number in range(_ROUNDS):
            for name in ("without", "with") if number % 2 else ("with", "without"):
                with fault() if name == "with" else nullcontext():
                    found[name] += latencies(producer, _COUNT)
                    waiting = nodes_in_outbox(store)
                assert name == "without" or waiting, "the deletion topic took all marks"
                eventually(lambda: nodes_in_outbox(store) == 0, _EMPTIED_S, 1)
        for name, values in found.items():
            p50, p99 = (quantile(values, share) * 1000 for share in (50, 99))
            say(f"{what}, {name}: publish p50 {p50:.1f} ms, p99 {p99:.1f} ms, {len(values)} messages")


def acknowledge(consumer: pulsar.Consumer, message: pulsar.Message) -> None:
    consumer.acknowledge(message)
