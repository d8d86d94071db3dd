"""Phases of the stores that Pulsar may move, as their flags say."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass

from bookwarden.errors import FormatError, StoreError
from bookwarden.metastore.following.flag import read_flag
from bookwarden.metastore.interface import MetadataStore


@dataclass(frozen=True, slots=True)
class StorePhase:
    """Phase of one metadata store, by its flag; ``problem`` is the reason if it is not known."""

    store: str
    phase: str
    target: str | None = None
    problem: str = ""


def read_phases(stores: Mapping[str, Callable[[], MetadataStore]]) -> tuple[StorePhase, ...]:
    """Read the flag of each store by URL; they are opened for that."""
    return tuple(_phase_of(url, opened) for url, opened in stores.items())


def _phase_of(url: str, opened: Callable[[], MetadataStore]) -> StorePhase:
    try:
        with closing(opened()) as store:
            flag = read_flag(store)
    except (StoreError, FormatError) as error:
        return StorePhase(url, "unknown", problem=str(error))
    return StorePhase(url, "NOT_STARTED") if flag is None else StorePhase(url, flag.phase, flag.target_url)
