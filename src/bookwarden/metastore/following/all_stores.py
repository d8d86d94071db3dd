"""The migrations of all metadata stores of a process, taken together."""

from __future__ import annotations

from bookwarden.metastore.following.progress import Standing
from bookwarden.metastore.following.store import MigratingStore
from bookwarden.metastore.interface import MetadataStore


class Migrations:
    """Standings of this process with each store that Pulsar may move, by URL; other stores are passed over."""

    def __init__(self) -> None:
        self._stores: dict[str, MigratingStore] = {}

    def follow(self, url: str, store: MetadataStore) -> None:
        """Add a store, if it is one that Pulsar may move."""
        if isinstance(store, MigratingStore):
            self._stores[url] = store

    def look(self) -> None:
        """Read each flag afresh; raise StoreError where that is not possible."""
        for store in self._stores.values():
            store.look()

    def await_writes(self) -> None:
        """Wait, as a write would, until none of the stores is being moved; raises StoreMigratingError as one would."""
        for store in self._stores.values():
            store.await_writes()

    def standings(self) -> dict[str, Standing]:
        """Return where each store stands, as far as this process knows."""
        return {url: store.standing for url, store in self._stores.items()}

    def moved_to(self, url: str) -> str | None:
        """Return the store that the metadata of this one was moved to; None if it was not."""
        store = self._stores.get(url)
        return None if store is None else store.moved_to

    @property
    def stops(self) -> int:
        """The times that writes were stopped, in all stores: anything read before has to be read again."""
        return sum(standing.stops for standing in self.standings().values())

    @property
    def blocked(self) -> str | None:
        """A description of a store that is being moved, so that it takes no writes; None if there is none."""
        return next((_described(url, at) for url, at in self.standings().items() if at.blocked), None)


def _described(url: str, at: Standing) -> str:
    return f"the metadata of {url} is being moved to {at.target_url or 'another store'}: {at.phase}, {at.state.value}"
