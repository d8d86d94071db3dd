"""Writes that happen only while other nodes are as they were read, in the same transaction."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Protocol

from bookwarden.ledgers.metadata import Condition
from bookwarden.metastore.interface import MetadataStore


class WriteConditions(Protocol):
    """The conditions of every write, asked for before each request."""

    def current(self) -> Sequence[Condition]:
        """List the conditions; raise a StoreUnavailableError if nothing may be written now."""

    def failed(self, condition: Condition) -> None:
        """Take note that the store refused a write for this condition; it will ask for them again."""


class NoConditions:
    """Writes that depend on their own nodes alone."""

    def current(self) -> Sequence[Condition]:
        return ()

    def failed(self, condition: Condition) -> None:
        raise AssertionError(f"{condition} was not demanded")


class ConditionalStore(MetadataStore):
    """A store with sessions whose writes can have conditions."""

    @abstractmethod
    def under(self, conditions: WriteConditions) -> MetadataStore:
        """Return the same store, on the same session, with conditions for each of its writes."""

    @property
    @abstractmethod
    def sessions_lost(self) -> int:
        """The number of its sessions that ended, and with them their ephemeral nodes."""
