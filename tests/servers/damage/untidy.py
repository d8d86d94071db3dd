"""The act with a healthy but untidy cluster: what operators and lost races left behind holds no leak back.

Every leak is, or has the metadata of, a ledger that a broker made. It is put back once the broker has deleted it, or
taken off its topic's list, as by a broker that dies between the update of a node and its deletes.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, Final

from bookwarden.clusters.bookkeeper.ledger_paths import ledger_path
from bookwarden.clusters.pulsar.rest.topic_positions import topic_path
from bookwarden.ledgers.kinds import CompactedHolder, CursorHolder, Holder, ManagedLedgerHolder, SchemaHolder
from bookwarden.ledgers.managed_ledger import COMPACTION_CURSOR
from bookwarden.ledgers.pending_deletion import mark_of_holder
from bookwarden.wire.pb.managed_ledger_pb2 import ManagedLedgerInfo
from servers.damage.filling import SUBSCRIPTION, UNTIDY, DamagedCluster, TopicFiller
from servers.damage.fuzz import SWEEPS, OldSweep, Swept, described, settings_of
from servers.damage.nodes import MANAGED_LEDGERS, NodeKind, fields, ledgers_named
from servers.damage.truth import LiveMark, read_truth
from servers.pulsar_topics import unload
from servers.topic_contents import managed_ledger_of
from servers.waiting import eventually

_PATIENCE_S: Final = 120
#: The dead letter of a leak that may be a ledger whose entry in the list was damaged.
_DAMAGED_HOLDER: Final = "damaged holder"


class Expected(enum.Enum):
    """The outcome that a leak must have."""

    GOES = enum.auto()
    #: Until then it may be kept, with a dead letter that says so.
    GOES_ONCE_TIDIED = enum.auto()
    #: A node that was damaged, or put back, may look the same.
    MAY_STAY = enum.auto()


@dataclass(frozen=True, slots=True)
class Leak:
    """A ledger that nothing names, its metadata, and why it is there."""

    ledger_id: int
    holder: Holder
    raw: bytes
    why: str
    expected: Expected = Expected.GOES


@dataclass
class Leaks:
    """What became of the leaks, and of what lives beside them."""

    outcomes: Counter[tuple[str, str]] = field(default_factory=Counter)
    left: int = 0
    lost: int = 0

    @property
    def failed(self) -> bool:
        return bool(self.left or self.lost)

    def lines(self) -> Iterator[str]:
        """Say it all."""
        for (why, outcome), count in self.outcomes.items():
            yield f"leak, {why}: {count} {outcome}"
        yield f"leaks left that must go: {self.left}; live ledgers lost beside them: {self.lost}"


class UntidyCluster:
    """Makes the topics and their leaks, and sweeps them by each of the settings."""

    def __init__(self, site: DamagedCluster, seed: int) -> None:
        self._site, self._tree, self._seed = site, site.tree, seed
        self._leaks: list[Leak] = []
        self._tidy: list[Callable[[], None]] = []
        self.leaks = Leaks()

    def run(self) -> None:
        """Make all and sweep it, tidy up what may hold leaks back, and sweep again."""
        self._site.namespace(UNTIDY)
        makers: dict[str, Callable[[TopicFiller], None]] = {
            "ledgers deleted by hand": self._delete_by_hand,
            "a rescued ledger": self._rescue,
            "stale compacted views": self._compact,
            "lost races of schema writers": self._lose_races,
            "cursor ledgers left behind": self._leave_cursors,
            "superseded data ledgers": self._supersede,
        }
        with closing(TopicFiller(self._site, self._seed)) as filler:
            for name, make in makers.items():
                make(filler)
                self._site.say(f"made {name}")
            live = self._live()
            self._site.say(f"{len(self._leaks)} leaks beside {len(live)} live ledgers")
            self._sweep(live, must_go=(Expected.GOES,))
            for tidy in self._tidy:
                tidy()
            # A broker that loads a topic replaces its last ledger.
            self._sweep(self._live(), must_go=(Expected.GOES, Expected.GOES_ONCE_TIDIED))

    def _live(self) -> list[LiveMark]:
        truth = read_truth(self._tree, self._site.bucket)
        leaking = {leak.ledger_id for leak in self._leaks}
        assert not leaking & {
            ledger_id
            for node in truth.nodes.values()
            if f"/{UNTIDY}/" in node.path and node.kind is not NodeKind.CURSOR
            for ledger_id in ledgers_named(node.path, node.kind, node.value)
        }
        marks = truth.live_marks(*(path for path in truth.nodes if f"/{UNTIDY}/" in path))
        return [mark for mark in marks if mark.ledger_id not in leaking]

    def _sweep(self, live: Sequence[LiveMark], must_go: Sequence[Expected]) -> None:
        marks = [mark_of_holder(leak.ledger_id, leak.holder, "untidy") for leak in self._leaks]
        for number, (name, overrides) in enumerate(SWEEPS.items()):
            there = self._tree.ledgers()
            for leak in self._leaks:
                if leak.ledger_id not in there:
                    self._tree.create(_path(leak.ledger_id), leak.raw)
            settings = settings_of(self._site, self._site.home / f"untidy-{number}", **overrides).settings
            with closing(OldSweep(settings)) as sweep:
                swept = sweep.sweep_to_the_end([*marks, *(mark.mark for mark in live)])
            there = self._tree.ledgers()
            for leak, found in zip(self._leaks, swept, strict=False):
                self._judge(leak, found, name, leak.ledger_id in there, must_go)
            for mark, found in zip(live, swept[len(marks) :], strict=True):
                if not mark.keys and mark.ledger_id not in there:
                    self.leaks.lost += 1
                    self._site.say(f"LOST, swept {name}: {mark}: {described(found.row)}")

    def _judge(self, leak: Leak, found: Swept, name: str, is_there: bool, must_go: Sequence[Expected]) -> None:
        self.leaks.outcomes[leak.why, found.row.outcome.value] += 1
        if not is_there:
            return
        kept = leak.expected is Expected.GOES_ONCE_TIDIED and found.row.outcome.value == _DAMAGED_HOLDER
        if leak.expected in must_go or not (kept or leak.expected is Expected.MAY_STAY):
            self.leaks.left += 1
            self._site.say(f"LEFT, swept {name}: {leak.why}: {described(found.row)}")

    def _add(self, ledger_id: int, holder: Holder, why: str, expected: Expected = Expected.GOES) -> None:
        """Take a ledger that is there for a leak."""
        (raw,) = self._tree.get([_path(ledger_id)])
        assert raw is not None
        self._leaks.append(Leak(ledger_id, holder, raw, why, expected))

    def _delete_by_hand(self, filler: TopicFiller) -> None:
        """Delete ledgers that a list names, and let another one be dropped from its front."""
        places = {"front": (1,), "middle": (4,), "front and middle": (1, 4)}
        for sizes in (True, False):
            for where, numbers in places.items():
                kind = "of several sizes" if sizes else "of one size"
                topic = filler.topic(f"by-hand-{len(self._leaks)}", 85, sizes=sizes, namespace=UNTIDY)
                edited = _Unloaded(self._site, topic)
                first, listed = edited.listed[0], edited.listed
                for number in numbers:
                    self._tree.delete(_path(listed[number]))
                edited.change(lambda info, first=first: _remove(info, first))
                waits = not sizes and "front" in where
                expected = Expected.GOES_ONCE_TIDIED if waits else Expected.GOES
                why = f"ledgers {kind} deleted by hand from the {where} of the list that it was dropped from"
                self._add(first, edited.holder, why, expected)
                if waits:
                    self._tidy.append(lambda edited=edited, gone=listed[1]: edited.change(lambda i: _remove(i, gone)))

    def _rescue(self, filler: TopicFiller) -> None:
        """Put a ledger into another topic's list, and let both topics drop their first one."""
        for sizes in (True, False):
            for at_the_end in (False, True):
                kind = f"ledgers {'of several sizes' if sizes else 'of one size'}"
                name = f"rescuer-{len(self._leaks)}"
                topic = filler.topic(name, sizes=sizes, namespace=UNTIDY)
                # The rescued ledger is younger than the first one: those that are younger still are inside the list.
                former = _Unloaded(self._site, filler.topic(f"former-{name}", sizes=sizes, namespace=UNTIDY))
                if not at_the_end:
                    filler.send(topic, 25, sizes=sizes)
                rescuer = _Unloaded(self._site, topic)
                dropped, rescued = former.listed[:2]
                own = rescuer.listed[0]
                entry = former.entry(rescued)
                former.change(lambda info, gone=(dropped, rescued): _remove(info, *gone))
                rescuer.change(lambda info, own=own: _remove(info, own))
                rescuer.change(lambda info, entry=entry: _insert(info, entry))
                self._add(dropped, former.holder, f"{kind}, of a topic of which another one was rescued")
                where = "to the end of its list" if at_the_end else "into its list"
                waits = at_the_end or not sizes
                expected = Expected.GOES_ONCE_TIDIED if waits else Expected.GOES
                self._add(own, rescuer.holder, f"{kind}, of a topic that has a rescued one {where}", expected)
                if at_the_end:
                    # A load adds a ledger of the topic's own.
                    self._tidy.append(lambda topic=topic: filler.ledgers_listed(topic))
                elif waits:
                    self._tidy.append(lambda rescuer=rescuer, gone=rescued: rescuer.change(lambda i: _remove(i, gone)))
                    self._tidy.append(lambda former=former, entry=entry: former.change(lambda i: _insert(i, entry)))

    def _compact(self, filler: TopicFiller) -> None:
        """Let a cursor's node name a compacted ledger that is gone, while its ledger names the newest."""
        topic = f"persistent://{UNTIDY}/compacted"
        first = filler.compact(topic)
        # The node names what the cursor's ledger said at its end.
        unload(self._site.admin, topic)
        leak = filler.compact(topic)
        (raw,) = self._tree.get([_path(leak)])
        filler.compact(topic)
        eventually(lambda: not {first, leak} & set(self._tree.ledgers()), _PATIENCE_S)
        path = f"{MANAGED_LEDGERS}/{managed_ledger_of(topic)}/{COMPACTION_CURSOR}"
        (node,) = self._tree.get([path])
        assert node is not None
        assert raw is not None
        assert first in ledgers_named(path, NodeKind.CURSOR, node), "the cursor's node does not name what is gone"
        holder = CompactedHolder(managed_ledger_of(topic))
        self._leaks.append(
            Leak(leak, holder, raw, "an earlier compacted view, whose cursor's node names one that is gone")
        )

    def _lose_races(self, filler: TopicFiller) -> None:
        """Let a schema's node lose versions that have ledgers, as that of a writer that was overtaken."""
        for name, why, expected in (
            ("loser-first", "a schema's ledger of a lost race, older than the winner's", Expected.GOES),
            ("loser-last", "a schema's ledger of a lost race, younger than the winner's", Expected.GOES),
            ("newest", "a schema's ledger of a version that its node does not have yet", Expected.MAY_STAY),
        ):
            schema = SchemaHolder(f"{UNTIDY}/{name}")
            path = f"/schemas/{schema.schema_id}"
            filler.add_schema(UNTIDY, name, 0)
            before = self._node(path)
            filler.add_schema(UNTIDY, name, 1)
            of_first = self._node(path)
            self._write_schema(name, path, before)
            if name != "newest":
                filler.add_schema(UNTIDY, name, 2)
            of_second = self._node(path)
            if name == "loser-last":
                self._write_schema(name, path, of_first)
            named = [set(ledgers_named(path, NodeKind.SCHEMA, value)) for value in (of_first, of_second)]
            (loser,) = named[1] - named[0] if name == "loser-last" else named[0] - named[1]
            self._add(loser, schema, why, expected)

    def _write_schema(self, name: str, path: str, value: bytes) -> None:
        """Write a schema's node, and wait until the broker knows."""
        self._tree.set(path, value)
        newest = max(int(field.value) for field in fields(_first(value)) if field.number == 1)

        def known() -> bool:
            return int(self._site.admin.get_json(f"/schemas/{UNTIDY}/{name}/schema")["version"]) == newest

        eventually(known, _PATIENCE_S)

    def _node(self, path: str) -> bytes:
        (value,) = self._tree.get([path])
        assert value is not None
        return value

    def _leave_cursors(self, filler: TopicFiller) -> None:
        """Leave a cursor's former ledger, one of a deleted subscription, and one whose cursor needs none any more."""

        def roll(topic: str, former: int) -> None:
            def rolled() -> bool:
                self._pass_by(topic, 1)
                return former not in self._cursors_ledger(topic)

            eventually(rolled, _PATIENCE_S)

        def unsubscribe(topic: str, _: int) -> None:
            self._site.admin.delete(f"{topic_path(topic)}/subscription/{SUBSCRIPTION}", params={"force": True})

        def close(topic: str, _: int) -> None:
            unload(self._site.admin, topic)

        for name, why, leave, expected in (
            ("rolled", "a cursor's ledger before the one that its node names", roll, Expected.GOES),
            ("unsubscribed", "the ledger of a deleted subscription's cursor", unsubscribe, Expected.GOES),
            ("closed", "the ledger of a cursor whose position stands in its node alone", close, Expected.MAY_STAY),
        ):
            topic = filler.topic(name, 85, sizes=False, namespace=UNTIDY)
            filler.subscribe(topic).close()
            self._pass_by(topic, 2)
            (ledger_id,) = eventually(lambda topic=topic: self._cursors_ledger(topic), _PATIENCE_S)
            (raw,) = self._tree.get([_path(ledger_id)])
            assert raw is not None
            leave(topic, ledger_id)
            eventually(lambda gone=ledger_id: gone not in self._tree.ledgers(), _PATIENCE_S)
            self._leaks.append(
                Leak(ledger_id, CursorHolder(managed_ledger_of(topic), SUBSCRIPTION), raw, why, expected)
            )

    def _pass_by(self, topic: str, count: int) -> None:
        """Let the subscription pass messages; its cursor's ledger gets one entry."""
        self._site.admin.post(f"{topic_path(topic)}/subscription/{SUBSCRIPTION}/skip/{count}")

    def _cursors_ledger(self, topic: str) -> list[int]:
        path = f"{MANAGED_LEDGERS}/{managed_ledger_of(topic)}/{SUBSCRIPTION}"
        (node,) = self._tree.get([path])
        return [] if node is None else list(ledgers_named(path, NodeKind.CURSOR, node))

    def _supersede(self, filler: TopicFiller) -> None:
        """Leave the empty ledger that a broker replaces when it loads a topic again, as it was before its end too."""
        for state in ("closed", "open"):
            topic = filler.topic(f"loaded-again-{state}", sizes=False, namespace=UNTIDY)
            unload(self._site.admin, topic)
            # This loads it.
            former = filler.ledgers_listed(topic)[-1]
            (raw,) = self._tree.get([_path(former)])
            unload(self._site.admin, topic)
            if state == "closed":
                (raw,) = self._tree.get([_path(former)])
            assert raw is not None
            assert former not in filler.ledgers_listed(topic)
            eventually(lambda gone=former: gone not in self._tree.ledgers(), _PATIENCE_S)
            holder = ManagedLedgerHolder(managed_ledger_of(topic))
            self._leaks.append(Leak(former, holder, raw, f"an empty data ledger that was replaced, {state}"))


