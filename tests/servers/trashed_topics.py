"""Topics of a test that are deleted, and kept in the trash as brokers keep them: written by the test itself.

A broker in mode two-phase leaves the ledgers; what it deletes at once, as those of schemas, is put back.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from bookwarden.clusters.pulsar.metadata.managed_ledgers import ManagedLedgers
from bookwarden.clusters.pulsar.metadata.paths import cursor_path, managed_ledger_path, schema_path
from bookwarden.clusters.pulsar.rest.topic_positions import topic_path
from bookwarden.ledgers.metadata import Restoration, StoredLedger
from bookwarden.ledgers.names import TopicName, encode_local_name
from bookwarden.ledgers.trash import FormerNode, TrashRecord
from bookwarden.wire.cursor import at_position, decode_cursor
from bookwarden.wire.managed_ledger import ledger_entries
from bookwarden.wire.schema_locator import decode_schema_locator
from bookwarden.wire.trash import TRASH_RECORDS, encode_records
from servers.sweeping_site import SweepingSite
from servers.waiting import eventually


def now_ms() -> int:
    return int(time.time() * 1000)


@dataclass
class FormerTopic:
    """A topic as its nodes were at one moment."""

    name: str
    topic: FormerNode
    cursors: dict[str, FormerNode]  #: By encoded name.
    schema: FormerNode | None
    ledgers: list[StoredLedger] = field(default_factory=list)

    @property
    def managed_ledger(self) -> str:
        return TopicName.parse(self.name).managed_ledger

    def records(self, *, cursors: bool = True) -> list[TrashRecord]:
        """Return those of its deletion, in the order of a broker."""
        name, found = TopicName.parse(self.name), []
        data = tuple(sorted(ledger_entries(self.topic.value)))
        if self.schema is not None:
            schemas = tuple(sorted(decode_schema_locator(self.schema.value).ledger_ids))
            found.append(
                TrashRecord(
                    *(name.base.managed_ledger, now_ms(), self.schema.created_ms, None, name.schema_id),
                    schemas=schemas,
                    node=self.schema,
                )
            )
        found += [self.cursor_record(cursor) for cursor in self.cursors if cursors]
        found.append(TrashRecord(self.managed_ledger, now_ms(), self.topic.created_ms, data=data, node=self.topic))
        return found

    def cursor_record(self, cursor: str) -> TrashRecord:
        node = self.cursors[cursor]
        return TrashRecord(self.managed_ledger, now_ms(), node.created_ms, cursor, node=node)


class TrashGround:
    """Remembers topics, has a broker delete them, and writes what the trash has of them."""

    def __init__(self, swept: SweepingSite, folder: str = "127.0.0.1:8080-0123abcd") -> None:
        self._swept = swept
        self._store = swept.opened.store
        self._admin = swept.opened.admin
        self._folder = folder
        self._number = 0

    def remember(self, topic: str) -> FormerTopic:
        """Read the nodes of a topic, and its ledgers."""
        name, nodes = TopicName.parse(topic), ManagedLedgers(self._store)
        cursors = nodes.cursors(name.managed_ledger)
        schema = self._store.get(schema_path(name.schema_id))
        found = FormerTopic(
            topic,
            self._former(managed_ledger_path(name.managed_ledger)),
            {cursor: self._former(cursor_path(name.managed_ledger, cursor)) for cursor in cursors},
            None if schema is None else self._former(schema_path(name.schema_id)),
        )
        ids = set(ledger_entries(found.topic.value))
        ids |= {ledger_id for read in cursors.values() for ledger_id in read.info.ledger_ids}
        if found.schema is not None:
            ids |= decode_schema_locator(found.schema.value).ledger_ids
        found.ledgers = [
            one for one in self._swept.opened.bookkeeper.catalog.read_many(sorted(ids)) if isinstance(one, StoredLedger)
        ]
        return found

    def delete(self, topic: str, partitions: int = 0) -> list[FormerTopic]:
        """Have the broker delete a topic, and keep it: its partitions, if it has any."""
        names = [f"{topic}-partition-{number}" for number in range(partitions)] or [topic]
        former = [self.remember(name) for name in names]
        self._admin.delete(f"{topic_path(topic)}{'/partitions' if partitions else ''}?force=true")
        for one in former:
            eventually(lambda one=one: self._store.get(managed_ledger_path(one.managed_ledger)) is None, 30)
            self.put_back(one)
            self.keep(*one.records())
        return former

    def put_back(self, former: FormerTopic) -> None:
        """Put back the metadata of ledgers that the broker has deleted itself."""
        catalog = self._swept.opened.bookkeeper.catalog
        gone = [one for one in former.ledgers if not self._swept.exists(one.ledger_id)]
        catalog.restore_many([Restoration(one.ledger_id, one.path, one.raw) for one in gone])

    def keep(self, *records: TrashRecord) -> None:
        """Write records to the trash, one a node."""
        for record in records:
            path = f"{TRASH_RECORDS}/{self._folder}/0/{self._number}"
            self._store.create(path, encode_records([record]), make_parents=True)
            self._number += 1

    def persisted(self, topic: str, subscription: str) -> tuple[tuple[int, int], int]:
        """Return the position of a subscription in its ledger, and the number of ranges behind it."""
        name = f"{managed_ledger_path(TopicName.parse(topic).managed_ledger)}/{encode_local_name(subscription)}"
        node = self._store.get(name)
        assert node is not None
        own = decode_cursor(node.value).cursors_ledger_id
        entry = None if own is None else self._swept.opened.bookkeeper.last_entries.last_entry(own)
        # Brokers from 4.1 on write ranges as bits.
        info = decode_cursor(at_position(node.value, entry))
        assert info.mark_delete is not None
        return info.mark_delete, len(info.acknowledged)

    def _former(self, path: str) -> FormerNode:
        node = self._store.get(path)
        assert node is not None
        return FormerNode(node.value, node.version, node.created_ms, node.modified_ms)
