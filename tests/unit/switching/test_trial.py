"""The trial ledger of a precheck: every writable bookie gets an entry, nothing is left, whenever it is killed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, suppress

import pytest

from bookwarden.bookie_clusters.brokers import BROKERS_PATH
from bookwarden.bookie_clusters.checks.observing import TRIALS_PATH, Observer, Trials, run_precheck, trial_metadata
from bookwarden.bookie_clusters.checks.precheck import Quorums, TrialResult
from bookwarden.bookie_clusters.registry import FOLLOWERS_PATH, REGISTRY_PATH
from bookwarden.bookie_clusters.registry_node import ClusterRegistry
from bookwarden.clusters.bookkeeper.bookie_cluster import ClusterStores
from bookwarden.clusters.bookkeeper.bookies.requests import BookieOptions
from bookwarden.clusters.bookkeeper.catalog import BookKeeperCatalog
from bookwarden.clusters.bookkeeper.ledger_ids import LedgerIds
from bookwarden.clusters.bookkeeper.ledger_paths import ledger_path
from bookwarden.clusters.pulsar.messages.topic_policies import TopicQuorums
from bookwarden.clusters.pulsar.rest.registered_brokers import RegisteredBroker
from bookwarden.disk_space import DiskSpace
from bookwarden.errors import StoreUnavailableError
from bookwarden.ledgers.custom_metadata import OWNER_KEY, TRIAL_KEY
from bookwarden.ledgers.metadata import LedgerMetadata, LedgerState, Segment, StoredLedger
from bookwarden.metastore.interface import MetadataStore
from bookwarden.metastore.wrappers import ForwardingStore
from bookwarden.wire.ledger_metadata import encode_ledger_metadata
from bookwarden.wire.pb import bookie_protocol_pb2 as pb
from servers.scripted_bookie import ScriptedBookie
from servers.switching.ground import OWNER, Ground, SessionStore, registry_of
from unit.switching.mortal import Killed, Mortal

QUORUMS = Quorums(3, 2, 2)


class Site:
    """Pulsar's own store, in which all bookie clusters are, and bookies of b."""

    def __init__(self, scripted: list[ScriptedBookie]) -> None:
        self.scripted = scripted
        self.ids = [bookie.bookie_id for bookie in scripted]
        self.store = SessionStore()
        self.registry = registry_of()
        for cluster in self.registry.clusters.values():
            self.store.create(f"{cluster.ledgers_root}/INSTANCEID", cluster.instance.encode(), make_parents=True)
        LedgerIds(self.store, "/a").raise_to(1_000)

    def trials(self, store: MetadataStore | None = None) -> Trials:
        own = store or self.store
        options = BookieOptions(connect_timeout_s=5, request_timeout_s=5)

        return Trials(ClusterRegistry(ClusterStores(lambda _: own), "memory:"), options)

    def make(self, store: MetadataStore | None = None, digest: str = "CRC32C") -> TrialResult:
        return self.trials(store).make(self.registry, "b", self.ids, QUORUMS, digest)

    def left(self) -> list[str]:
        """The paths of ledgers, of records and of taken ids."""
        return [
            path for path in _below(self.store, "") if "/L" in path or f"{TRIALS_PATH}/" in path or "/idgen/" in path
        ]


def _below(store: MetadataStore, path: str) -> list[str]:
    children = [f"{path}/{name}" for name in store.children_of(path or "/")]
    return [below for child in children for below in (child, *_below(store, child))]


@pytest.fixture
def site() -> Iterator[Site]:
    with ExitStack() as stack:
        yield Site([stack.enter_context(ScriptedBookie()) for _ in range(4)])


def test_every_bookie_is_written_to_once_at_least() -> None:
    for count in range(1, 12):
        for quorums in (Quorums(1, 1, 1), Quorums(2, 2, 2), Quorums(3, 2, 2), Quorums(5, 3, 2)):
            bookies = [f"b{number:02d}" for number in range(count)]
            metadata = trial_metadata(bookies, quorums, "CRC32C", {})
            assert {bookie for segment in metadata.segments for bookie in segment.ensemble} == set(bookies)
            assert all(len(set(segment.ensemble)) == metadata.ensemble_size for segment in metadata.segments)
            assert (
                metadata.ack_quorum <= metadata.write_quorum <= metadata.ensemble_size == min(quorums.ensemble, count)
            )


