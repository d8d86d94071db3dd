"""All stores of offloaded copies that the settings allow, behind one port.

A copy is looked up at the place recorded with its ledger; a place that the settings do not allow is a failure, never an
absent copy.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from bookwarden.clusters.offload.names import NameRange, StoredObject
from bookwarden.clusters.offload.requests import StoreSilentError
from bookwarden.errors import ConfigError, StoreError, StoreUnavailableError
from bookwarden.ledgers.offloaded_copies import (
    FILE_SYSTEM,
    CopyDeletion,
    CopyFate,
    CopyReading,
    OffloadedCopy,
    StoreLocation,
    UnreadableCopy,
)

_T = TypeVar("_T")


# A silent store is not asked again for these seconds, since a batch looks at its copies in many calls.
_SILENCE = 30.0


class _NoStoreError(ConfigError):
    """The settings have no store for a place."""


class CopyStore(Protocol):
    """The copies of one location; every call may raise StoreSilentError, and none for a single copy."""

    def read_many(self, copies: Sequence[OffloadedCopy]) -> list[CopyReading]:
        """Look at each copy, in the order asked."""

    def examine_many(self, copies: Sequence[OffloadedCopy]) -> list[CopyReading]:
        """Look at data and index of each copy, and read the index, in the order asked."""

    def delete_many(self, copies: Sequence[OffloadedCopy]) -> list[CopyDeletion]:
        """Delete all objects of each copy, in the order asked."""

    def pages(self, names: NameRange) -> Iterator[list[StoredObject]]:
        """Yield the objects of these names, and the unfinished uploads where the store lists them, page by page.

        Raises StoreError when they cannot be listed to the end.
        """

    def close(self) -> None:
        """Close the connections."""


@dataclass(frozen=True, slots=True)
class AllowedStore:
    """A place in which copies may be deleted, and the opener of its location.

    ``buckets`` empty allows every bucket of the endpoint; ``region`` empty allows every region.
    """

    driver: str
    endpoint: str
    buckets: Collection[str]
    region: str
    open: Callable[[StoreLocation], CopyStore]

    def allows(self, location: StoreLocation) -> bool:
        """Whether the location recorded with a ledger is in this place."""
        return (
            location.driver == self.driver
            and normal_endpoint(location.endpoint) == normal_endpoint(self.endpoint)
            and (not self.buckets or location.bucket in self.buckets)
            and (not self.region or not location.region or location.region == self.region)
        )

    def locations(self) -> tuple[StoreLocation, ...]:
        """Return the places that can be listed: each bucket, or the file system; none without named buckets."""
        if self.driver == FILE_SYSTEM:
            return (StoreLocation(self.driver, "", "", self.endpoint),)
        return tuple(StoreLocation(self.driver, bucket, self.region, self.endpoint) for bucket in self.buckets)


class OffloadStores:
    """Reads and deletes offloaded copies, each at its recorded place; one object per process.

    No call raises for a store that is silent or not set up. Without ``allowed`` every copy is kept.
    """

    def __init__(self, allowed: Sequence[AllowedStore] = (), *, clock: Callable[[], float] = time.monotonic) -> None:
        self._allowed = tuple(allowed)
        self._clock = clock
        self._opened: dict[StoreLocation, CopyStore] = {}
        # The reason of a store's silence, and the time until which it is not asked again.
        self._silent: dict[StoreLocation, tuple[str, float]] = {}

    def read_many(self, copies: Sequence[OffloadedCopy]) -> list[CopyReading]:
        """Check each copy, in the order asked; a copy that cannot be read is UnreadableCopy."""
        return self._each(copies, lambda store, some: store.read_many(some), _unread)

    def examine_many(self, copies: Sequence[OffloadedCopy]) -> list[CopyReading]:
        """Look at data and index of each copy, and read the index, in the order asked.

        A copy that cannot be read is UnreadableCopy.
        """
        return self._each(copies, lambda store, some: store.examine_many(some), _unread)

    def delete_many(self, copies: Sequence[OffloadedCopy]) -> list[CopyDeletion]:
        """Delete each copy with its index and the remains of its uploads, in the order asked.

        A store that cannot tell absent objects from deleted ones says deleted.
        """
        return self._each(
            copies, lambda store, some: store.delete_many(some), lambda error: CopyDeletion(CopyFate.FAILED, str(error))
        )

    def locations(self) -> tuple[StoreLocation, ...]:
        """List the places that can be listed, as the settings name them."""
        return tuple(dict.fromkeys(location for store in self._allowed for location in store.locations()))

    def unnamed(self) -> tuple[str, ...]:
        """Return the stores, by driver and endpoint, without a place that can be listed."""
        return tuple(f"{store.driver} {store.endpoint}".rstrip() for store in self._allowed if not store.locations())

    def pages(self, location: StoreLocation, names: NameRange) -> Iterator[list[StoredObject]]:
        """List the objects and unfinished uploads of a place, page by page; StoreError where it does not answer."""
        try:
            yield from self._store(location).pages(names)
        except ConfigError as error:
            raise StoreError(str(error)) from error
        except StoreSilentError as error:
            raise StoreUnavailableError(str(error)) from error

    def close(self) -> None:
        """Close the connections; a later call opens new ones."""
        while self._opened:
            _, store = self._opened.popitem()
            store.close()

    def _each(
        self,
        copies: Sequence[OffloadedCopy],
        ask: Callable[[CopyStore, Sequence[OffloadedCopy]], Sequence[_T]],
        refuse: Callable[[Exception], _T],
    ) -> list[_T]:
        by_location: dict[StoreLocation, list[OffloadedCopy]] = {}
        for copy in copies:
            by_location.setdefault(copy.location, []).append(copy)
        answers: dict[OffloadedCopy, _T] = {}
        for location, some in by_location.items():
            try:
                answers.update(zip(some, ask(self._store(location), some), strict=True))
            except ConfigError as error:
                answers.update(dict.fromkeys(some, refuse(error)))
            except StoreSilentError as error:
                self._silent.setdefault(location, (str(error), self._clock() + _SILENCE))
                answers.update(dict.fromkeys(some, refuse(error)))
        return [answers[copy] for copy in copies]

    def _store(self, location: StoreLocation) -> CopyStore:
        """Open the store of a location; ConfigError where there is none, StoreSilentError while it is silent."""
        reason, until = self._silent.get(location, ("", 0.0))
        if self._clock() < until:
            raise StoreSilentError(reason)
        self._silent.pop(location, None)
        if location not in self._opened:
            allowed = next((store for store in self._allowed if store.allows(location)), None)
            if allowed is None:
                raise _NoStoreError(self._why_not(location))
            self._opened[location] = allowed.open(location)
        return self._opened[location]

    def _why_not(self, location: StoreLocation) -> str:
        if any(store.driver == location.driver for store in self._allowed):
            return f"offload.stores has other buckets, regions or endpoints than recorded: {location}; the copy is kept"
        return f"offload.stores has no driver {location.driver!r} ({location}); the copy is kept"


def _unread(error: Exception) -> UnreadableCopy:
    return UnreadableCopy(str(error), has_store=not isinstance(error, _NoStoreError))


def normal_endpoint(endpoint: str) -> str:
    """Normalize an endpoint, so that two that mean the same are equal."""
    scheme, separator, rest = endpoint.strip().partition("://")
    host, slash, path = rest.partition("/")
    return f"{scheme.lower()}{separator}{host.lower()}{slash}{path}".rstrip("/") if separator else endpoint.rstrip("/")
