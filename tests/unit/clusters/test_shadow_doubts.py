"""Nodes that cannot be read and may be shadow topics: read again while they are, and taken as none by a person."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import pytest

from bookwarden.clusters.pulsar.references.live import MetadataReferences
from bookwarden.clusters.pulsar.references.no_shadow import NO_SHADOW_ROOT, NodeContent, NoShadow, NoShadowRecords
from bookwarden.clusters.pulsar.references.shadows import ShadowTopics, SharedDoubtSearch, read_doubt, read_shadows
from bookwarden.errors import NotFoundError, StoreAccessError
from bookwarden.ledgers.kinds import ManagedLedgerHolder
from bookwarden.ledgers.live_references import LiveReferences, UnknownReferences
from bookwarden.ledgers.shared_doubts import DoubtCause, SharedDoubt
from bookwarden.metastore.interface import Versioned
from bookwarden.metastore.memory import MemoryStore
from bookwarden.wire.pb import managed_ledger_pb2
from servers.population import Population

SOURCE = ManagedLedgerHolder("t/ns/persistent/source")
SHADOW = ManagedLedgerHolder("t/ns/persistent/shadow")
PATH = f"/managed-ledgers/{SHADOW.name}"


class Root(MemoryStore):
    """A metadata root with an unreadable node; it notes what is read, and may refuse to show the node."""

    def __init__(self) -> None:
        super().__init__()
        self.read: list[str] = []
        self.refuses = False
        self.create(PATH, b"\x47\x78broken", make_parents=True)
        Population(self).names(SOURCE, [5])

    def get_many(self, paths: Sequence[str]) -> list[Versioned | None]:
        self.read += paths
        if self.refuses and PATH in paths:
            raise StoreAccessError(f"{PATH} is refused")
        return super().get_many(paths)

    def write(self, value: bytes) -> None:
        node = self.get(PATH)
        assert node is not None
        self.put(PATH, value, node.version)

    def take(self) -> None:
        node = self.get(PATH)
        assert node is not None
        NoShadowRecords(self).write(NoShadow(PATH, NodeContent.of(node), "me@here", 1, "it is none"))


def shadow_of_source(*ledger_ids: int) -> bytes:
    info = managed_ledger_pb2.ManagedLedgerInfo()
    for ledger_id in ledger_ids:
        info.ledgerInfo.add(ledgerId=ledger_id)
    info.properties.add(key="PULSAR.SHADOW_SOURCE", value="persistent://t/ns/source")
    return info.SerializeToString()


def test_while_a_node_cannot_be_read_it_alone_is_read_again_and_what_it_lists_counts_from_then_on() -> None:
    root, now = Root(), 0.0
    shadows = ShadowTopics(root, 600, clock=lambda: now)
    assert [doubt.path for doubt in shadows.known().doubts] == [PATH]
    root.write(shadow_of_source(7))
    root.read.clear()
    now = 4.9
    assert shadows.known().doubts
    assert root.read == []
    now = 5.0
    known = shadows.known()
    assert root.read == [PATH]
    assert (known.doubts, known.by_source, known.listing(7)) == ((), {SOURCE.name: (SHADOW.name,)}, [SHADOW.name])
    assert known.readers_of(SOURCE.name, 7) == {SOURCE.name, SHADOW.name}


def test_of_very_many_unreadable_nodes_a_thousand_are_read_again_at_a_time_until_none_is_left() -> None:
    root, now = Root(), 0.0
    paths = [f"/managed-ledgers/t/many/persistent/topic-{number:04}" for number in range(1_500)]
    for path in paths:
        root.create(path, b"\x47\x78broken", make_parents=True)
    shadows = ShadowTopics(root, 600, clock=lambda: now)
    assert len(shadows.known().doubts) == 1_501
    for path in (*paths, PATH):
        root.delete_many([(path, 0)])
    root.read.clear()
    now = 5.0
    assert len(shadows.known().doubts) == 501
    assert len([path for path in root.read if path.startswith("/managed-ledgers/")]) == 1_000
    now = 10.0
    assert shadows.known().doubts == ()


def test_a_doubt_ends_with_its_node() -> None:
    root, now = Root(), 0.0
    shadows = ShadowTopics(root, 600, clock=lambda: now)
    shadows.known()
    root.delete_many([(PATH, 0)])
    now = 5.0
    assert shadows.known().doubts == ()


def test_a_node_taken_as_no_shadow_is_none_at_that_version_alone(caplog: pytest.LogCaptureFixture) -> None:
    root, now = Root(), 0.0
    references = MetadataReferences([root], shadow_refresh=600, steady=lambda: now)

    def is_known() -> bool:
        return isinstance(references.read([SOURCE])[SOURCE], LiveReferences)

    assert not is_known()
    root.take()
    now = 5.0
    with caplog.at_level(logging.WARNING):
        assert is_known()
        assert is_known()
    logged = caplog.records[-1].getMessage()
    assert len(caplog.records) == 2
    assert PATH in logged
    assert "taken as no shadow topic by me@here (it is none)" in logged
    # Its own marks stay in doubt.
    own = references.read([SHADOW])[SHADOW]
    assert isinstance(own, UnknownReferences)
    assert own.shared is None
    # At once, not after some seconds.
    root.write(b"\x47\x78others")
    assert not is_known()
    root.write(b"\x47\x78broken")
    assert not is_known(), "the same bytes, written again"
    root.take()
    now = 10.0
    assert is_known()
    NoShadowRecords(root).remove(PATH)
    assert not is_known()


def test_the_doubt_of_all_other_topics_names_the_node() -> None:
    root = Root()
    found = MetadataReferences([root], shadow_refresh=600).read([SOURCE])[SOURCE]
    assert isinstance(found, UnknownReferences)
    assert found.shared is not None
    assert found.shared.path == PATH
    assert PATH in found.reason


def test_who_reads_a_ledger_still_counts_a_node_that_was_taken_as_no_shadow() -> None:
    root = Root()
    root.take()
    assert SHADOW.name in read_shadows(root).readers_of(SOURCE.name, 5)


def test_a_node_that_the_store_refuses_to_show_has_no_content_and_no_record_counts_for_it() -> None:
    root = Root()
    root.take()
    root.refuses = True
    doubt = read_doubt(root, PATH)
    assert doubt is not None
    assert (doubt.content, doubt.taken) == (None, None)


def test_a_record_that_cannot_be_understood_counts_for_nothing(caplog: pytest.LogCaptureFixture) -> None:
    root = Root()
    root.take()
    (name,) = root.list_children(NO_SHADOW_ROOT)
    root.put(f"{NO_SHADOW_ROOT}/{name}", b"{}", 0)
    assert read_shadows(root).doubts[0].taken is None
    assert "counts for nothing" in caplog.text
    root.take()
    assert read_shadows(root).doubts[0].taken is not None


@pytest.mark.parametrize(
    "path", ["/managed-ledgers", "/managed-ledgers/t/ns/persistent", PATH + "/sub", "/ledgers/a/b/c/d"]
)
def test_no_other_node_is_taken_for_a_topics(path: str) -> None:
    with pytest.raises(NotFoundError, match="is no topic's node"):
        read_doubt(Root(), path)


def test_the_search_finds_unreadable_nodes_that_are_not_taken_and_ids_that_come_again() -> None:
    root = Root()
    ids = SharedDoubt(DoubtCause.RETURNING_IDS, "/ledgers", "ids come again")
    found = SharedDoubtSearch([ShadowTopics(root, 600, lists=False)], lambda: ids).find()
    assert [(doubt.cause, doubt.path) for doubt in found] == [
        (DoubtCause.UNREADABLE_NODE, PATH),
        (DoubtCause.RETURNING_IDS, "/ledgers"),
    ]
    root.take()
    assert SharedDoubtSearch([ShadowTopics(root, 600, lists=False)], lambda: None).find() == []


def test_a_node_that_can_be_read_or_is_gone_is_no_doubt() -> None:
    root = Root()
    assert read_doubt(root, f"/managed-ledgers/{SOURCE.name}") is None
    assert read_doubt(root, "/managed-ledgers/t/ns/persistent/none") is None
