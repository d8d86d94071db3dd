"""The store that follows a migration, over sessions in memory and a scripted flag."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future

import pytest

from bookwarden.errors import LostRaceError, StoreAccessError, StoreMigratingError, StoreUnavailableError
from bookwarden.ledgers.metadata import DeleteResult
from bookwarden.metastore.following.flag import PARTICIPANTS_PATH
from bookwarden.metastore.following.phases import ParticipantState
from bookwarden.metastore.following.progress import MigrationTimes
from bookwarden.metastore.following.store import MigratingStore
from bookwarden.metastore.following.target import FIRST_VERSION
from bookwarden.metastore.interface import Write
from servers.migration.scripted import TARGET_URL, TIMES_OF_THE_HURRIED, Held, Server, Site
from servers.waiting import eventually


@pytest.fixture
def site() -> Iterator[Site]:
    made = Site()
    yield made
    made.close()


@pytest.fixture
def server(site: Site) -> Server:
    site.server.offer()
    return site.server


def wait_for(store: MigratingStore, state: ParticipantState) -> None:
    eventually(lambda: store.state is state)


def migrate(site: Site, store: MigratingStore) -> None:
    """Let a whole migration pass."""
    site.server.set_phase("PREPARATION")
    wait_for(store, ParticipantState.WAITING)
    site.server.set_phase("COPYING")
    site.copy()
    site.server.set_phase("COMPLETED")
    wait_for(store, ParticipantState.SERVING_TARGET)


def test_where_no_process_takes_part_in_migrations_nothing_is_added(site: Site) -> None:
    store = site.store()
    store.create("/a", b"1")
    assert store.state is ParticipantState.SERVING_UNREGISTERED
    assert site.server.nodes.list_children("/") == ["a"]


def test_it_registers_as_soon_as_there_is_a_place(site: Site) -> None:
    store = site.store()
    store.create("/a", b"1")
    site.server.offer()
    store.create("/b", b"1")
    assert store.state is ParticipantState.SERVING_SOURCE
    assert len(site.server.participants()) == 1


def test_who_reads_registers_not_and_who_writes_does_before(site: Site, server: Server) -> None:
    store = site.store()
    assert store.get("/a") is None
    store.sync()
    assert store.delete_many([]) == []
    assert server.participants() == []
    store.create("/a", b"1")
    (name,) = server.participants()
    assert store.participant == f"{PARTICIPANTS_PATH}/{name}"
    store.close()
    assert server.participants() == []


def test_it_leaves_when_it_is_connected_to_the_target(site: Site, server: Server) -> None:
    site.target_is_down = True
    store = site.store()
    store.create("/a", b"1")
    server.set_phase("PREPARATION")
    wait_for(store, ParticipantState.CONNECTING_TARGET)
    assert len(server.participants()) == 1
    site.target_is_down = False
    wait_for(store, ParticipantState.WAITING)
    assert server.participants() == []


def test_reads_go_on_while_writes_wait_and_then_fail_with_the_reason(site: Site, server: Server) -> None:
    store = site.store(TIMES_OF_THE_HURRIED)
    store.create("/a", b"1")
    for phase in ("PREPARATION", "COPYING"):
        server.set_phase(phase)
        wait_for(store, ParticipantState.WAITING)
        store.sync()
        assert store.list_children("/") == ["a", "pulsar"]
        for write in (
            lambda: store.create("/b", b""),
            lambda: store.put("/a", b"2", 0),
            lambda: store.delete_many([("/a", 0)]),
            lambda: store.write_many([Write("/a", b"2", 0), Write("/b", b"", None)]),
            lambda: store.ephemeral_sequential("/e-", b""),
        ):
            with pytest.raises(StoreMigratingError, match=rf"moved to {TARGET_URL}, phase {phase}.*try again"):
                write()
    node = store.get("/a")
    assert node is not None
    assert (node.value, node.version) == (b"1", 0)


def test_a_write_that_waits_goes_to_the_target_alone(site: Site, server: Server) -> None:
    store = site.store()
    store.create("/a", b"1")
    server.set_phase("PREPARATION")
    wait_for(store, ParticipantState.WAITING)
    waiting = site.pool.submit(store.create, "/b", b"new")
    server.set_phase("COPYING")
    site.copy()
    assert not waiting.done()
    server.set_phase("COMPLETED")
    waiting.result(30)
    assert server.nodes.get("/b") is None
    node = site.target.get("/b")
    assert node is not None
    assert node.value == b"new"
    assert store.state is ParticipantState.SERVING_TARGET


def test_a_version_of_the_source_means_nothing_in_the_target(site: Site, server: Server) -> None:
    store = site.store()
    store.create("/a", b"1")
    before = store.get("/a")
    assert before is not None
    migrate(site, store)
    assert store.delete_many([("/a", before.version)]) == [DeleteResult.LOST_RACE]
    with pytest.raises(LostRaceError, match="before the metadata moved: read it again"):
        store.put("/a", b"2", before.version)
    now = store.get("/a")
    assert now is not None
    assert now.version >= FIRST_VERSION
    changed = store.put("/a", b"2", now.version)
    assert store.delete_many([("/a", now.version), ("/a", changed), ("/none", changed)]) == [
        DeleteResult.LOST_RACE,
        DeleteResult.DELETED,
        DeleteResult.ABSENT,
    ]


def test_after_a_failure_it_is_back_at_the_source_and_registers_anew(site: Site, server: Server) -> None:
    store = site.store()
    store.create("/a", b"1")
    first = store.participant
    server.set_phase("PREPARATION")
    wait_for(store, ParticipantState.WAITING)
    waiting = site.pool.submit(store.create, "/b", b"")
    server.set_phase("FAILED")
    waiting.result(30)
    assert server.nodes.get("/b") is not None
    assert store.participant not in (None, first)
    eventually(lambda: [target.is_closed for target in site.targets] == [True])
    server.remove_flag()
    store.create("/c", b"")
    migrate(site, store)
    assert store.get("/a") is not None


@pytest.mark.parametrize("phase", ["PREPARATION", "COPYING"])
def test_a_process_that_starts_in_the_middle_reads_and_waits_unregistered(
    site: Site, server: Server, phase: str
) -> None:
    server.nodes.create("/a", b"1")
    server.set_phase(phase)
    store = site.store()
    assert store.get("/a") is not None
    waiting = site.pool.submit(store.create, "/b", b"")
    assert store.state is ParticipantState.WAITING
    assert server.participants() == []
    server.set_phase("COMPLETED")
    waiting.result(30)
    assert site.target.get("/b") is not None


def test_a_process_that_starts_afterwards_reads_and_writes_the_target_alone(site: Site, server: Server) -> None:
    server.nodes.create("/a", b"old")
    site.target.create("/a", b"new")
    server.set_phase("COMPLETED")
    store = site.store()
    node = store.get("/a")
    assert node is not None
    assert node.value == b"new"
    store.create("/b", b"")
    assert server.nodes.get("/b") is None
    assert server.participants() == []


def test_a_write_reads_the_flag_even_if_its_watch_is_lost(site: Site, server: Server) -> None:
    store = site.store(TIMES_OF_THE_HURRIED)
    store.create("/a", b"1")
    server.mute = True
    server.set_phase("PREPARATION")
    with pytest.raises(StoreMigratingError):
        store.put("/a", b"2", 0)
    wait_for(store, ParticipantState.WAITING)
    server.set_phase("COMPLETED")
    site.copy()
    store.sync()
    assert store.state is ParticipantState.SERVING_TARGET


def test_a_lost_watch_keeps_no_migration_waiting_for_long(site: Site, server: Server) -> None:
    store = site.store(MigrationTimes(look_s=0.05))
    store.create("/a", b"1")
    server.mute = True
    server.set_phase("PREPARATION")
    eventually(lambda: server.participants() == [])


def test_it_waits_for_what_is_under_way_before_it_leaves(site: Site, server: Server) -> None:
    store = site.store()
    store.create("/a", b"1")
    held = Held(site.sessions[0])
    under_way = site.pool.submit(store.put, "/a", b"2", 0)
    assert held.begun.wait(30)
    assert store.participant is not None
    left = threading.Event()
    server.nodes.watch(store.participant, lambda _path: left.set())
    server.set_phase("PREPARATION")
    assert not left.wait(0.2)
    assert store.state is ParticipantState.DRAINING
    held.go_on.set()
    assert under_way.result(30) == 1
    wait_for(store, ParticipantState.WAITING)
    node = server.nodes.get("/a")
    assert node is not None
    assert node.value == b"2"


def test_what_is_still_under_way_at_the_drain_limit_is_never_carried_out_in_the_source(
    site: Site, server: Server
) -> None:
    store = site.store(MigrationTimes(drain_limit_s=0.05, write_wait_s=30))
    store.create("/a", b"1")
    held = Held(site.sessions[0])
    under_way = site.pool.submit(store.delete_many, [("/a", 0)])
    assert held.begun.wait(30)
    server.set_phase("PREPARATION")
    wait_for(store, ParticipantState.WAITING)
    assert server.participants() == []
    server.set_phase("COPYING")
    site.copy()
    held.go_on.set()
    eventually(lambda: site.sessions[0].refused)
    server.set_phase("COMPLETED")
    assert under_way.result(30) == [DeleteResult.LOST_RACE]
    assert server.nodes.get("/a") is not None
    assert site.target.get("/a") is not None


def test_a_permission_is_void_once_a_failed_flag_has_changed(site: Site, server: Server) -> None:
    server.set_phase("FAILED")
    store = site.store(TIMES_OF_THE_HURRIED)
    store.create("/a", b"1")
    held = Held(site.sessions[0])
    under_way = site.pool.submit(store.put, "/a", b"2", 0)
    assert held.begun.wait(30)
    server.mute = True
    server.set_phase("COPYING")
    held.go_on.set()
    with pytest.raises(StoreMigratingError):
        under_way.result(30)
    node = server.nodes.get("/a")
    assert node is not None
    assert node.value == b"1"


def test_a_call_goes_on_after_a_lost_session_with_the_next_node(site: Site, server: Server) -> None:
    store = site.store()
    store.create("/a", b"1")
    first = store.participant
    held = Held(site.sessions[0])
    under_way = site.pool.submit(store.put, "/a", b"2", 0)
    assert held.begun.wait(30)
    site.sessions[0].expire()
    held.go_on.set()
    assert under_way.result(30) == 1
    assert store.participant not in (None, first)
    assert len(server.participants()) == 1


def test_an_operator_may_delete_our_node(site: Site, server: Server) -> None:
    store = site.store()
    store.create("/a", b"1")
    assert store.participant is not None
    server.nodes.delete_many([(store.participant, 0)])
    store.create("/b", b"")
    assert len(server.participants()) == 1


def test_a_watch_goes_along_to_the_target_and_calls_once(site: Site, server: Server) -> None:
    store = site.store()
    store.create("/a", b"1")
    calls = threading.Semaphore(0)
    end = store.watch("/a", lambda _path: calls.release())
    migrate(site, store)
    assert calls.acquire(timeout=30)
    site.target.put("/a", b"2", 0)
    assert calls.acquire(timeout=30)
    end()
    site.target.put("/a", b"3", 1)
    assert not calls.acquire(timeout=0.1)


def test_our_ephemeral_nodes_are_in_the_target_before_we_leave(site: Site, server: Server) -> None:
    store = site.store()
    store.create("/lock", b"")
    kept = store.ephemeral_sequential("/lock/kept-", b"me")
    given_up = store.ephemeral_sequential("/lock/given-up-", b"me")
    store.put(kept, b"me", 0)
    assert store.write_many([Write(kept, b"me again", 1)]) == [None]
    store.delete_many([(given_up, 0)])
    server.set_phase("PREPARATION")
    wait_for(store, ParticipantState.WAITING)
    (name,) = site.target.list_children("/lock")
    assert name.startswith("kept-")
    node = site.target.get(f"/lock/{name}")
    assert node is not None
    assert (node.value, node.ephemeral) == (b"me again", True)
    server.set_phase("COMPLETED")
    wait_for(store, ParticipantState.SERVING_TARGET)
    assert site.target.list_children("/lock") == [name]


@pytest.mark.parametrize(
    "flag", [b"", b"{", b'{"phase":"REWINDING","targetUrl":null}', b'{"phase":"COMPLETED","targetUrl":null}']
)
def test_a_flag_that_is_not_understood_forbids_everything(site: Site, server: Server, flag: bytes) -> None:
    server.set_flag(flag)
    store = site.store()
    with pytest.raises(StoreMigratingError, match="cannot be understood"):
        store.get("/a")
    with pytest.raises(StoreMigratingError, match="cannot be understood"):
        store.create("/a", b"")
    server.remove_flag()
    store.create("/a", b"")


def test_who_may_not_register_may_not_write(site: Site, server: Server) -> None:
    store = site.store()
    site.sessions[0].refuses_nodes = True
    with pytest.raises(StoreAccessError, match=r"could not register.*no right"):
        store.create("/a", b"")
    assert store.get("/a") is None


def test_a_source_that_does_not_answer_is_unavailable(site: Site, server: Server) -> None:
    store = site.store()
    server.down = True
    with pytest.raises(StoreUnavailableError):
        store.get("/a")
    server.down = False
    store.create("/a", b"")
    server.down = True
    with pytest.raises(StoreUnavailableError):
        store.put("/a", b"2", 0)


def test_a_target_that_does_not_answer_after_the_switch_is_told(site: Site, server: Server) -> None:
    site.target_is_down = True
    server.set_phase("COMPLETED")
    store = site.store(TIMES_OF_THE_HURRIED)
    with pytest.raises(StoreMigratingError, match=r"COMPLETED.*the target is down"):
        store.get("/a")
    site.target_is_down = False
    site.target.create("/a", b"")
    wait_for(store, ParticipantState.SERVING_TARGET)
    assert store.get("/a") is not None


def test_many_threads_write_through_two_migrations_and_lose_nothing(site: Site, server: Server) -> None:
    store = site.store()
    ended = threading.Event()

    def write(thread: int) -> list[str]:
        made: list[str] = []
        while not ended.is_set() or len(made) < 20:
            path = f"/t{thread}-{len(made)}"
            store.create(path, b"")
            made.append(path)
        return made

    writers: list[Future[list[str]]] = [site.pool.submit(write, thread) for thread in range(4)]
    eventually(lambda: len(server.nodes.list_children("/")) > 20)
    server.set_phase("PREPARATION")
    eventually(lambda: server.participants() == [])
    server.set_phase("FAILED")
    count = len(server.nodes.list_children("/"))
    eventually(lambda: len(server.nodes.list_children("/")) > count + 20)
    server.remove_flag()
    server.set_phase("PREPARATION")
    eventually(lambda: server.participants() == [])
    server.set_phase("COPYING")
    copied = set(server.nodes.list_children("/"))
    server.set_phase("COMPLETED")
    eventually(lambda: len(site.target.list_children("/")) > 20)
    ended.set()
    made = {path[1:] for writer in writers for path in writer.result(30)}
    assert set(server.nodes.list_children("/")) == copied
    assert made == (copied - {"pulsar"}) | set(site.target.list_children("/"))
