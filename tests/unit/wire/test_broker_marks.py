"""Marks that brokers send are what Python would send: broker/'s MarkSchemaTest has the same samples."""

from __future__ import annotations

import json
from pathlib import Path
from zlib import crc32

import pytest

from bookwarden.ledgers.kinds import LedgerComponent
from bookwarden.wire.avro import PendingDeletionCodec, registry_schema

SAMPLES = json.loads((Path(__file__).parents[2] / "data" / "broker_marks.json").read_text("utf-8"))


def test_the_schema_of_the_samples_is_ours() -> None:
    assert SAMPLES["schema"] == registry_schema()


@pytest.mark.parametrize("sample", SAMPLES["marks"], ids=lambda sample: sample["key"])
def test_a_broker_encodes_a_mark_as_the_library_does(sample: dict[str, object]) -> None:
    codec = PendingDeletionCodec()
    payload = bytes.fromhex(str(sample["payload"]))
    mark = codec.decode(payload)
    assert codec.encode(mark) == payload
    assert mark.component is LedgerComponent(sample["component"])
    assert (mark.ledger_id, mark.marked_at, mark.reason) == (sample["ledger"], sample["markedAt"], SAMPLES["reason"])
    key = str(mark.holder())
    assert (key, crc32(key.encode()) % SAMPLES["partitions"]) == (sample["key"], sample["partition"])
