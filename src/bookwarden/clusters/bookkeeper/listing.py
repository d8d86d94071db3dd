"""A listing of every ledger that has metadata, in pieces of the id space that can be read side by side.

All layouts are walked whatever the LAYOUT node says, since Pulsar's own ledger manager puts its ledgers into the
hybrid's two trees in any case: `R/aa/bbbb/Lcccc`, `R/aaa/bbbb/cccc/dddd/Leeee`, and flat `R/Ldddddddddd`.
"""

from __future__ import annotations

import hashlib
import re
import sys
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import compress, pairwise
from typing import Final, NamedTuple

from bookwarden.clusters.bookkeeper.catalog import DEFAULT_LEDGERS_ROOT
from bookwarden.clusters.bookkeeper.ledger_paths import is_special, ledger_id_of, ledger_path
from bookwarden.errors import FormatError, NotFoundError, StoreAccessError, StoreError, StoreUnavailableError
from bookwarden.ledgers.custom_metadata import describe_custom_metadata, identify_holder
from bookwarden.ledgers.disk_use import MOST_BYTES, disk_bytes
from bookwarden.ledgers.kinds import KINDS
from bookwarden.ledgers.listing import ListedLedger
from bookwarden.ledgers.metadata import LedgerMetadata
from bookwarden.ledgers.pending_deletion import MAX_LEDGER_ID
from bookwarden.metastore.interface import MetadataStore, Versioned
from bookwarden.wire.ledger_metadata import decode_custom_metadata, decode_ledger_metadata, encode_segments

_REMEMBERED: Final = 65_536


# Looking up an enum's name is slow.
_KINDS: Final = {kind: kind.component.name for kind in KINDS}
# A directory holds up to ten thousand ledgers, a row of the listing takes about half a kilobyte.
_DIRECTORIES_IN_PIECE: Final = 2
_FLAT_LEDGERS_IN_PIECE: Final = 20_000
# Where most directories are nearly empty, as in an old cluster, a piece takes more of them.
_MOST_PIECES: Final = 2_000
_READ_AT_ONCE: Final = 10_000
_TOP_OF_SHORT: Final = re.compile(r"\d{2}", re.ASCII)
_TOP_OF_LONG: Final = re.compile(r"\d{3}", re.ASCII)
_INNER: Final = re.compile(r"\d{4}", re.ASCII)
_LEAVES: Final = {f"L{number:04d}": number for number in range(10_000)}


class Meaning(NamedTuple):
    """The meaning of custom metadata: the last fields but one of a ListedLedger."""

    kind: str | None
    holder: str | None
    custom: str | None


def listed_ledger(ledger_id: int, path: str, value: bytes, version: int, created_ms: int) -> ListedLedger:
    """Make the row of a ledger whose node has this value; ``problem`` says what could not be understood."""
    try:
        metadata = decode_ledger_metadata(value)
    except FormatError as error:
        return ListedLedger(ledger_id, path, version, created_ms, problem=str(error))
    meaning = _meaning(metadata.custom)
    state, length = metadata.state.name, metadata.length
    entries = 0 if metadata.last_entry_id is None else min(metadata.last_entry_id + 1, MOST_BYTES)
    return ListedLedger(
        *(ledger_id, path, version, created_ms, metadata.ctime_ms, state, length, *meaning),
        entries=entries,
        disk_bytes=disk_bytes(metadata.write_quorum, length, entries),
        segments=encode_segments(metadata.segments),
    )


# A holder's ledgers have the same custom metadata.
@lru_cache(maxsize=_REMEMBERED)
def meaning_of(fields: bytes) -> Meaning | None:
    """Return the meaning of the custom metadata among the encoded fields of version 3.

    Returns None for fields that decode_ledger_metadata would refuse.
    """
    try:
        return _meaning(decode_custom_metadata(fields))
    except FormatError:
        return None


def _meaning(custom: Mapping[str, bytes]) -> Meaning:
    holder = identify_holder(custom)
    if holder is None:
        return Meaning(None, None, describe_custom_metadata(custom))
    return Meaning(_KINDS[type(holder)], str(holder), None)


