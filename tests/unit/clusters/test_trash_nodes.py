"""The ledgers in the trash, and those that are on their way into it."""

from __future__ import annotations

from bookwarden.clusters.pulsar.trash import TrashedLedgers
from bookwarden.ledgers.trash import TrashRecord
from bookwarden.metastore.memory import MemoryStore
from bookwarden.metastore.wrappers import ForwardingStore
from bookwarden.wire.broker_marks import OUTBOX_ROOT
from bookwarden.wire.trash import TRASH_RECORDS, encode_records

ON_THE_WAY = f"{OUTBOX_ROOT}/b1:8080-00000001/0/0"
MARKS = b'{"format":1,"drops":[{"managedLedger":"t/n/persistent/a","time":1,"data":[9]}],"drivers":[]}'


def node(*ids: int) -> bytes:
    return encode_records([TrashRecord("t/n/persistent/a", 1, 1, data=(one,)) for one in ids])


def test_those_of_all_stores_are_there_but_not_what_is_marked() -> None:
    first, second = MemoryStore(), MemoryStore()
    first.create(ON_THE_WAY, node(1), make_parents=True)
    first.create(f"{OUTBOX_ROOT}/b1:8080-00000001/0/1", MARKS)
    second.create(f"{TRASH_RECORDS}/b2:8080-00000001/0/0", node(2, 3), make_parents=True)
    trash = TrashedLedgers([first, second])
    assert trash.read() == {1, 2, 3}
    second.put(f"{TRASH_RECORDS}/b2:8080-00000001/0/0", node(2, 3, 4), 0)
    assert trash.read() == {1, 2, 3, 4}


def test_one_that_moves_into_the_trash_meanwhile_is_found() -> None:
    class Moving(ForwardingStore):
        def list_children(self, path: str) -> list[str]:
            try:
                return self._store.list_children(path)
            finally:
                if path == TRASH_RECORDS and inner.get(ON_THE_WAY):
                    inner.create(f"{TRASH_RECORDS}/b1:8080-00000001/0/0", node(1), make_parents=True)
                    inner.delete_many([(ON_THE_WAY, 0)])

    inner = MemoryStore()
    inner.create(ON_THE_WAY, node(1), make_parents=True)
    assert TrashedLedgers([Moving(inner)]).read() == {1}
    assert TrashedLedgers([inner]).read() == {1}
