"""Frames, requests and responses of the bookies' wire protocol, as bytes."""

from __future__ import annotations

import itertools
import resource
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookwarden.clusters.bookkeeper.bookies.protocol import (
    NO_LEDGER,
    OK,
    REFUSED,
    AddEntry,
    AddKind,
    FencingRead,
    FrameSplitter,
    ReadDiskSpace,
    ReadEntry,
    ReadLastConfirmed,
    Request,
    RequestEncoder,
    Response,
    StartTls,
    decode_response,
    frame_length,
    status_name,
)
from bookwarden.errors import FormatError
from bookwarden.wire.pb import bookie_protocol_pb2 as pb

# Header (field 1): version 3, operation, transaction; then the body's field, 100, 101, 104, 105 or 106. A read has
# ledger id (1) and entry id (2); only one that fences has field 100, its flag, and 3, the master key.
REQUESTS = [
    (300, ReadEntry(5, 7), "00000010" + "0a070803100118ac02" + "a2060408051007"),
    (
        300,
        FencingRead(5, -1, b"key"),
        "00000023" + "0a090803100118ac022064" + "a20615080510ffffffffffffffffff01" + "1a036b6579" + "a00601",
    ),
    (
        300,
        AddEntry(5, 7, b"key", b"packet"),
        "0000001d" + "0a070803100218ac02" + "aa0611080510071a036b657922067061636b6574",
    ),
    (
        300,
        AddEntry(5, 7, b"key", b"packet", AddKind.RECOVERY),
        "00000020" + "0a070803100218ac02" + "aa0614080510071a036b657922067061636b6574" + "a00601",
    ),
    (
        300,
        AddEntry(5, 7, b"key", b"packet", AddKind.URGENT_RECOVERY),
        "00000022" + "0a090803100218ac022064" + "aa0614080510071a036b657922067061636b6574" + "a00601",
    ),
    (1, ReadDiskSpace(), "0000000d" + "0a06080310081801" + "ca06020803"),
    (1, ReadLastConfirmed(5), "0000000d" + "0a06080310071801" + "c206020805"),
    (0, StartTls(), "0000000b" + "0a06080310091800" + "d20600"),
]


@pytest.mark.parametrize(("transaction", "request_", "frame"), REQUESTS)
def test_requests_are_these_bytes(transaction: int, request_: Request, frame: str) -> None:
    assert RequestEncoder().frame(transaction, request_).hex() == frame


def test_an_encoder_that_was_used_leaves_nothing_in_the_next_request() -> None:
    encoder = RequestEncoder()
    encoder.frame(2**64 - 1, ReadEntry(2**63 - 1, 2**63 - 1))
    for kind in AddKind:
        encoder.frame(2**64 - 1, AddEntry(2**63 - 1, 2**63 - 1, b"another key", b"a longer packet", kind))
    for transaction, request, frame in REQUESTS:
        assert encoder.frame(transaction, request).hex() == frame


def test_an_encoder_keeps_no_entry_that_it_encoded() -> None:
    encoder, packet = RequestEncoder(), bytes(1024 * 1024)
    before = resident_bytes()
    for entry_id in range(100):
        frame = encoder.frame(entry_id, AddEntry(5, entry_id, b"key", packet))
    assert pb.Request.FromString(frame[4:]).addRequest.body == packet
    assert resident_bytes() - before < 50 * len(packet)


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def frame_of(response: pb.Response) -> bytes:
    content = response.SerializeToString()
    return len(content).to_bytes(4, "big") + content


def header(operation: pb.OperationType = pb.READ_ENTRY) -> pb.BKPacketHeader:
    return pb.BKPacketHeader(version=pb.VERSION_THREE, operation=operation, txnId=9)


