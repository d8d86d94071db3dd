"""Many protobuf messages taken apart at once: the first field of each, then the second, all on whole columns.

Only what leaves no choice is parsed here. A message with anything else, as a field of another type than its number
should have, counts as not plain, and the caller reads it with protobuf's own runtime.
Format: protobuf.dev/programming-guides/encoding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np

Numbers: TypeAlias = "np.ndarray[Any, np.dtype[np.int64]]"
Words: TypeAlias = "np.ndarray[Any, np.dtype[np.uint64]]"
Tags: TypeAlias = "np.ndarray[Any, np.dtype[np.uint8]]"
Flags: TypeAlias = "np.ndarray[Any, np.dtype[np.bool_]]"

NUMBER: Final = 0
BYTES: Final = 2
_TAGS_OF_ONE_BYTE: Final = 0x80
_LAST_OF_ONE_BYTE: Final = 0x7F
_PADDING: Final = bytes(24)

_MORE: Final = np.uint64(0x8080808080808080)
_FIRST_BYTES: Final = np.array([(1 << 8 * size) - 1 for size in range(9)], np.uint64)
_ONE: Final = np.uint64(1)
# How seven bits a byte are put together: the masks of what stays and of what moves, and how far.
_JOINS: Final = tuple(
    (np.uint64(stays), np.uint64(moves), np.uint64(by))
    for stays, moves, by in (
        (0x007F007F007F007F, 0x7F007F007F007F00, 1),
        (0x00003FFF00003FFF, 0x3FFF00003FFF0000, 2),
        (0x000000000FFFFFFF, 0x0FFFFFFF00000000, 4),
    )
)


class Fields(NamedTuple):
    """Fields of several messages, those of each in their order.

    ``message`` is the place of its message among those asked for. ``value`` is a number as a signed one of 64 bits, or
    how many bytes there are; these are from ``content`` on, and the field itself from ``start``.
    """

    message: Numbers
    number: Tags
    value: Numbers
    start: Numbers
    content: Numbers

    def of(self, number: int) -> Fields:
        """Return those with this number."""
        return self.at(np.flatnonzero(self.number == number))

    def at(self, places: Numbers | Flags) -> Fields:
        """Return those at these places."""
        return Fields(
            self.message[places], self.number[places], self.value[places], self.start[places], self.content[places]
        )

    @property
    def end(self) -> Numbers:
        """Where fields of bytes end."""
        return self.content + self.value

    def last(self, number: int, messages: int, default: int) -> Numbers:
        """Return the value of the field with this number that counts in each message."""
        at = np.flatnonzero(self.number == number)
        found = np.full(messages, default, np.int64)
        # Of what is assigned to one place, the last counts here as well.
        found[self.message[at]] = self.value[at]
        return found


_NONE: Final[Numbers] = np.empty(0, np.int64)
_NO_FIELDS: Final = Fields(_NONE, np.empty(0, np.uint8), _NONE, _NONE, _NONE)


class Buffer:
    """Bytes of which many places are read at once; ``starts`` and ``ends`` are those of the values among them.

    Behind the last value there must be as many bytes as _PADDING has.
    """

    def __init__(self, raw: bytes, starts: Numbers, ends: Numbers) -> None:
        self.raw = raw
        self.bytes = np.frombuffer(self.raw, np.uint8)
        self.starts = starts
        self.ends = ends
        self._words: Words = np.ndarray(len(self.bytes) - 7, "<u8", self.bytes, strides=(1,))

    @classmethod
    def of(cls, values: Sequence[bytes]) -> Buffer:
        """Put values behind each other."""
        sizes = np.fromiter(map(len, values), np.int64, len(values))
        ends = np.cumsum(sizes)
        return cls(b"".join([*values, _PADDING]), ends - sizes, ends)

    def begin_with(self, prefix: bytes, starts: Numbers, ends: Numbers) -> Flags:
        """Return for each two of these places whether what is between them begins so."""
        found: Flags = ends - starts >= len(prefix)
        for at in range(0, len(prefix), 8):
            part = prefix[at : at + 8]
            words = self._words[np.minimum(starts + at, len(self._words) - 1)] & _FIRST_BYTES[len(part)]
            found &= words == np.uint64(int.from_bytes(part, "little"))
        return found

    def varints(self, at: Numbers) -> tuple[Numbers, Numbers]:
        """Read the varint at each place, with how many bytes it has: 0 if these are more than ten."""
        values = self.bytes[at].astype(np.int64)
        sizes = np.ones(len(at), np.int64)
        # Most have one byte, and of one field nearly all or none.
        more = np.flatnonzero(values > _LAST_OF_ONE_BYTE)
        if len(more):
            values[more], sizes[more] = self._long_varints(at[more])
        return values, sizes

    def _long_varints(self, at: Numbers) -> tuple[Numbers, Numbers]:
        words = self._words[at]
        stops = ~words & _MORE
        last = stops & (~stops + _ONE)
        words &= last - _ONE
        for stays, moves, by in _JOINS:
            words = words & stays | (words & moves) >> by
        sizes = np.frexp(last.astype(np.float64))[1].astype(np.int64) >> 3
        long = np.flatnonzero(stops == 0)
        if len(long):
            ninth, tenth = (self.bytes[at[long] + more].astype(np.uint64) for more in (8, 9))
            words[long] |= (ninth & np.uint64(0x7F)) << np.uint64(56) | tenth * (ninth > 0x7F) << np.uint64(63)
            sizes[long] = np.where(ninth <= 0x7F, 9, np.where(tenth <= 1, 10, 0))
        return words.view(np.int64), sizes

    def are_ascii(self, starts: Numbers, ends: Numbers) -> Flags:
        """Return for each two of these places whether what is between them is ASCII."""
        found: Flags = np.ones(len(starts), np.bool_)
        sizes = ends - starts
        for at in range(0, int(sizes.max(initial=0)), 8):
            words = self._words[np.minimum(starts + at, len(self._words) - 1)]
            found &= words & _MORE & _FIRST_BYTES[np.clip(sizes - at, 0, 8)] == 0
        return found

    def fields(self, starts: Numbers, ends: Numbers, kinds: Mapping[int, int]) -> tuple[Fields, Flags]:
        """Take the messages between these places apart; say also of each whether it is plain.

        ``kinds`` is NUMBER or BYTES by the number of a field. Others may be there, and are passed over. What is found
        of a message that is not plain is not all of it.
        """
        allowed = _allowed(kinds)
        plain = np.ones(len(starts), np.bool_)
        live: Numbers = np.flatnonzero(starts < ends).astype(np.int64, copy=False)
        at, end = starts[live], ends[live]
        steps = [_NO_FIELDS]
        while len(live):
            tags: Tags = self.bytes[at]
            values, sizes = self.varints(at + 1)
            content = at + 1 + sizes
            taken = np.where(tags & 7 == BYTES, values, 0)
            fine = allowed[tags] & (sizes > 0) & (taken >= 0) & (taken <= end - content)
            plain[live[~fine]] = False
            found = Fields(live, (tags >> 3).astype(np.uint8, copy=False), values, at, content)
            steps.append(found if fine.all() else found.at(fine))
            behind = content + taken
            more = fine & (behind < end)
            if not more.all():
                live, behind, end = live[more], behind[more], end[more]
            at = behind
        return Fields(*map(np.concatenate, zip(*steps, strict=True))), plain


def _allowed(kinds: Mapping[int, int]) -> Flags:
    """Return for each first byte of a field whether it is whole and of a type that its number may have."""
    allowed = np.zeros(256, np.bool_)
    for tag in range(1 << 3, _TAGS_OF_ONE_BYTE):
        number, kind = tag >> 3, tag & 7
        allowed[tag] = kind in (NUMBER, BYTES) and kinds.get(number, kind) == kind
    return allowed
