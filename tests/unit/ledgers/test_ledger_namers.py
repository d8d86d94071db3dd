"""Who names which ledger: a sorted index that is made part by part."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bookwarden.ledgers.references import LedgerNamers

_IDS = st.integers(0, 30) | st.integers(2**63 - 3, 2**63 - 1)


@given(st.lists(st.tuples(st.text(max_size=2), st.sets(_IDS, max_size=9), st.booleans())), st.integers(1, 12))
def test_an_index_in_parts_of_any_size_tells_what_a_plain_table_tells(
    named: list[tuple[str, set[int], bool]], part: int
) -> None:
    index: LedgerNamers[str] = LedgerNamers(part)
    table: dict[int, list[str]] = {}
    for namer, ledger_ids, asked in named:
        index.add(namer, ledger_ids)
        for ledger_id in ledger_ids:
            table.setdefault(ledger_id, []).append(namer)
        if asked:
            index.sort()
    assert {ledger_id: sorted(index.of(ledger_id)) for ledger_id in table} == {
        ledger_id: sorted(namers) for ledger_id, namers in table.items()
    }
    assert [index.of(ledger_id) for ledger_id in range(31) if ledger_id not in table] == [[]] * len(
        set(range(31)) - set(table)
    )
    assert len(index) == sum(map(len, table.values()))


def test_a_sorted_index_is_not_changed_by_a_lookup() -> None:
    index: LedgerNamers[str] = LedgerNamers(2)
    index.add("t/n/persistent/a", [9, 3, 5])
    index.add("t/n/persistent/b", [5])
    index.sort()
    before = list(index._ids)
    assert before == [3, 9, 5, 5]
    assert sorted(index.of(5)) == ["t/n/persistent/a", "t/n/persistent/b"]
    assert (index.of(4), list(index._ids)) == ([], before)