class _Unloaded:
    """A topic that no broker has loaded, whose node is written by hand."""

    def __init__(self, site: DamagedCluster, topic: str) -> None:
        self._tree = site.tree
        unload(site.admin, topic)
        self.holder = ManagedLedgerHolder(managed_ledger_of(topic))
        self._path = f"{MANAGED_LEDGERS}/{self.holder.name}"
        self.listed = [one.ledgerId for one in self._read().ledgerInfo]
        assert len(self.listed) > 4, self.listed

    def entry(self, ledger_id: int) -> Any:
        """Return what the list says of a ledger."""
        return next(one for one in self._read().ledgerInfo if one.ledgerId == ledger_id)

    def change(self, how: Callable[[ManagedLedgerInfo], None]) -> None:
        info = self._read()
        how(info)
        self._tree.set(self._path, info.SerializeToString())

    def _read(self) -> ManagedLedgerInfo:
        (value,) = self._tree.get([self._path])
        assert value is not None
        return ManagedLedgerInfo.FromString(value)


def _remove(info: ManagedLedgerInfo, *ledger_ids: int) -> None:
    left = [one for one in info.ledgerInfo if one.ledgerId not in ledger_ids]
    del info.ledgerInfo[:]
    info.ledgerInfo.extend(left)


def _insert(info: ManagedLedgerInfo, entry: Any) -> None:
    listed = sorted([*info.ledgerInfo, entry], key=lambda one: one.ledgerId)
    del info.ledgerInfo[:]
    info.ledgerInfo.extend(listed)


def _first(value: bytes) -> bytes:
    """Return the first field of a message, which is one."""
    found = fields(value)[0].value
    assert isinstance(found, bytes)
    return found


def _path(ledger_id: int) -> str:
    return ledger_path("/ledgers", ledger_id)
