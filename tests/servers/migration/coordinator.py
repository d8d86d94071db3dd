"""Pulsar's coordinator of a migration, in a test's hand: it does each of its steps when it is told to."""

from __future__ import annotations

import json
from contextlib import suppress

from bookwarden.errors import LostRaceError
from bookwarden.metastore.following.flag import MIGRATION_PATH, PARTICIPANTS_PATH
from bookwarden.metastore.interface import MetadataStore


class Coordinator:
    """What Pulsar's coordinator does in the source, step by step."""

    def __init__(self, source: MetadataStore, target_url: str) -> None:
        self.source = source
        self._target_url = target_url

    def offer(self) -> None:
        """Make what the first broker of Pulsar 4.2 makes."""
        with suppress(LostRaceError):
            self.source.create(PARTICIPANTS_PATH, b"", make_parents=True)

    def set_phase(self, phase: str) -> None:
        value = json.dumps({"phase": phase, "targetUrl": self._target_url}).encode()
        node = self.source.get(MIGRATION_PATH)
        if node is None:
            self.source.create(MIGRATION_PATH, value)
        else:
            self.source.put(MIGRATION_PATH, value, node.version)

    def remove_flag(self) -> None:
        node = self.source.get(MIGRATION_PATH)
        if node is not None:
            self.source.delete_many([(MIGRATION_PATH, node.version)])

    def participants(self) -> list[str]:
        self.source.sync()
        return self.source.list_children(PARTICIPANTS_PATH)


def copy_all(source: MetadataStore, target: MetadataStore, path: str = "") -> None:
    """Copy every node below the path that is not ephemeral, the flag too."""
    names = source.list_children(path or "/")
    children = [f"{path}/{name}" for name in names]
    for child, node in zip(children, source.get_many(children), strict=True):
        if node is None or node.ephemeral:
            continue
        with suppress(LostRaceError):
            target.create(child, node.value)
        if node.children != 0:
            copy_all(source, target, child)
