"""What brokers drop: noted by comparing nodes, cancelled when named again, looked at, and marked or told."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from uuid import UUID

import pytest

from bookwarden.clusters.offload.stores import OffloadStores
from bookwarden.clusters.pulsar.rest.topic_positions import EntriesBehind
from bookwarden.deletion.phase_one.mark import Marker
from bookwarden.errors import FormatError, NotFoundError, PulsarUnavailableError, StoreUnavailableError
from bookwarden.follow import following
from bookwarden.follow.brokers import BROKERS_FIRST_MS, BrokersThatMark
from bookwarden.follow.checking import CheckedDrop, DropCheck, LaterMarks
from bookwarden.follow.drops import Drop, DropCause, drops_between
from bookwarden.follow.following import DroppedLedgers, FollowTally
from bookwarden.follow.table import Changes, FollowedNodes, NodeNow
from bookwarden.follow.timers import Timer
from bookwarden.ledgers.custom_metadata import expected_custom_metadata
from bookwarden.ledgers.kinds import CompactedHolder, CursorHolder, Holder, ManagedLedgerHolder, PlaceKind, SchemaHolder
from bookwarden.ledgers.live_references import LiveReferences, References, UnknownReferences
from bookwarden.ledgers.managed_ledger import LedgerInfo
from bookwarden.ledgers.metadata import AbsentLedger, LedgerMetadata, LedgerReading, LedgerState, StoredLedger
from bookwarden.ledgers.naming import NamedCopy, NodeKind, NodeLedgers, copies_text, pack, pack_ids, unpack
from bookwarden.ledgers.offloaded_copies import AbsentCopy, CopyDeletion, CopyReading, OffloadedCopy, PresentCopy
from bookwarden.ledgers.outcomes import DropOutcome
from bookwarden.ledgers.pending_deletion import LedgerType, OffloadContext, PendingDeletion, Request, mark_of_holder
from bookwarden.ledgers.trash import TrashRecord
from bookwarden.metastore.memory import MemoryStore
from bookwarden.wire.broker_marks import MARKING_BROKERS, OUTBOX_ROOT
from bookwarden.wire.trash import encode_records

ROOT, OTHER = "zk:one", "zk:other"
NAME = "t/n/persistent/orders"
TOPIC = f"/managed-ledgers/{NAME}"
ORDERS = ManagedLedgerHolder(NAME)
CURSOR = CursorHolder(NAME, "billing")
COPY = NamedCopy(2, OffloadContext(7, 8, "S3", {"bucket": "b", "region": "r", "serviceEndpoint": "e"}))
GRACE_MS = 600_000


def topic(*ids: int, copies: Sequence[NamedCopy] = ()) -> bytes:
    return pack("topic", pack_ids(sorted(ids)), None, copies_text(copies))


def cursor(ledger: int, *, compacted: int | None = None) -> bytes:
    places = {ledger: PlaceKind.CURSOR.value} | ({compacted: PlaceKind.COMPACTED.value} if compacted else {})
    ids = sorted(places)
    return pack("cursor", pack_ids(ids), [places[one] for one in ids] if compacted else None)


def now(
    naming: bytes | None, path: str = TOPIC, *, root: str = ROOT, at_ms: int = 1000, listing: int | None = None
) -> NodeNow:
    return NodeNow(root, path, naming, at_ms, listing)


def problem(path: str = TOPIC, listing: int | None = None) -> NodeNow:
    return NodeNow(ROOT, path, None, 1000, listing, "damaged")


@pytest.mark.parametrize("kind", list(NodeKind))
@pytest.mark.parametrize("ids", [(), (1,), (1, 2**40, 2**63 - 1), tuple(range(9))])
def test_a_naming_is_read_back_as_it_was_written(kind: NodeKind, ids: tuple[int, ...]) -> None:
    assert unpack(pack(kind.value, pack_ids(ids))) == NodeLedgers(kind, dict.fromkeys(ids, kind.place))


def test_places_and_copies_are_part_of_a_naming() -> None:
    assert unpack(cursor(5, compacted=3)) == NodeLedgers(NodeKind.CURSOR, {3: PlaceKind.COMPACTED, 5: PlaceKind.CURSOR})
    assert unpack(topic(2, 3, copies=[COPY])).copies == (COPY,)
    assert unpack(topic(copies=[COPY])).places == {}


@pytest.mark.parametrize("packed", [b"", b"X", b"t", b"t\x01\x00\x00\x00", b"T\x01", topic(2, copies=[COPY])[:-3]])
def test_damaged_bytes_are_no_naming(packed: bytes) -> None:
    with pytest.raises(FormatError):
        unpack(packed)


def drops(before: bytes, after: bytes | None) -> list[tuple[object, PlaceKind, DropCause]]:
    found = drops_between(unpack(before), None if after is None else unpack(after), TOPIC, ROOT, 5)
    return [(drop.key, drop.place, drop.cause) for drop in found]


def test_what_left_a_node_has_the_place_that_named_it_and_a_cause() -> None:
    listed = PlaceKind.MANAGED_LEDGER
    assert drops(topic(1, 2, 3), topic(2, 3, 4)) == [(1, listed, DropCause.TRIMMED)]
    assert drops(topic(1), None) == [(1, listed, DropCause.DELETED)]
    assert drops(cursor(5, compacted=3), cursor(6, compacted=4)) == [
        (3, PlaceKind.COMPACTED, DropCause.REPLACED),
        (5, PlaceKind.CURSOR, DropCause.REPLACED),
    ]
    # The list says of ledger 2 that BookKeeper's copy is deleted: it is not named there any more.
    assert drops(topic(1, 2, copies=[COPY]), topic(1, copies=[COPY])) == [(2, listed, DropCause.OFFLOADED)]
    assert drops(topic(1, copies=[COPY]), topic(1)) == [(COPY.uuid, listed, DropCause.TRIMMED)]
    again = COPY._replace(context=OffloadContext(9, 9, "S3", {}))
    assert drops(topic(1, copies=[COPY]), topic(1, copies=[again])) == [(COPY.uuid, listed, DropCause.REPLACED)]
    assert drops(topic(1, copies=[COPY]), None)[-1] == (COPY.uuid, listed, DropCause.DELETED)


@pytest.fixture
def nodes() -> FollowedNodes:
    return FollowedNodes(GRACE_MS)


def pending(nodes: FollowedNodes) -> list[object]:
    return [key for key, _ in nodes.timers.items()]


def test_a_ledger_that_left_its_node_is_due_after_the_time_of_grace(nodes: FollowedNodes) -> None:
    nodes.take([now(topic(1, 2, 3))], 0)
    (drop,) = nodes.take([now(topic(2, 3), at_ms=900)], 1000)
    assert (drop.ledger_id, drop.at_ms, drop.root, drop.path) == (1, 900, ROOT, TOPIC)
    assert nodes.due(GRACE_MS + 999, 10) == []
    assert nodes.due(GRACE_MS + 1000, 10) == [Timer(GRACE_MS + 1000, drop)]
    assert nodes.due(GRACE_MS * 9, 10) == []
    nodes.settle([drop])
    assert not nodes.timers


def test_what_was_never_seen_named_is_never_dropped(nodes: FollowedNodes) -> None:
    assert nodes.take([now(topic(1)), now(topic(1, 2)), now(None, "/managed-ledgers/none")], 0) == []


@pytest.mark.parametrize("where", [TOPIC, "/managed-ledgers/t/n/persistent/rescue"])
@pytest.mark.parametrize("root", [ROOT, OTHER])
def test_a_ledger_that_is_named_again_anywhere_is_dropped_no_more(nodes: FollowedNodes, where: str, root: str) -> None:
    nodes.take([now(topic(1, 2, copies=[COPY]))], 0)
    nodes.take([now(topic(2))], 0)
    assert pending(nodes) == [1, COPY.uuid]
    nodes.take([now(topic(1, 2, copies=[COPY]), where, root=root)], 1)
    assert not nodes.timers
    assert nodes.due(GRACE_MS * 2, 10) == []


def test_a_node_that_cannot_be_read_says_nothing_was_dropped(nodes: FollowedNodes) -> None:
    nodes.take([now(topic(1, 2))], 0)
    assert nodes.take([problem()], 0) == []
    (drop,) = nodes.take([now(topic(2))], 0)
    assert drop.ledger_id == 1


def test_an_empty_list_drops_all_of_it(nodes: FollowedNodes) -> None:
    nodes.take([now(topic(1, 2))], 0)
    assert {drop.ledger_id for drop in nodes.take([now(topic())], 0)} == {1, 2}


def test_what_a_comparison_did_not_meet_is_to_be_read(nodes: FollowedNodes) -> None:
    away, closed = "/managed-ledgers/t/n/persistent/away", "/managed-ledgers/t/closed/persistent/one"
    nodes.take([now(topic(1)), now(topic(2), away), now(topic(3), closed), now(topic(4), root=OTHER)], 0)
    nodes.take([now(topic(1), listing=7), problem("/managed-ledgers/t/closed", listing=7)], 0)
    assert nodes.unlisted(7) == {ROOT: [away], OTHER: [TOPIC]}
    assert nodes.unlisted(6) == {}
    # A later one begins anew, and the former never ends.
    nodes.take([now(topic(1), away, listing=8)], 0)
    assert not nodes.end_listing(7)
    assert nodes.listed == 0


def test_all_that_names_a_ledger_is_found_over_all_roots(nodes: FollowedNodes) -> None:
    nodes.take([now(topic(1, 257)), now(topic(3, copies=[COPY]), root=OTHER)], 0)
    assert nodes.named_among([1, 2, 256, 257]) == {1: TOPIC, 257: TOPIC}
    assert nodes.named_among([COPY.uuid, UUID(int=1)]) == {COPY.uuid: TOPIC}
    assert nodes.named_among([]) == {}


class Ledgers:
    """BookKeeper's list; ``silent``: it does not answer."""

    def __init__(self) -> None:
        self.stored: dict[int, StoredLedger] = {}
        self.silent = False
        self.asked: list[int] = []

    def add(self, ledger_id: int, holder: Holder | None, *, entries: int | None = 9) -> None:
        custom = (
            {} if holder is None else {key: text.encode() for key, text in expected_custom_metadata(holder).items()}
        )
        state = LedgerState.OPEN if entries is None else LedgerState.CLOSED
        last = None if entries is None else entries - 1
        size = 10 * entries if entries else 0
        metadata = LedgerMetadata(3, state, 1, 1, 1, (), size, last, custom=custom)
        self.stored[ledger_id] = StoredLedger(ledger_id, f"/ledgers/{ledger_id}", 0, 5, b"", metadata)

    def read_many(self, ledger_ids: Sequence[int]) -> list[LedgerReading]:
        if self.silent:
            raise StoreUnavailableError("no answer")
        self.asked += ledger_ids
        return [self.stored.get(one) or AbsentLedger(one) for one in ledger_ids]

    def delete_many(self, *_: object) -> list[object]:  # type: ignore[empty-body]  # never called
        ...