@pytest.mark.parametrize("digest", ["CRC32C", "CRC32", "HMAC"])
def test_a_trial_leaves_nothing_but_an_id_that_nobody_gets(site: Site, digest: str) -> None:
    seen = site.make(digest=digest)
    assert seen == TrialResult(1_000, bookies=4)
    assert site.left() == []
    for bookie in site.scripted:
        assert {ledger_id for ledger_id, _ in bookie.added} == {1_000}
        assert bookie.asked == bookie.added
    # Of an ensemble of 3 the second has two bookies of the first.
    assert sum(len(bookie.added) for bookie in site.scripted) == 2 * 3 * 2
    assert LedgerIds(site.store, "/a").next_id() == 1_001


def test_what_it_writes_says_what_it_is(site: Site) -> None:
    found: list[StoredLedger] = []

    class Looking(ForwardingStore):
        def put(self, path: str, value: bytes, version: int) -> int:
            written = super().put(path, value, version)
            (ledger,) = BookKeeperCatalog(site.store, "/b").read_many([1_000])
            assert isinstance(ledger, StoredLedger)
            found.append(ledger)
            record = site.store.get(f"{TRIALS_PATH}/1000")
            assert record is not None
            assert json.loads(record.value) == {"cluster": "b"}
            return written

    site.make(Looking(site.store))
    (ledger,) = found
    assert ledger.metadata.custom == {OWNER_KEY: OWNER.encode(), TRIAL_KEY: b"precheck"}
    assert (ledger.metadata.state, ledger.metadata.last_entry_id) == (LedgerState.CLOSED, 5)
    assert ledger.metadata.length == 6 * 1024


@pytest.mark.parametrize("before", [True, False])
def test_killed_anywhere_the_next_one_removes_what_is_left(site: Site, before: bool) -> None:
    for kill_at in range(1_000):
        mortal = Mortal(site.store, kill_at, before=before)
        with suppress(Killed):
            site.make(mortal)
        if mortal.left >= 0:
            break
        again = site.make()
        assert (again.error, again.failed, again.left) == ("", {}, "")
        # The taken id's node is the dead session's, which a real store ends.
        assert [path for path in site.left() if "/idgen/" not in path] == []
    # Taking an id, the record, the ledger, its end, its removal, the record's.
    assert kill_at == 7


def test_each_bookie_that_fails_is_named(site: Site) -> None:
    site.scripted[0].add_status = pb.EREADONLY
    site.scripted[1].add_status = pb.EUA
    site.scripted[2].close()
    seen = site.make()
    assert set(seen.failed) == set(site.ids[:3])
    assert f"bookie {site.ids[0]} answered EREADONLY" in seen.failed[site.ids[0]]
    assert f"bookie {site.ids[2]} does not answer" in seen.failed[site.ids[2]]
    assert seen.denied == {site.ids[1]}
    assert site.left() == []


@pytest.mark.parametrize("digest", ["CRC32C", "DUMMY"])
def test_a_bookie_that_gives_back_something_else_is_named(site: Site, digest: str) -> None:
    class Forgetful(dict[tuple[int, int], bytes]):
        def __setitem__(self, key: tuple[int, int], value: bytes) -> None:
            super().__setitem__(key, value[:-1] + b"?")

    site.scripted[3].entries = Forgetful()
    site.scripted[0].entries = _Nothing()
    seen = site.make(digest=digest)
    assert set(seen.failed) == {site.ids[3], site.ids[0]}
    assert f"bookie {site.ids[3]} gives back another entry" in seen.failed[site.ids[3]]
    assert "answered ENOLEDGER to a read" in seen.failed[site.ids[0]]
    assert (seen.error, site.left()) == ("", [])


class _Nothing(dict[tuple[int, int], bytes]):
    def __setitem__(self, key: tuple[int, int], value: bytes) -> None:
        pass


def test_a_ledger_of_the_same_id_is_never_touched(site: Site) -> None:
    """Where others write too, an id may be theirs: it is passed over."""
    metadata = LedgerMetadata(
        3, LedgerState.OPEN, 1, 1, 1, (Segment(0, ("x:1",)),), digest_type="CRC32C", custom={OWNER_KEY: b"others"}
    )
    theirs = encode_ledger_metadata(metadata)
    # As many as a client with a counter of its own makes.
    taken = [ledger_path("/b", ledger_id) for ledger_id in range(1_000, 1_060)]
    for path in taken:
        site.store.create(path, theirs, make_parents=True)
    # A record of one that was never made, as a kill right after the record leaves it.
    site.store.create(f"{TRIALS_PATH}/1001", b'{"cluster": "b"}', make_parents=True)
    assert site.make() == TrialResult(1_060, bookies=4)
    assert sorted(site.left()) == sorted(taken)
    node = site.store.get(ledger_path("/b", 1_000))
    assert node is not None
    assert (node.value, node.version) == (theirs, 0)


