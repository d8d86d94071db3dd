"""Damaged values of nodes, made from healthy ones and a seed alone: flips, truncations, repeats, swaps, older values.

The same nodes and the same seed give the same variants.
"""

from __future__ import annotations

import enum
import random
import struct
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from servers.damage.nodes import Field, Node, NodeKind, fields, ledgers_listed

_FLIPS, _TRUNCATIONS, _REPEATS, _SWAPS, _OLDER, _BROKEN_ENVELOPES = 9, 6, 2, 2, 3, 4
# Fields of fields of fields, and their fields.
_DEEPEST = 3


class Damage(enum.Enum):
    """The kinds of damage; the values are for people."""

    FLIP = "flip"
    TRUNCATE = "truncate"
    REPEAT = "repeat"
    REPEAT_LAST = "repeat at the end"
    SWAP_SAME = "swap, same kind"
    SWAP_OTHER = "swap, other kind"
    OLDER = "older"
    EMPTY = "empty"
    ENVELOPE = "envelope, right"
    BROKEN_ENVELOPE = "envelope, wrong"


class Exemption(enum.Enum):
    """Damage that nothing in the metadata gives away; the values are for people."""

    OLDER_LIST = "an older, valid value of the topic's own node"
    ID_AND_SIZE = "id and size of one entry damaged at once"


@dataclass(frozen=True, slots=True)
class Variant:
    """Values to write over healthy nodes; a swap writes two. ``seed`` and the first path make it again."""

    seed: str
    damage: Damage
    detail: str
    kind: NodeKind
    writes: tuple[tuple[str, bytes], ...]

    @property
    def path(self) -> str:
        """The path of the node that is damaged first."""
        return self.writes[0][0]

    def __str__(self) -> str:
        values = " ".join(f"{path}={value.hex() or '(empty)'}" for path, value in self.writes)
        return f"seed {self.seed}, {self.damage.value} ({self.detail}) of {self.kind.value}: {values}"


def make_variants(nodes: Sequence[Node], count: int, seed: int) -> list[Variant]:
    """Make so many variants of the nodes in an order of the seed's; more rounds of them where one has too few."""
    made: list[Variant] = []
    number = 0
    while nodes and len(made) < count:
        one_round = [
            variant for node in nodes for variant in variants_of(node, nodes, f"{seed}/{number}", first=not number)
        ]
        if not one_round:
            break
        random.Random(f"{seed}/{number}").shuffle(one_round)
        made += one_round
        number += 1
    return made[:count]


def variants_of(node: Node, nodes: Sequence[Node], seed: str, *, first: bool = True) -> list[Variant]:
    """Make the variants of one node; those that no seed changes only if it is the ``first`` time."""
    chance = random.Random(f"{seed}{node.path}")
    made: list[Variant] = []

    def add(damage: Damage, detail: str, value: bytes, *others: tuple[str, bytes]) -> None:
        if value != node.value:
            made.append(Variant(seed, damage, detail, node.kind, ((node.path, value), *others)))

    if node.value:
        for number in range(_FLIPS):
            add(Damage.FLIP, *_flipped(node.value, chance, single_bits=number % 2 == 1))
        ends = [end for end in field_ends(node.value) if 0 < end < len(node.value)]
        for end in chance.sample(ends, min(_TRUNCATIONS, len(ends))):
            add(Damage.TRUNCATE, f"at {end} of {len(node.value)}", node.value[:end])
        top = fields(node.value)
        for field in chance.sample(top, min(_REPEATS, len(top))):
            add(Damage.REPEAT, f"field {field.number}", _repeated(node.value, field, field.end))
        field = chance.choice(top)
        add(Damage.REPEAT_LAST, f"field {field.number}", _repeated(node.value, field, len(node.value)))
    same = [other for other in nodes if other.kind is node.kind and other.value != node.value]
    unlike = [other for other in nodes if other.kind is not node.kind and other.value != node.value]
    for damage, others, most in ((Damage.SWAP_SAME, same, _SWAPS), (Damage.SWAP_OTHER, unlike, 1)):
        for other in chance.sample(others, min(most, len(others))):
            add(damage, f"with {other.path}", other.value, (other.path, node.value))
    if first:
        for older in [value for value in node.older if value and value != node.value][-_OLDER:]:
            add(Damage.OLDER, f"{len(older)} bytes", older)
        add(Damage.EMPTY, "no bytes", b"")
    if node.value:
        if first:
            add(Damage.ENVELOPE, "ZLIB", in_envelope(node.value, "ZLIB"))
        for detail, broken in chance.sample(_broken_envelopes(node.value, chance), _BROKEN_ENVELOPES):
            add(Damage.BROKEN_ENVELOPE, detail, broken())
    return made


