"""Asks bookies for the space on their disks, which changes nothing on them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from bookwarden.clusters.bookkeeper.bookies.addresses import BookieAddresses
from bookwarden.clusters.bookkeeper.bookies.protocol import OK, ReadDiskSpace, status_name
from bookwarden.clusters.bookkeeper.bookies.requests import Answer, BookieOptions, Bookies
from bookwarden.metastore.interface import MetadataStore


class Space(NamedTuple):
    """The bytes of a bookie's disks, and those free; None where it did not tell, for the reason in ``trouble``."""

    total: int | None
    free: int | None
    trouble: str


def read_disk_space_at(
    store: MetadataStore, root: str, bookie_ids: Iterable[str], *, options: BookieOptions
) -> dict[str, Space]:
    """Ask bookies of the cluster at this ledgers root."""
    with Bookies(BookieAddresses(store, root), options) as bookies:
        return read_disk_space(bookies, bookie_ids)


def read_disk_space(bookies: Bookies, bookie_ids: Iterable[str]) -> dict[str, Space]:
    """Ask all of them at once; the answers are by bookie id."""
    found: dict[str, Space] = {}
    with bookies.exchange():
        for bookie_id in bookie_ids:
            bookies.ask(bookie_id, ReadDiskSpace())
        while answers := bookies.answers():
            found.update((answer.bookie_id, _space(answer)) for answer in answers)
    return found


def _space(answer: Answer) -> Space:
    if answer.response is None:
        return Space(None, None, answer.failure)
    if answer.response.status != OK:
        return Space(None, None, f"it answered {status_name(answer.response.status)}")
    if answer.response.disk_space is None:
        return Space(None, None, "it does not tell")
    return Space(*answer.response.disk_space, "")