def test_responses_are_decoded() -> None:
    read = pb.ReadResponse(status=OK, ledgerId=5, entryId=7, body=b"packet")
    assert decode_response(pb.Response(header=header(), status=OK, readResponse=read).SerializeToString()) == (
        9,
        Response(OK, b"packet"),
    )
    read = pb.ReadResponse(status=NO_LEDGER, ledgerId=5, entryId=7)
    found = pb.Response(header=header(), status=NO_LEDGER, readResponse=read)
    assert decode_response(found.SerializeToString()) == (9, Response(NO_LEDGER, b""))
    lac = pb.ReadLacResponse(status=OK, ledgerId=5, lacBody=b"lac", lastEntryBody=b"last")
    found = pb.Response(header=header(pb.READ_LAC), status=OK, readLacResponse=lac)
    assert decode_response(found.SerializeToString()) == (9, Response(OK, b"last", b"lac"))
    info = pb.GetBookieInfoResponse(status=OK, totalDiskCapacity=2**40, freeDiskSpace=7)
    found = pb.Response(header=header(pb.GET_BOOKIE_INFO), status=OK, getBookieInfoResponse=info)
    assert decode_response(found.SerializeToString()) == (9, Response(OK, b"", disk_space=(2**40, 7)))
    info = pb.GetBookieInfoResponse(status=OK, totalDiskCapacity=2**40)
    found = pb.Response(header=header(pb.GET_BOOKIE_INFO), status=OK, getBookieInfoResponse=info)
    assert decode_response(found.SerializeToString()) == (9, Response(OK, b""))
    refused = pb.Response(header=header(), status=REFUSED)
    assert decode_response(refused.SerializeToString()) == (9, Response(REFUSED, b""))
    added = pb.Response(header=header(pb.ADD_ENTRY), status=pb.EFENCED)
    assert decode_response(added.SerializeToString()) == (9, Response(pb.EFENCED, b""))
    assert status_name(REFUSED) == "EUA"


# The last is a whole response but for its status, 999, which no version has.
NO_RESPONSES = [b"", b"HTTP/1.1 400 Bad Request", b"\x0a\x02\x08\x03", b"\x0a\x06\x08\x03\x10\x01\x18\x09\x10\xe7\x07"]


@pytest.mark.parametrize("content", NO_RESPONSES)
def test_what_is_no_response_is_refused(content: bytes) -> None:
    with pytest.raises(FormatError, match="is it a bookie"):
        decode_response(content)


@given(st.lists(st.binary(max_size=40), max_size=8), st.lists(st.integers(0, 400), max_size=12))
def test_frames_are_the_same_however_the_stream_is_cut(contents: list[bytes], cuts: list[int]) -> None:
    stream = b"".join(len(content).to_bytes(4, "big") + content for content in contents)
    edges = [0, *sorted(cut for cut in cuts if cut < len(stream)), len(stream)]
    splitter = FrameSplitter()
    found = [frame for begin, end in itertools.pairwise(edges) for frame in fed(splitter, stream[begin:end])]
    assert found == contents


def test_a_frame_that_is_larger_than_the_room_is_whole() -> None:
    contents = [b"small", bytes(range(256)) * 5000, b"", b"x" * 3_000_000, b"last"]
    stream = b"".join(len(content).to_bytes(4, "big") + content for content in contents)
    splitter = FrameSplitter()
    assert fed(splitter, stream) == contents
    assert len(splitter.room()) < 1024 * 1024


def fed(splitter: FrameSplitter, block: bytes) -> list[bytes]:
    found: list[bytes] = []
    while block:
        room = splitter.room()
        count = min(len(room), len(block))
        room[:count] = block[:count]
        found += splitter.received(count)
        block = block[count:]
    return found


def test_another_protocol_is_found_out_by_its_first_bytes() -> None:
    for head in (b"HTTP", b"SSH-", b"\xff\xff\xff\xff"):
        with pytest.raises(FormatError, match="is it a bookie"):
            fed(FrameSplitter(), head + b"...")
        with pytest.raises(FormatError, match="is it a bookie"):
            frame_length(head)
