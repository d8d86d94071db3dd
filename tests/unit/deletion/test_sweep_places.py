"""The sweep over two bookie clusters: a ledger goes wherever it is, or where its mark says, and never on a doubt."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import pytest

from bookwarden.bookie_clusters.promoted import Promotions
from bookwarden.bookie_clusters.registry import REGISTRY_PATH
from bookwarden.clusters.bookkeeper.bookies.proof import WholeLedgers
from bookwarden.clusters.bookkeeper.undone import UndoneLedger, UndoneLedgers
from bookwarden.clusters.pulsar.references.live import MetadataReferences
from bookwarden.deletion.journal.entries import JournalEntry
from bookwarden.deletion.phase_two.sweeping import SweepLimits
from bookwarden.errors import RefusedError, StoreUnavailableError
from bookwarden.ledgers.metadata import LedgerState
from bookwarden.ledgers.outcomes import Outcome, OutcomeRow
from bookwarden.ledgers.received import ReceivedMark
from bookwarden.metastore.interface import MetadataStore
from bookwarden.metastore.memory import MemoryStore
from bookwarden.metastore.store_clock import StoreClocks
from servers.population import Population
from servers.sweep_parts import sweep_with
from unit.deletion.test_sweeping import NOW, POLICY, Recorder, mark
from unit.switching.two_bookie_clusters import COPY, DATA, TwoBookieClusters


@dataclass
class PlacedJournal(Recorder):
    """The journal and the outbox; the journal's places too."""

    places: list[tuple[int, str, str]] = field(default_factory=list)
    instances: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def append(self, entries: Sequence[JournalEntry]) -> None:
        super().append(entries)
        self.places += [(entry.ledger_id, entry.bookie_cluster, entry.path.split("/")[1]) for entry in entries]
        self.instances += [entry.instance for entry in entries]


class Site(TwoBookieClusters):
    """Two bookie clusters that are swept."""

    def __init__(
        self,
        store: MetadataStore,
        elsewhere: MetadataStore | None = None,
        *,
        proof: WholeLedgers | None = None,
        clock_of: Callable[[str | None], float] | None = None,
    ) -> None:
        super().__init__(store, elsewhere)
        self.register()
        self.population = Population(store)
        self.recorder = PlacedJournal()
        self.undone = UndoneLedgers(store)
        self.sweep_object = sweep_with(
            self.catalog,
            MetadataReferences([store]),
            self.recorder,
            self.recorder,
            POLICY,
            SweepLimits(max_unreachable=0),
            undone=self.undone,
            clusters=self.clusters,
            proof=proof,
            promotions=Promotions(store, ""),
            pause=lambda _: None,
            clock=lambda: NOW,
            clock_of=clock_of,
        )

    def sweep(self, *marks: ReceivedMark) -> list[OutcomeRow]:
        return [row for rows in self.sweep_object.process(marks, "run/0") for row in rows]

    def outcomes(self, *marks: ReceivedMark) -> list[Outcome]:
        return [row.outcome for row in self.sweep(*marks)]


@pytest.fixture
def site() -> Site:
    return Site(MemoryStore())


def mark_in(cluster: str, ledger_id: int, *, age: float = 3600) -> ReceivedMark:
    received = mark(ledger_id, age=age)
    assert received.mark is not None
    return replace(received, mark=replace(received.mark, bookie_cluster=cluster))


def test_a_ledger_goes_wherever_it_is_and_each_place_is_journaled(site: Site) -> None:
    site.ledger("a", 1)
    site.ledger("b", 2)
    site.ledger("a", 3)
    site.ledger("b", 3, **COPY)
    site.ledger("a", 4)
    site.ledger("b", 4, state=LedgerState.OPEN, last=None, length=0, **COPY)
    rows = site.sweep(mark(1), mark(2), mark(3), mark(4), mark(9))
    assert [row.outcome for row in rows] == [Outcome.DELETED] * 4 + [Outcome.ALREADY_GONE]
    assert [row.bookie_cluster for row in rows] == ["a", "b", "b,a", "a,b", ""]
    assert [site.places_of(ledger_id) for ledger_id in (1, 2, 3, 4)] == [""] * 4
    assert site.recorder.places == [
        (1, "a", "ledgers"),
        (2, "b", "bookies-b"),
        (3, "b", "bookies-b"),
        (3, "a", "ledgers"),
        (4, "a", "ledgers"),
        (4, "b", "bookies-b"),
    ]
    assert site.recorder.instances == [
        "instance-a",
        "instance-b",
        "instance-b",
        "instance-a",
        "instance-a",
        "instance-b",
    ]


