"""The begin of a migration: what comes to namespaces whose proof is over is seen while others are begun."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, cast

import pytest

from bookwarden.cluster_migration.green_resources import GreenResources
from bookwarden.cluster_migration.observing import MigrationSnapshot
from bookwarden.cluster_migration.starting import MigrationStarter
from bookwarden.cluster_migration.states import TopicState
from bookwarden.redirects import RedirectUrls
from unit.blue_green.scripted_blue import NAMESPACE, TOPIC, ScriptedBlue, cursor, node

OTHER = "shop/other"


class Blue(ScriptedBlue):
    """Blue with one topic, and a namespace that has none; its broker marks the topic when it is flagged."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.put_topic(node(terminated=False, migrated=False), app=cursor(5, 3))
        self.loaded.add(TOPIC)
        self.told[TOPIC] = {"subscriptions": {"app": {"msgBacklog": 0}}}
        self.marks = True
        self.flagged: set[str] = set()

    def settings(self) -> Mapping[str, str]:
        return {"clusterMigrationCheckDurationSeconds": "0.01"}

    def topics(self, namespace: str) -> list[str]:
        return [TOPIC] if namespace == NAMESPACE else []

    def is_migrated(self, namespace: str) -> bool:
        return namespace in self.flagged

    def set_migrated(self, namespace: str, migrated: bool) -> None:
        (self.flagged.add if migrated else self.flagged.discard)(namespace)
        if namespace == NAMESPACE:
            self.flag(migrated)
            path = "/managed-ledgers/shop/live/persistent/orders"
            found = self.store.get(path)
            assert found is not None
            self.store.put(path, node(terminated=self.marks, migrated=self.marks), found.version)


class Resources:
    """What is asked of green, in order."""

    def __init__(self, blue: Blue) -> None:
        self.done: list[Any] = []
        self._blue = blue

    def follow(self, namespaces: Collection[str]) -> None:
        self.done.append(("follow", tuple(namespaces), bool(self._blue.flagged & set(namespaces))))

    def complete(self, topics: Mapping[str, Collection[str]], *, redirects: bool) -> None:
        self.done.append(("complete", dict(topics), redirects))

    def complete_snapshot(self, look: MigrationSnapshot) -> None:
        self.done.append(("look", tuple(look.flagged), [seen.state for seen in look.topics]))


@pytest.fixture
def blue(tmp_path: Path) -> Blue:
    return Blue(tmp_path)


def starting_of(blue: Blue, resources: Resources) -> MigrationStarter:
    return MigrationStarter(
        blue,
        blue.observer,
        blue.record,
        RedirectUrls("pulsar://green:6650"),
        cast(GreenResources, resources),
    )


def test_what_comes_to_a_namespace_is_seen_until_the_last_one_is_proven(blue: Blue) -> None:
    resources = Resources(blue)
    starting = starting_of(blue, resources)
    assert starting.start(NAMESPACE).ok
    assert resources.done == [
        ("follow", (NAMESPACE,), False),
        ("complete", {TOPIC: ("app",)}, False),
        ("complete", {TOPIC: ("app",)}, False),
        ("look", (NAMESPACE,), [TopicState.DRAINED]),
    ]
    resources.done.clear()
    assert starting.start(OTHER).ok
    assert resources.done[-2:] == [("look", (OTHER,), []), ("look", (NAMESPACE,), [TopicState.DRAINED])]


def test_a_namespace_that_is_flagged_already_is_followed_too(blue: Blue) -> None:
    blue.set_migrated(NAMESPACE, True)
    resources = Resources(blue)
    assert starting_of(blue, resources).start(NAMESPACE).ok
    assert resources.done == [("follow", (NAMESPACE,), True), ("look", (NAMESPACE,), [TopicState.DRAINED])]


def test_one_that_is_taken_back_is_not_seen_any_more(blue: Blue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bookwarden.cluster_migration.starting._SPARE_S", 0.0)
    blue.marks = False
    resources = Resources(blue)
    starting = starting_of(blue, resources)
    started = starting.start(NAMESPACE)
    assert (started.took_back, started.left) == (True, (TOPIC,))
    assert NAMESPACE not in blue.flagged
    resources.done.clear()
    assert starting.start(OTHER).ok
    assert [done[1] for done in resources.done if done[0] == "look"] == [(OTHER,)]
