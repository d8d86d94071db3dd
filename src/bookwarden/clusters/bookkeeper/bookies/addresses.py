"""Addresses of bookies: a ledger's metadata names bookies by id, which may be its address or any other name.

Format: discover.BookieServiceInfo, client.DefaultBookieAddressResolver of BookKeeper 4.17.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Final

from bookwarden.errors import BookieUnavailableError, FormatError, StoreUnavailableError
from bookwarden.metastore.interface import MetadataStore, Versioned
from bookwarden.wire.pb.bookie_service_info_pb2 import BookieServiceInfoFormat
from bookwarden.wire.protobuf import parse

Address = tuple[str, int]

_PROTOCOL: Final = "bookie-rpc"
_HTTP: Final = "http"
_ANY_HOST: Final = ("", "0.0.0.0", "::")
_HOST_AND_PORT = re.compile(r"([^:/]+):(\d{1,5})", re.ASCII)


def address_in(bookie_id: str) -> Address | None:
    """Parse the address in an id that is host:port, as ids are unless an operator chose otherwise."""
    match = _HOST_AND_PORT.fullmatch(bookie_id)
    return (match[1], int(match[2])) if match else None


class BookieAddresses:
    """Looks bookies up in their registrations below one ledgers root, at each call, since a bookie may move.

    An id that is host:port serves as address where there is no registration. A bookie that is about to stop, or
    has lost its session, may still answer there. ``others`` are store and ledgers root of further bookie
    clusters, which have no bookie in common.
    """

    def __init__(
        self,
        store: MetadataStore,
        ledgers_root: str,
        others: Callable[[], Sequence[tuple[MetadataStore, str]]] = tuple,
    ) -> None:
        self._store = store
        self._root = ledgers_root.rstrip("/")
        self._others = others

    def find(self, bookie_id: str) -> Address:
        """Find the address; raise BookieUnavailableError if none is known, FormatError if it cannot be read."""
        registration = self._registration(bookie_id)
        address = address_in(bookie_id) if registration is None else _endpoint(bookie_id, registration.value)
        if address is None:
            raise BookieUnavailableError(
                f"bookie {bookie_id} is not registered below {self._root}/available, and its id is no address: start it"
            )
        return address

    def _registration(self, bookie_id: str) -> Versioned | None:
        try:
            own = _registration_in(self._store, self._root, bookie_id)
            others = (_registration_in(store, root, bookie_id) for store, root in self._others())
            return own or next((found for found in others if found is not None), None)
        except StoreUnavailableError:
            # Reading goes on without the metadata store if the id has the address.
            return None


def http_url_in(bookie_id: str, value: bytes) -> str:
    """Read the URL of a bookie's HTTP server off its registration; "" where it has published none."""
    if not value:
        return ""
    info = parse(BookieServiceInfoFormat(), value, f"the registration of bookie {bookie_id}")
    ports = [endpoint for endpoint in info.endpoints if endpoint.protocol == _HTTP]
    if not ports:
        return ""
    # It tells where it listens, by default everywhere, and not where it is reached.
    host = ports[0].host
    if host in _ANY_HOST:
        host, _ = _endpoint(bookie_id, value) or ("", 0)
    return f"http://{f'[{host}]' if ':' in host else host}:{ports[0].port}"


def _registration_in(store: MetadataStore, root: str, bookie_id: str) -> Versioned | None:
    available = f"{root}/available"
    writable, read_only = store.get_many([f"{available}/{bookie_id}", f"{available}/readonly/{bookie_id}"])
    return writable or read_only


def _endpoint(bookie_id: str, value: bytes) -> Address | None:
    """Read a registration; an empty one, as bookies before 4.11 write it, stands for the id itself."""
    if not value:
        return address_in(bookie_id)
    info = parse(BookieServiceInfoFormat(), value, f"the registration of bookie {bookie_id}")
    for endpoint in info.endpoints:
        if endpoint.protocol == _PROTOCOL:
            return endpoint.host, endpoint.port
    raise FormatError(f"the registration of bookie {bookie_id} names no endpoint for {_PROTOCOL}")