class Live:
    """What holders name now."""

    def __init__(self) -> None:
        self.known: dict[Holder, References] = {}

    def read(
        self, holders: Sequence[Holder], ledgers: Mapping[Holder, Collection[int]] | None = None
    ) -> Mapping[Holder, References]:
        gone = LiveReferences(frozenset(), False)
        return {holder: self.known.get(holder, gone) for holder in holders}


class Sent:
    """The deletion topic; ``refusing``: it confirms nothing."""

    def __init__(self) -> None:
        self.marks: list[PendingDeletion] = []
        self.refusing = False

    def send_all(self, marks: Sequence[PendingDeletion]) -> list[str | None]:
        if self.refusing:
            return ["no answer"] * len(marks)
        self.marks += marks
        return [None] * len(marks)


class Copies:
    """The stores of copies, by UUID."""

    def __init__(self, *uuids: UUID) -> None:
        self.there = set(uuids)

    def read_many(self, copies: Sequence[OffloadedCopy]) -> list[CopyReading]:
        return [PresentCopy(None) if copy.uuid in self.there else AbsentCopy() for copy in copies]

    def delete_many(self, copies: Sequence[OffloadedCopy]) -> list[CopyDeletion]:
        raise AssertionError("following deletes nothing")


class Ground:
    """Following with all that it asks in a test's hand."""

    def __init__(
        self,
        copies: OffloadStores | None = None,
        *,
        dry: bool = False,
        most_due: int = 100,
        most_pending: int = 1000,
        brokers: BrokersThatMark | None = None,
    ) -> None:
        self.ledgers, self.live, self.sent = Ledgers(), Live(), Sent()
        self.now_s = 0.0
        self.present: dict[tuple[str, str], NodeNow] = {}
        self.nodes = FollowedNodes(GRACE_MS)
        marks = None if dry else Marker(self.sent, clock=lambda: self.now_s)
        self.why_not_kept: str | None = None
        check = DropCheck(
            *(self.nodes, self.ledgers, self.live, copies or OffloadStores(), marks),  # type: ignore[arg-type]  # what it asks for
            why_not_kept=lambda: self.why_not_kept,
            later=None if dry else LaterMarks(self._later, lambda: self.why_not_kept),
            doubles=(lambda _: ()) if brokers is None else brokers.doubles,
            in_trash=lambda: self.in_trash,
        )
        self.in_trash = frozenset[int]()
        self.late, self.delays = Sent(), list[float]()
        self.told: list[CheckedDrop] = []
        self.keeps = 0
        self.dropped = DroppedLedgers(
            *(self.nodes, check, self._read, lambda: self.now_s, self._keep),
            most_due=most_due,
            look_again_s=60,
            brokers=brokers,
            most_pending=most_pending,
        )

    def _keep(self, told: Sequence[CheckedDrop]) -> None:
        self.told += told
        self.keeps += 1
        self.nodes.changes = Changes()

    def _later(self, delay_s: float) -> Marker:
        self.delays.append(delay_s)
        return Marker(self.late, clock=lambda: self.now_s)

    def _read(self, root: str, paths: Sequence[str]) -> list[NodeNow]:
        return [self.present.get((root, path), now(None, path, root=root)) for path in paths]

    def take(self, *rows: NodeNow, ended: int | None = None) -> None:
        self.dropped.take(rows, FollowTally(), ended)

    def begin(self, *rows: NodeNow) -> None:
        """Take the first comparison, of these."""
        self.take(*(row._replace(listing=1) for row in rows))
        self.take(ended=1)

    def settle(self, after_s: float = 600.0) -> dict[int, DropOutcome]:
        self.now_s += after_s
        before = len(self.told)
        self.dropped.settle(FollowTally())
        return {one.drop.ledger_id: one.outcome for one in self.told[before:]}


