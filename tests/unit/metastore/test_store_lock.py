"""The sweep's lock over a store in memory: who holds it, who is refused, and what a lost session leads to."""

from __future__ import annotations

import json
import logging
import os
import socket
import subprocess
import threading
from collections.abc import Sequence

import pytest

from bookwarden.errors import RefusedError, StoreUnavailableError
from bookwarden.ledgers.metadata import DeleteResult
from bookwarden.metastore.lock import StoreLock, holder_of
from bookwarden.metastore.memory import MemoryStore
from servers.waiting import eventually

PATH = "/bookwarden/sweeps/one"


def lock(store: MemoryStore) -> StoreLock:
    return StoreLock(store, PATH, look_s=0.01)


def holders(store: MemoryStore) -> list[str]:
    return store.list_children(PATH)


def end_session(store: MemoryStore) -> None:
    """Let all nodes go as they do when the session of their driver ends."""
    results = store.delete_many([(f"{PATH}/{name}", 0) for name in holders(store)])
    assert set(results) == {DeleteResult.DELETED}


def test_a_second_sweep_is_refused_and_told_who_has_the_lock() -> None:
    store = MemoryStore()
    lock(store).acquire(0)
    (held,) = holders(store)
    described = json.loads(store.get(f"{PATH}/{held}").value)
    assert (described["host"], described["pid"]) == (socket.gethostname(), os.getpid())
    with pytest.raises(RefusedError) as refused:
        lock(store).acquire(0)
    assert f"{described['host']} as process {described['pid']} since {described['began']}" in str(refused.value)
    assert "\n" not in str(refused.value)
    assert holders(store) == [held]


def forestall(store: MemoryStore, other: StoreLock) -> None:
    """Let the other come first between the next look at the store and the node that is then made."""
    create = store.ephemeral_sequential

    def forestalled(prefix: str, value: bytes) -> str:
        store.ephemeral_sequential = create
        other.acquire(0)
        return create(prefix, value)

    store.ephemeral_sequential = forestalled


def test_two_that_begin_at_the_same_time_do_not_both_hold_it() -> None:
    store = MemoryStore()
    late, early = lock(store), lock(store)
    forestall(store, early)
    with pytest.raises(RefusedError):
        late.acquire(0)
    assert len(holders(store)) == 1
    early.acquire(0)


def test_the_lock_of_a_dead_sweep_is_waited_for() -> None:
    store = MemoryStore()
    lock(store).acquire(0)
    waiting = threading.Thread(target=lock(store).acquire, args=(60,))
    waiting.start()
    first = holders(store)
    end_session(store)
    waiting.join(60)
    assert not waiting.is_alive()
    assert len(holders(store)) == 1
    assert holders(store) != first


def changed(store: MemoryStore, **fields: object) -> None:
    """Change what the holder said of itself."""
    (held,) = holders(store)
    node = store.get(f"{PATH}/{held}")
    store.put(f"{PATH}/{held}", json.dumps({**json.loads(node.value), **fields}).encode(), node.version)


def ended_process() -> int:
    with subprocess.Popen(["true"]) as process:
        pass
    return process.pid


def test_a_sweep_that_was_killed_on_the_same_machine_is_not_waited_for() -> None:
    store = MemoryStore()
    lock(store).acquire(0)
    changed(store, pid=ended_process())
    lock(store).acquire(0)
    assert len(holders(store)) == 1


def test_a_process_that_has_a_dead_ones_id_does_not_keep_its_lock() -> None:
    store = MemoryStore()
    lock(store).acquire(0)
    changed(store, started="before the machine started")
    lock(store).acquire(0)
    assert len(holders(store)) == 1


def test_nobody_is_called_dead_on_another_machine_or_in_another_container() -> None:
    store = MemoryStore()
    lock(store).acquire(0)
    changed(store, pid=ended_process(), ids="elsewhere")
    with pytest.raises(RefusedError):
        lock(store).acquire(0)


def test_a_lock_that_went_with_its_session_is_taken_again() -> None:
    store = MemoryStore()
    held = lock(store)
    held.acquire(0)
    first = holders(store)
    with held.kept(lambda: pytest.fail("stopped")):
        end_session(store)
        eventually(lambda: holders(store) not in ([], first))


def test_names_of_the_store_that_a_migration_has_just_left_do_not_look_like_a_lost_lock(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = MemoryStore()
    held = lock(store)
    held.acquire(0)
    list_children, answers = store.list_children, [["driver-of-the-source"]]
    monkeypatch.setattr(store, "list_children", lambda path: answers.pop() if answers else list_children(path))
    held.acquire(0)
    assert len(holders(store)) == 1


def test_a_sweep_that_finds_another_in_its_place_ends() -> None:
    store, stopped = MemoryStore(), threading.Event()
    held, other = lock(store), lock(store)
    held.acquire(0)

    def sweep() -> None:
        with held.kept(stopped.set):
            forestall(store, other)
            end_session(store)
            assert stopped.wait(60)

    with pytest.raises(RefusedError, match="this one ended"):
        sweep()
    assert len(holders(store)) == 1
    other.acquire(0)


class AbsentStore(MemoryStore):
    """A store that does not answer."""

    def list_children(self, path: str) -> list[str]:
        raise StoreUnavailableError("no answer")

    def get_many(self, paths: Sequence[str]) -> list[None]:
        raise StoreUnavailableError("no answer")


def test_a_store_that_does_not_answer_keeps_nobody_from_sweeping(caplog: pytest.LogCaptureFixture) -> None:
    held = lock(AbsentStore())
    with caplog.at_level(logging.WARNING):
        held.acquire(0)
    with held.kept(lambda: pytest.fail("stopped")):
        pass
    assert "without it" in caplog.text


def test_anyone_may_see_who_holds_it() -> None:
    store = MemoryStore()
    assert holder_of(store, PATH) == ""
    held = lock(store)
    held.acquire(0)
    assert f"as process {os.getpid()} since" in holder_of(store, PATH)
    held.release()
    assert holder_of(store, PATH) == ""
    store.create(f"{PATH}/driver-x", b"nonsense", make_parents=True)
    assert holder_of(store, PATH) == "a host that its record does not name"
