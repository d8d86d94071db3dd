"""A batch goes by one epoch of the registry of bookie clusters; switch directives in it change nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from bookwarden.deletion.phase_two.decide import judge_directive
from bookwarden.errors import RegistryChangedError, StoreUnavailableError
from bookwarden.ledgers.metadata import ActiveCluster
from bookwarden.ledgers.outcomes import Outcome, OutcomeRow
from bookwarden.ledgers.received import ReceivedMark
from bookwarden.ledgers.switch_event import SwitchEvent
from bookwarden.metastore.memory import MemoryStore
from unit.deletion.test_sweep_places import Site
from unit.deletion.test_sweeping import mark
from unit.switching.two_bookie_clusters import OWNER

EVENT = SwitchEvent("a", "b", "host process 7", 3, 0, OWNER)
ACTIVE = ActiveCluster("b", 0, frozenset("ab"), 3)


@pytest.fixture
def site() -> Site:
    made = Site(MemoryStore())
    for ledger_id in (1, 2):
        made.ledger("a", ledger_id)
    return made


def change_registry(site: Site) -> None:
    site.register(replace(site.registry, epoch=4, active="a"))


def change_registry_while_reading(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    references = site.sweep_object._verifier._references
    read = references.read

    def changed(*arguments: object) -> object:
        change_registry(site)
        return read(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(references, "read", changed)


def rows_of(
    site: Site, epoch: int, *marks: ReceivedMark, after: Callable[[], object] = lambda: None
) -> list[OutcomeRow]:
    """Sweep a batch of this epoch; `after` is called after each step."""
    rows: list[OutcomeRow] = []
    for told in site.sweep_object.carry_out(marks, "run/0", list, epoch=epoch):
        rows += told
        after()
    return rows


def test_a_batch_of_the_registrys_epoch_is_carried_out(site: Site) -> None:
    assert [row.outcome for row in rows_of(site, 3, mark(1), mark(2))] == [Outcome.DELETED] * 2


def test_a_batch_of_an_earlier_epoch_ends_before_it_deletes(site: Site) -> None:
    change_registry(site)
    with pytest.raises(RegistryChangedError, match="has epoch 4, and this batch is of 3"):
        rows_of(site, 3, mark(1))
    assert (site.places_of(1), site.recorder.places) == ("a", [])
    assert [row.outcome for row in rows_of(site, 4, mark(1))] == [Outcome.DELETED]


def test_a_batch_waits_for_a_store_that_has_an_earlier_epoch(site: Site) -> None:
    with pytest.raises(StoreUnavailableError, match="has epoch 3 of the registry, and this batch is of 4"):
        rows_of(site, 4, mark(1))
    assert site.places_of(1) == "a"
    # Nor is one that is nowhere taken for gone: the later epoch may have another bookie cluster.
    with pytest.raises(StoreUnavailableError):
        rows_of(site, 4, mark(9))
    site.sweep_object._limits = replace(site.sweep_object._limits, max_unreachable=60.0)
    site.sweep_object._pause = lambda _: change_registry(site)
    assert [row.outcome for row in rows_of(site, 4, mark(1))] == [Outcome.DELETED]


def test_a_change_between_two_steps_ends_the_batch(site: Site) -> None:
    site.sweep_object._limits = replace(site.sweep_object._limits, ledgers_per_step=1)
    with pytest.raises(RegistryChangedError):
        rows_of(site, 3, mark(1), mark(2), after=lambda: change_registry(site))
    assert (site.places_of(1), site.places_of(2)) == ("", "a")


def test_a_change_between_check_and_delete_ends_the_batch(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    change_registry_while_reading(site, monkeypatch)
    with pytest.raises(RegistryChangedError):
        rows_of(site, 3, mark(1))
    assert (site.places_of(1), site.recorder.places) == ("a", [])


def test_nothing_is_read_by_an_earlier_epoch(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    change_registry_while_reading(site, monkeypatch)
    with pytest.raises(StoreUnavailableError, match="has epoch 3 of the registry"):
        rows_of(site, 4, mark(9))


@pytest.mark.parametrize(
    ("event", "active", "owner", "reason"),
    [
        (EVENT, ACTIVE, OWNER, "bookie cluster b is active since epoch 3, by host process 7"),
        (EVENT, None, None, "no bookie cluster is registered, so it changes nothing"),
        (
            EVENT._replace(owner="other"),
            ACTIVE,
            OWNER,
            f"it is of the Pulsar cluster 'other', and this one is '{OWNER}'; bookie cluster b is active since epoch 3",
        ),
        (
            EVENT._replace(target="a", epoch=9),
            ACTIVE,
            OWNER,
            "it says that 'a' is active since epoch 9; bookie cluster b is active since epoch 3",
        ),
    ],
)
def test_a_directive_changes_nothing(
    event: SwitchEvent, active: ActiveCluster | None, owner: str | None, reason: str
) -> None:
    decision = judge_directive(event, active, owner)
    assert (decision.outcome, decision.reason) == (Outcome.DIRECTIVE, reason)


def test_a_directive_has_a_row_and_what_is_none_goes_to_the_dlq(site: Site) -> None:
    directive = replace(mark(1), mark=None, directive=EVENT)
    garbage = replace(mark(2), mark=None, problem="no switch directive: empty")
    rows = rows_of(site, 3, directive, garbage)
    assert [(row.outcome, row.ledger_id, row.bookie_cluster) for row in rows] == [
        (Outcome.DIRECTIVE, None, "b"),
        (Outcome.MALFORMED, None, ""),
    ]
    assert site.recorder.given_up == [(Outcome.MALFORMED, "no switch directive: empty")]
    assert (site.places_of(1), site.places_of(2)) == ("a", "a")