def test_a_dropped_ledger_that_is_gone_leaves_no_mark() -> None:
    ground = Ground()
    ground.begin(now(topic(1, 2)))
    ground.take(now(topic(2)))
    assert ground.settle() == {}
    assert (ground.ledgers.asked, ground.sent.marks, pending(ground.nodes)) == ([1], [], [])


@pytest.mark.parametrize(
    ("holder", "before", "after"),
    [
        (ORDERS, now(topic(1, 2)), now(topic(2), at_ms=1_700_000_000_000)),
        (CURSOR, now(cursor(1), f"{TOPIC}/billing"), now(None, f"{TOPIC}/billing", at_ms=1_700_000_000_000)),
        (
            CompactedHolder(NAME),
            now(cursor(5, compacted=1), f"{TOPIC}/__compaction"),
            now(cursor(5), f"{TOPIC}/__compaction", at_ms=1_700_000_000_000),
        ),
        (
            SchemaHolder("t/n/orders"),
            now(pack("schema", pack_ids([1])), "/schemas/t/n/orders"),
            now(None, "/schemas/t/n/orders", at_ms=1_700_000_000_000),
        ),
    ],
    ids=["topic", "cursor", "compacted", "schema"],
)
def test_one_that_is_still_there_is_marked_once_as_its_own_metadata_says(
    holder: Holder, before: NodeNow, after: NodeNow
) -> None:
    ground = Ground()
    ground.ledgers.add(1, holder)
    ground.live.known[ORDERS] = LiveReferences(frozenset([2]), True)
    ground.begin(before)
    ground.take(after)
    assert ground.settle(599) == {}
    assert ground.settle(1) == {1: DropOutcome.MARKED}
    assert ground.settle(6000) == {}
    (mark,) = ground.sent.marks
    assert (mark.ledger_id, mark.holder(), mark.ledger_type) == (1, holder, LedgerType.LEDGER)
    assert mark.reason.startswith("dropped by the broker at 2023-11-14T22:13:20Z")