def exemption_of(variant: Variant, node: Node) -> Exemption | None:
    """Return why nothing can give this damage of a healthy node away; None where something can."""
    if node.kind is not NodeKind.MANAGED_LEDGER:
        return None
    if variant.damage is Damage.OLDER:
        return Exemption.OLDER_LIST
    try:
        healthy, damaged = ledgers_listed(node.value), ledgers_listed(dict(variant.writes)[node.path])
    except ValueError:
        return None
    if len(healthy) != len(damaged):
        return None
    changed = any(
        one.ledger_id != other.ledger_id and (one.entries, one.size) != (other.entries, other.size)
        for one, other in zip(healthy, damaged, strict=True)
    )
    # Two lists that were swapped differ so as well.
    return Exemption.ID_AND_SIZE if changed and variant.damage is Damage.FLIP else None


def field_ends(message: bytes) -> list[int]:
    """Return the positions behind each field, and behind each field within it, three levels down."""
    found: set[int] = set()

    def descend(part: bytes, base: int, depth: int) -> None:
        for field in fields(part):
            found.add(base + field.end)
            if field.wire == 2 and depth < _DEEPEST and isinstance(field.value, bytes) and len(field.value) > 1:
                try:
                    descend(field.value, base + field.end - len(field.value), depth + 1)
                except ValueError:
                    # It is no message, but bytes or text.
                    continue

    descend(message, 0, 0)
    return sorted(found)


def in_envelope(
    plain: bytes,
    codec: str,
    *,
    size: int | None = None,
    body: bytes | None = None,
    longer_head: int = 0,
) -> bytes:
    """Put a value into the envelope of compressed nodes, with a head or a body that may be wrong.

    MetaStoreImpl.compressManagedInfo of Pulsar 4.0; a broker flushes its stream, and never ends it.
    """
    head = b"\x08" + _varint({"NONE": 0, "LZ4": 1, "ZLIB": 2}[codec])
    head += b"\x10" + _varint(len(plain) if size is None else size)
    if body is None:
        stream = zlib.compressobj()
        body = stream.compress(plain) + stream.flush(zlib.Z_SYNC_FLUSH) if codec == "ZLIB" else plain
    return b"\x47\x78" + struct.pack(">i", len(head) + longer_head) + head + body


def _broken_envelopes(plain: bytes, chance: random.Random) -> list[tuple[str, Callable[[], bytes]]]:
    cut = chance.randint(1, 8)
    return [
        ("a size that is 1 too large", lambda: in_envelope(plain, "ZLIB", size=len(plain) + 1)),
        ("a size that is 1 too small", lambda: in_envelope(plain, "ZLIB", size=len(plain) - 1)),
        ("no codec, cut to its size", lambda: in_envelope(plain, "NONE", size=len(plain) - 1, body=plain[:-1])),
        ("size 0", lambda: in_envelope(plain, "ZLIB", size=0)),
        ("the largest size", lambda: in_envelope(plain, "ZLIB", size=2**31 - 1)),
        ("a head that is 1 longer", lambda: in_envelope(plain, "ZLIB", longer_head=1)),
        (f"a body cut by {cut}", lambda: in_envelope(plain, "ZLIB")[:-cut]),
        ("LZ4 over a body of ZLIB", lambda: in_envelope(plain, "LZ4", body=in_envelope(plain, "ZLIB")[10:])),
    ]


def _flipped(value: bytes, chance: random.Random, *, single_bits: bool) -> tuple[str, bytes]:
    changed = bytearray(value)
    places = []
    for _ in range(chance.randint(1, 3)):
        at = chance.randrange(len(changed))
        changed[at] = changed[at] ^ 1 << chance.randrange(8) if single_bits else chance.randrange(256)
        places.append(str(at))
    return f"{'bits' if single_bits else 'bytes'} at {', '.join(places)}", bytes(changed)


def _repeated(value: bytes, field: Field, at: int) -> bytes:
    return value[:at] + value[field.start : field.end] + value[at:]


def _varint(value: int) -> bytes:
    found = bytearray()
    while True:
        value, low = value >> 7, value & 127
        found.append(low | 128 if value else low)
        if not value:
            return bytes(found)
