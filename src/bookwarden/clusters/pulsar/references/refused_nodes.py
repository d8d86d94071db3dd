"""Reading of many nodes, some of which the store may refuse to show, as by ZooKeeper's access lists."""

from __future__ import annotations

from collections.abc import Sequence

from bookwarden.errors import StoreAccessError
from bookwarden.metastore.interface import MetadataStore, Versioned

# A refusal is about one node of a request, which is halved until each refused node is alone.
NodeValue = Versioned | StoreAccessError | None


def read_each(store: MetadataStore, paths: Sequence[str]) -> list[NodeValue]:
    """Read each path, in the order asked; None where there is no node, the error where the store refuses it."""
    try:
        return list(store.get_many(paths))
    except StoreAccessError as error:
        if len(paths) == 1:
            return [error]
    middle = len(paths) // 2
    return [*read_each(store, paths[:middle]), *read_each(store, paths[middle:])]
