"""Leaks on a development cluster, to see at work what finds them: each comes about as it does in real life.

A broker updates its metadata first and deletes ledgers after. Here ZooKeeper refuses deletes, or the update of one
node, for some seconds; then the broker is killed, and what it meant to repeat is lost with its memory.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Final

from bookwarden.clusters.bookkeeper.ledger_paths import ledger_path
from bookwarden.clusters.pulsar.metadata.managed_ledgers import ManagedLedgers
from bookwarden.clusters.pulsar.metadata.paths import managed_ledger_path, schema_path
from bookwarden.clusters.pulsar.rest.admin import PulsarAdmin
from bookwarden.clusters.pulsar.rest.topic_positions import topic_path
from bookwarden.errors import PulsarError, ServerError
from bookwarden.ledgers.custom_metadata import identify_holder
from bookwarden.ledgers.kinds import Holder, ManagedLedgerHolder, SchemaHolder
from bookwarden.ledgers.metadata import StoredLedger
from bookwarden.ledgers.names import TopicName
from bookwarden.wiring.cluster import Cluster
from bookwarden_dev.demo.census import list_ledger_ids
from bookwarden_dev.devcluster.cluster import DevCluster
from bookwarden_dev.devcluster.refusals import Refusals

_TENANT: Final = "public"
_SUBSCRIPTION: Final = "billing"
_MESSAGES: Final = 5
_WAIT_S: Final = 60.0
_POLL_S: Final = 0.2
_FIELD: Final = '{"name": "%s", "type": ["null", "string"], "default": null}'


@dataclass(frozen=True, slots=True)
class Leak:
    """Ledgers that nothing names any more, and how that came about."""

    kind: str  #: trim, topic, unlisted, cursor or schema.
    topic: str  #: The one that they were of.
    ledgers: tuple[int, ...]  #: Their ids.
    how: str  #: How it came about.
    named_before: bool  #: Whether a node named them once.

    @property
    def found_by(self) -> tuple[str, ...]:
        """The commands that find them; follow sees what leaves a node."""
        return ("orphans scan", "follow") if self.named_before else ("orphans scan",)


def make_leaks(
    servers: DevCluster, cluster: Cluster, say: Callable[[str], None], prepared: Callable[[], object]
) -> list[Leak]:
    """Make a leak of each kind, in a new namespace; the cluster's broker is killed and started again for it.

    ``prepared`` is called while everything is still healthy. The cluster keeps its metadata in ZooKeeper, and runs.
    Raises ServerError where a leak does not come about.
    """
    with closing(PulsarAdmin(servers.connection(), timeout_s=60)) as admin:
        return _Leaking(servers, cluster, admin, say).run(prepared)


class _Leaking:
    """One run: healthy topics first, then all that goes wrong in one life of the broker."""

    def __init__(self, servers: DevCluster, cluster: Cluster, admin: PulsarAdmin, say: Callable[[str], None]) -> None:
        self._servers = servers
        self._cluster = cluster
        self._admin = admin
        self._say = say
        self._nodes = ManagedLedgers(cluster.store)
        self._namespace = self._new_namespace()
        names = {kind: f"persistent://{self._namespace}/{kind}" for kind in _HOW}
        self._topics: Mapping[str, str] = names
        self._schema_id = TopicName.parse(names["schema"]).schema_id

    def run(self, prepared: Callable[[], object]) -> list[Leak]:
        """Make them; each kind has at least one ledger."""
        self._say(f"filling topics in {self._namespace}")
        self._fill()
        trimmed, topic = self._listed("trim"), self._listed("topic")
        cursor = self._cursor_ledger()
        schema = self._stored_of(SchemaHolder(self._schema_id))
        unlisted = self._stored_of(self._holder("unlisted"))
        prepared()
        with closing(Refusals(self._servers.store_url)) as refusals:
            for folder in {ledger_path("/ledgers", one).rpartition("/")[0] for one in (*trimmed, *topic, cursor)}:
                refusals.deletes_in(folder)
            self._say(
                "the broker trims, closes a cursor, stores a schema and makes a ledger; ZooKeeper refuses the rest"
            )
            self._drop_by_trim()
            self._drop_cursor_ledger(cursor)
            self._lose_schema_version(refusals)
            self._lose_new_ledger(refusals, unlisted)
            self._say("killing the broker before it can try again")
            self._servers.broker.kill()
        self._remove_node("topic")
        self._say("starting the broker")
        self._servers.broker.start()
        self._until("a schema's new version", self._register_again)
        self._until("the topic whose list could not be updated", self._load)
        found = {
            "trim": set(trimmed) - set(self._listed("trim")),
            "topic": set(topic),
            "unlisted": self._stored_of(self._holder("unlisted")) - unlisted - set(self._listed("unlisted")),
            "cursor": {cursor},
            "schema": self._stored_of(SchemaHolder(self._schema_id)) - schema - self._named_by_schema(),
        }
        return [Leak(kind, self._topics[kind], tuple(sorted(ledgers)), *_HOW[kind]) for kind, ledgers in found.items()]

    def _new_namespace(self) -> str:
        before = set(self._admin.get_json(f"/namespaces/{_TENANT}"))
        namespace = next(
            name for number in range(1, len(before) + 2) if (name := f"{_TENANT}/leak-{number}") not in before
        )
        self._admin.put(f"/namespaces/{namespace}")
        self._retain(namespace, -1)
        # Each acknowledgement is an entry of its cursor's ledger, and not one a second.
        quorums = dict.fromkeys(("bookkeeperEnsemble", "bookkeeperWriteQuorum", "bookkeeperAckQuorum"), 1)
        self._admin.post(f"/namespaces/{namespace}/persistence", {**quorums, "managedLedgerMaxMarkDeleteRate": 1000})
        return namespace

    def _fill(self) -> None:
        with closing(self._servers.connection().client()) as client:
            client.subscribe(self._topics["cursor"], _SUBSCRIPTION)
            for topic in self._topics.values():
                producer = client.create_producer(topic, batching_enabled=False)
                for number in range(_MESSAGES):
                    producer.send(b"message %d" % number)
                producer.close()
        # Each time that a topic is loaded it gets a ledger.
        self._admin.put(f"{topic_path(self._topics['unlisted'])}/unload")
        for _ in range(2):
            self._admin.put(f"{topic_path(self._topics['trim'])}/unload")
            with closing(self._servers.connection().client()) as client:
                client.create_producer(self._topics["trim"]).send(b"one more")
        self._admin.post(f"{topic_path(self._topics['cursor'])}/subscription/{_SUBSCRIPTION}/skip/2")
        self._register("one")

    def _drop_by_trim(self) -> None:
        self._retain(self._namespace, 0)

        def trimmed() -> bool:
            # Before the broker knows of the policy it trims nothing.
            self._admin.post(f"{topic_path(self._topics['trim'])}/trim")
            return len(self._listed("trim")) == 1

        self._until("the broker to trim", trimmed)
        self._retain(self._namespace, -1)

    def _drop_cursor_ledger(self, before: int) -> None:
        """Have the topic closed: its cursors' positions go into their nodes, and their ledgers are dropped."""
        self._admin.put(f"{topic_path(self._topics['cursor'])}/unload")
        self._until("the cursor's node", lambda: self._named_by_cursor() != before)

    def _lose_schema_version(self, refusals: Refusals) -> None:
        refusals.updates_of(schema_path(self._schema_id))
        with suppress(PulsarError):
            self._register("one", "two")

    def _lose_new_ledger(self, refusals: Refusals, before: set[int]) -> None:
        """Have the topic loaded, for which the broker makes a ledger that it then cannot add to the list."""
        refusals.updates_of(managed_ledger_path(TopicName.parse(self._topics["unlisted"]).managed_ledger))

        def made() -> bool:
            self._load()
            return self._stored_of(self._holder("unlisted")) != before

        self._until("a ledger that is in no list", made)

    def _remove_node(self, kind: str) -> None:
        """Remove a topic's node as a person does who tidies up by hand, or a restore from an older backup."""
        name = TopicName.parse(self._topics[kind]).managed_ledger
        self._nodes.delete(list(self._nodes.cursors(name).values()))
        found = self._nodes.read(name)
        if found is not None:
            self._nodes.delete([found])

    def _register(self, *fields: str) -> None:
        """Register a version of the schema with these fields."""
        columns = ", ".join(_FIELD % field for field in fields)
        schema = f'{{"type": "record", "name": "Order", "fields": [{columns}]}}'
        path = f"/schemas/{self._namespace}/schema/schema"
        self._admin.post(path, {"type": "JSON", "schema": schema, "properties": {}})

    def _register_again(self) -> bool:
        """Register what was lost, as its client does; only now is it certain that no node lost the first ledger."""
        with suppress(PulsarError):
            self._register("one", "two")
            return True
        return False

    def _load(self) -> bool:
        """Have the topic loaded; after a broker's death only that makes it certain that no broker has the ledger."""
        with suppress(PulsarError):
            self._admin.get_json(f"{topic_path(self._topics['unlisted'])}/internalStats")
            return True
        return False

    def _retain(self, namespace: str, limit: int) -> None:
        policy = {"retentionTimeInMinutes": limit, "retentionSizeInMB": limit}
        self._admin.post(f"/namespaces/{namespace}/retention", policy)

    def _holder(self, kind: str) -> Holder:
        return ManagedLedgerHolder(TopicName.parse(self._topics[kind]).managed_ledger)

    def _listed(self, kind: str) -> tuple[int, ...]:
        found = self._nodes.read(TopicName.parse(self._topics[kind]).managed_ledger)
        return tuple(ledger.ledger_id for ledger in found.info.ledgers) if found else ()

    def _named_by_cursor(self) -> int | None:
        cursor = self._nodes.cursors(TopicName.parse(self._topics["cursor"]).managed_ledger).get(_SUBSCRIPTION)
        return cursor.info.cursors_ledger_id if cursor else None

    def _cursor_ledger(self) -> int:
        self._until("the cursor's ledger", lambda: (self._named_by_cursor() or -1) >= 0)
        return self._named_by_cursor() or -1

    def _named_by_schema(self) -> set[int]:
        found = self._nodes.schema(self._schema_id)
        return set(found.locator.ledger_ids) if found else set()

    def _stored_of(self, holder: Holder) -> set[int]:
        self._cluster.store.sync()
        readings = self._cluster.bookkeeper.catalog.read_many(list_ledger_ids(self._cluster.store))
        return {
            one.ledger_id
            for one in readings
            if isinstance(one, StoredLedger) and identify_holder(one.metadata.custom) == holder
        }

    def _until(self, what: str, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + _WAIT_S
        while not condition():
            if time.monotonic() > deadline:
                raise ServerError(f"waited {_WAIT_S:.0f} s in vain for {what}: see the logs in {self._servers.home}")
            time.sleep(_POLL_S)


_HOW: Final[Mapping[str, tuple[str, bool]]] = {
    "trim": ("trimmed from the topic's list; the broker died before the deletes", True),
    "topic": ("the topic's node was removed by hand", True),
    "unlisted": ("made for the topic, whose list could not be updated", False),
    "cursor": ("the cursor's node dropped it when the topic was closed; the delete failed", True),
    "schema": ("made for a version of the schema, whose node could not be updated", False),
}
