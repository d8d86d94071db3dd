"""What is said of what holds a topic where brokers do not answer, and of a snapshot."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from uuid import uuid4

import pytest
from click.testing import CliRunner

from bookwarden.cli.main import cli
from bookwarden.clusters.bookkeeper.ledger_paths import ledger_path
from bookwarden.config import load_settings
from bookwarden.errors import FormatError, NotFoundError
from bookwarden.exit_codes import USAGE
from bookwarden.ledgers.metadata import LedgerMetadata, LedgerState, Segment
from bookwarden.ledgers.pins import PinKind
from bookwarden.metastore.memory import shared_memory_store
from bookwarden.wire.ledger_metadata import encode_ledger_metadata
from bookwarden.wire.managed_ledger import new_ledger_entry, with_ledger_entries
from bookwarden.wire.pb import managed_ledger_pb2 as pb
from bookwarden.wiring.cluster import Cluster
from bookwarden.wiring.topic_pins import pin_search_of
from servers.snapshot_files import written

ORDERS = "t/n/persistent/orders"
TOPIC = "persistent://t/n/orders"
NOW = 1_700_000_000_000
HOUR = 3_600_000


def cursor(ledger_id: int, position: tuple[int, int] | None) -> bytes:
    node = pb.ManagedCursorInfo(cursorsLedgerId=ledger_id)
    if position is not None:
        node.markDeleteLedgerId, node.markDeleteEntryId = position
    return node.SerializeToString()


def listed(*ledgers: tuple[int, int, int, int]) -> bytes:
    return with_ledger_entries(b"", {ledger[0]: new_ledger_entry(*ledger) for ledger in ledgers})


def closed(entries: int) -> bytes:
    return encode_ledger_metadata(
        LedgerMetadata(
            *(3, LedgerState.CLOSED, 1, 1, 1, (Segment(0, ("b:1",)),)), length=900, last_entry_id=entries - 1
        )
    )


#: A topic of two ledgers whose second was written last, and its cursors.
NODES = {
    f"/managed-ledgers/{ORDERS}": listed((5, 10, 1_000, NOW - HOUR), (6, 0, 0, 0)),
    f"/managed-ledgers/{ORDERS}/at+once": cursor(-1, (5, 3)),
    f"/managed-ledgers/{ORDERS}/by+ledger": cursor(40, (5, 9)),
    f"/managed-ledgers/{ORDERS}/done": cursor(-1, (6, 3)),
    ledger_path("/ledgers", 6): closed(4),
    "/admin/policies/t/n": json.dumps(
        {"retention_policies": {"retentionTimeInMinutes": 600, "retentionSizeInMB": -1}}
    ).encode(),
}


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    name = uuid4().hex
    made = shared_memory_store(name)
    for path, value in NODES.items():
        made.create(path, value, make_parents=True)
    settings = load_settings(
        overrides={"metadata_store.urls": f"['memory:{name}']", "pulsar.admin_url": "http://127.0.0.1:1"}
    )
    with closing(Cluster(settings)) as opened:
        yield opened


def test_what_brokers_do_not_say_is_named_and_the_metadata_is_read_all_the_same(cluster: Cluster) -> None:
    (found,) = pin_search_of(cluster, now_ms=NOW).of_topic(TOPIC)
    # No broker is registered, so none has it loaded.
    assert (found.topic, found.loaded, found.ledgers, found.bytes) == (TOPIC, False, (5, 6), 1_900)
    assert [(pin.kind, pin.name, pin.ledgers) for pin in found.pins] == [
        (PinKind.SUBSCRIPTION, "at once", (5, 6)),
        (PinKind.NOT_LOADED, "", (5, 6)),
        (PinKind.SUBSCRIPTION, "by ledger", (6,)),
    ]
    assert "It may be further: its position is in ledger 40: BookKeeper has no ledger 40." in found.pins[2].what
    assert [text.partition(": http")[0] for text in found.unseen] == [
        "the brokers' settings",
        "the policies of the namespace",
        "the topic's own policies",
        "open transactions",
        "the clusters",
    ]


def test_a_snapshot_has_no_brokers_and_says_so(cluster: Cluster) -> None:
    (found,) = pin_search_of(cluster, of_snapshot=True, now_ms=NOW).of_topic(TOPIC)
    assert (found.loaded, found.ledgers) == (None, (5, 6))
    assert [(pin.kind, pin.name, pin.ledgers) for pin in found.pins] == [
        (PinKind.SUBSCRIPTION, "at once", (5,)),
        (PinKind.RETENTION, "", (5,)),
    ]
    assert "Retention of the namespace t/n keeps what is consumed, for 10 hours" in found.pins[1].what
    (unseen,) = found.unseen
    assert unseen.startswith("A snapshot does not show whether a broker has the topic loaded, readers, ")


def test_partitions_are_those_of_the_node_and_a_topic_that_is_not_there_is_an_error(cluster: Cluster) -> None:
    cluster.store.create(f"/admin/partitioned-topics/{ORDERS}2", b'{"partitions":3}', make_parents=True)
    search = pin_search_of(cluster, of_snapshot=True, now_ms=NOW)
    with pytest.raises(NotFoundError, match="has no ledgers: there is no such topic"):
        search.of_topic("persistent://t/n/orders2")
    cluster.store.create(f"/managed-ledgers/{ORDERS}2-partition-2", listed((8, 1, 1, 1), (9, 0, 0, 0)))
    assert [one.topic for one in search.of_topic("persistent://t/n/orders2")] == [f"{TOPIC}2-partition-2"]
    assert search.of_managed_ledger(f"{ORDERS}2") is None
    # The node of a partitioned topic may be in a configuration store of its own.
    for number in ("10", "9", "x"):
        cluster.store.create(f"/managed-ledgers/{ORDERS}3-partition-{number}", listed((20, 0, 0, 0)))
    found = search.of_topic("persistent://t/n/orders3")
    assert [one.topic for one in found] == [f"{TOPIC}3-partition-9", f"{TOPIC}3-partition-10"]


def test_a_damaged_node_is_named(cluster: Cluster) -> None:
    search = pin_search_of(cluster, of_snapshot=True, now_ms=NOW)
    cluster.store.create(f"/managed-ledgers/{ORDERS}/damaged", b"\xff")
    (found,) = search.of_topic(TOPIC)
    assert any(text.startswith("the cursor damaged: ") for text in found.unseen)
    cluster.store.create("/managed-ledgers/t/n/persistent/damaged", b"\xff")
    with pytest.raises(FormatError, match="/managed-ledgers/t/n/persistent/damaged"):
        search.of_topic("persistent://t/n/damaged")
    found_damaged = search.of_managed_ledger("t/n/persistent/damaged")
    assert found_damaged is not None
    assert (found_damaged.pins, len(found_damaged.unseen)) == ((), 1)


def test_a_log_of_acknowledgements_is_no_topic_that_brokers_are_asked_for(cluster: Cluster) -> None:
    log = f"{ORDERS}-s__transaction_pending_ack"
    cluster.store.create(f"/managed-ledgers/{log}", NODES[f"/managed-ledgers/{ORDERS}"])
    found = pin_search_of(cluster, now_ms=NOW).of_managed_ledger(log)
    assert found is not None
    assert found.loaded is None
    assert found.unseen[0].startswith("It is a log of acknowledgements in transactions")


def test_the_command_reads_a_snapshot(tmp_path: Path) -> None:
    values: dict[str, bytes | None] = {"": None}
    for path, value in NODES.items():
        parts = path.split("/")
        values |= {"/".join(parts[:end]): b"" for end in range(2, len(parts)) if "/".join(parts[:end]) not in values}
        values[path] = value
    file = written(tmp_path, values)
    options = ["--set", "metadata_store.urls=['zk:h:1']", "disk", "why", TOPIC]
    result = CliRunner().invoke(cli, [*options, "--from", f"zk-snapshot:{file}?fuzzy=yes"])
    assert result.exit_code == 0, result.output
    lines = [" ".join(line.split()) for line in result.stdout.splitlines()]
    assert "loaded not known" in lines
    assert "subscription at once" in lines
    assert "holds the oldest ledger, 1,000 B" in lines
    assert lines[-1].startswith("Not seen: A snapshot does not show whether")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--by", "topic", "why", TOPIC], "--by is not of `disk why`"),
        (["--why"], "--why goes with --by topic"),
        (["--why", "--by", "kind"], "--why goes with --by topic"),
        (["why", "a/b"], "too few parts"),
    ],
)
def test_options_that_would_be_of_no_effect_are_refused(arguments: list[str], said: str) -> None:
    result = CliRunner().invoke(cli, ["disk", *arguments])
    assert (result.exit_code, said in result.stderr) == (USAGE, True), result.stderr
