"""Pending deletions that a Java producer writes from a plain class with the proposal's fields."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pulsar
import pytest

from bookwarden.clusters.pulsar.connection import PulsarConnection
from bookwarden.clusters.pulsar.messages.mark_decoder import MarkDecoder
from bookwarden.clusters.pulsar.messages.mark_sender import PendingDeletionSender
from bookwarden.clusters.pulsar.rest.admin import PulsarAdmin
from bookwarden.clusters.pulsar.rest.schemas import SchemaRegistry
from bookwarden.errors import MalformedMarkError
from bookwarden.java import find_java
from bookwarden.ledgers.kinds import CursorHolder, LedgerComponent, ManagedLedgerHolder, SchemaHolder
from bookwarden.ledgers.pending_deletion import LedgerType, OffloadContext, PendingDeletion
from bookwarden.ledgers.received import decode_mark
from bookwarden.wire.avro import PendingDeletionCodec, parse_writer_schema
from bookwarden_dev.devcluster.cluster import DevCluster
from bookwarden_dev.devcluster.releases.distribution import ensure_distribution

pytestmark = pytest.mark.servers

SOURCE = Path(__file__).parents[1] / "java/PendingDeleteProducer.java"
WORKER = SOURCE.with_name("RawWorker.java")
TOPIC = "persistent://public/default/java-topic"
SENT = 5


@pytest.fixture(scope="module")
def topics(pulsar_cluster: DevCluster) -> dict[str, str]:
    return {kind: f"persistent://public/default/java-records-{kind.lower()}" for kind in ("AVRO", "JSON")}


@pytest.fixture(scope="module")
def received(pulsar_cluster: DevCluster, topics: dict[str, str]) -> Iterator[dict[str, list[pulsar.Message]]]:
    """Subscribe, run the Java program, and collect what it sent, undecoded, by the kind of schema."""
    with closing(pulsar.Client(pulsar_cluster.service_url)) as client:
        consumers = {kind: client.subscribe(topic, "reader") for kind, topic in topics.items()}
        _run_java(SOURCE, pulsar_cluster.service_url, topics["AVRO"], topics["JSON"])
        yield {kind: [consumer.receive(20_000) for _ in range(SENT)] for kind, consumer in consumers.items()}


def _run_java(source: Path, *arguments: str) -> str:
    libraries = f"{ensure_distribution() / 'lib'}/*"
    command = [find_java().executable, "-Xmx256m", "-XX:TieredStopAtLevel=1", "-cp", libraries, str(source), *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert ended.returncode == 0, ended.stderr[-2000:]
    return ended.stdout


def _decode(cluster: DevCluster, topic: str, messages: list[pulsar.Message]) -> list[PendingDeletion | str]:
    """Decode each by its writer's schema in the registry; what is refused gives the reason."""
    codec = PendingDeletionCodec()
    decoded: list[PendingDeletion | str] = []
    with closing(PulsarAdmin(PulsarConnection(cluster.service_url, cluster.admin_url))) as admin:
        registry = SchemaRegistry(admin)
        for message in messages:
            version = message._message.int_schema_version()
            schema = registry.written_with(topic, version.to_bytes(8, "big"))
            writer = parse_writer_schema(schema.definition) if schema.kind == "AVRO" else None
            try:
                decoded.append(codec.decode(message.data(), writer))
            except MalformedMarkError as error:
                decoded.append(str(error))
    return decoded


@pytest.mark.parametrize("kind", ["AVRO", "JSON"])
def test_what_java_writes_is_read(
    pulsar_cluster: DevCluster, topics: dict[str, str], received: dict[str, list[pulsar.Message]], kind: str
) -> None:
    data, cursor, schema, offloaded, without_ledger = _decode(pulsar_cluster, topics[kind], received[kind])
    component, ledger = LedgerComponent, LedgerType.LEDGER
    context = OffloadContext(-(2**63), -2, "aws-s3", {"bucket": "b"})
    assert data == PendingDeletion(TOPIC, component.MANAGED_LEDGER, ledger, 11)
    assert cursor == PendingDeletion(TOPIC, component.MANAGED_CURSOR, ledger, 12, cursor_name="sub/ü")
    assert schema == PendingDeletion(TOPIC, component.SCHEMA_STORAGE, ledger, 13, schema_id="99")
    assert offloaded == PendingDeletion(
        TOPIC, component.MANAGED_LEDGER, LedgerType.OFFLOAD_LEDGER, 14, offload_context=context
    )
    assert without_ledger == "ledgerId is missing"
    assert [found.holder() for found in (data, cursor, schema)] == [
        ManagedLedgerHolder("public/default/persistent/java-topic"),
        CursorHolder("public/default/persistent/java-topic", "sub%2F%C3%BC"),
        SchemaHolder("public/default/java-topic"),
    ]


def test_what_a_java_worker_of_raw_bytes_sends_again_is_read_and_pip_186s_enums_cannot_read_ours(
    pulsar_cluster: DevCluster, topics: dict[str, str], received: dict[str, list[pulsar.Message]], namespace: str
) -> None:
    written, retries, ours = topics["AVRO"], f"persistent://{namespace}/retries", f"persistent://{namespace}/ours"
    connection = PulsarConnection(pulsar_cluster.service_url, pulsar_cluster.admin_url)
    with closing(PulsarAdmin(connection)) as admin:
        # As it is for system topics; otherwise the broker refuses such a reader at once.
        admin.put(f"/namespaces/{namespace}/schemaCompatibilityStrategy", "ALWAYS_COMPATIBLE")
    with PendingDeletionSender(connection, ours, PendingDeletionCodec()) as sender:
        mark = PendingDeletion(TOPIC, LedgerComponent.MANAGED_LEDGER, LedgerType.LEDGER, 11)
        assert sender.send_all([mark]) == [None]
    with closing(pulsar.Client(pulsar_cluster.service_url)) as client:
        reader = client.create_reader(retries, pulsar.MessageId.earliest)
        said = _run_java(WORKER, pulsar_cluster.service_url, written, retries, str(SENT), ours, namespace)
        messages = [reader.read_next(20_000) for _ in range(SENT)]
    # A text of the writer is no enum of the reader, by Avro's rules of resolution.
    assert "AvroTypeException: Found string, expecting union" in said.splitlines()
    assert {message._message.int_schema_version() for message in messages} == {-1}
    assert {message.properties()["RECONSUMETIMES"] for message in messages} == {"1"}
    expected = _decode(pulsar_cluster, written, received["AVRO"])
    with closing(PulsarAdmin(connection)) as admin:
        decoder = MarkDecoder(SchemaRegistry(admin), written, retries)
        decoded = [decode_mark(decoder.decode, retries, message.data(), None) for message in messages]
    assert [found or "none" for found, _ in decoded[:-1]] == expected[:-1]
    assert decoded[-1][0] is None
    assert "does not fit" in str(decoded[-1][1])
