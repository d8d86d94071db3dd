"""A migration rehearsed: what is copied, what is refused, and that nothing of others is ever removed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any
from uuid import uuid4

import pytest
from click.testing import CliRunner, Result

from bookwarden.cli.differences import DIFFERENCES_FOUND
from bookwarden.cli.main import cli
from bookwarden.clusters.pulsar.migration_flag import MIGRATION_PATH
from bookwarden.errors import ConfigError, LostRaceError, OutcomeUnknownError, RefusedError, StoreUnavailableError
from bookwarden.ledgers.creation import CreateResult, NewNode
from bookwarden.ledgers.metadata import DeleteResult
from bookwarden.metastore.interface import Versioned
from bookwarden.metastore.memory import MemoryStore, shared_memory_store
from bookwarden.migration.copying import Copy, NotCopied, SizedNode
from bookwarden.migration.differences import DifferenceClass
from bookwarden.migration.marker import MARKER, Hold, LeaseTimes, find_marker
from bookwarden.migration.rehearsal import Rehearsal, RehearsalReport
from bookwarden.migration.scratch import claim, clean, clean_own

LEDGERS = [f"/ledgers/00/0000/L{number:04d}" for number in range(30)]
CURSORS = [f"/managed-ledgers/t/n/persistent/topic-{number}/c" for number in range(9)]
# The tests let a rehearsal end before another looks whether it has.
AT_ONCE = LeaseTimes(renew_s=60.0, lease_s=30.0, given_up_s=0.0)


def filled() -> MemoryStore:
    store = MemoryStore()
    fill(store)
    return store


def fill(store: MemoryStore) -> None:
    for path in (*LEDGERS, *CURSORS):
        store.create(path, path.encode(), make_parents=True)
    store.create("/loadbalance/brokers", b"", make_parents=True)
    store.ephemeral_sequential("/loadbalance/brokers/b-", b"here")
    store.create("/zookeeper/config", b"own", make_parents=True)


def paths_of(store: MemoryStore, below: str = "/") -> Iterator[str]:
    for name in store.list_children(below):
        path = f"{below.rstrip('/')}/{name}"
        yield path
        yield from paths_of(store, path)


def persistent(store: MemoryStore) -> dict[str, bytes]:
    found = {path: node for path in paths_of(store) if (node := store.get(path)) is not None}
    return {path: node.value for path, node in found.items() if not node.ephemeral and path != MARKER}


def rehearse(source: MemoryStore, scratch: MemoryStore, **options: Any) -> RehearsalReport:
    with claim(scratch, AT_ONCE) as hold:
        return Rehearsal(source, scratch, scratch, hold, reading_s=lambda: 0.25, **options).run()


def no_word(_: str) -> None:
    pass


def test_every_persistent_node_is_copied_and_what_is_of_sessions_and_migrations_is_not() -> None:
    source, scratch = filled(), MemoryStore()
    source.create(MIGRATION_PATH, b'{"phase":"FAILED"}', make_parents=True)
    before = persistent(source)
    report = rehearse(source, scratch)
    expected = {path: value for path, value in before.items() if not path.startswith("/pulsar/migration-coordinator")}
    assert persistent(scratch) == expected
    assert persistent(source) == before
    copy = report.copy
    assert (copy.copied, copy.ephemeral, copy.not_copied) == (len(expected), 1, ())
    assert copy.value_bytes == sum(map(len, expected.values()))
    assert copy.path_bytes == sum(map(len, expected))
    assert copy.largest == SizedNode(CURSORS[0], len(CURSORS[0]))
    assert (report.comparison.compared, report.comparison.equal) == (len(expected), len(expected))
    assert (report.changed, report.damaged, report.first, report.is_good) == (0, 0, (), True)


def test_what_is_estimated_is_what_the_copy_took_and_the_limits_of_the_coordinator() -> None:
    estimate = rehearse(filled(), MemoryStore()).estimate
    assert estimate.blocked_least == pytest.approx(estimate.copying + 1)
    assert estimate.blocked_most == pytest.approx(estimate.copying + 61)
    assert (estimate.proposed, estimate.is_as_proposed) == (1.0, True)


def test_a_copy_that_is_held_back_is_not_estimated_by_the_clock() -> None:
    source, times = filled(), [0.0]
    with claim(scratch := MemoryStore(), AT_ONCE) as hold:
        report = Rehearsal(source, scratch, scratch, hold, reading_s=lambda: times[0], limited=True).run()
    assert report.estimate.copying == min(report.copy.seconds, report.copy.writing_s)


class Picky(MemoryStore):
    """Takes no ledger 3, which it finds too large, and no cursor 4, whose name it does not like."""

    def create_many(self, nodes: Sequence[NewNode]) -> list[CreateResult]:
        reasons = {LEDGERS[3]: CreateResult.TOO_LARGE, CURSORS[4]: CreateResult.BAD_NAME}
        return [reasons.get(node.path) or super(Picky, self).create_many([node])[0] for node in nodes]


def test_nodes_that_the_target_does_not_take_are_all_named_and_are_no_damage() -> None:
    report = rehearse(filled(), Picky())
    assert report.copy.not_copied == (
        NotCopied(LEDGERS[3], len(LEDGERS[3]), CreateResult.TOO_LARGE),
        NotCopied(CURSORS[4], len(CURSORS[4]), CreateResult.BAD_NAME),
    )
    assert report.comparison.counts[DifferenceClass.MISSING] == 2
    assert (report.damaged, report.changed, report.is_good) == (0, 0, False)


def test_what_changes_in_the_source_meanwhile_is_counted_and_no_damage() -> None:
    source = filled()

    def change(_: int) -> None:
        if source.get("/late") is None and scratch.get(CURSORS[-1]) is not None:
            source.create("/late", b"")
            source.put(LEDGERS[1], b"again", 0)
            source.delete_many([(LEDGERS[2], 0)])

    scratch = MemoryStore()
    report = rehearse(source, scratch, progress=change)
    counts = report.comparison.counts
    assert [counts[kind] for kind in (DifferenceClass.MISSING, DifferenceClass.BYTES, DifferenceClass.EXTRA)] == [
        1,
        1,
        1,
    ]
    assert (report.changed, report.damaged, report.is_good) == (3, 0, True)


def test_damage_to_the_copy_is_told_from_changes_of_the_source(monkeypatch: pytest.MonkeyPatch) -> None:
    source, scratch = filled(), MemoryStore()
    old = {path: node for path in paths_of(source) if (node := source.get(path)) is not None}
    read = source.get_many
    # Nothing of the source was written lately.
    monkeypatch.setattr(
        source, "get_many", lambda paths: [node and node._replace(modified_ms=1) for node in read(paths)]
    )

    def damage(nodes: int) -> None:
        if nodes == len(old) - 1:
            scratch.put(LEDGERS[1], b"damaged", 0)
            scratch.delete_many([(LEDGERS[2], 0)])
            scratch.create("/by-others", b"")
            scratch.create("/by-others-too", b"")

    report = rehearse(source, scratch, progress=damage)
    assert (report.changed, report.damaged, report.is_good) == (0, 4, False)
    assert {one.path: one.kind for one in report.first} == {
        LEDGERS[1]: DifferenceClass.BYTES,
        LEDGERS[2]: DifferenceClass.MISSING,
        "/by-others": DifferenceClass.EXTRA,
        "/by-others-too": DifferenceClass.EXTRA,
    }


def test_somebody_else_who_writes_to_the_namespace_ends_the_copy() -> None:
    source, scratch = filled(), MemoryStore()
    with claim(scratch, AT_ONCE) as hold:
        scratch.create(LEDGERS[0], b"of a cluster", make_parents=True)
        with pytest.raises(RefusedError, match="somebody else"):
            Copy(source, scratch, hold).run()
    assert scratch.get(LEDGERS[0]) is not None


@pytest.mark.parametrize("there", ["/ledgers", "/anything"])
def test_a_namespace_that_is_not_empty_is_left_alone(there: str) -> None:
    scratch = MemoryStore()
    scratch.create(there, b"precious")
    with pytest.raises(RefusedError, match=f"not empty: it has {there}"):
        claim(scratch, AT_ONCE)
    assert clean(scratch, AT_ONCE, no_word) == 0
    assert persistent(scratch) == {there: b"precious"}
    assert find_marker(scratch) is None


def test_somebody_who_comes_at_the_same_moment_finds_no_marker() -> None:
    class Raced(MemoryStore):
        def create(self, path: str, value: bytes, *, make_parents: bool = False) -> None:
            super().create(path, value)
            if path == MARKER:
                super().create("/ledgers", b"")

    scratch = Raced()
    with pytest.raises(RefusedError, match="not empty: it has /ledgers"):
        claim(scratch, AT_ONCE)
    assert list(paths_of(scratch)) == ["/ledgers"]


def test_what_was_copied_is_removed_with_the_marker_last() -> None:
    scratch = MemoryStore()
    report = rehearse(filled(), scratch)
    with pytest.raises(RefusedError, match="remove it with --clean"):
        claim(scratch, AT_ONCE)
    assert clean(scratch, AT_ONCE, no_word) == report.copy.copied
    assert list(paths_of(scratch)) == []
    with claim(scratch, AT_ONCE) as hold:
        scratch.create("/a", b"")
        assert clean_own(scratch, hold, AT_ONCE) == 1
    assert list(paths_of(scratch)) == []


def write_again(scratch: MemoryStore) -> None:
    node = scratch.get(LEDGERS[5])
    assert node is not None
    # A later millisecond than that of its creation.
    scratch._nodes[LEDGERS[5]] = node._replace(value=b"by a broker", version=1, modified_ms=node.modified_ms + 1)


def register(scratch: MemoryStore) -> None:
    scratch.ephemeral_sequential("/loadbalance/brokers/b-", b"alive")


def migrate(scratch: MemoryStore) -> None:
    scratch.create("/pulsar/migration-coordinator", b"", make_parents=True)


def add_later(scratch: MemoryStore) -> None:
    scratch.create("/admin", b"")
    node = scratch._nodes["/admin"]
    after = node.created_ms + 10 * 60_000
    scratch._nodes["/admin"] = node._replace(created_ms=after, modified_ms=after)


@pytest.mark.parametrize("use", [write_again, register, migrate, add_later])
def test_nothing_is_removed_from_a_namespace_that_somebody_uses_now(use: Callable[[MemoryStore], None]) -> None:
    scratch = MemoryStore()
    rehearse(filled(), scratch)
    use(scratch)
    before = dict(scratch._nodes)
    with pytest.raises(RefusedError, match="was not made by the rehearsal"):
        clean(scratch, AT_ONCE, no_word)
    assert set(before) == set(scratch._nodes)


def test_another_node_of_the_markers_name_is_no_marker() -> None:
    with claim(empty := MemoryStore(), AT_ONCE):
        (node,) = empty.get_many([MARKER])
    assert node is not None
    others = {**json.loads(node.value), "what": "the scratch space of another tool"}
    for value in (b"", b"{}", json.dumps(others).encode(), b"[]"):
        scratch = MemoryStore()
        scratch.create(MARKER, value)
        scratch.create("/precious", b"")
        with pytest.raises(RefusedError, match="not written by a rehearsal"):
            clean(scratch, AT_ONCE, no_word)
        assert scratch.get("/precious") is not None


def test_a_rehearsal_that_goes_on_is_not_cleaned_away() -> None:
    scratch = MemoryStore()
    with claim(scratch, LeaseTimes(renew_s=0.01)) as hold:
        with pytest.raises(RefusedError, match="goes on in this namespace"):
            clean(scratch, LeaseTimes(given_up_s=0.3), no_word)
        hold.require()


def test_a_rehearsal_that_was_taken_over_writes_nothing_more() -> None:
    scratch = MemoryStore()
    with claim(scratch, LeaseTimes(renew_s=0.02)) as hold:
        found = find_marker(scratch)
        assert found is not None
        for _ in range(200):
            with suppress(LostRaceError):
                scratch.put(MARKER, b"of another", find_marker(scratch).version)  # type: ignore[union-attr]
                break
        hold._thread.join(10)
        with pytest.raises(RefusedError, match="by somebody else"):
            hold.require()
    assert scratch.get(MARKER).value == b"of another"  # type: ignore[union-attr]


def test_a_marker_that_cannot_be_written_for_a_lease_ends_the_writes() -> None:
    class Away(MemoryStore):
        def put(self, path: str, value: bytes, version: int) -> int:
            raise StoreUnavailableError("no answer")

    with claim(Away(), LeaseTimes(renew_s=0.01, lease_s=0.05)) as hold:
        hold._ended.wait(0.2)
        with pytest.raises(StoreUnavailableError, match="run again with --clean"):
            hold.require()


def test_a_marker_whose_write_is_in_doubt_is_read_back() -> None:
    class Doubtful(MemoryStore):
        def put(self, path: str, value: bytes, version: int) -> int:
            super().put(path, value, version)
            raise OutcomeUnknownError("broke")

    scratch = Doubtful()
    with claim(scratch, LeaseTimes(renew_s=0.01)) as hold:
        hold._ended.wait(0.2)
        hold.require()
        version = find_marker(scratch).version  # type: ignore[union-attr]
        assert version > 1
    assert find_marker(scratch).is_done  # type: ignore[union-attr]


class Killed(BaseException):
    """What a SIGKILL is to a test."""


class Mortal(MemoryStore):
    """A store whose client is killed at its n-th change, before or after it is made; a dead client changes nothing."""

    def __init__(self, nodes: MemoryStore, lives: int, after: bool) -> None:
        super().__init__()
        self.__dict__.update(nodes.__dict__)
        self._lives = lives
        self._after = after

    def create(self, path: str, value: bytes, *, make_parents: bool = False) -> None:
        self._change(lambda: MemoryStore.create(self, path, value, make_parents=make_parents))

    def put(self, path: str, value: bytes, version: int) -> int:
        return self._change(lambda: MemoryStore.put(self, path, value, version))

    def delete_many(self, expected: Any, *, created_ms: Any = None) -> list[DeleteResult]:
        return [
            result for pair in expected for result in self._change(lambda p=pair: MemoryStore.delete_many(self, [p]))
        ]

    def _change(self, change: Callable[[], Any]) -> Any:
        self._lives -= 1
        if self._lives < 0 or (self._lives == 0 and not self._after):
            raise Killed
        result = change()
        if self._lives == 0:
            raise Killed
        return result


def small() -> MemoryStore:
    source = MemoryStore()
    for path in ("/ledgers/00/L1", "/ledgers/00/L2", "/admin"):
        source.create(path, b"v", make_parents=True)
    return source


@pytest.mark.parametrize("after", [False, True])
def test_what_a_rehearsal_that_is_killed_at_any_change_leaves_can_be_removed(after: bool) -> None:
    for lives in range(1, 30):
        scratch = MemoryStore()
        mortal = Mortal(scratch, lives, after)
        finished = False
        with suppress(Killed), claim(mortal, AT_ONCE) as hold:
            Rehearsal(small(), mortal, mortal, hold, reading_s=lambda: 0.0).run()
            clean_own(mortal, hold, AT_ONCE)
            finished = True
        if not finished:
            # Killed again while it is cleaned, and again, until it is done.
            for more in range(1, 30):
                with suppress(Killed):
                    clean(Mortal(scratch, more, after), AT_ONCE, no_word)
                    break
        assert list(paths_of(scratch)) == []
        if finished:
            return
    pytest.fail("a rehearsal of so few nodes makes so many changes")


Run = Callable[..., Result]


class Site:
    """A store in use and the name of a scratch namespace."""

    def __init__(self) -> None:
        name = uuid4().hex
        self.source_url, self.target_url = f"memory:{name}-a", f"memory:{name}-b"
        self.source = shared_memory_store(f"{name}-a")
        fill(self.source)

    @property
    def target(self) -> MemoryStore:
        return shared_memory_store(self.target_url.removeprefix("memory:"))

    def rehearse(self, *arguments: str, target: str | None = None, **settings: Any) -> Result:
        overrides = {"metadata_store.urls": [self.source_url], **settings}
        options = [part for name, value in overrides.items() for part in ("--set", f"{name}={json.dumps(value)}")]
        command = ["metadata-migration", "rehearse", "--target", target or self.target_url, *arguments]
        return CliRunner().invoke(cli, [*options, *command])


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Site:
    # A command closes its stores, and a memory store that was closed is another one.
    monkeypatch.setattr(MemoryStore, "close", lambda self: None)
    return Site()


def test_people_are_told_what_was_found_and_what_to_do(site: Site) -> None:
    result = site.rehearse()
    assert result.exit_code == 0, result.stderr
    text = " ".join(result.stdout.split())
    copied = len(persistent(site.source))
    assert f"nodes copied {copied} in" in text
    assert "A migration would end well." in text
    assert f"The copy is still in {site.target_url}: remove it with --only-clean" in text
    assert f"copying {site.source_url} to {site.target_url}" in result.stderr
    again = site.rehearse()
    assert again.exit_code == RefusedError.exit_code
    assert "remove it with --clean" in again.stderr
    cleaned = site.rehearse("--only-clean")
    assert cleaned.exit_code == 0
    assert f"{copied} nodes removed from {site.target_url}" in cleaned.stdout
    assert list(paths_of(site.target)) == []


def test_programs_are_told_in_json(site: Site) -> None:
    result = site.rehearse("--clean", "-o", "json")
    found = json.loads(result.stdout)
    assert (result.exit_code, result.stderr) == (0, "")
    copied = len(persistent(site.source))
    assert found.pop("seconds") >= 0
    assert found.pop("comparing_seconds") >= 0
    assert found.pop("nodes_per_second") > 0
    assert set(found.pop("estimate")) == {
        "copying_seconds",
        "blocked_least_seconds",
        "blocked_most_seconds",
        "proposed_seconds",
    }
    assert found.pop("value_bytes") > 0
    assert found.pop("path_bytes") > 0
    assert found == {
        "source": site.source_url,
        "target": site.target_url,
        "good": True,
        "nodes": copied,
        "ephemeral": 1,
        "largest": {"path": CURSORS[0], "size": len(CURSORS[0])},
        "not_copied": 0,
        "first_not_copied": [],
        "compared": copied,
        "equal": copied,
        "changed_meanwhile": 0,
        "damaged": 0,
        "first_damaged": [],
        "versions_kept": True,
        "removed": copied,
    }
    assert list(paths_of(site.target)) == []


def test_a_migration_that_would_fail_ends_with_its_own_code(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    create_one = MemoryStore._create_one
    reasons = {LEDGERS[3]: CreateResult.TOO_LARGE}
    monkeypatch.setattr(
        MemoryStore,
        "create_many",
        lambda self, nodes: [reasons.get(node.path) or create_one(self, node) for node in nodes],
    )
    result = site.rehearse("--clean")
    assert result.exit_code == DIFFERENCES_FOUND
    text = " ".join(result.stdout.split())
    assert f"too large {len(LEDGERS[3])} {LEDGERS[3]}" in text
    assert "A migration would fail at the first node that the target does not take" in text


def test_stores_in_use_are_refused(site: Site) -> None:
    for target in (site.source_url, "oxia://o:1"):
        result = site.rehearse(
            "--clean", target=target, **{"metadata_store.bookkeeper_url": "metadata-store:oxia://o:1"}
        )
        assert result.exit_code == RefusedError.exit_code, result.stderr
        assert "is a store in use" in result.stderr


def test_only_an_oxia_is_a_target(site: Site) -> None:
    result = site.rehearse(target="zk:127.0.0.1:2181/scratch")
    assert result.exit_code == ConfigError.exit_code
    assert "oxia:// alone" in result.stderr


@pytest.mark.parametrize(
    ("phase", "hint"),
    [("COMPLETED", "nothing to rehearse"), ("COPYING", "nothing to rehearse"), ("FAILED", "names (FAILED)")],
)
def test_a_migration_in_earnest_forbids_a_rehearsal(site: Site, phase: str, hint: str) -> None:
    target = site.target_url if phase == "FAILED" else "oxia://elsewhere:1/n"
    site.source.create(MIGRATION_PATH, json.dumps({"phase": phase, "targetUrl": target}).encode(), make_parents=True)
    result = site.rehearse("--clean")
    assert result.exit_code == RefusedError.exit_code
    assert hint in result.stderr
    assert list(paths_of(site.target)) == []


def test_the_target_has_to_be_named(site: Site) -> None:
    result = CliRunner().invoke(cli, ["metadata-migration", "rehearse"])
    assert result.exit_code == 2
    assert "--target" in result.stderr


def test_the_source_is_only_read(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("the source was written to")

    for name in ("create", "create_many", "put", "delete_many", "ephemeral_sequential", "watch"):
        monkeypatch.setattr(site.source, name, refuse)
    assert site.rehearse("--clean", "--max-reads-per-second", "100000").exit_code == 0


def test_the_marker_stands_for_the_time_in_which_it_was_written() -> None:
    scratch = MemoryStore()
    with claim(scratch, AT_ONCE) as hold:
        assert isinstance(hold, Hold)
    found = find_marker(scratch)
    assert found is not None
    node = Versioned(b"", 0, found.begun_ms, found.begun_ms)
    assert found.may_have_made(node, 30.0)
    late = found.until_ms + 30_000 + 60_001
    assert not found.may_have_made(Versioned(b"", 0, late, late), 30.0)
    early = found.begun_ms - 60_001
    assert not found.may_have_made(Versioned(b"", 0, early, early), 30.0)
    assert not found.may_have_made(node._replace(modified_ms=found.begun_ms + 1), 30.0)
    assert not found.may_have_made(node._replace(ephemeral=True), 30.0)
