"""Asks a bookie whether it still holds an entry, over the wire protocol of BookKeeper 4.17 (version 3).

A read without the fencing flag changes nothing on the bookie. Only plain connections without authentication.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from types import TracebackType

from google.protobuf.message import DecodeError

from bookwarden.errors import BookieError, FormatError
from bookwarden.wire.pb import bookie_protocol_pb2 as pb

_MAX_FRAME = 16 * 1024 * 1024
_GONE = (pb.ENOLEDGER, pb.ENOENTRY)


class Bookie:
    """One connection to one bookie; for one thread, closed after use."""

    def __init__(self, host: str, port: int, timeout_s: float = 10.0) -> None:
        self._name = f"{host}:{port}"
        try:
            self._socket = socket.create_connection((host, port), timeout_s)
        except OSError as error:
            raise BookieError(f"bookie {self._name} does not answer: {error}") from error
        self._transaction = 0

    def holds(self, ledger_ids: Sequence[int], entry_id: int = 0) -> dict[int, bool]:
        """Say of each ledger whether the bookie has this entry of it.

        Raises BookieError when the bookie does not answer, or answers with anything but the entry or its absence.
        """
        return {ledger_id: self._holds(ledger_id, entry_id) for ledger_id in ledger_ids}

    def _holds(self, ledger_id: int, entry_id: int) -> bool:
        self._transaction += 1
        header = pb.BKPacketHeader(version=pb.VERSION_THREE, operation=pb.READ_ENTRY, txnId=self._transaction)
        request = pb.Request(header=header, readRequest=pb.ReadRequest(ledgerId=ledger_id, entryId=entry_id))
        answer = self._ask(request.SerializeToString())
        status = answer.readResponse.status if answer.HasField("readResponse") else answer.status
        if status == pb.EOK:
            return True
        if status in _GONE:
            return False
        text = pb.StatusCode.Name(status)
        raise BookieError(f"bookie {self._name} answered {text} for entry {entry_id} of ledger {ledger_id}")

    def _ask(self, frame: bytes) -> pb.Response:
        try:
            self._socket.sendall(len(frame).to_bytes(4, "big") + frame)
            length = int.from_bytes(self._receive(4), "big")
            if length > _MAX_FRAME:
                raise FormatError(f"bookie {self._name} announced a frame of {length} bytes: is it a bookie?")
            return pb.Response.FromString(self._receive(length))
        except OSError as error:
            raise BookieError(f"bookie {self._name} does not answer: {error}") from error
        except DecodeError as error:
            raise FormatError(f"bookie {self._name} does not speak BookKeeper's protocol version 3") from error

    def _receive(self, count: int) -> bytes:
        parts = bytearray()
        while len(parts) < count:
            part = self._socket.recv(count - len(parts))
            if not part:
                raise ConnectionResetError("it closed the connection")
            parts += part
        return bytes(parts)

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def __enter__(self) -> Bookie:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
