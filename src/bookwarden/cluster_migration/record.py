"""The record of migrations: what was there when each began, and every change to flags and nodes, in one file.

A line of JSON each, on disk before what it announces is done. A line that a crash cut short is the last one, and says
nothing: what it announced was not begun.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from bookwarden.cluster_migration.scope import namespace_of
from bookwarden.cluster_migration.states import ExpectedTopic
from bookwarden.durable import sync
from bookwarden.errors import FileError, FormatError, PulsarError

FILE_NAME: Final = "cluster-migration.jsonl"

STARTING: Final = "starting"
MARKED: Final = "marked"
ABORTED: Final = "aborted"
SUBSCRIBED_AGAIN: Final = "subscribed again"
REOPENING: Final = "reopening"
REOPENED: Final = "reopened"
RELEASING: Final = "releasing"
REMOVING: Final = "removing"
FINISHED: Final = "finished"
#: A subscription was made on green; one was there behind some entries; such a one was reset to the earliest.
MADE: Final = "made on green"
LATE: Final = "late subscription"
#: Blue was followed for a time: each subscription that it got, though it was gone again at once.
FOLLOWED: Final = "followed blue"
#: Clients that green has seen; topics of blue that had some connected.
ARRIVED: Final = "arrived on green"
CONNECTED: Final = "connected to blue"
RESET: Final = "late subscription reset"
# Later than all.
_OPEN_MS: Final = 1 << 62


class MigrationRecord:
    """The record in one folder, which is made when something is first written."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE_NAME

    def append(self, event: str, **facts: Any) -> None:
        """Write an event with its time, and wait until it is on disk; FileError where it cannot be."""
        try:
            self._append(event, facts)
        except OSError as error:
            raise FileError(
                f"the record {self.path} of the migration cannot be written: {error.strerror}; make room, or name "
                "another folder with cluster_migration.journal, and run it again"
            ) from error

    def _append(self, event: str, facts: Mapping[str, Any]) -> None:
        line = json.dumps({"event": event, "at_ms": int(time.time() * 1000), **facts}, ensure_ascii=False)
        fresh = not self.path.exists()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("ab+") as file:
            torn = file.tell() > 0 and not self._ends_with_a_line()
            file.write((b"\n" if torn else b"") + line.encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        if fresh:
            sync(self.path.parent)

    def events(self) -> Iterator[Mapping[str, Any]]:
        """Read all events, oldest first; raise FormatError for a line that is none and was not cut short."""
        if not self.path.exists():
            return
        lines = self.path.read_bytes().split(b"\n")
        for number, line in enumerate(lines, 1):
            if not line:
                continue
            try:
                found = json.loads(line)
            except ValueError as error:
                if not line.startswith(b"{") or line.endswith(b"}"):
                    raise FormatError(f"{self.path}, line {number}: no event of a migration") from error
                continue
            yield found

    def starting(
        self, namespace: str, expected: Iterable[ExpectedTopic], accepted: Iterable[str] = (), cluster: str = ""
    ) -> None:
        """Record that a namespace's flag is about to be set, what was there, and what was accepted by name."""
        topics = {
            one.topic: {
                "subscriptions": list(one.subscriptions),
                "had_producer": one.had_producer,
                "read_by": list(one.read_by),
            }
            for one in expected
        }
        self.append(STARTING, namespace=namespace, accepted=list(accepted), topics=topics, cluster=cluster)

    def marked(self, namespace: str, entries: Mapping[str, int]) -> None:
        """Record that each topic was proven to be marked, and how many entries it has."""
        self.append(MARKED, namespace=namespace, entries=dict(entries))

    def expected(self, namespaces: Iterable[str]) -> dict[str, ExpectedTopic]:
        """Return what was there when the newest migrations of these namespaces began, by topic.

        An abort does not end one: what had moved by then is on green all the same. What begins after one was finished
        is a new one.
        """
        wanted, finished = set(namespaces), set[str]()
        found: dict[str, dict[str, ExpectedTopic]] = {}
        for event in self.events():
            namespace = event.get("namespace")
            if namespace not in wanted:
                continue
            if event["event"] == STARTING:
                if namespace in finished:
                    found.pop(namespace, None)
                    finished.discard(namespace)
                earlier = found.setdefault(namespace, {})
                for topic, facts in event["topics"].items():
                    earlier[topic] = _joined(earlier.get(topic), topic, facts)
            elif event["event"] == MARKED:
                known = found.setdefault(namespace, {})
                for topic, entries in event["entries"].items():
                    known[topic] = replace(known.get(topic, ExpectedTopic(topic)), entries=int(entries))
            elif event["event"] == MADE or (event["event"] == LATE and event.get("on_blue", True)):
                known = found.setdefault(namespace, {})
                one = known.get(event["topic"], ExpectedTopic(event["topic"]))
                names = sorted({*one.subscriptions, event["subscription"]})
                known[one.topic] = replace(one, subscriptions=tuple(names))
            elif event["event"] == ARRIVED:
                known = found.setdefault(namespace, {})
                for topic, name in event["clients"]:
                    if topic in known:
                        known[topic] = _without(known[topic], name)
            elif event["event"] == FINISHED:
                finished.add(namespace)
        return {topic: one for topics in found.values() for topic, one in topics.items()}

    def cluster(self, ask: Callable[[], str]) -> str:
        """Return blue's name, by a broker or, while none reports it, as it was when a migration began last.

        Raises the brokers' error where it is not recorded.
        """
        try:
            return ask()
        except PulsarError:
            recorded = next((str(one["cluster"]) for one in reversed(list(self.events())) if one.get("cluster")), "")
            if not recorded:
                raise
            return recorded

    def arrived(self, clients: Iterable[tuple[str, str]]) -> None:
        """Record which clients green has seen: by topic their subscriptions, "" for its producers."""
        by_namespace: dict[str, list[tuple[str, str]]] = {}
        for topic, name in sorted(clients):
            by_namespace.setdefault(namespace_of(topic), []).append((topic, name))
        for namespace, found in by_namespace.items():
            self.append(ARRIVED, namespace=namespace, clients=found)

    def connected(self, namespaces: Iterable[str], since_ms: int) -> list[str]:
        """List the topics of which clients were connected to blue at a snapshot that was recorded since a moment."""
        seen = (one for one in self._events_of(namespaces, CONNECTED) if one["at_ms"] >= since_ms)
        return sorted({topic for one in seen for topic in one["topics"]})

    def late(self, namespaces: Iterable[str]) -> tuple[tuple[str, str, int], ...]:
        """Return the subscriptions that came too late to these namespaces: topic, name, entries of green before it.

        One that was reset has all of them, and one of a migration that was finished was accepted.
        """
        found: dict[tuple[str, str], int] = {}
        for event in self._events_of(namespaces, LATE, RESET, FINISHED):
            if event["event"] == LATE:
                found[event["topic"], event["subscription"]] = int(event["entries"])
            elif event["event"] == RESET:
                found.pop((event["topic"], event["subscription"]), None)
            else:
                found = {key: entries for key, entries in found.items() if namespace_of(key[0]) != event["namespace"]}
        return tuple((topic, name, entries) for (topic, name), entries in sorted(found.items()))

    def reported(self, namespaces: Iterable[str]) -> frozenset[tuple[str, str]]:
        """Return all subscriptions that were ever reported as late, by topic and name."""
        return frozenset((one["topic"], one["subscription"]) for one in self._events_of(namespaces, LATE))

    def unfollowed(self, since_ms: Mapping[str, int | None]) -> dict[str, list[tuple[int, int]]]:
        """Return, by namespace, when its flag was set while it is not known that blue was followed.

        ``since_ms`` is by namespace from when on the caller follows it, None where it does not. Times are from one
        moment to another, in ms since the epoch, and none is before the begin of the newest migration.
        """
        flagged: dict[str, list[list[int]]] = {name: [] for name in since_ms}
        followed = {name: [] if since is None else [(since, _OPEN_MS)] for name, since in since_ms.items()}
        for event in self.events():
            name, kind = event.get("namespace"), event["event"]
            if name not in flagged:
                continue
            times = flagged[name]
            if kind == FOLLOWED:
                followed[name].append((event["since_ms"], event["until_ms"]))
            elif kind == FINISHED:
                times.clear()
            elif kind in (STARTING, ABORTED):
                if times:
                    times[-1][1] = min(times[-1][1], event["at_ms"])
                if kind == STARTING:
                    times.append([event["at_ms"], _OPEN_MS])
        return {
            name: [left for since, until in times for left in _without_times(since, until, followed[name])]
            for name, times in flagged.items()
        }

    def accepted(self, namespaces: Iterable[str]) -> frozenset[str]:
        """Return the cases that were accepted by name when the migration of any of these namespaces began."""
        starts = self._events_of(namespaces, STARTING)
        return frozenset(name for one in starts for name in one.get("accepted", ()))

    def begun(self) -> list[str]:
        """List the namespaces whose migration was begun, and is neither aborted nor finished."""
        kinds = (STARTING, ABORTED, FINISHED)
        found = {event["namespace"]: event["event"] for event in self.events() if event["event"] in kinds}
        return [namespace for namespace, newest in found.items() if newest == STARTING]

    def has_moved(self, namespace: str) -> bool:
        """Return whether clients may have been sent to green: a migration was begun that is not finished."""
        return self._newest((STARTING, FINISHED), namespace=namespace).get("event") == STARTING

    def is_subscribed_again(self, namespace: str) -> bool:
        """Return whether the subscriptions that blue had deleted were made again since the namespace's newest start."""
        return self._newest((STARTING, SUBSCRIBED_AGAIN), namespace=namespace).get("event") == SUBSCRIBED_AGAIN

    def reopening(self, topic: str) -> Mapping[str, Any] | None:
        """Return the newest event of a topic that was reopened; None if there is none."""
        return self._newest((REOPENING,), topic=topic) or None

    def is_reopened(self, topic: str) -> bool:
        """Return whether the newest reopening of a topic was completed, with its subscriptions."""
        return self._newest((REOPENING, REOPENED), topic=topic).get("event") == REOPENED

    def _events_of(self, namespaces: Iterable[str], *kinds: str) -> Iterator[Mapping[str, Any]]:
        """Return the events of these kinds about these namespaces, oldest first."""
        wanted = set(namespaces)
        return (event for event in self.events() if event["event"] in kinds and event["namespace"] in wanted)

    def _newest(self, kinds: Collection[str], **about: str) -> Mapping[str, Any]:
        """Return the newest event of these kinds with these facts; an empty one where there is none."""
        found: Mapping[str, Any] = {}
        for event in self.events():
            if event["event"] in kinds and all(event.get(name) == value for name, value in about.items()):
                found = event
        return found

    def _ends_with_a_line(self) -> bool:
        with self.path.open("rb") as file:
            file.seek(-1, os.SEEK_END)
            return file.read(1) == b"\n"


def _without_times(since: int, until: int, taken: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yield what is left of a time without others."""
    for begin, end in sorted(taken):
        if begin > since:
            yield since, min(begin, until)
        since = max(since, end)
        if since >= until:
            return
    yield since, until


def _without(one: ExpectedTopic, client: str) -> ExpectedTopic:
    """Return what is still to come to green of a topic's clients, once it has seen these."""
    if not client:
        return replace(one, had_producer=False)
    return replace(one, read_by=tuple(name for name in one.read_by if name != client))


def _joined(earlier: ExpectedTopic | None, topic: str, facts: Mapping[str, Any]) -> ExpectedTopic:
    """Add what a later start saw: it may have found less, since some had moved already."""
    subscriptions = set(facts["subscriptions"])
    if earlier is not None:
        subscriptions |= set(earlier.subscriptions)
    entries = None if earlier is None else earlier.entries
    return ExpectedTopic(
        topic, tuple(sorted(subscriptions)), bool(facts["had_producer"]), tuple(facts.get("read_by", ())), entries
    )