def test_where_the_deletion_topic_would_keep_no_marks_none_is_sent_and_the_drop_stays_due() -> None:
    ground = Ground()
    ground.ledgers.add(1, ORDERS)
    ground.live.known[ORDERS] = LiveReferences(frozenset([2]), True)
    ground.begin(now(topic(1, 2)))
    ground.take(now(topic(2)))
    ground.why_not_kept = "deletion-partition-1 has no subscription"
    with pytest.raises(NotFoundError, match="partition-1 has no subscription"):
        ground.settle()
    assert (ground.sent.marks, pending(ground.nodes)) == ([], [1])
    ground.why_not_kept = None
    assert ground.settle(0) == {1: DropOutcome.MARKED}
    assert len(ground.sent.marks) == 1


def test_what_is_in_the_trash_is_not_marked_and_looked_at_no_more() -> None:
    ground = Ground()
    ground.in_trash = frozenset((1,))
    for ledger_id in (1, 2):
        ground.ledgers.add(ledger_id, ORDERS)
    ground.live.known[ORDERS] = LiveReferences(frozenset([3]), True)
    ground.begin(now(topic(1, 2, 3)))
    ground.take(now(topic(3)))
    assert ground.settle() == {1: DropOutcome.IN_TRASH, 2: DropOutcome.MARKED}
    assert [mark.ledger_id for mark in ground.sent.marks] == [2]
    assert pending(ground.nodes) == []


def test_nothing_is_looked_at_before_all_nodes_are_known() -> None:
    ground = Ground()
    ground.ledgers.add(1, ORDERS)
    ground.take(now(topic(1)), now(None))
    assert ground.settle() == {}
    ground.take(now(topic(2), "/managed-ledgers/t/n/persistent/other", listing=1))
    ground.take(ended=1)
    assert ground.settle(0) == {1: DropOutcome.MARKED}


