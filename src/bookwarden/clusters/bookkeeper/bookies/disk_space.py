"""Asks bookies for the space on their disks, which changes nothing on them."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from bookwarden.clusters.bookkeeper.bookie_cluster import read_members
from bookwarden.clusters.bookkeeper.bookies.addresses import BookieAddresses
from bookwarden.clusters.bookkeeper.bookies.protocol import OK, ReadDiskSpace, status_name
from bookwarden.clusters.bookkeeper.bookies.requests import Answer, BookieOptions, Bookies
from bookwarden.disk_space import DiskSpace
from bookwarden.metastore.interface import MetadataStore


def read_disk_space_at(
    store: MetadataStore, root: str, bookie_ids: Iterable[str], *, options: BookieOptions
) -> dict[str, DiskSpace]:
    """Ask bookies of the cluster at this ledgers root."""
    with Bookies(BookieAddresses(store, root), options) as bookies:
        return read_disk_space(bookies, bookie_ids)


def read_writable_disk_space(
    of_new_ledgers: Callable[[], tuple[MetadataStore, str]], *, options: BookieOptions
) -> dict[str, DiskSpace]:
    """Ask the bookies that take new ledgers, at this store and ledgers root."""
    store, root = of_new_ledgers()
    return read_disk_space_at(store, root, sorted(read_members(store, root).writable), options=options)


def read_all_disk_space(
    places: Callable[[], Iterable[tuple[MetadataStore, str]]], *, options: BookieOptions
) -> dict[str, DiskSpace]:
    """Ask all registered bookies of the clusters at these ledgers roots, also read-only ones: a full one is that."""
    found: dict[str, DiskSpace] = {}
    for store, root in places():
        members = read_members(store, root)
        found |= read_disk_space_at(store, root, sorted(members.writable | members.read_only), options=options)
    return found


def read_disk_space(bookies: Bookies, bookie_ids: Iterable[str]) -> dict[str, DiskSpace]:
    """Ask all of them at once; the answers are by bookie id."""
    found: dict[str, DiskSpace] = {}
    with bookies.exchange():
        for bookie_id in bookie_ids:
            bookies.ask(bookie_id, ReadDiskSpace())
        while answers := bookies.answers():
            found.update((answer.bookie_id, _space(answer)) for answer in answers)
    return found


def _space(answer: Answer) -> DiskSpace:
    if answer.response is None:
        return DiskSpace(error=answer.failure)
    if answer.response.status != OK:
        return DiskSpace(error=f"it answered {status_name(answer.response.status)}")
    if answer.response.disk_space is None:
        return DiskSpace(error="it reports none")
    return DiskSpace(*answer.response.disk_space)