@dataclass(frozen=True, slots=True)
class ListingPiece:
    """Directories whose ledgers are read together.

    The ledgers root itself is one of them where ledgers lie flat in it; of those the piece has ids from ``first_id`` to
    before ``end_id``. ``unparsable`` are paths found on the way whose names fit no layout. ``cluster`` names the
    registered bookie cluster; it is empty where none is registered.
    """

    directories: tuple[str, ...]
    first_id: int = 0
    end_id: int = MAX_LEDGER_ID + 1
    unparsable: tuple[str, ...] = ()
    cluster: str = ""

    def __str__(self) -> str:
        more = f" and {len(self.directories) - 1} more" if len(self.directories) > 1 else ""
        return f"{self.directories[0]}{more}" if self.directories else "nothing but names of no layout"


class PieceOfNames(NamedTuple):
    """A piece listed by names: ids in their order, and the path of each.

    ``digest`` is digest_of of the ids. ``unparsable`` are paths whose names fit no layout.
    """

    ids: list[int]
    paths: list[str]
    digest: str
    unparsable: list[str]


class PieceOfLedgers(NamedTuple):
    """A piece as it was read: the ledgers that still had a node then, in the order of their ids."""

    ids: list[int]  #: One for each ledger.
    paths: list[str]  #: One for each ledger.
    nodes: list[Versioned]  #: One for each ledger, with the encoded metadata.
    names: int  #: Number of names that were listed just before.
    digest: str  #: digest_of of the listed ids.
    unparsable: list[str]  #: Paths whose names fit no layout.