def test_what_another_node_names_is_not_marked() -> None:
    ground = Ground()
    ground.ledgers.add(1, ORDERS)
    ground.begin(now(topic(1)), now(topic(1), "/managed-ledgers/t/n/persistent/shadow", root=OTHER))
    ground.take(now(None))
    assert ground.settle() == {1: DropOutcome.NAMED}
    # And when that one drops it too, it is.
    ground.take(now(None, "/managed-ledgers/t/n/persistent/shadow", root=OTHER))
    assert ground.settle() == {1: DropOutcome.MARKED}


def test_what_its_holder_names_at_the_look_is_not_marked() -> None:
    ground = Ground()
    ground.ledgers.add(1, ORDERS)
    ground.live.known[ORDERS] = LiveReferences(frozenset([1]), True)
    ground.begin(now(topic(1)))
    ground.take(now(None))
    assert ground.settle() == {1: DropOutcome.NAMED}
    assert not ground.sent.marks


def doubted(now_s: float = 1.0) -> Ground:
    """Drop a ledger whose holder cannot be read."""
    ground = Ground()
    ground.ledgers.add(1, ORDERS)
    ground.live.known[ORDERS] = UnknownReferences("damaged")
    ground.now_s = now_s
    ground.begin(now(topic(1)))
    ground.take(now(None))
    return ground


def test_what_waits_is_looked_at_seldom_and_told_once() -> None:
    ground = doubted()
    looks: list[int] = []
    rows = 0
    for minute in range(10, 10 + 24 * 60):
        asked = len(ground.ledgers.asked)
        found = ground.settle(600 if minute == 10 else 60)
        rows += len(found)
        if len(ground.ledgers.asked) > asked:
            looks.append(minute - 10)
    assert looks[:9] == [0, 1, 3, 7, 15, 31, 63, 123, 183]
    assert len(looks) == 29
    assert rows == 1
    # The next one is more than a day after the first.
    assert ground.settle(3600) == {1: DropOutcome.LEFT}
    assert not ground.nodes.timers
    assert not ground.sent.marks


def test_what_waits_for_another_reason_than_before_is_told_again() -> None:
    ground = doubted()
    assert ground.settle() == {1: DropOutcome.WAITING}
    assert ground.settle(60) == {}
    ground.live.known[ORDERS] = UnknownReferences("no access")
    assert ground.settle(120) == {1: DropOutcome.WAITING}
    assert ground.settle(240) == {}
    ground.live.known[ORDERS] = LiveReferences(frozenset([2]), True)
    assert ground.settle(480) == {1: DropOutcome.MARKED}


def test_a_doubt_is_waited_for_from_its_first_look_on_however_late_that_is() -> None:
    ground = doubted()
    assert ground.settle(3 * 24 * 3600) == {1: DropOutcome.WAITING}
    assert ground.settle(60) == {}
    assert ground.settle(24 * 3600) == {1: DropOutcome.LEFT}


def test_a_mark_that_is_not_confirmed_is_sent_again_however_long_that_takes() -> None:
    ground = Ground()
    ground.ledgers.add(1, ORDERS)
    ground.begin(now(topic(1)))
    ground.take(now(None))
    ground.sent.refusing = True
    assert ground.settle() == {1: DropOutcome.WAITING}
    assert ground.settle(3 * 24 * 3600) == {}
    ground.sent.refusing = False
    assert ground.settle(3600) == {1: DropOutcome.MARKED}


@pytest.mark.parametrize(
    ("listed", "entries", "outcome"),
    [
        (frozenset([5]), 9, DropOutcome.MARKED),
        (frozenset([0]), 9, DropOutcome.INSIDE_LIST),
        (frozenset([0]), 0, DropOutcome.MARKED),
        (frozenset([0]), None, DropOutcome.INSIDE_LIST),
        (frozenset(), 9, DropOutcome.INSIDE_LIST),
    ],
    ids=["trimmed", "hole", "without entries", "not closed", "emptied list"],
)
def test_a_hole_is_told_and_never_marked(listed: frozenset[int], entries: int | None, outcome: DropOutcome) -> None:
    ground = Ground()
    ground.ledgers.add(1, ORDERS, entries=entries)
    ground.live.known[ORDERS] = LiveReferences(listed, True, names_nothing=not listed)
    ground.begin(now(topic(0, 1)))
    ground.take(now(topic(*listed)))
    assert ground.settle()[1] == outcome
    assert len(ground.sent.marks) == (outcome is DropOutcome.MARKED)


def test_what_was_offloaded_and_not_deleted_is_marked_although_it_is_listed() -> None:
    ground = Ground()
    ground.ledgers.add(2, ORDERS)
    ground.live.known[ORDERS] = LiveReferences(frozenset([2, 3]), True, left_behind={2: LedgerInfo(2)})
    ground.begin(now(topic(2, 3, copies=[COPY])))
    ground.take(now(topic(3, copies=[COPY])))
    assert ground.settle() == {2: DropOutcome.MARKED}


