"""`bookwarden broker-marks`: which brokers mark, turned off and on, and the rest of the outbox forwarded."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner, Result

import bookwarden.cli.broker_marks as commands
from bookwarden.cli.main import cli
from bookwarden.metastore.memory import MemoryStore, shared_memory_store
from bookwarden.wire.broker_marks import (
    DELETION_TOPIC_NODE,
    ENABLED_NODE,
    MARKING_BROKERS,
    OUTBOX_ROOT,
    decode_marks_enabled,
)

LIVE = "/loadbalance/brokers"
NODE = b'{"format":1,"drops":[{"managedLedger":"t/n/persistent/a","time":5,"data":[7]}],"drivers":[]}'


def said(
    broker: str, *, enabled: bool = True, started: int = 1000, unmarked: int = 0, exceeded: str | None = None
) -> bytes:
    fields = {
        "format": 1,
        "broker": broker,
        "mode": "mark",
        "enabled": enabled,
        "host": "h",
        "pid": 1,
        "jar": "0.2.0",
        "started": started,
        "time": started + 5,
        "outboxNodes": 1,
        "outboxBytes": 100,
        "oldestSeconds": 3,
        "unmarkedWrites": unmarked,
        "stored": {"MANAGED_LEDGER": 10, "OFFLOADED_COPY": 0},
        "gone": 8,
        "sent": {"LEDGER": 2, "OFFLOAD_LEDGER": 0},
        "failed": {"LEDGER": 1, "OFFLOAD_LEDGER": 0},
    }
    if exceeded is not None:
        left = {"ledgers": 4, "bytes": 500, "oldestSeconds": 61, "maxSeconds": 60, "maxBytes": 1000}
        fields |= {"mode": "two-phase", "leftToSweep": {**left, "exceeded": exceeded}}
    return json.dumps(fields).encode()


@pytest.fixture
def url(request: pytest.FixtureRequest) -> str:
    return f"memory:{request.node.name}"


@pytest.fixture
def store(url: str, monkeypatch: pytest.MonkeyPatch) -> MemoryStore:
    # The next command would get an empty one.
    monkeypatch.setattr(MemoryStore, "close", lambda _: None)
    made = shared_memory_store(url.partition(":")[2])
    made.create(LIVE, b"", make_parents=True)
    made.create(MARKING_BROKERS, b"", make_parents=True)
    made.create(DELETION_TOPIC_NODE, b"{}")
    return made


def run(url: str, *arguments: str) -> Result:
    return CliRunner().invoke(cli, ["--set", f"metadata_store.urls=['{url}']", "broker-marks", *arguments])


def status(url: str) -> tuple[int, Any]:
    result = run(url, "status", "-o", "json")
    return result.exit_code, json.loads(result.stdout)


def add(store: MemoryStore, name: str, value: bytes | None = None, start: str = "00000001") -> None:
    if store.get(f"{LIVE}/{name}") is None:
        store.create(f"{LIVE}/{name}", b"{}")
    if value is not None:
        store.create(f"{MARKING_BROKERS}/{name}-{start}", value)


def test_every_live_broker_marks(url: str, store: MemoryStore) -> None:
    add(store, "b1:8080", said("b1:8080"))
    add(store, "b2:8080", said("b2:8080"))
    code, data = status(url)
    assert (code, [broker["name"] for broker in data["brokers"]]) == (0, ["b1:8080", "b2:8080"])
    assert {broker["marking"]["mode"] for broker in data["brokers"]} == {"mark"}
    assert data["stored"] == {"MANAGED_LEDGER": 20, "OFFLOADED_COPY": 0}
    assert (data["gone"], data["sent"]["LEDGER"], data["failed"]["LEDGER"]) == (16, 4, 2)
    assert data["outbox"] == {"nodes": 0, "bytes": 0, "oldest_seconds": 0.0}
    assert (data["enabled"]["enabled"], data["deletion_topic"]) == (True, True)
    shown = run(url, "status").stdout
    assert "MANAGED_LEDGER" in shown
    assert "empty" in shown


def test_a_broker_without_the_line_is_named(url: str, store: MemoryStore) -> None:
    add(store, "b1:8080", said("b1:8080"))
    add(store, "b2:8080")
    code, data = status(url)
    assert (code, [broker["marks"] for broker in data["brokers"]]) == (22, [True, False])
    shown = run(url, "status").stdout
    assert "b2:8080: what it drops" in shown


def test_what_is_left_to_the_sweep_is_told_and_a_limit_that_is_exceeded(url: str, store: MemoryStore) -> None:
    add(store, "b1:8080", said("b1:8080", exceeded=""))
    code, data = status(url)
    assert (code, data["brokers"][0]["marking"]["left"]["bytes"]) == (0, 500)
    assert "limit" not in run(url, "status").stdout
    options = ("--set", f"metadata_store.urls=['{url}']", "--set", "deletion.delete_delay_seconds=60")
    assert "bookwardenMarksMaxAgeSeconds" in CliRunner().invoke(cli, [*options, "broker-marks", "status"]).stdout
    add(store, "b2:8080", said("b2:8080", exceeded="age"))
    add(store, "b3:8080", said("b3:8080"))
    assert status(url)[0] == 27
    shown = run(url, "status").stdout
    assert "b2:8080: the sweep is behind" in shown
    assert "different modes: mark, two-phase" in shown


def test_a_broker_whose_node_is_not_written_any_more_is_named(
    url: str, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(store, "b1:8080", said("b1:8080"))
    assert status(url)[1]["brokers"][0]["silent_seconds"] == 0
    later = time.time() + 121
    monkeypatch.setattr(commands.time, "time", lambda: later)
    code, data = status(url)
    assert (code, data["brokers"][0]["silent_seconds"] > 120) == (27, True)
    assert "b1:8080: its node was not written" in run(url, "status").stdout


def test_of_two_starts_of_a_broker_the_later_one_counts(url: str, store: MemoryStore) -> None:
    add(store, "b1:8080", said("b1:8080", started=2000, enabled=False), "00000001")
    add(store, "b1:8080", said("b1:8080", started=1000), "00000002")
    code, data = status(url)
    assert (code, [broker["marks"] for broker in data["brokers"]]) == (22, [False])


def test_a_node_of_another_format_is_no_broker_that_marks(url: str, store: MemoryStore) -> None:
    add(store, "b1:8080", b'{"format":2}')
    code, data = status(url)
    (broker,) = data["brokers"]
    assert (code, broker["name"], broker["marks"]) == (22, "b1:8080", False)
    assert "format 2" in broker["problem"]


def test_an_unmarked_write_and_an_old_outbox_are_failures(url: str, store: MemoryStore) -> None:
    add(store, "b1:8080", said("b1:8080", unmarked=3))
    code, data = status(url)
    assert (code, data["unmarked_writes"]) == (27, 3)
    assert "b1:8080" in run(url, "status").stdout


def test_what_waits_is_counted_and_its_age_told(url: str, store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    add(store, "b1:8080", said("b1:8080"))
    store.create(f"{OUTBOX_ROOT}/b1:8080-00000001/0/0", NODE, make_parents=True)
    store.create(f"{OUTBOX_ROOT}/b1:8080-00000001/1/1000", NODE, make_parents=True)
    code, data = status(url)
    assert (code, data["outbox"]["nodes"], data["outbox"]["bytes"]) == (0, 2, 2 * len(NODE))
    assert 0 <= data["outbox"]["oldest_seconds"] < 60
    later = time.time() + 700
    monkeypatch.setattr(commands.time, "time", lambda: later)
    code, data = status(url)
    assert code == 27
    assert 700 <= data["outbox"]["oldest_seconds"] < 760


def test_an_outbox_that_nothing_forwards_is_a_job_for_drain(url: str, store: MemoryStore) -> None:
    store.create(f"{OUTBOX_ROOT}/b1:8080-00000001/0/0", NODE, make_parents=True)
    assert status(url)[0] == 22
    assert "broker-marks drain" in run(url, "status").stdout


def test_without_the_node_of_init_that_is_said(url: str, store: MemoryStore) -> None:
    add(store, "b1:8080", said("b1:8080"))
    store.delete_many([(DELETION_TOPIC_NODE, 0)])
    assert "bookwarden init" in run(url, "status").stdout


@pytest.fixture
def following(store: MemoryStore) -> Iterator[None]:
    """A broker that acts by the node after a while."""
    add(store, "b1:8080", said("b1:8080"))
    ended = threading.Event()

    def follow() -> None:
        path = f"{MARKING_BROKERS}/b1:8080-00000001"
        while not ended.wait(0.05):
            wanted, node = store.get(ENABLED_NODE), store.get(path)
            assert node is not None
            enabled = wanted is None or decode_marks_enabled(wanted.value).enabled
            if json.loads(node.value)["enabled"] != enabled:
                time.sleep(0.2)
                store.put(path, said("b1:8080", enabled=enabled), node.version)

    thread = threading.Thread(target=follow)
    thread.start()
    yield
    ended.set()
    thread.join()


@pytest.mark.usefixtures("following")
def test_off_and_on_wait_for_the_brokers(url: str, store: MemoryStore) -> None:
    add(store, "b2:8080")
    off = run(url, "off", "-o", "json")
    assert (off.exit_code, json.loads(off.stdout)) == (0, {"enabled": False, "brokers": ["b1:8080"], "late": []})
    code, data = status(url)
    assert (code, data["enabled"]["enabled"], data["brokers"][0]["marks"]) == (22, False, False)
    assert "@" in data["enabled"]["by"]
    assert run(url, "on").exit_code == 0
    assert status(url)[1]["brokers"][0]["marks"]


def test_a_broker_that_does_not_follow_is_named(url: str, store: MemoryStore) -> None:
    add(store, "b1:8080", said("b1:8080"))
    off = run(url, "off", "-o", "json", "--timeout", "0")
    assert (off.exit_code, json.loads(off.stdout)["late"]) == (25, ["b1:8080"])


def test_a_dry_run_changes_nothing(url: str, store: MemoryStore) -> None:
    add(store, "b1:8080", said("b1:8080"))
    dry = run(url, "off", "--dry-run", "-o", "json")
    assert (dry.exit_code, json.loads(dry.stdout)["brokers"]) == (0, ["b1:8080"])
    assert store.get(ENABLED_NODE) is None


def test_a_drain_plans_and_is_refused_while_a_broker_lives(url: str, store: MemoryStore) -> None:
    store.create("/ledgers", b"")
    store.create(f"{OUTBOX_ROOT}/b1:8080-00000001/0/0", NODE, make_parents=True)
    plan = run(url, "drain", "-o", "json")
    # The ledger is in no BookKeeper.
    expected = {"executed": False, "nodes": 1, "gone": 1, "marks": {}, "trashed": 0, "kept": []}
    assert (plan.exit_code, json.loads(plan.stdout)) == (0, expected)
    assert store.get(f"{OUTBOX_ROOT}/b1:8080-00000001/0/0") is not None
    store.create(f"{OUTBOX_ROOT}/b1:8080-00000001/0/1", b'{"format":2}')
    assert run(url, "drain").exit_code == 27
    add(store, "b1:8080", said("b1:8080"))
    assert run(url, "drain").exit_code == 5
