"""A former bookie cluster emptied by the commands of an operator."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from bookwarden.bookie_clusters import unregistering
from bookwarden.bookie_clusters.moving.build import MORE_LATER
from servers.switching.site import SwitchingSite

_PASSES = 4


def run(site: SwitchingSite, home: Path, *words: str, exit_codes: tuple[int, ...] = (0,)) -> dict[str, Any]:
    """Run a command that has to end so; return what it prints. The settings name the cluster that is active."""
    active = site.servers.clusters[site.registry().active]
    uses = ("--set", f"metadata_store.bookkeeper_url={active.metadata_service_uri}")
    found: dict[str, Any] = site.run(home, *uses, *words, exit_codes=exit_codes)
    return found


def drain(
    site: SwitchingSite, home: Path, left: str, *words: str, exit_codes: tuple[int, ...] = (0,)
) -> dict[str, Any]:
    """Run a drain of this cluster."""
    return run(site, home, "bookie-clusters", "drain", "--from", left, *words, exit_codes=exit_codes)


@contextmanager
def soon_after_a_switch() -> Iterator[None]:
    """Have the block wait no minute for what was begun before a switch: a unit test does."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(unregistering, "_CREATE_SECONDS", 1.0)
        yield


def empty_and_unregister(site: SwitchingSite, home: Path, left: str, sets: Sequence[str] = ()) -> None:
    """Drain this cluster and sweep, with settings, until nothing is there and it is unregistered.

    Does not wait for the window's end.
    """
    stays = site.registry().clusters.keys() - {left}
    with soon_after_a_switch():
        for _ in range(_PASSES):
            told = drain(site, home, left, "--yes", "--force", "--per-second", "20", exit_codes=(0, MORE_LATER))
            if left not in site.registry().clusters:
                break
            run(site, home, *sets, "sweep", "--once")
    assert {cluster["name"] for cluster in told["clusters"]} == stays
    assert not site.places().by_cluster[left]