def test_without_a_registry_the_record_names_the_bookkeeper_of_the_settings(site: Site) -> None:
    site.store.delete_many([(REGISTRY_PATH, 0)])
    site.ledger("a", 1)
    assert site.outcomes(mark(1)) == [Outcome.DELETED]
    assert (site.recorder.places, site.recorder.instances) == ([(1, "", "ledgers")], ["instance-a"])


def test_a_mark_that_names_a_cluster_is_kept_to_it(site: Site) -> None:
    for ledger_id in (1, 2):
        site.ledger("a", ledger_id)
        site.ledger("b", ledger_id, **COPY)
    site.ledger("a", 3)
    assert site.outcomes(mark_in("a", 1), mark_in("b", 3)) == [Outcome.DELETED, Outcome.ALREADY_GONE]
    assert (site.places_of(1), site.places_of(3)) == ("b", "a")
    assert site.recorder.places == [(1, "a", "ledgers")]
    # The next mark, of all places, has what is left.
    assert site.outcomes(mark(1)) == [Outcome.DELETED]
    assert site.places_of(1) == ""
    # Two marks in one step, whichever comes first.
    rows = site.sweep(mark_in("a", 2), mark(2), mark(2))
    assert [row.outcome for row in rows] == [Outcome.DELETED, Outcome.DELETED, Outcome.ALREADY_GONE]
    assert site.places_of(2) == ""


def test_a_mark_of_a_cluster_that_is_not_registered_or_of_a_named_ledger_deletes_nothing(site: Site) -> None:
    site.ledger("a", 1)
    site.ledger("b", 1, **COPY)
    assert site.outcomes(mark_in("c", 1)) == [Outcome.RETRY]
    assert site.recorder.retried == [(1, "it is of the bookie cluster 'c', and there are a, b")]
    site.population.names(DATA, [1])
    assert site.outcomes(mark_in("a", 1, age=10), mark(1, age=10)) == [Outcome.RETRY, Outcome.RETRY]
    assert site.outcomes(mark_in("a", 1), mark(1)) == [Outcome.STILL_REFERENCED, Outcome.STILL_REFERENCED]
    assert site.places_of(1) == "ab"


def test_what_differs_between_two_clusters_stays_in_both(site: Site) -> None:
    site.ledger("a", 1)
    site.ledger("b", 1)
    assert site.outcomes(mark(1)) == [Outcome.RETRY]
    assert "no copy" in site.recorder.retried[0][1]
    assert site.places_of(1) == "ab"
    assert site.recorder.places == []


def test_a_sweep_that_ended_between_two_places_goes_on_with_the_other(site: Site) -> None:
    site.ledger("a", 1)
    site.ledger("b", 1, **COPY)
    original = site.store.delete_many
    calls: list[str] = []

    def dying(*arguments: object, **options: object) -> object:
        calls.append("delete")
        if len(calls) == 2:
            raise StoreUnavailableError("killed")
        return original(*arguments, **options)  # type: ignore[arg-type]  # as they came

    site.store.delete_many = dying  # type: ignore[method-assign, assignment]  # it dies in the middle
    with pytest.raises(StoreUnavailableError):
        site.sweep(mark(1))
    site.store.delete_many = original  # type: ignore[method-assign]  # as it was
    assert site.places_of(1) == "b"
    assert site.outcomes(mark(1)) == [Outcome.DELETED]
    assert site.places_of(1) == ""


def test_an_unparsable_registry_deletes_nothing_and_a_repaired_one_is_taken_up(site: Site) -> None:
    site.ledger("a", 1)
    site.register(b"{")
    with pytest.raises(StoreUnavailableError, match="where ledgers are is not known"):
        site.sweep(mark(1))
    assert site.places_of(1) == "a"
    site.register()
    assert site.outcomes(mark(1)) == [Outcome.DELETED]


def test_a_batch_sees_one_registry_and_the_next_batch_the_next(site: Site) -> None:
    site.ledger("b", 1)
    site.ledger("b", 2)
    site.register(replace(site.registry, active="a", clusters={"a": site.registry.clusters["a"]}))
    steps = sweep_with(
        site.catalog,
        MetadataReferences([site.store]),
        site.recorder,
        site.recorder,
        POLICY,
        SweepLimits(ledgers_per_step=1),
        clusters=site.clusters,
        clock=lambda: NOW,
    ).process([mark(1), mark(2)], "run/0")
    assert [row.outcome for row in next(steps)] == [Outcome.ALREADY_GONE]
    invalidate, site.clusters.invalidate = site.clusters.invalidate, lambda: None  # type: ignore[method-assign]  # it is written by another
    site.register()
    assert [row.outcome for row in next(steps)] == [Outcome.ALREADY_GONE]
    site.clusters.invalidate = invalidate  # type: ignore[method-assign]  # as it was
    assert site.outcomes(mark(1), mark(2)) == [Outcome.DELETED, Outcome.DELETED]


