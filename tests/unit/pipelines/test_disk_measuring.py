from __future__ import annotations

from bookwarden.ledgers.disk_use import FOREIGN, NAMED, UNNAMED
from bookwarden.orphans.summary import NO_NAMESPACE, OTHER_KIND
from bookwarden.pipelines.columns.tables import rows_in
from bookwarden.pipelines.disk.measuring import HOLDERS, HolderUse, TopicUse, by_topic

TOPIC = "sales/eu/persistent/orders"


def ledgers_of(status: str, kind: str, holder: str | None, disk_bytes: int, oldest_ms: int | None) -> HolderUse:
    return HolderUse(status, kind, holder, 1, 0, 0, disk_bytes // 2, disk_bytes, oldest_ms)


def test_holders_that_are_spread_over_pieces_are_added_up_by_topic() -> None:
    pieces = [
        [ledgers_of(NAMED, "MANAGED_LEDGER", TOPIC, 100, 30), ledgers_of(NAMED, "MANAGED_CURSOR", f"{TOPIC}/a", 2, 5)],
        [],
        [ledgers_of(FOREIGN, OTHER_KIND, None, 40, 1), ledgers_of(NAMED, "MANAGED_LEDGER", TOPIC, 200, 20)],
        [ledgers_of(FOREIGN, OTHER_KIND, "of an application", 2, None), ledgers_of(UNNAMED, "SCHEMA", "x", 6, None)],
        [ledgers_of(UNNAMED, "MANAGED_LEDGER", TOPIC, 8, 9), ledgers_of(NAMED, "MANAGED_CURSOR", f"{TOPIC}/b", 4, 7)],
    ]
    found = by_topic(HOLDERS.table(piece) for piece in pieces)
    assert len(list(rows_in(found))) == len({*rows_in(found)})
    assert {TopicUse(*row) for row in rows_in(found)} == {
        TopicUse(NAMED, "MANAGED_LEDGER", "sales/eu", TOPIC, 2, 0, 0, 150, 300, 20),
        TopicUse(NAMED, "MANAGED_CURSOR", "sales/eu", TOPIC, 2, 0, 0, 3, 6, 5),
        TopicUse(UNNAMED, "MANAGED_LEDGER", "sales/eu", TOPIC, 1, 0, 0, 4, 8, 9),
        TopicUse(FOREIGN, OTHER_KIND, NO_NAMESPACE, "", 2, 0, 0, 21, 42, 1),
        TopicUse(UNNAMED, "SCHEMA", NO_NAMESPACE, "", 1, 0, 0, 3, 6, None),
    }


def test_nothing_is_added_up_to_nothing() -> None:
    assert by_topic([]).num_rows == 0
