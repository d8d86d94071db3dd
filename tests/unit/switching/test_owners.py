"""Which ledgers of a bookie cluster are ours: the one rule, which the jar has too."""

from __future__ import annotations

from typing import Any

import pytest

from bookwarden.bookie_clusters.registry import BookieCluster, Registry, can_have_others, is_ours, unknown_owner
from bookwarden.ledgers.custom_metadata import OWNER_KEY

OWNER, FORMER, STRANGER = "5f2c9a41", "0badc0de", "00000000"


def registry_with(**fields: Any) -> Registry:
    cluster = BookieCluster("a", "uri", None, "/ledgers", "instance-a", 1, **fields)
    return Registry(1, OWNER, "/ledgers", "a", {"a": cluster}, former_owners=(FORMER,))


@pytest.mark.parametrize(
    ("fields", "mark", "ours"),
    [
        # As the first release left it.
        ({}, None, True),
        ({}, STRANGER, True),
        ({"bootstrap": True}, STRANGER, True),
        # Ledger 7 where the range ends with 7, and with 8.
        ({"unmarked_below": 7}, None, False),
        ({"unmarked_below": 8}, None, True),
        ({"unmarked_below": 0}, None, False),
        ({"unmarked_below": 8}, STRANGER, False),
        ({"unmarked_below": 0, "bootstrap": True}, STRANGER, True),
        ({"unmarked_below": 0, "bootstrap": True}, None, False),
        ({"shared": True}, None, False),
        ({"shared": True}, STRANGER, False),
        ({"shared": True, "unmarked_below": 8}, None, False),
        *(
            ({**fields}, mark, True)
            for fields in ({}, {"shared": True}, {"unmarked_below": 0})
            for mark in (OWNER, FORMER)
        ),
    ],
)
def test_a_ledger_is_ours_by_its_mark_or_by_where_it_is(fields: dict[str, Any], mark: str | None, ours: bool) -> None:
    registry = registry_with(**fields)
    custom = {"application": b"pulsar"} | ({} if mark is None else {OWNER_KEY: mark.encode()})
    assert is_ours(registry, registry.cluster("a"), 7, custom) is ours
    assert ours or can_have_others(registry.cluster("a"))


@pytest.mark.parametrize(("fields", "ours"), [({}, True), ({"unmarked_below": 0}, True), ({"shared": True}, False)])
def test_one_that_cannot_be_understood_may_be_ours(fields: dict[str, Any], ours: bool) -> None:
    registry = registry_with(**fields)
    assert is_ours(registry, registry.cluster("a"), 7, None) is ours


@pytest.mark.parametrize(
    ("mark", "unknown"),
    [(None, None), (OWNER.encode(), None), (FORMER.encode(), None), (b"00000000", STRANGER), (b"\xff", "\\xff")],
)
def test_an_owner_that_the_registry_does_not_name_is_unknown(mark: bytes | None, unknown: str | None) -> None:
    assert unknown_owner(registry_with(), {} if mark is None else {OWNER_KEY: mark}) == unknown
