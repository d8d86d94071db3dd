"""What the soak of brokers that mark reads in a store's log: which ledgers left their nodes, and which unmarked."""

from __future__ import annotations

import itertools
import json
import struct
from pathlib import Path
from typing import Final

import pytest

from bookwarden.clusters.pulsar.metadata.ownership import bundle_hash
from bookwarden.ledgers.kinds import ManagedLedgerHolder
from bookwarden.wire.broker_marks import OUTBOX_ROOT
from bookwarden.wire.pb import oxia_client_pb2 as pb
from servers.broker_marks.drops_in_log import DropsInLog, read_drops
from servers.broker_marks.oxia_log import Notified, joined, read_entries
from servers.population import node_of

_TOPIC: Final = "t/n/persistent/orders"
_OUTBOX: Final = f"{OUTBOX_ROOT}/b:8080-12345678/0000000000/0000000000"
_STOCK: Final = "127.0.0.1:8081"
_KINDS: Final = {"made": pb.KEY_CREATED, "written": pb.KEY_MODIFIED, "deleted": pb.KEY_DELETED}

#: What a request does to one key: how it ends, the key, and its value.
Step = tuple[str, str, bytes]


def names(kind: str, *ledgers: int) -> Step:
    path, value = node_of(ManagedLedgerHolder(_TOPIC), list(ledgers))
    return kind, path, value


def marks(*ledgers: int) -> Step:
    steps = [after - before for before, after in itertools.pairwise((0, *ledgers))]
    drop = {"managedLedger": _TOPIC, "time": 1, "data": steps}
    return "made", _OUTBOX, json.dumps({"format": 1, "drops": [drop], "drivers": []}).encode()


def owned(kind: str, broker: str) -> Step:
    is_lower = bundle_hash("persistent://t/n/orders") < 2**31
    bundle = "0x00000000_0x80000000" if is_lower else "0x80000000_0xffffffff"
    return kind, f"/namespace/t/n/{bundle}", json.dumps({"httpUrl": f"http://{broker}"}).encode()


def read(folder: Path, *steps: Step, stock: str = "") -> DropsInLog:
    """Write the steps as Oxia does, and read them: each in a request of its own, but what is ``beside`` the one before.

    What is refused changes nothing; the version of a key is the offset at which it was written last.
    """
    requests: list[list[Step]] = []
    for step in steps:
        requests = [*requests[:-1], [*requests[-1], step]] if step[0] == "beside" else [*requests, [step]]
    log, versions = b"", dict[str, int]()
    notified: dict[int, dict[str, Notified]] = {}
    for offset, request in enumerate(requests):
        write = pb.WriteRequest(shard=0)
        for kind, key, value in request:
            expected = versions.get(key, -1) + (kind == "refused") * 100
            if kind == "deleted":
                write.deletes.add(key=key, expected_version_id=expected)
            else:
                write.puts.add(key=key, value=value, expected_version_id=expected)
        entry = b"\x08\x01" + (b"\x10" + bytes([offset]) if offset else b"")
        entry += _field(3, _field(1, _field(1, write.SerializeToString())))
        entry += b"\x21" + struct.pack("<Q", 1000 + offset)
        log += struct.pack(">III", len(entry), 0, 0) + entry
        kind, key, _ = request[0]
        notified[offset] = {} if kind == "refused" else {key: Notified(_KINDS[kind], offset)}
        versions |= {} if kind == "refused" else {key: offset if kind != "deleted" else -1}
    (folder / "0.txnx").write_bytes(log + bytes(100))
    entries = list(read_entries(folder))
    assert [(entry.offset, entry.time_ms) for entry in entries] == [(n, 1000 + n) for n in range(len(requests))]
    return read_drops(joined(entries, notified), stock)


def _field(number: int, value: bytes) -> bytes:
    size, length = len(value), b""
    while size > 0x7F:
        length += bytes([size & 0x7F | 0x80])
        size >>= 7
    return bytes([number << 3 | 2]) + length + bytes([size]) + value


def test_a_ledger_that_is_in_the_outbox_before_it_leaves_its_node_is_marked(tmp_path: Path) -> None:
    found = read(tmp_path, names("made", 1, 2, 300), marks(1, 300), names("written", 2), names("written", 2, 4))
    assert (set(found.dropped), found.unmarked, found.named) == ({1, 300}, {}, {2, 4})


@pytest.mark.parametrize("end", [names("written", 3), ("deleted", f"/managed-ledgers/{_TOPIC}", b"")])
def test_one_that_comes_there_afterwards_is_unmarked(tmp_path: Path, end: Step) -> None:
    found = read(tmp_path, names("made", 1, 2), end, marks(1, 2))
    assert set(found.dropped) == set(found.unmarked) == {1, 2}


def test_a_write_that_was_refused_drops_nothing(tmp_path: Path) -> None:
    found = read(tmp_path, names("made", 1, 2), names("refused", 2))
    assert (found.dropped, found.named) == ({}, {1, 2})


def test_of_two_writes_in_one_request_the_second_is_refused(tmp_path: Path) -> None:
    found = read(tmp_path, names("made", 1, 2), marks(1), names("written", 2), names("beside", 1))
    assert (set(found.dropped), found.unmarked, found.named) == ({1}, {}, {2})


def test_without_sessions_the_owner_of_the_bundle_is_the_writer(tmp_path: Path) -> None:
    steps = (owned("made", _STOCK), names("made", 1, 2), names("written", 2), owned("deleted", ""))
    found = read(tmp_path, *steps, owned("made", "127.0.0.1:8080"), names("written", 3), stock=_STOCK)
    assert (set(found.unmarked_by_stock), set(found.unmarked)) == ({1}, {2})