def test_what_names_nobody_is_left_to_the_scan() -> None:
    ground = Ground()
    ground.ledgers.add(1, None)
    ground.begin(now(topic(1)))
    ground.take(now(None))
    assert ground.settle() == {1: DropOutcome.LEFT}


def test_a_copy_that_is_still_there_is_marked_with_its_place() -> None:
    ground = Ground(Copies(COPY.uuid))
    ground.begin(now(topic(3, copies=[COPY])))
    ground.take(now(topic(3)))
    assert ground.settle() == {2: DropOutcome.MARKED}
    (mark,) = ground.sent.marks
    assert (mark.ledger_type, mark.offload_context, mark.holder()) == (LedgerType.OFFLOAD_LEDGER, COPY.context, ORDERS)


def test_a_copy_that_is_gone_or_named_or_whose_store_is_not_set_up_is_not_marked() -> None:
    gone, named, unknown = Ground(Copies()), Ground(Copies(COPY.uuid)), Ground()
    named.live.known[ORDERS] = LiveReferences(frozenset(), True, offloaded=frozenset([COPY.uuid]))
    for ground in (gone, named, unknown):
        ground.begin(now(topic(3, copies=[COPY])))
        ground.take(now(None))
    found = [ground.settle().get(2) for ground in (gone, named, unknown)]
    assert found == [None, DropOutcome.NAMED, DropOutcome.LEFT]
    assert not unknown.nodes.timers
    assert not any(ground.sent.marks for ground in (gone, named, unknown))


def test_a_dry_run_marks_nothing() -> None:
    ground = Ground(dry=True)
    ground.ledgers.add(1, ORDERS)
    ground.begin(now(topic(1)))
    ground.take(now(None))
    assert ground.settle() == {1: DropOutcome.WOULD_MARK}
    assert not ground.sent.marks


def test_a_store_that_does_not_answer_and_a_mark_that_is_not_confirmed_lose_nothing() -> None:
    ground = Ground()
    ground.ledgers.add(1, ORDERS)
    ground.begin(now(topic(1)))
    ground.take(now(None))
    ground.ledgers.silent = True
    with pytest.raises(StoreUnavailableError):
        ground.settle()
    ground.ledgers.silent, ground.sent.refusing = False, True
    assert ground.settle(0) == {1: DropOutcome.WAITING}
    ground.sent.refusing = False
    assert ground.settle(60) == {1: DropOutcome.MARKED}


def test_many_drops_are_looked_at_and_marked_some_at_a_time() -> None:
    ground = Ground(most_due=30)
    ids = range(1, 101)
    for ledger_id in ids:
        ground.ledgers.add(ledger_id, ORDERS)
    ground.begin(now(topic(*ids)))
    ground.take(now(None))
    found = [len(ground.settle(600 if not at else 0)) for at in range(5)]
    assert found == [30, 30, 30, 10, 0]
    assert [mark.ledger_id for mark in ground.sent.marks] == list(ids)


def test_nodes_that_went_unseen_are_dropped_once_they_were_looked_for() -> None:
    ground = Ground()
    away, missed = (f"/managed-ledgers/t/n/persistent/{name}" for name in ("away", "missed"))
    ground.begin(now(topic(1), away), now(topic(2), missed), now(topic(3)))
    ground.present[ROOT, missed] = now(topic(2), missed)
    # The second comparison lacks two of the three; one of them is there all the same.
    ground.take(now(topic(3), listing=2), ended=2)
    assert pending(ground.nodes) == [1]
    assert len(ground.nodes) == 2


def test_a_drop_has_the_key_of_what_it_is() -> None:
    drop = Drop(1, PlaceKind.MANAGED_LEDGER, DropCause.TRIMMED, TOPIC, ROOT, 0)
    assert (drop.key, drop._replace(copy=COPY.context).key) == (1, COPY.uuid)


def with_many(count: int, *, most_pending: int, dry: bool = False) -> Ground:
    """Drop so many ledgers, a second after the other; each is still there."""
    ground = Ground(most_pending=most_pending, dry=dry)
    ids = range(1, count + 1)
    for ledger_id in ids:
        ground.ledgers.add(ledger_id, ORDERS)
    ground.begin(now(topic(*ids, 1000)))
    for ledger_id in ids:
        ground.now_s = float(ledger_id)
        ground.take(now(topic(*range(ledger_id + 1, count + 1), 1000)))
    return ground