def test_what_is_no_record_stays_and_is_told(site: Site) -> None:
    for name, value in (("12", b"garbage"), ("note", b"{}")):
        site.store.create(f"{TRIALS_PATH}/{name}", value, make_parents=True)
    seen = site.make()
    assert f"{TRIALS_PATH}/12 names no bookie cluster" in seen.left
    assert f"{TRIALS_PATH}/note is no ledger's" in seen.left
    assert site.left() == [f"{TRIALS_PATH}/12", f"{TRIALS_PATH}/note"]


def test_one_that_is_removed_meanwhile_is_told_and_leaves_nothing(site: Site) -> None:
    class Interrupting(ForwardingStore):
        """Another precheck comes right before the ledger is closed."""

        is_first = True

        def create(self, path: str, value: bytes, *, make_parents: bool = False) -> None:
            super().create(path, value, make_parents=make_parents)
            if "/L" in path and self.is_first:
                self.is_first = False
                assert site.make() == TrialResult(1_001, bookies=4)

    seen = site.make(Interrupting(site.store))
    assert "the metadata of ledger 1000 was changed or removed by another client" in seen.error
    assert site.left() == []


def test_a_store_that_takes_nothing_is_told(site: Site) -> None:
    class Full(ForwardingStore):
        def create(self, path: str, value: bytes, *, make_parents: bool = False) -> None:
            if path.startswith("/b/"):
                raise StoreUnavailableError("no room")
            super().create(path, value, make_parents=make_parents)

    seen = site.make(Full(site.store))
    assert (seen.ledger_id, seen.error) == (None, "no room")
    # Its record stays, since nobody knows what became of the ledger; the next one clears it.
    assert site.left() == [f"{TRIALS_PATH}/1000"]
    site.make()
    assert site.left() == []


@pytest.mark.parametrize(
    ("is_ready", "with_trial", "is_tried"), [(True, True, True), (True, False, False), (False, True, False)]
)
def test_only_where_nothing_stands_in_the_way_is_anything_written(
    site: Site, is_ready: bool, with_trial: bool, is_tried: bool
) -> None:
    """A ledger whose id is in use, or in a cluster that is not the registered one, would be a danger of its own."""
    ground = Ground()
    ground.broker("br1")
    site.store.create("/b/available/readonly", b"", make_parents=True)
    for bookie in site.ids:
        site.store.create(f"/b/available/{bookie}", b"")
    if not is_ready:
        node = site.store.get("/b/INSTANCEID")
        assert node is not None
        site.store.put("/b/INSTANCEID", b"instance-a", node.version)
    settings = {
        **{f"managedLedgerDefault{name}": "2" for name in ("EnsembleSize", "WriteQuorum", "AckQuorum")},
        "managedLedgerDigestType": "MAC",
    }

    class Told(Observer):
        def settings(self) -> list[RegisteredBroker]:
            return [RegisteredBroker("br1", "4.0.8", settings)]

        def topic_quorums(self) -> TopicQuorums:
            return TopicQuorums((), ())

        def disks(self, *_: object) -> dict[str, DiskSpace]:
            return {}

    # Of Pulsar's own store the registry and the brokers, of the other all else.
    for path in (REGISTRY_PATH, f"{BROKERS_PATH}/br1", f"{FOLLOWERS_PATH}/br1"):
        node = ground.store.get(path)
        assert node is not None
        if path in ground.store.sessions:
            site.store.sessions[path] = ground.store.sessions[path]
        site.store.create(path, node.value, make_parents=True)
    observer = Told(site.trials().node, None, None, site.trials().options)
    result = run_precheck(observer, "b", with_trial=with_trial)
    assert (not result.failing) is is_ready
    assert (result.seen.trial is not None) is is_tried
    assert {len(bookie.added) for bookie in site.scripted} == ({2} if is_tried else {0})
    assert any(one.check == "trial ledger" for one in result.findings) is is_tried
