"""The names of offloaded copies: read back as they were given, and nothing else is one."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookwarden.clusters.offload.names import (
    RANGES,
    map_file_name,
    object_names,
    parse_map_file_name,
    parse_object_name,
)
from bookwarden.ledgers.offloaded_copies import OffloadedCopy, StoreLocation, recorded_metadata, store_location

LEDGERS = st.integers(0, 2**63 - 1)
TEXT = "0123abcd-0123-4567-89ab-0123456789ab"


@given(st.uuids(), LEDGERS, st.booleans())
def test_what_a_copy_is_called_is_read_back(uuid: UUID, ledger_id: int, segment: bool) -> None:
    copy = OffloadedCopy(ledger_id, "t/n/persistent/a", uuid, StoreLocation("S3", "b", "", ""), segment)
    for name in object_names(copy):
        assert parse_object_name(name) == (uuid, None if segment else ledger_id)
    assert parse_map_file_name(map_file_name(copy).rpartition("/")[2]) == (uuid, ledger_id)


@pytest.mark.parametrize(
    "name",
    [
        "",
        TEXT.upper(),
        f"{TEXT}-ledger-",
        f"{TEXT}-ledger--1",
        f"{TEXT}-ledger-01",
        f"{TEXT}-ledger-1-index-index",
        f"{TEXT}-ledger-9223372036854775808",
        f"{TEXT}-ledger-\u0661",
        f"x{TEXT}",
        f"{TEXT}\n",
        f"{TEXT}-indexes",
        f"backup/{TEXT}-ledger-1",
    ],
)
def test_other_names_are_no_copies(name: str) -> None:
    assert parse_object_name(name) is None


@given(st.text(min_size=1, max_size=4) | st.text("09af:/g~`", min_size=1, max_size=4))
def test_every_name_is_in_exactly_one_range(name: str) -> None:
    assert sum(names.has(name) for names in RANGES) == 1
    assert all(names.start_after < name for names in RANGES if names.start and names.has(name))


@pytest.mark.parametrize(
    "location", [StoreLocation("S3", "b", "r", "http://e"), StoreLocation("filesystem", "", "", "/f")]
)
def test_a_place_is_read_back_from_what_is_recorded_of_it(location: StoreLocation) -> None:
    assert store_location(location.driver, recorded_metadata(location)) == location
