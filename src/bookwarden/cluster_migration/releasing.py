"""Topics that blue has loaded though nothing is left to read in them: unloaded, so that clients are sent to green.

A write that was under way when its topic was marked may never be answered: the broker then holds the topic fenced for
ever, and its producers ask in vain (ManagedLedgerImpl.ledgerClosed does nothing in the state Terminated; seen on 4.0.8
and 4.2.4). And brokers delete a subscription that was drained: a consumer that is created again with blue's URL, from
the earliest message on, would create it again as well, and read the whole topic again, as long as the topic is loaded;
where blue creates no subscription for a consumer it would get that error, and not the redirect to green.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from bookwarden.cluster_migration.observing import MigrationObserver
from bookwarden.cluster_migration.record import RELEASING, MigrationRecord
from bookwarden.cluster_migration.scope import holds_messages, namespace_of
from bookwarden.cluster_migration.sides.cluster import ClusterSide
from bookwarden.cluster_migration.states import CLIENTS_LEFT, ExpectedTopic, TopicState, TopicStatus
from bookwarden.errors import NotFoundError, PulsarError, PulsarTimeoutError, RefusedError, StoreError

# Each snapshot asks every broker for all that it has loaded.
_LOOKED_AT_ONCE: Final = 50
_ERRORS: Final = (RefusedError, PulsarError, NotFoundError, StoreError)
# One that is redirected needs a second or two, one that has to find out by itself some more.
_CONSUMERS_COME_S: Final = 10.0
# Each try costs half a minute, in which the other topics are not looked at.
_TRIED_AGAIN_AFTER_S: Final = 300.0


@dataclass(frozen=True, slots=True)
class ReleasePlan:
    """Topics that can be released now, and those that have to drain first.

    ``free`` are those of which green does not see every client, ``drained`` those whose clients are all on green;
    ``draining`` are those of which producers are missing while something is left to read.
    """

    free: tuple[str, ...]
    draining: tuple[str, ...]
    drained: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ReleaseResult:
    """The result of a release: the topics that are named in none of these were unloaded."""

    refused: Mapping[str, str] = field(default_factory=dict)  #: Why it was not, by topic, where another time may do.
    timed_out: str = ""  #: The topic whose broker gave no answer; "" where each did.
    not_tried: tuple[str, ...] = ()  #: Those behind it.


class TopicReleaser:
    """Unloads topics of blue that are marked, and have nothing left to read."""

    def __init__(self, blue: ClusterSide, observer: MigrationObserver, record: MigrationRecord) -> None:
        self._observer = observer
        self._admin = blue.admin
        self._record = record

    def plan(self, namespaces: Sequence[str], expected: Mapping[str, ExpectedTopic]) -> ReleasePlan:
        """List the topics that could be released, and those that cannot yet; changes nothing."""
        return release_plan(self._observer.snapshot(namespaces, expected).topics)

    def release_all(self, topics: Sequence[str]) -> ReleaseResult:
        """Release these topics, after another snapshot; the first whose broker gives no answer in time ends it.

        None is released of which something is left that no client could reach then.
        """
        refused: dict[str, str] = {}
        for begin in range(0, len(topics), _LOOKED_AT_ONCE):
            some = topics[begin : begin + _LOOKED_AT_ONCE]
            try:
                seen = self._observer.status_of(some)
            except _ERRORS as error:
                refused |= {topic: f"{topic}: {error}" for topic in some}
                continue
            for place, one in enumerate(seen, begin):
                try:
                    self._release(one)
                except PulsarTimeoutError:
                    return ReleaseResult(refused, one.topic, tuple(topics[place + 1 :]))
                except _ERRORS as error:
                    refused[one.topic] = str(error)
        return ReleaseResult(refused)

    def _release(self, seen: TopicStatus) -> None:
        topic = seen.topic
        if seen.error:
            raise RefusedError(seen.error)
        if not (seen.flagged and seen.loaded and seen.is_marked and seen.is_read):
            raise RefusedError(
                f"{topic} is {seen.state.value} with {seen.unread} entries unread, which no consumer could read "
                "once it is unloaded: let it drain first"
            )
        # Right before it: a consumer that comes in between creates its subscription again, and that is stranded then.
        self._refuse_unread(topic)
        self._record.append(RELEASING, namespace=namespace_of(topic), topic=topic)
        self._admin.unload(topic)

    def _refuse_unread(self, topic: str) -> None:
        """Raise RefusedError where a reader is behind: no node names those, and they would go to green at once."""
        for name, found in (self._admin.stats(topic).get("subscriptions") or {}).items():
            # Compaction is the broker's, which reads on whenever it compacts: no consumer of it can come.
            if holds_messages(name) and found.get("msgBacklog") != 0:
                raise RefusedError(
                    f"{name} of {topic} has {found.get('msgBacklog', 'an unknown number of')} messages left, which it "
                    "could not read once it is unloaded: let it read them first, or stop it"
                )


class ContinuousReleaser:
    """Releases what each snapshot of a watch finds drained.

    Where producers are missing on green it does so once two snapshots agree, where consumers are once they had time to
    come: the C++ client seems to hang more often if its topic is unloaded while it is on its way.
    """

    def __init__(self, releasing: TopicReleaser, clock: Callable[[], float] = time.monotonic) -> None:
        self._releasing = releasing
        self._clock = clock
        #: When each topic was first seen to lack clients, and has lacked some since.
        self._lacking: dict[str, float] = {}
        self._refused: set[str] = set()
        self._timed_out: dict[str, float] = {}

    @property
    def timed_out(self) -> tuple[str, ...]:
        """The topics whose broker gave no answer, and which are not tried again yet."""
        return tuple(self._timed_out)

    def take(self, topics: Sequence[TopicStatus], *, at_most: int | None = None) -> list[str]:
        """Release these topics as far as they are drained; return why some were not, once for each."""
        now = self._clock()
        lacking = [seen for seen in topics if seen.loaded and seen.state in CLIENTS_LEFT]
        due = [seen.topic for seen in lacking if self._is_due(seen, now)]
        self._lacking = {seen.topic: self._lacking.get(seen.topic, now) for seen in lacking}
        self._timed_out = {topic: at for topic, at in self._timed_out.items() if now - at < _TRIED_AGAIN_AFTER_S}
        wanted = [topic for topic in (*due, *release_plan(topics).drained) if topic not in self._timed_out]
        # What was refused comes last, or it would keep the others waiting for ever.
        wanted.sort(key=self._refused.__contains__)
        result = self._releasing.release_all(wanted[:at_most])
        if result.timed_out:
            self._timed_out[result.timed_out] = now
        refused = [reason for topic, reason in result.refused.items() if topic not in self._refused]
        self._refused |= result.refused.keys()
        return refused

    def _is_due(self, seen: TopicStatus, now: float) -> bool:
        since = self._lacking.get(seen.topic)
        if since is None:
            return False
        return seen.state is TopicState.PRODUCERS_LEFT or now - since >= _CONSUMERS_COME_S


def release_plan(topics: Sequence[TopicStatus]) -> ReleasePlan:
    """Part topics by whether they could be released: what is loaded, and has nothing left to read."""
    loaded = [seen for seen in topics if seen.loaded]
    free = tuple(seen.topic for seen in loaded if seen.state in CLIENTS_LEFT)
    drained = tuple(seen.topic for seen in loaded if seen.state is TopicState.DRAINED)
    fenced = (seen for seen in topics if seen.green_lacks_producer and seen.state is not TopicState.PRODUCERS_LEFT)
    return ReleasePlan(free, tuple(seen.topic for seen in fenced), drained)
