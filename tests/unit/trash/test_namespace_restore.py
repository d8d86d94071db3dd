"""A deleted namespace made again, killed at each write."""

from __future__ import annotations

import pytest

from bookwarden.errors import NotFoundError, RefusedError
from bookwarden.ledgers.trash import FormerNode, NamespaceCopy, TrashRecord
from bookwarden.trash.generations import FoundRecord, generations
from bookwarden.trash.namespace_restore import NamespaceRestore, deleted_with
from bookwarden.wire.trash import copy_node, encode_copy
from unit.trash.trash_world import FOLDER, DyingStore, KeysAlone, Killed

POLICIES = "/admin/policies/t/n"
LOCAL = "/admin/local-policies/t/n"
FORMER = NamespaceCopy("t/n", 5, b'{"a":1,"deleted":false}', b"bundles", 900_000, 800_000)


def deleted(store: type[DyingStore] = DyingStore) -> DyingStore:
    made = store(lambda: 1_000.0)
    made.create("/admin/policies/t", b"", make_parents=True)
    made.create("/admin/local-policies/t", b"", make_parents=True)
    lives = (FORMER, NamespaceCopy("t/n", 4, b"{}", None, 300_000, 300_000), NamespaceCopy("t/n", 6, b"{}"))
    for copy in lives:
        made.create(copy_node(copy), encode_copy(copy), make_parents=True)
    return made


@pytest.mark.parametrize("store", [DyingStore, KeysAlone])
@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
def test_it_comes_back_as_it_was_killed_at_any_write(store: type[DyingStore], before: bool) -> None:
    kills = 0
    while True:
        made = deleted(store)
        made.kill_at(kills, before=before)
        try:
            restore = NamespaceRestore(made)
            assert restore.write(restore.find("t/n"))
            killed = False
        except Killed:
            made.revive()
            killed = True
        again = NamespaceRestore(made)
        again.write(again.find("t/n"))
        nodes = made.get_many([POLICIES, LOCAL])
        assert [node.value for node in nodes if node is not None] == [FORMER.policies, FORMER.local]
        assert not again.write(FORMER)
        if not killed:
            break
        kills += 1
    assert kills >= 1


def test_what_there_is_stays() -> None:
    made = deleted()
    made.create(LOCAL, b"others")
    made.create(POLICIES, b"{}")
    assert not NamespaceRestore(made).write(FORMER)
    node = made.get(POLICIES)
    assert node is not None
    assert node.value == b"{}"
    made.put(POLICIES, b'{"deleted":true}', 0)
    with pytest.raises(RefusedError, match="namespaces delete -f t/n"):
        NamespaceRestore(made).write(FORMER)
    made.delete_many([(POLICIES, 1)])
    assert NamespaceRestore(made).write(FORMER)
    local = made.get(LOCAL)
    assert local is not None
    assert local.value == b"others"


def test_it_needs_its_tenant_and_a_copy() -> None:
    made = DyingStore(lambda: 1_000.0)
    with pytest.raises(NotFoundError, match="t/n"):
        NamespaceRestore(made).find("t/n")
    with pytest.raises(RefusedError, match="the tenant t is not there"):
        NamespaceRestore(made).write(FORMER)


def test_topics_come_back_that_were_deleted_with_it_and_not_before() -> None:
    def record(name: str, time_ms: int, created_ms: int = 7) -> TrashRecord:
        return TrashRecord(name, time_ms, created_ms, node=FormerNode(b"", 0, created_ms, created_ms))

    records = [
        record("t/n/persistent/a", 801_000),
        record("t/n/persistent/a", 790_000, 6),
        # The clocks of brokers differ.
        record("t/n/persistent/b-partition-0", 799_000),
        record("t/n/persistent/before", 700_000),
        record("t/n/persistent/__change_events", 802_000),
        record("t/other/persistent/a", 801_000),
        TrashRecord("t/n/persistent/lives", 801_000, 7, data=(1,), entries=(b"\x08\x01",)),
    ]
    found = generations([FoundRecord(one, f"{FOLDER}/0") for one in records], {})
    chosen = deleted_with(FORMER, found)
    assert [(one.managed_ledger, one.generation.created_ms) for one in chosen] == [
        ("t/n/persistent/a", 7),
        ("t/n/persistent/b-partition-0", 7),
    ]
