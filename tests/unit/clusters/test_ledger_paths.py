"""Ledger ids and the paths of their nodes, in every layout."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookwarden.clusters.bookkeeper.ledger_paths import (
    LedgerLayout,
    is_special,
    ledger_id_of,
    ledger_path,
    parse_layout,
)
from bookwarden.errors import FormatError

FLAT, LEGACY, HYBRID, LONG = (
    LedgerLayout.FLAT,
    LedgerLayout.LEGACY_HIERARCHICAL,
    LedgerLayout.HIERARCHICAL,
    LedgerLayout.LONG_HIERARCHICAL,
)
PREFIX = b"org.apache.bookkeeper.meta."


@pytest.mark.parametrize(
    ("layout", "ledger_id", "path"),
    [
        (FLAT, 7, "/ledgers/L0000000007"),
        (FLAT, 2**40, "/ledgers/L1099511627776"),
        (LEGACY, 1234567890, "/ledgers/12/3456/L7890"),
        (LEGACY, 2**31 - 1, "/ledgers/21/4748/L3647"),
        (HYBRID, 0, "/ledgers/00/0000/L0000"),
        (HYBRID, 2**31 - 2, "/ledgers/21/4748/L3646"),
        (HYBRID, 2**31 - 1, "/ledgers/000/0000/0021/4748/L3647"),
        (HYBRID, 2**63 - 1, "/ledgers/922/3372/0368/5477/L5807"),
        (LONG, 7, "/ledgers/000/0000/0000/0000/L0007"),
    ],
)
def test_each_layout_puts_a_ledger_where_bookkeeper_does(layout: LedgerLayout, ledger_id: int, path: str) -> None:
    assert ledger_path("/ledgers", ledger_id, layout) == path
    assert ledger_id_of("/ledgers", path) == ledger_id


@given(st.integers(0, 2**63 - 1), st.sampled_from([FLAT, HYBRID, LONG]), st.sampled_from(["/ledgers", "/a/b", ""]))
def test_a_path_gives_its_id_back(ledger_id: int, layout: LedgerLayout, root: str) -> None:
    assert ledger_id_of(root, ledger_path(root, ledger_id, layout)) == ledger_id


@pytest.mark.parametrize(
    "path",
    [
        "/ledgers/00/0000/L00001",
        "/ledgers/00/0000/0001",
        "/ledgers/0/0000/L0001",
        "/ledgers/L7",
        "/ledgers/L00000000007",
        "/ledgers/999/9999/9999/9999/L9999",
        "/ledgers/\u0660\u0660/0000/L0001",
        "/ledgers/00/0000/L0001/x",
        "/other/00/0000/L0001",
        "/ledgers2/00/0000/L0001",
        "/ledgers/available",
        "/ledgers/underreplication/ledgers/0000/0000/0000/0007/urL0000000007",
        "/ledgers/idgen/ID-0000000001",
        "/ledgers",
    ],
)
def test_a_node_that_is_no_ledgers_has_no_id(path: str) -> None:
    assert ledger_id_of("/ledgers", path) is None


@pytest.mark.parametrize(
    ("ledger_id", "layout"), [(-1, HYBRID), (2**63, HYBRID), (2**63, FLAT), (10**10, LEGACY), (-1, LONG)]
)
def test_an_id_that_a_layout_cannot_hold_is_refused(ledger_id: int, layout: LedgerLayout) -> None:
    with pytest.raises(FormatError, match=str(ledger_id)):
        ledger_path("/ledgers", ledger_id, layout)


def test_special_children_hold_no_ledgers() -> None:
    special = ["available", "cookies", "LAYOUT", "INSTANCEID", "underreplication", "idgen", "idgen-long", "ID-0000001"]
    assert all(is_special(child) for child in special)
    assert not any(is_special(child) for child in ["00", "000", "L0000000001"])


@pytest.mark.parametrize(
    ("raw", "layout"),
    [
        (b"2\n" + PREFIX + b"HierarchicalLedgerManagerFactory:1", HYBRID),
        (b"2\n" + PREFIX + b"FlatLedgerManagerFactory:1", FLAT),
        (b"2\n" + PREFIX + b"LegacyHierarchicalLedgerManagerFactory:1", LEGACY),
        (b"2\n" + PREFIX + b"LongHierarchicalLedgerManagerFactory:1\n", LONG),
        (b"2\norg.apache.pulsar.metadata.bookkeeper.PulsarLedgerManagerFactory:1", HYBRID),
        (b"1\nflat:1", FLAT),
        (b"1\nhierarchical:1", LEGACY),
    ],
)
def test_the_layout_node_names_its_layout(raw: bytes, layout: LedgerLayout) -> None:
    assert parse_layout(raw) is layout


@pytest.mark.parametrize(
    "raw", [b"", b"2", b"2\n", b"3\nflat:1", b"1\nunheard:1", b"2\ncom.example.OtherFactory:1", b"\xff\xfe\n\xff"]
)
def test_an_unknown_layout_is_refused(raw: bytes) -> None:
    with pytest.raises(FormatError, match="LAYOUT"):
        parse_layout(raw)
