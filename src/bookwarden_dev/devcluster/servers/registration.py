"""Registration of a bookie while it serves: an ephemeral node of its store."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Protocol

import kazoo.exceptions
from kazoo.handlers.threading import KazooTimeoutError

from bookwarden.errors import ServerError
from bookwarden_dev.devcluster.ports import LOOPBACK
from bookwarden_dev.devcluster.servers.oxia import OxiaClient
from bookwarden_dev.devcluster.servers.readiness import listens, zookeeper_client, zookeeper_serves
from bookwarden_dev.devcluster.servers.settings import PULSARS_LEDGERS_ROOT


class BookieRegistration(Protocol):
    """The registration of one bookie."""

    def is_there(self, started_at: float) -> bool:
        """Return whether the bookie started at that time (seconds since the epoch) is registered.

        It listens before it registers. The registration of a bookie that was killed is older.
        """

    def remove(self) -> None:
        """Remove the registration of a bookie that no longer runs; raise ServerError if the store refuses.

        A bookie that was killed stays registered until its session ends, and one that starts meanwhile finds the
        place taken: it logs that it shuts down, and stays, deaf (PulsarRegistrationManager, LockBusyException).
        """


@dataclass(frozen=True, slots=True)
class ZooKeeperRegistration:
    """Registration of a bookie with metadata in ZooKeeper; ``digest`` has the credentials, if it needs any."""

    zookeeper_port: int
    bookie_port: int
    digest: str | None = None
    ledgers_root: str = PULSARS_LEDGERS_ROOT

    def is_there(self, started_at: float) -> bool:
        """Return whether the bookie that was started then is registered, and takes connections."""
        # A session costs more than a connection, and there is one for each question.
        if not (listens(self.bookie_port) and zookeeper_serves(self.zookeeper_port)):
            return False
        try:
            with zookeeper_client(self.zookeeper_port) as client:
                stat = client.exists(_path(self.bookie_port, self.ledgers_root))
        except (kazoo.exceptions.KazooException, KazooTimeoutError):
            return False
        return stat is not None and stat.ctime / 1000 >= started_at

    def remove(self) -> None:
        """Remove what an earlier bookie left."""
        try:
            with (
                zookeeper_client(self.zookeeper_port, self.digest) as client,
                contextlib.suppress(kazoo.exceptions.NoNodeError),
            ):
                client.delete(_path(self.bookie_port, self.ledgers_root))
        except (kazoo.exceptions.KazooException, KazooTimeoutError) as error:
            raise ServerError(
                f"the bookie cannot start without ZooKeeper: start zookeeper first ({error!r})"
            ) from error


@dataclass(frozen=True, slots=True)
class OxiaRegistration:
    """Registration of a bookie with metadata in Oxia; any earlier one is removed before the bookie starts."""

    client: OxiaClient
    bookie_port: int

    def is_there(self, started_at: float) -> bool:
        """Return whether the bookie is registered; any registration was removed before it was started."""
        # Each question to Oxia is a process of its own.
        if not listens(self.bookie_port):
            return False
        try:
            return self.client.exists(_path(self.bookie_port))
        except ServerError:
            return False

    def remove(self) -> None:
        """Remove what an earlier bookie left."""
        self.client.delete(_path(self.bookie_port))


def _path(bookie_port: int, ledgers_root: str = PULSARS_LEDGERS_ROOT) -> str:
    return f"{ledgers_root}/available/{LOOPBACK}:{bookie_port}"
