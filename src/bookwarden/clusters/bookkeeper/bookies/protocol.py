"""The part of BookKeeper's wire protocol, version 3, that we use: frames, requests and responses as bytes, without I/O.

Format: BookkeeperProtocol.proto and proto.BookieProtoEncoding of BookKeeper 4.17. FencingRead alone fences a ledger,
and copying/recovery.py alone asks for it. AddEntry alone writes: writer.py asks for it, and that recovery.
"""

from __future__ import annotations

import enum
import struct
from typing import Final, NamedTuple

from google.protobuf.message import DecodeError

from bookwarden.errors import FormatError
from bookwarden.wire.pb import bookie_protocol_pb2 as pb
from bookwarden.wire.protobuf import encode_varint

_LENGTH: Final = struct.Struct(">I")
_LENGTH_BYTES: Final = _LENGTH.size
# Far above any bookie's nettyMaxFrameSizeBytes, and below the length in the first bytes of another protocol.
_MAX_FRAME: Final = 256 * 1024 * 1024

# What comes before a message or bytes, and their length.
_ADD_REQUEST_TAG: Final = encode_varint(pb.Request.ADDREQUEST_FIELD_NUMBER << 3 | 2)
_BODY_TAG: Final = encode_varint(pb.AddRequest.BODY_FIELD_NUMBER << 3 | 2)

_NO_RESPONSE: Final = "a bookie's answer is not of BookKeeper's protocol version 3: is it a bookie?"

_TOTAL_AND_FREE: Final = 1 | 2
# As proto.PerChannelBookieClient has it; any priority above 0 is a high one.
_HIGH_PRIORITY: Final = 100

# A larger frame gets room of its own.
_ROOM_BYTES: Final = 512 * 1024

OK: Final = pb.EOK
NO_LEDGER: Final = pb.ENOLEDGER
NO_ENTRY: Final = pb.ENOENTRY
REFUSED: Final = pb.EUA
FENCED: Final = pb.EFENCED
READ_ONLY: Final = pb.EREADONLY

LAST_ENTRY: Final = -1


class ReadEntry(NamedTuple):
    """Asks for one entry."""

    ledger_id: int
    entry_id: int


class FencingRead(NamedTuple):
    """Asks for one entry, or with `LAST_ENTRY` for the last one that the bookie has, and fences the ledger there.

    From then on the bookie takes entries of it from recoveries alone, for good.
    """

    ledger_id: int
    entry_id: int
    master_key: bytes


class AddKind(enum.IntEnum):
    """A reason to add an entry, which determines the ledgers and bookies that take it."""

    WRITER = 0  #: A ledger that is not fenced, on a writable bookie.
    RECOVERY = 1  #: Also a ledger that is fenced.
    URGENT_RECOVERY = 2  #: That, and a bookie that is read-only, as long as it has room for its own needs.


class AddEntry(NamedTuple):
    """Asks to store one entry's packet; the bookie keeps the master key of a ledger's first entry, and compares it."""

    ledger_id: int
    entry_id: int
    master_key: bytes
    packet: bytes
    kind: AddKind = AddKind.WRITER


class ReadLastConfirmed(NamedTuple):
    """Asks for the last confirmed entry, as far as the bookie knows it."""

    ledger_id: int


class ReadDiskSpace(NamedTuple):
    """Asks how large the bookie's disks for ledgers are, and how much of that is free."""


class StartTls(NamedTuple):
    """Asks to continue with a TLS handshake on this connection."""


Request = ReadEntry | FencingRead | AddEntry | ReadLastConfirmed | ReadDiskSpace | StartTls


class Response(NamedTuple):
    """An answer: ``entry`` is the packet of ReadEntry or the last entry's; both packets still carry their digest.

    ``disk_space`` has the bytes in all, and those free, if the bookie reported both.
    """

    status: int
    entry: bytes
    explicit_lac: bytes = b""
    disk_space: tuple[int, int] | None = None


class RequestEncoder:
    """Encodes requests into frames; for one thread.

    It reuses the parts without bytes of its messages for reading and adding an entry: filling one takes a fifth of the
    time of making one. A message keeps all bytes that were ever put into it.
    """

    def __init__(self) -> None:
        self._read = pb.Request(header=_header(pb.READ_ENTRY), readRequest=pb.ReadRequest(ledgerId=0, entryId=0))
        self._read_header, self._read_body = self._read.header, self._read.readRequest
        adds = [pb.Request(header=_add_header(kind)) for kind in AddKind]
        self._adds = [(add, add.header) for add in adds]
        self._add_flags = [_add_flag(kind) for kind in AddKind]

    def frame(self, transaction: int, request: Request) -> bytes:
        """Encode the request under this transaction id (0 to 2**64 - 1), which comes back in the response."""
        if isinstance(request, ReadEntry):
            self._read_header.txnId = transaction
            self._read_body.ledgerId, self._read_body.entryId = request
            return _framed(self._read)
        if isinstance(request, AddEntry):
            return self._add_frame(transaction, request)
        if isinstance(request, FencingRead):
            return _framed(_fencing(transaction, request))
        if isinstance(request, ReadLastConfirmed):
            about = pb.ReadLacRequest(ledgerId=request.ledger_id)
            return _framed(pb.Request(header=_header(pb.READ_LAC, transaction), readLacRequest=about))
        if isinstance(request, ReadDiskSpace):
            wanted = pb.GetBookieInfoRequest(requested=_TOTAL_AND_FREE)
            return _framed(pb.Request(header=_header(pb.GET_BOOKIE_INFO, transaction), getBookieInfoRequest=wanted))
        return _framed(pb.Request(header=_header(pb.START_TLS, transaction), startTLSRequest=pb.StartTLSRequest()))

    def _add_frame(self, transaction: int, request: AddEntry) -> bytes:
        """Put the packet, which may be megabytes, into what is encoded of the message: it is copied once."""
        ledger_id, entry_id, master_key, packet, kind = request
        add, header = self._adds[kind]
        header.txnId = transaction
        flag = self._add_flags[kind]
        before = pb.AddRequest(ledgerId=ledger_id, entryId=entry_id, masterKey=master_key).SerializePartialToString()
        before += _BODY_TAG + encode_varint(len(packet))
        inner = len(before) + len(packet) + len(flag)
        head = add.SerializeToString() + _ADD_REQUEST_TAG + encode_varint(inner)
        return b"".join([(len(head) + inner).to_bytes(_LENGTH_BYTES, "big"), head, before, packet, flag])


