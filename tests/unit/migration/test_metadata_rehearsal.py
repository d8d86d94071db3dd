"""A migration rehearsed: what is copied, what is refused, and that nothing of others is ever removed."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import pytest

from bookwarden.errors import LostRaceError, OutcomeUnknownError, RefusedError, StoreUnavailableError
from bookwarden.leases import LeaseTimes
from bookwarden.ledgers.metadata import DeleteResult
from bookwarden.metadata_migration.comparison import DifferenceClass
from bookwarden.metadata_migration.rehearsal import (
    MARKER,
    Copy,
    RefusedNode,
    Rehearsal,
    RehearsalReport,
    ScratchLease,
    SizedNode,
    claim,
    clean,
    clean_own,
    find_marker,
)
from bookwarden.metastore.following.flag import MIGRATION_PATH
from bookwarden.metastore.interface import CreateResult, NewNode, Versioned
from bookwarden.metastore.memory import MemoryStore
from servers.metadata_tree import CURSORS, LARGEST, LEDGERS, fill, paths_of, persistent
from servers.waiting import eventually

# The tests let a rehearsal end before another looks whether it has.
AT_ONCE = LeaseTimes(renew_s=60.0, lease_s=30.0, given_up_s=0.0)


def filled() -> MemoryStore:
    store = MemoryStore()
    fill(store)
    return store


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
    assert copy.path_bytes == sum(len(path.encode()) for path in expected)
    assert copy.largest == SizedNode(LARGEST, len(LARGEST.encode()))
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
        RefusedNode(LEDGERS[3], len(LEDGERS[3]), CreateResult.TOO_LARGE),
        RefusedNode(CURSORS[4], len(CURSORS[4]), CreateResult.BAD_NAME),
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
        with pytest.raises(RefusedError, match="another client"):
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
    nobodys = {name: value for name, value in json.loads(node.value).items() if name != "holder"}
    for value in (b"", b"{}", json.dumps(others).encode(), json.dumps(nobodys).encode(), b"[]"):
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


def ended_by(hold: ScratchLease, error: type[Exception], match: str) -> None:
    """Wait until a hold lets nothing be written, for such an error."""

    def is_refused() -> bool:
        try:
            hold.require()
        except error:
            return True
        return False

    eventually(is_refused)
    with pytest.raises(error, match=match):
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
        ended_by(hold, RefusedError, "another process works in this namespace")
    assert scratch.get(MARKER).value == b"of another"  # type: ignore[union-attr]


def test_a_marker_that_cannot_be_written_for_a_lease_ends_the_writes() -> None:
    class Away(MemoryStore):
        def put(self, path: str, value: bytes, version: int) -> int:
            raise StoreUnavailableError("no answer")

    with claim(Away(), LeaseTimes(renew_s=0.01, lease_s=0.05)) as hold:
        ended_by(hold, StoreUnavailableError, "run again with --clean")


def test_a_marker_whose_write_is_in_doubt_is_read_back() -> None:
    class Doubtful(MemoryStore):
        def put(self, path: str, value: bytes, version: int) -> int:
            super().put(path, value, version)
            raise OutcomeUnknownError("broke")

    scratch = Doubtful()
    with claim(scratch, LeaseTimes(renew_s=0.01)) as hold:
        eventually(lambda: find_marker(scratch).version > 1)  # type: ignore[union-attr]
        hold.require()
    assert find_marker(scratch).is_free  # type: ignore[union-attr]


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


def test_the_marker_stands_for_the_time_in_which_it_was_written() -> None:
    scratch = MemoryStore()
    with claim(scratch, AT_ONCE) as hold:
        assert isinstance(hold, ScratchLease)
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
