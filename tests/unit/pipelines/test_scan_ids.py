"""What is listed and what places name, set against each other as whole columns, is what sets of ids say."""

from __future__ import annotations

import tempfile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bookwarden.ledgers.kinds import PlaceKind
from bookwarden.ledgers.listing import ListedLedger, ListedReference
from bookwarden.pipelines.columns.tables import CHANGES, LEDGERS, REFERENCES, ChangedLedger, Columns
from bookwarden.pipelines.scan import ids as scan_ids
from bookwarden.pipelines.scan.files import ScanFolder, Seal
from bookwarden.pipelines.scan.ids import NamedIds, compare_ids, is_absent, is_among
from bookwarden.pipelines.scan.reading import (
    CHANGES_STAGE,
    LATE_STAGE,
    LEDGERS_STAGE,
    OF_LOGS,
    REFERENCES_STAGE,
    SAID_GONE,
)

numbers = st.integers(0, 9) | st.sampled_from([2**31, 2**63 - 1])
# Half a reading: -1 is what a place has that names no ledger.
references = st.lists(
    st.builds(
        lambda ledger_id, place, gone: ListedReference(ledger_id, place.value, "h", None, "/p", "zk:one", gone=gone),
        numbers | st.none() | st.just(-1),
        st.sampled_from([PlaceKind.MANAGED_LEDGER, PlaceKind.LOG_SEGMENT]),
        st.booleans(),
    ),
    max_size=6,
)


def pieces(folder: ScanFolder, stage: str, columns: Columns, *tables: list) -> list[Seal]:
    folder.folder.make(stage)
    return [
        folder.write(stage, number, columns.table(rows), names=len(rows), digest="d", notes=_notes(rows))
        for number, rows in enumerate(tables)
    ]


def _notes(rows: list) -> dict[str, int]:
    places = [row for row in rows if isinstance(row, ListedReference)]
    return {OF_LOGS: sum("log" in row.place for row in places), SAID_GONE: sum(row.gone for row in places)}


@settings(max_examples=40, deadline=None)
@given(
    st.lists(numbers, max_size=8),
    st.lists(numbers, max_size=4),
    references,
    references,
    st.lists(st.builds(ChangedLedger, numbers, st.booleans()), max_size=3),
)
def test_ids_are_compared_as_sets_are(
    some: list[int],
    others: list[int],
    first: list[ListedReference],
    late: list[ListedReference],
    changes: list[ChangedLedger],
) -> None:
    with tempfile.TemporaryDirectory() as path:
        folder = ScanFolder(path)
        found = compare_ids(
            folder,
            {
                LEDGERS_STAGE: pieces(
                    folder,
                    LEDGERS_STAGE,
                    LEDGERS,
                    *([ListedLedger(one, "/p", 0, 1) for one in part] for part in (some, others)),
                ),
                REFERENCES_STAGE: pieces(folder, REFERENCES_STAGE, REFERENCES, first[::2], first[1::2]),
                LATE_STAGE: pieces(folder, LATE_STAGE, REFERENCES, late),
                CHANGES_STAGE: pieces(folder, CHANGES_STAGE, CHANGES, changes),
            },
        )
        listed = [*some, *others]
        places = [row for row in (*first, *late) if row.ledger_id is not None and row.ledger_id >= 0]
        named = {row.ledger_id for row in places}
        kept = {row.ledger_id for row in places if not row.gone}
        by_logs = {row.ledger_id for row in places if "log" in row.place}
        by_others = {row.ledger_id for row in places if "log" not in row.place and not row.gone}
        assert found.absent.tolist() == sorted(named.difference(listed))
        assert found.twins.tolist() == sorted({one for one in listed if listed.count(one) > 1})
        assert found.vanished.tolist() == sorted({row.ledger_id for row in changes if row.gone})
        asked = LEDGERS.table([ListedLedger(one, "/p", 0, 1) for one in sorted({*listed, *named})])
        asked_ids = asked.column("ledger_id").to_numpy()
        flags = [array.tolist() for array in NamedIds(folder).flags(asked_ids)]
        assert flags[0] == [one in named for one in asked_ids]
        assert flags[1] == [one in by_logs - by_others for one in asked_ids]
        assert flags[2] == [one in named - kept - by_logs for one in asked_ids]
        assert is_absent(folder, asked_ids).tolist() == is_among(asked_ids, found.absent).tolist()


def test_ids_are_looked_up_a_part_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan_ids, "_COMPARED_AT_ONCE", 3)
    known, asked = np.arange(0, 20, 2), np.arange(-1, 22)
    assert is_among(asked, known).tolist() == [one in known for one in asked]
    assert not is_among(asked, known[:0]).any()


def test_a_piece_with_more_rows_than_its_seal_says_is_an_error() -> None:
    with tempfile.TemporaryDirectory() as path:
        folder = ScanFolder(path)
        row = ListedReference(1, PlaceKind.MANAGED_LEDGER.value, "h", None, "/p", "zk:one")
        seals = {REFERENCES_STAGE: pieces(folder, REFERENCES_STAGE, REFERENCES, [row], [row])}
        rows = {0: np.array([1, 2]), 1: np.array([3])}
        with pytest.raises(ValueError, match="broadcast"):
            scan_ids._gathered(folder, seals, (REFERENCES_STAGE,), lambda *piece: rows[piece[2].number])
