"""Connection options of an Oxia."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from bookwarden.errors import ConfigError
from bookwarden.metastore.tls_files import validate_tls_files

# What servers take: common/constant of Oxia 0.14.
_MIN_SESSION_S: Final = 2.0
_MAX_SESSION_S: Final = 300.0


@dataclass(frozen=True, slots=True)
class OxiaConnection:
    """Options of a connection to Oxia, with times in seconds; picklable, so that it can travel to executors."""

    address: str  #: host:port of any of its servers.
    namespace: str = "default"  #: Without a slash.
    session_timeout_s: float = 30.0  #: 2 to 300.
    connect_timeout_s: float = 15.0  #: Limit of the wait for the first shard assignments.
    operation_timeout_s: float = 30.0  #: Longest time of a call without any progress, an outage included.
    token: str | None = field(default=None, repr=False)  #: Sent as a bearer token; None sends none.
    use_ssl: bool = False  #: TLS to all servers.
    ca: str | None = None  #: File with the authorities' certificates; None takes gRPC's.
    certfile: str | None = None  #: File of our own certificate, if the servers ask for one.
    keyfile: str | None = None  #: File of its key; goes with ``certfile``.
    batch_size: int = 500  #: Keys in a request.
    in_flight: int = 8  #: Requests under way, for each shard in writes.
    #: Bounds a value too: brokers' clients take no answer above gRPC's 4 MiB.
    max_request_bytes: int = 4 * 1024 * 1024 - 16 * 1024
    max_requests_per_second: float | None = None  #: Counts each key of a request; None is no limit.
    #: For deletes by what was read: each `sync` has every leader commit a write that changes nothing,
    #: so that none answers that was replaced without learning it.
    proves_leaders: bool = False

    def validate(self) -> None:
        """Raise ConfigError for what cannot work, before anything is connected."""
        host, _, port = self.address.rpartition(":")
        if not host or not port.isdigit() or not self.namespace or "/" in self.namespace:
            raise ConfigError(
                f"metadata store URL oxia://{self.address}/{self.namespace}: expected oxia://host:port/namespace"
            )
        if not _MIN_SESSION_S <= self.session_timeout_s <= _MAX_SESSION_S:
            raise ConfigError(
                f"the metadata store's session timeout is {self.session_timeout_s:g} s; "
                f"Oxia takes {_MIN_SESSION_S:g} to {_MAX_SESSION_S:g} s"
            )
        validate_tls_files(ca=self.ca, certfile=self.certfile, keyfile=self.keyfile)