def test_of_too_many_drops_those_due_first_go_to_the_retry_topic_until_they_are_due() -> None:
    ground = with_many(10, most_pending=7)
    del ground.ledgers.stored[2]
    assert ground.settle(0) == {1: DropOutcome.HANDED_OVER, 3: DropOutcome.HANDED_OVER}
    assert [mark.ledger_id for mark in ground.late.marks] == [1, 3]
    # Of the three that went the last one was dropped 7 s ago.
    assert ground.delays == [593.0]
    assert (pending(ground.nodes), ground.sent.marks) == ([4, 5, 6, 7, 8, 9, 10], [])
    assert ground.late.marks[0].reason.startswith("dropped by the broker at")
    assert ground.settle(0) == {}


def test_a_copy_too_many_goes_to_the_retry_topic_with_its_place() -> None:
    ground = Ground(most_pending=0)
    ground.begin(now(topic(3, copies=[COPY])))
    ground.take(now(topic(3)))
    assert ground.settle(0) == {2: DropOutcome.HANDED_OVER}
    (mark,) = ground.late.marks
    assert (mark.offload_context, mark.holder()) == (COPY.context, ORDERS)


def test_what_cannot_be_handed_over_stays_as_it_was() -> None:
    ground = with_many(4, most_pending=2)
    before = dict(ground.nodes.timers.items())
    ground.why_not_kept = "the retry topic has no subscription"
    with pytest.raises(NotFoundError, match="retry topic"):
        ground.settle(0)
    assert dict(ground.nodes.timers.items()) == before
    ground.why_not_kept, ground.ledgers.silent = None, True
    with pytest.raises(StoreUnavailableError):
        ground.settle(0)
    assert dict(ground.nodes.timers.items()) == before
    ground.ledgers.silent, ground.late.refusing = False, True
    assert ground.settle(0) == {1: DropOutcome.WAITING, 2: DropOutcome.WAITING}
    assert sorted(map(str, pending(ground.nodes))) == ["1", "2", "3", "4"]


def test_what_nobody_can_be_marked_for_is_left_to_the_scan_when_too_many_are_pending() -> None:
    ground = Ground(most_pending=0)
    ground.ledgers.add(1, None)
    ground.begin(now(topic(1)))
    ground.take(now(None))
    assert ground.settle(0) == {1: DropOutcome.LEFT}
    assert not ground.late.marks


def test_a_dry_run_hands_nothing_over() -> None:
    ground = with_many(3, most_pending=1, dry=True)
    assert ground.settle(0) == dict.fromkeys((1, 2), DropOutcome.WOULD_MARK)
    assert not ground.late.marks


@pytest.mark.parametrize("listed", [False, True])
def test_a_batch_of_very_many_drops_is_kept_part_by_part(monkeypatch: pytest.MonkeyPatch, listed: bool) -> None:
    monkeypatch.setattr(following, "_MANY_CHANGES", 50)
    ground = Ground(most_pending=80)
    paths = [f"/managed-ledgers/t/n/persistent/{number}" for number in range(100)]
    ground.begin(*(now(topic(number), path) for number, path in enumerate(paths)))
    kept = ground.keeps
    if listed:
        # A comparison that meets none of them.
        ground.take(now(topic(1000), listing=2), ended=2)
    else:
        ground.take(*(now(None, path) for path in paths))
    # A node and a timer for each.
    assert ground.keeps - kept >= 4
    assert len(ground.nodes.timers) <= 80
    assert len(ground.nodes.changes) < 50


@pytest.mark.parametrize("ahead_s", [4000.0, 365 * 86_400.0])
def test_what_was_noted_by_a_clock_that_was_ahead_is_looked_at_within_an_hour_once_it_is_right(
    ahead_s: float, caplog: pytest.LogCaptureFixture
) -> None:
    before, after = doubted(ahead_s), doubted()
    assert before.settle() == {1: DropOutcome.WAITING}
    after.nodes.settle(timer.drop for _, timer in list(after.nodes.timers.items()))
    after.nodes.restore((), before.nodes.timers.items())
    after.dropped.resume()
    assert "1 dropped ledgers and copies were to be looked at in more than 3600 s" in caplog.text
    assert after.settle(3599) == {}
    assert after.ledgers.asked == []
    assert after.settle(2) == {}
    assert after.ledgers.asked == [1]
    # The day of its wait counts from now on.
    looks = [after.settle(3600) for _ in range(23)]
    assert looks == [{}] * 22 + [{1: DropOutcome.LEFT}]


def test_timers_that_any_clock_may_have_set_stay_as_they_are(caplog: pytest.LogCaptureFixture) -> None:
    ground = doubted()
    ground.settle()
    before = dict(ground.nodes.timers.items())
    ground.dropped.resume()
    assert (dict(ground.nodes.timers.items()), caplog.text) == (before, "")