def decode_response(frame: bytes) -> tuple[int, Response]:
    """Decode a frame's content into transaction id and response; raise FormatError if it is no response."""
    try:
        message = pb.Response.FromString(frame)
    except DecodeError as error:
        raise FormatError(_NO_RESPONSE) from error
    read = message.readResponse
    body = read.body
    # Only an entry that was found has a body; a field that is not set reads as empty.
    if body:
        return message.header.txnId, Response(read.status, body)
    # A status that we do not know is left out by the parser, and would read as EOK.
    if not message.IsInitialized():
        raise FormatError(_NO_RESPONSE)
    transaction = message.header.txnId
    if message.HasField("readLacResponse"):
        lac = message.readLacResponse
        return transaction, Response(lac.status, lac.lastEntryBody, lac.lacBody)
    if message.HasField("getBookieInfoResponse"):
        info = message.getBookieInfoResponse
        both = info.HasField("totalDiskCapacity") and info.HasField("freeDiskSpace")
        space = (info.totalDiskCapacity, info.freeDiskSpace) if both else None
        return transaction, Response(info.status, b"", disk_space=space)
    return transaction, Response(message.status, b"")


def status_name(status: int) -> str:
    """Return the name that BookKeeper gives a status."""
    return pb.StatusCode.Name(pb.StatusCode.ValueType(status))


class FrameSplitter:
    """Cuts a stream of bytes into the contents of its frames: receive into `room`, then take them with `received`.

    The room is used again: memory for each block that is received would cost more than its bytes do.
    """

    def __init__(self) -> None:
        self._buffer = bytearray(_ROOM_BYTES)
        self._end = 0

    def room(self) -> memoryview:
        """Return where the next bytes go, at least one."""
        return memoryview(self._buffer)[self._end :]

    def received(self, count: int) -> list[bytes]:
        """Return the frames that are complete with the bytes in the room; raise FormatError for impossible lengths."""
        stream, size = memoryview(self._buffer), self._end + count
        frames: list[bytes] = []
        begin, needed = 0, _LENGTH_BYTES
        while size - begin >= _LENGTH_BYTES:
            content = begin + _LENGTH_BYTES
            (length,) = _LENGTH.unpack_from(stream, begin)
            end = content + _possible(length)
            if end > size:
                needed = end - begin
                break
            frames.append(bytes(stream[content:end]))
            begin = end
        self._end = size - begin
        room = max(_ROOM_BYTES, needed)
        if room != len(self._buffer):
            rest, self._buffer = stream[begin:size], bytearray(room)
            self._buffer[: self._end] = rest
        elif begin:
            stream[: self._end] = stream[begin:size]
        return frames


def frame_length(head: bytes) -> int:
    """Read the length that a frame announces in its first four bytes; raise FormatError if it is impossible."""
    return _possible(int.from_bytes(head, "big"))


def _possible(length: int) -> int:
    if length > _MAX_FRAME:
        raise FormatError(f"a bookie announced a frame of {length} bytes: is it a bookie?")
    return length


def _header(operation: pb.OperationType, transaction: int = 0) -> pb.BKPacketHeader:
    return pb.BKPacketHeader(version=pb.VERSION_THREE, operation=operation, txnId=transaction)


def _add_header(kind: AddKind) -> pb.BKPacketHeader:
    header = _header(pb.ADD_ENTRY)
    if kind is AddKind.URGENT_RECOVERY:
        header.priority = _HIGH_PRIORITY
    return header


def _add_flag(kind: AddKind) -> bytes:
    if kind is AddKind.WRITER:
        return b""
    return pb.AddRequest(flag=pb.AddRequest.RECOVERY_ADD).SerializePartialToString()


def _fencing(transaction: int, request: FencingRead) -> pb.Request:
    header = _header(pb.READ_ENTRY, transaction)
    header.priority = _HIGH_PRIORITY
    ledger_id, entry_id, master_key = request
    fence = pb.ReadRequest.FENCE_LEDGER
    read = pb.ReadRequest(flag=fence, ledgerId=ledger_id, entryId=entry_id, masterKey=master_key)
    return pb.Request(header=header, readRequest=read)


def _framed(message: pb.Request) -> bytes:
    content = message.SerializeToString()
    return len(content).to_bytes(_LENGTH_BYTES, "big") + content