class LedgerListing:
    """Lists the ledgers below one ledgers root; its calls may be made from several processes, each with its own store.

    An id may come twice, if both trees have a node of it. Every call raises StoreError, which names the directory, when
    one cannot be listed: a partial listing never passes for a whole one. A directory that is removed meanwhile counts
    as empty.
    """

    def __init__(self, store: MetadataStore, ledgers_root: str = DEFAULT_LEDGERS_ROOT) -> None:
        self._store = store
        self._root = ledgers_root.rstrip("/")

    @property
    def root(self) -> str:
        """The ledgers root, without a slash at its end."""
        return self._root

    def pieces(self, besides: Sequence[ListingPiece] = ()) -> list[ListingPiece]:
        """Divide the ledgers into pieces, by walking the directories above them.

        With ``besides``, the pieces of a former call, only directories that none of them covers are returned: created
        later, or missing from the former walk.
        """
        self._store.sync()
        flat, leaves, unparsable = self._walk()
        known = {directory for piece in besides for directory in piece.directories}
        strange = set(unparsable).difference(*(piece.unparsable for piece in besides))
        leaves = [leaf for leaf in leaves if leaf not in known]
        size = max(_DIRECTORIES_IN_PIECE, -(-len(leaves) // _MOST_PIECES))
        pieces = [ListingPiece(tuple(leaves[at : at + size])) for at in range(0, len(leaves), size)]
        if flat and (self._root or "/") not in known:
            pieces += _flat_pieces(self._root or "/", flat)
        if strange:
            pieces.append(ListingPiece((), unparsable=tuple(sorted(strange))))
        return pieces

    def read(self, piece: ListingPiece) -> PieceOfLedgers:
        """List the piece, then read each ledger's node; never older than this call."""
        ids, paths, digest, unparsable = self.relist(piece)
        return PieceOfLedgers(*self._nodes(ids, paths), len(ids), digest, unparsable)

    def relist(self, piece: ListingPiece) -> PieceOfNames:
        """List the piece by names only; never older than this call."""
        self._store.sync()
        names = PieceOfNames([], [], "", list(piece.unparsable))
        for directory in piece.directories:
            if directory == (self._root or "/"):
                self._add_flat(piece, names)
            else:
                self._add_leaf(directory, names)
        ids, paths = names.ids, names.paths
        if ids != sorted(ids):
            both = sorted(zip(ids, paths, strict=True))
            ids, paths = [ledger_id for ledger_id, _ in both], [path for _, path in both]
        return PieceOfNames(ids, paths, digest_of(ids), names.unparsable)

    def read_paths(self, paths: Sequence[str]) -> list[ListedLedger]:
        """Read the ledgers at these paths, as relist names them; the rows omit those that are gone."""
        ids = [ledger_id_of(self._root, path) for path in paths]
        known = [(ledger_id, path) for ledger_id, path in zip(ids, paths, strict=True) if ledger_id is not None]
        found = self._nodes([ledger_id for ledger_id, _ in known], [path for _, path in known])
        return [
            listed_ledger(ledger_id, path, node.value, node.version, node.created_ms)
            for ledger_id, path, node in zip(*found, strict=True)
        ]

    def _nodes(self, ids: list[int], paths: list[str]) -> tuple[list[int], list[str], list[Versioned]]:
        """Read the nodes at these paths; return those that are there, with their ids and paths."""
        batches = (paths[at : at + _READ_AT_ONCE] for at in range(0, len(paths), _READ_AT_ONCE))
        read = [node for batch in batches for node in self._store.get_many(batch)]
        nodes = [node for node in read if node is not None]
        if len(nodes) < len(read):
            there = [node is not None for node in read]
            ids, paths = list(compress(ids, there)), list(compress(paths, there))
        return ids, paths, nodes

    def _walk(self) -> tuple[list[int], list[str], list[str]]:
        """Find the ids that lie flat, the directories of ledgers, and the paths that fit no layout."""
        flat: list[int] = []
        leaves: list[str] = []
        unparsable: list[str] = []
        for name in self._children_of_root():
            path = f"{self._root}/{name}"
            ledger_id = ledger_id_of(self._root, path)
            if ledger_id is not None:
                flat.append(ledger_id)
            elif _TOP_OF_SHORT.fullmatch(name):
                leaves += self._below(path, 1, unparsable)
            elif _TOP_OF_LONG.fullmatch(name):
                leaves += self._below(path, 3, unparsable)
            elif not is_special(name):
                unparsable.append(path)
        return flat, leaves, unparsable

    def _below(self, directory: str, levels: int, unparsable: list[str]) -> Iterator[str]:
        """Yield the directories `levels` levels below."""
        for name in self._children(directory):
            path = f"{directory}/{name}"
            if not _INNER.fullmatch(name):
                unparsable.append(path)
            elif levels == 1:
                yield path
            else:
                yield from self._below(path, levels - 1, unparsable)

    def _add_leaf(self, directory: str, names: PieceOfNames) -> None:
        base = first_id_of(self._root, directory)
        children = self._children(directory)
        above, most = directory + "/", MAX_LEDGER_ID - base
        ledgers = children
        if most < len(_LEAVES) or not all(map(_LEAVES.__contains__, children)):
            ledgers = [name for name in children if _LEAVES.get(name, most + 1) <= most]
            names.unparsable.extend([above + name for name in children if _LEAVES.get(name, most + 1) > most])
        names.ids.extend([base + number for number in map(_LEAVES.__getitem__, ledgers)])
        names.paths.extend([above + name for name in ledgers])

    def _add_flat(self, piece: ListingPiece, names: PieceOfNames) -> None:
        for name in self._children_of_root():
            path = f"{self._root}/{name}"
            ledger_id = ledger_id_of(self._root, path)
            if ledger_id is not None and piece.first_id <= ledger_id < piece.end_id:
                names.ids.append(ledger_id)
                names.paths.append(path)

    def _children_of_root(self) -> list[str]:
        try:
            return self._list(self._root or "/")
        except NotFoundError as error:
            # Without a root the ledgers of all references would seem to be lost.
            raise StoreError(
                f"the metadata store has no ledgers root {self._root}: check the setting ledgers_root"
            ) from error

    def _children(self, directory: str) -> list[str]:
        try:
            return self._list(directory)
        except NotFoundError:
            return []

    def _list(self, directory: str) -> list[str]:
        try:
            return self._store.list_children(directory)
        except StoreAccessError:
            raise
        except StoreError as error:
            kind = StoreUnavailableError if isinstance(error, StoreUnavailableError) else StoreError
            raise kind(
                f"the children of {directory} cannot be listed: {error}. If the store answers otherwise, they may be "
                "too many for one answer: raise jute.maxbuffer on its servers, or scan a snapshot of it instead"
            ) from error


def first_id_of(ledgers_root: str, directory: str) -> int:
    """Compute the id of a ledger L0000 in a directory of ledgers; it may be beyond the largest possible one."""
    return int(directory[len(ledgers_root) :].replace("/", "")) * len(_LEAVES)


def digest_of(ledger_ids: Iterable[int]) -> str:
    """Compute sha256, as hexadecimal digits, over the sorted ids of eight bytes each, the highest byte first."""
    numbers = array("q", sorted(ledger_ids))
    if sys.byteorder == "little":
        numbers.byteswap()
    return hashlib.sha256(numbers.tobytes()).hexdigest()


def _flat_pieces(root: str, ledger_ids: list[int]) -> list[ListingPiece]:
    """Divide at existing ids; the first and the last piece have no bound, so that later ids fall into one too."""
    cuts = [0, *sorted(ledger_ids)[_FLAT_LEDGERS_IN_PIECE::_FLAT_LEDGERS_IN_PIECE], MAX_LEDGER_ID + 1]
    return [ListingPiece((root,), first, end) for first, end in pairwise(cuts)]


class MultiClusterListing:
    """Lists the ledgers of each cluster in pieces that name it; ``alone`` has those where no cluster is registered.

    ``roots`` returns store and ledgers root of each registered cluster by name, nothing where none is registered. Every
    call raises StoreError as LedgerListing does, and for a piece of a cluster that is not registered any more.
    """

    def __init__(self, alone: LedgerListing, roots: Callable[[], Mapping[str, tuple[MetadataStore, str]]]) -> None:
        self._alone = alone
        self._roots = roots

    def pieces(self, besides: Sequence[ListingPiece] = ()) -> list[ListingPiece]:
        """Divide the ledgers of all clusters into pieces, as `LedgerListing.pieces` does."""
        names = list(self._roots())
        if not names:
            return self._alone.pieces(besides)
        return [
            replace(piece, cluster=name)
            for name in names
            for piece in self.of(name).pieces([each for each in besides if each.cluster == name])
        ]

    def relist(self, piece: ListingPiece) -> PieceOfNames:
        """List the piece by names only; never older than this call."""
        return self.of(piece.cluster).relist(piece)

    def of(self, cluster: str) -> LedgerListing:
        """Return the listing of one cluster; by "" that of the one that the settings name."""
        if not cluster:
            return self._alone
        place = self._roots().get(cluster)
        if place is None:
            raise StoreError(f"the bookie cluster {cluster!r} is not registered any more: begin a new scan")
        return LedgerListing(*place)


def read_every_ledger(store: MetadataStore, root: str) -> Iterator[tuple[int, LedgerMetadata | None]]:
    """Yield each ledger with its metadata, None where that is not understood; StoreError where a part is not read."""
    listing = LedgerListing(store, root)
    for piece in listing.pieces():
        found = listing.read(piece)
        for ledger_id, node in zip(found.ids, found.nodes, strict=True):
            try:
                yield ledger_id, decode_ledger_metadata(node.value)
            except FormatError:
                yield ledger_id, None


def read_custom_metadata(store: MetadataStore, root: str, ledger_id: int) -> Mapping[str, bytes] | None:
    """Read that of one ledger, empty if it is not there; None where its metadata is not understood."""
    node = store.get(ledger_path(root, ledger_id))
    if node is None:
        return {}
    try:
        return decode_ledger_metadata(node.value).custom
    except FormatError:
        return None