def test_settings_of_no_registered_cluster_end_the_batch(site: Site) -> None:
    site.ledger("a", 1)
    site.register(site.changed("a", instance="another"))
    with pytest.raises(RefusedError, match="it is another cluster"):
        site.sweep(mark(1))
    assert site.places_of(1) == "a"


def test_what_undo_put_back_into_one_cluster_stays_in_all(site: Site) -> None:
    site.ledger("a", 1, ctime_ms=1_600_000_000_000)
    site.ledger("b", 1, ctime_ms=1_700_000_000_000, **COPY)
    site.store.create("/bookwarden/undone", b"")
    site.undone.note_many([UndoneLedger(1, "undo-1", 5, 1_600_000_000_000)])
    assert site.outcomes(mark(1), mark_in("b", 1)) == [Outcome.UNDONE, Outcome.UNDONE]
    assert site.places_of(1) == "ab"


UNFINISHED = {"state": LedgerState.OPEN, "last": None, "length": 0}


def test_an_unfinished_copy_whose_ledger_is_nowhere_goes_as_a_ledger_does(site: Site) -> None:
    """Nobody reads it; it is journaled first, and stays while something names its ledger: it may have the rest."""
    for ledger_id in (1, 2, 4):
        site.ledger("b", ledger_id, **UNFINISHED, **COPY)
    site.ledger("b", 3)
    site.ledger("b", 5)
    site.population.names(DATA, [3, 5], closed=True)
    assert site.outcomes(mark_in("b", 1), mark_in("a", 2)) == [Outcome.DELETED, Outcome.ALREADY_GONE]
    assert site.recorder.places == [(1, "b", "bookies-b")]
    # Inside the list, whose node may have lost it: how many entries it had nobody knows.
    (row,) = site.sweep(mark(4))
    assert (row.outcome, "lists older ledgers (from 3 on) without it" in row.reason) == (Outcome.RETRY, True)
    site.population.names(DATA, [2, 3, 5], closed=True)
    assert site.outcomes(mark(2)) == [Outcome.STILL_REFERENCED]
    assert [site.places_of(ledger_id) for ledger_id in (1, 2, 4)] == ["", "b", "b"]


def test_an_unfinished_copy_made_a_moment_ago_stays(site: Site) -> None:
    site.ledger("b", 1, ctime_ms=int(NOW * 1000) - 1000, **UNFINISHED, **COPY)
    (row,) = site.sweep(mark(1))
    assert (row.outcome, "unlisted_grace_seconds" in row.reason) == (Outcome.RETRY, True)
    assert site.places_of(1) == "b"


def test_the_age_of_a_ledger_goes_by_the_clock_of_the_store_that_has_it() -> None:
    # The store of b is an hour behind: what is made there now seems an hour old by the other one's clock.
    behind = NOW - 3600
    clocks = {"a": NOW, "b": behind, None: NOW}
    site = Site(MemoryStore(lambda: NOW - 30), elsewhere=MemoryStore(lambda: behind - 30), clock_of=clocks.__getitem__)
    site.ledger("a", 1)
    site.ledger("b", 2)
    site.ledger("a", 3)
    site.ledger("b", 3, **COPY)
    rows = site.sweep(mark(1), mark(2), mark(3))
    assert [row.reason.partition(" s ago")[0] for row in rows] == ["created 30", "created 30", "created 30"]
    clocks |= {"a": NOW + 60, "b": behind + 60}
    assert site.outcomes(mark(1), mark(2)) == [Outcome.DELETED] * 2


def test_in_each_process_every_store_has_a_clock_of_its_own() -> None:
    stores = {"a": MemoryStore(lambda: 1_000.0), "b": MemoryStore(lambda: 2_000.0)}
    clocks = StoreClocks(stores["a"], lambda: {name: (store, "/ledgers") for name, store in stores.items()})
    assert [int(clocks.now(name)) for name in (None, "a", "b")] == [1_000, 1_000, 2_000]
    # One that left the registry since a ledger was read there: the step is tried again.
    with pytest.raises(StoreUnavailableError, match="'c' is not registered any more"):
        clocks.now("c")
