"""Other versions of this program on the deletion topic: the schema registry takes theirs beside ours."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bookwarden.clusters.pulsar.rest.admin import PulsarAdmin
from bookwarden.clusters.pulsar.rest.schemas import SchemaRegistry, WriterSchema
from bookwarden.clusters.pulsar.rest.topic_positions import topic_path
from bookwarden.errors import PulsarConflictError
from bookwarden.wire.avro import registry_schema

pytestmark = pytest.mark.servers

BEFORE = (
    '{"type":"record","name":"PendingDeleteLedgerInfo","namespace":"bookwarden.deletion","fields":['
    '{"name":"topicName","type":"string"},{"name":"ledgerComponent","type":"string"},'
    '{"name":"cursorName","type":["null","string"],"default":null},'
    '{"name":"schemaId","type":["null","string"],"default":null},{"name":"ledgerType","type":"string"},'
    '{"name":"ledgerId","type":"long"},{"name":"offloadContext","type":["null",{"type":"record",'
    '"name":"OffloadContext","fields":[{"name":"lsb","type":"long"},{"name":"msb","type":"long"},'
    '{"name":"driverName","type":"string"},{"name":"metadata","type":{"type":"map","values":"string"}}]}],'
    '"default":null},{"name":"bookieCluster","type":"string","default":""},'
    '{"name":"markedAt","type":"long","default":0},{"name":"reason","type":"string","default":""}]}'
)


def test_the_schema_of_today_registers_over_that_of_before_and_the_other_way_round(
    admin: PulsarAdmin, namespace: str
) -> None:
    admin.put(f"/namespaces/{namespace}/schemaCompatibilityStrategy", "FULL_TRANSITIVE")
    registry = SchemaRegistry(admin)
    versions = [WriterSchema("AVRO", BEFORE), WriterSchema("AVRO", registry_schema())]
    for name, order in (("forth", versions), ("back", versions[::-1])):
        topic = f"persistent://{namespace}/{name}"
        admin.put(topic_path(topic))
        for schema in order:
            registry.register(topic, schema)
        assert registry.current(topic).kind == "AVRO"
    wrong = replace(
        versions[0], definition=BEFORE.replace('"name":"ledgerId","type":"long"', '"name":"id","type":"long"')
    )
    with pytest.raises(PulsarConflictError):
        registry.register(f"persistent://{namespace}/forth", wrong)