class Brokers(BrokersThatMark):
    """One broker that marks in ROOT, and what it marked, in its outbox or in flight."""

    def __init__(self, mode: str = "mark") -> None:
        self.now_s = 0.0
        self.mode = mode
        self.store = MemoryStore()
        self.requests: set[Request] = set()
        self.failing = False
        self.entries_in_flight = 5
        stores = {ROOT: self.store, OTHER: MemoryStore()}
        super().__init__(stores, self.entries, self.requests_in_flight, lambda: self.now_s, delete_delay_s=7200)
        self.say(enabled=True)

    def entries(self) -> dict[str, EntriesBehind]:
        return {"deletion": EntriesBehind(self.entries_in_flight, None)}

    def requests_in_flight(self) -> set[Request]:
        if self.failing:
            raise PulsarUnavailableError("no broker")
        return self.requests

    def say(self, *, enabled: bool) -> None:
        path = f"{MARKING_BROKERS}/b1:8080-1"
        fields = dict.fromkeys(("jar", "started", "time", "unmarkedWrites", "gone"), 0)
        value = {**fields, "format": 1, "broker": "b1:8080", "mode": self.mode, "enabled": enabled}
        raw = json.dumps({**value, "stored": {}, "sent": {}, "failed": {}}).encode()
        node = self.store.get(path)
        if node is None:
            self.store.create(path, raw, make_parents=True)
        else:
            self.store.put(path, raw, node.version)


def test_where_a_broker_marks_what_is_still_there_is_marked_five_minutes_later() -> None:
    brokers = Brokers()
    ground = Ground(brokers=brokers)
    ground.live.known[ORDERS] = LiveReferences(frozenset([9]), True)
    for ledger_id in (1, 2, 3):
        ground.ledgers.add(ledger_id, ORDERS)
    ground.begin(now(topic(1, 2, 9)), now(topic(3), root=OTHER))
    ground.take(now(topic(2, 9)), now(None, root=OTHER))
    # The brokers of the other root do not mark.
    assert ground.settle(600) == {3: DropOutcome.MARKED}
    assert ground.settle(BROKERS_FIRST_MS / 1000 - 1) == {}
    assert ground.settle(1) == {1: DropOutcome.MARKED}
    # Turned off, which is seen within half a minute.
    brokers.say(enabled=False)
    brokers.now_s = 31
    ground.take(now(topic(9)))
    assert ground.settle(600) == {2: DropOutcome.MARKED}


def test_where_the_sweep_alone_deletes_it_has_its_delay_before() -> None:
    ground = Ground(brokers=Brokers("two-phase"))
    ground.live.known[ORDERS] = LiveReferences(frozenset([9]), True)
    ground.ledgers.add(1, ORDERS)
    ground.begin(now(topic(1, 9)))
    ground.take(now(topic(9)))
    assert ground.settle(600 + 300 + 7200 - 1) == {}
    assert ground.settle(1) == {1: DropOutcome.MARKED}


def test_that_a_broker_marks_counts_until_the_store_says_otherwise() -> None:
    brokers = Brokers()
    assert brokers.roots() == {ROOT: BROKERS_FIRST_MS}
    brokers.store.close()
    brokers.now_s = 31
    assert brokers.roots() == {ROOT: BROKERS_FIRST_MS}


@pytest.mark.parametrize(("failing", "entries", "doubles"), [(False, 10_000, 2), (False, 10_001, 1), (True, 5, 1)])
def test_marks_that_a_broker_made_already_are_counted_and_made_again(
    failing: bool, entries: int, doubles: int, caplog: pytest.LogCaptureFixture
) -> None:
    brokers = Brokers()
    brokers.failing, brokers.entries_in_flight = failing, entries
    brokers.requests = {mark_of_holder(2, ORDERS, "dropped by broker b1").request}
    drop = {"managedLedger": NAME, "time": 5, "data": [1, 4]}
    node = json.dumps({"format": 1, "drops": [drop], "drivers": []}).encode()
    brokers.store.create(f"{OUTBOX_ROOT}/b1:8080-1/0/0", node, make_parents=True)
    brokers.store.create(f"{OUTBOX_ROOT}/b1:8080-1/0/1", b"damaged")
    kept = encode_records([TrashRecord(NAME, 5, 1, data=(3,))])
    brokers.store.create(f"{OUTBOX_ROOT}/b1:8080-1/0/2", kept)
    ground = Ground(brokers=brokers)
    ground.live.known[ORDERS] = LiveReferences(frozenset([9]), True)
    for ledger_id in (1, 2, 3):
        ground.ledgers.add(ledger_id, ORDERS)
    ground.begin(now(topic(1, 2, 3, 9)))
    ground.take(now(topic(9)))
    ground.now_s += 900
    tally = FollowTally()
    ground.dropped.settle(tally)
    assert {mark.ledger_id for mark in ground.sent.marks} == {1, 2, 3}
    assert tally.doubles == doubles
    assert "0/1 is not understood" in caplog.text
    assert "0/2" not in caplog.text
