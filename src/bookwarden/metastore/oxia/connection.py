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
    """How to reach Oxia; picklable, so that it can travel to executors. Times are in seconds.

    ``address`` is the host:port of any of its servers. ``operation_timeout_s`` bounds how long a call goes on without
    any progress, an outage included. ``max_request_bytes`` bounds a request, and so a value: brokers' clients take no
    answer above gRPC's 4 MiB. ``max_requests_per_second`` counts each key of a request. ``certfile`` and ``keyfile``
    are our own certificate, if the servers ask for one. ``proves_leaders`` is for who deletes by what was read: each
    `sync` has every leader commit a write that changes nothing, so that none answers that was replaced unawares.
    """

    address: str
    namespace: str = "default"
    session_timeout_s: float = 30.0
    connect_timeout_s: float = 15.0
    operation_timeout_s: float = 30.0
    token: str | None = field(default=None, repr=False)
    use_ssl: bool = False
    ca: str | None = None
    certfile: str | None = None
    keyfile: str | None = None
    batch_size: int = 500
    in_flight: int = 8
    max_request_bytes: int = 4 * 1024 * 1024 - 16 * 1024
    max_requests_per_second: float | None = None
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
