"""A topic that a migration marked, made to accept messages again after an abort.

No API of brokers does that. The node of its managed ledger is changed, by the version that was read and while no broker
has the topic loaded: a broker that has it would go on with what it read before, and fence the topic at its next write.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from bookwarden.blue_green.record import REOPENED, REOPENING, MigrationRecord
from bookwarden.blue_green.scope import namespace_of
from bookwarden.blue_green.sides.cluster import ClusterSide
from bookwarden.blue_green.states import is_marked_by_migration
from bookwarden.errors import LostRaceError, NotFoundError, OutcomeUnknownError, RefusedError
from bookwarden.ledgers.managed_ledger import Position
from bookwarden.ledgers.names import TopicName, decode_local_name
from bookwarden.redirects import MIGRATED_PROPERTY
from bookwarden.wire.managed_ledger import decode_managed_ledger, without_termination

_ATTEMPTS: Final = 20
_PAUSE_S: Final = 0.5


@dataclass(frozen=True, slots=True)
class Reopened:
    """The result for one topic; ``done`` is False where it was open already, or only planned.

    ``subscriptions`` are those that are made again.
    """

    topic: str
    done: bool
    said: str
    subscriptions: tuple[str, ...] = ()


class Reopening:
    """Reopens topics of blue, and puts back what it changed while nothing else has changed it since."""

    def __init__(
        self, blue: ClusterSide, record: MigrationRecord, *, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._blue = blue
        self._nodes = blue.nodes
        self._admin = blue.admin
        self._record = record
        self._sleep = sleep

    def plan(self, topic: str) -> Reopened:
        """Check that it can be reopened, and change nothing; RefusedError or NotFoundError where it cannot."""
        name = TopicName.parse(topic)
        missing = () if self._is_done(name) else self._missing(name)
        again = f"; subscriptions that blue deleted are made again: {', '.join(missing)}" if missing else ""
        if self._check(name) is None:
            return Reopened(topic, False, f"accepts messages already{again}", missing)
        return Reopened(topic, False, f"would be unloaded, and its node changed{again}", missing)

    def reopen(self, topic: str) -> Reopened:
        """Have it accept messages; may be killed at any moment and run again.

        It is unloaded, and the change is refused while a broker has it loaded again. After the change it is unloaded
        once more where it is loaded: whoever loaded it in between has read the node as it was. Subscriptions that blue
        deleted once they were drained are made again, behind what they had read; by a reopening that was completed
        none is, whoever deleted it since.
        """
        name = TopicName.parse(topic)
        if self._is_done(name):
            return Reopened(topic, False, "accepts messages already")
        for _ in range(_ATTEMPTS):
            raw = self._check(name)
            if raw is None:
                # Perhaps by an earlier run that was killed before it had done the rest.
                return self._completed(name, "accepts messages already", False)
            self._admin.unload(topic)
            if topic not in self._blue.loaded_topics() and self._change(name, *raw):
                return self._completed(name, "reopened", True)
            self._sleep(_PAUSE_S)
        raise RefusedError(
            f"a broker loads {topic} again each time it is unloaded: its clients keep it. Stop its producers and "
            "consumers, at least those that try all the time, and run this again; nothing was changed"
        )

    def plan_back(self, topic: str) -> Reopened:
        """Check that the newest reopening can be undone, and change nothing; as `put_back` otherwise."""
        if self._restorable(topic) is None:
            return Reopened(topic, False, "is as it was before it was reopened")
        return Reopened(topic, False, "would be put back: it would accept no message")

    def put_back(self, topic: str) -> Reopened:
        """Undo the newest reopening, if the node is still as that left it; RefusedError where it is not."""
        found = self._restorable(topic)
        if found is None:
            return Reopened(topic, False, "is as it was before it was reopened")
        self._nodes.replace_value(*found)
        return Reopened(topic, True, "put back: it accepts no message")

    def _restorable(self, topic: str) -> tuple[str, bytes, int] | None:
        """Return the managed ledger, the value from before and the version now; None where it is as it was."""
        name = TopicName.parse(topic)
        event = self._record.reopening(str(name))
        if event is None:
            raise NotFoundError(f"no reopening of {topic} is recorded in this folder")
        before, after = (base64.b64decode(event[key]) for key in ("before", "after"))
        now = self._nodes.read_value(name.managed_ledger)
        if now is not None and now[0] == before:
            return None
        if str(name) in self._blue.loaded_topics():
            raise RefusedError(f"a broker has {topic} loaded, and so it is in use: it stays open")
        if now is None or now[0] != after:
            raise RefusedError(
                f"{topic} changed since it was reopened, so it has been in use: to terminate it now would lose "
                "nothing, but nobody asked for that; start its migration again instead"
            )
        return name.managed_ledger, before, now[1]

    def _completed(self, name: TopicName, said: str, done: bool) -> Reopened:
        if str(name) in self._blue.loaded_topics():
            self._admin.unload(str(name))
        made = self._missing(name)
        for subscription in made:
            self._admin.create_subscription(str(name), subscription, self._end_of(name))
        self._record.append(REOPENED, topic=str(name), namespace=namespace_of(str(name)))
        return Reopened(str(name), done, f"{said}; made again: {', '.join(made)}" if made else said, made)

    def _is_done(self, name: TopicName) -> bool:
        """Return whether nothing is left of the newest reopening."""
        return self._check(name) is None and self._record.is_reopened(str(name))

    def _missing(self, name: TopicName) -> tuple[str, ...]:
        """List the subscriptions that it had when its migration began, and has not any more."""
        expected = self._record.expected([namespace_of(str(name))]).get(str(name))
        nodes = self._nodes.topic(name.managed_ledger)
        if expected is None or nodes is None:
            return ()
        there = set(map(decode_local_name, nodes.cursors))
        return tuple(one for one in expected.subscriptions if one not in there)

    def _end_of(self, name: TopicName) -> Position:
        """Return the last entry that the topic had when it was marked: all before it was read."""
        event = self._record.reopening(str(name))
        info = None if event is None else decode_managed_ledger(base64.b64decode(event["before"]))
        if info is None or info.terminated is None:
            raise NotFoundError(
                f"no reopening of {name} is recorded in this folder: its subscriptions are not made again"
            )
        return info.terminated

    def _check(self, name: TopicName) -> tuple[bytes, int] | None:
        """Return the node to be changed and its version, None where nothing has to be; raise where it must not be."""
        namespace = namespace_of(str(name))
        if self._nodes.is_cluster_flagged(self._blue.cluster) or self._nodes.is_flagged(namespace):
            raise RefusedError(f"{namespace} is flagged, and would mark {name} again: `cluster-migration abort` first")
        read = self._nodes.read_value(name.managed_ledger)
        if read is None:
            raise NotFoundError(f"blue has no topic {name}: for a partitioned one name each partition")
        info = decode_managed_ledger(read[0])
        if info.terminated is None:
            return None
        if not is_marked_by_migration(info):
            raise RefusedError(f"{name} was terminated by its user, and not by a migration: it stays as it is")
        return read

    def _change(self, name: TopicName, before: bytes, version: int) -> bool:
        after = without_termination(before, MIGRATED_PROPERTY)
        texts = {key: base64.b64encode(value).decode() for key, value in (("before", before), ("after", after))}
        self._record.append(REOPENING, topic=str(name), namespace=namespace_of(str(name)), version=version, **texts)
        try:
            self._nodes.replace_value(name.managed_ledger, after, version)
        except LostRaceError:
            return False
        except OutcomeUnknownError:
            read = self._nodes.read_value(name.managed_ledger)
            return read is not None and read[0] == after
        return True
