"""The end of a migration before its time: flags taken off, and a list of what was marked by then.

A topic whose producers came to no side may be fenced: its broker lets nobody in, consumers neither. It is unloaded, so
that what it has can be read; without a flag whoever asks has it loaded again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bookwarden.blue_green.observing import Look, Observer
from bookwarden.blue_green.ports import MigrationAdmin
from bookwarden.blue_green.record import ABORTED, MigrationRecord
from bookwarden.blue_green.states import TopicState
from bookwarden.errors import BookwardenError, PulsarError
from bookwarden.redirects import ClusterFlag


@dataclass(frozen=True, slots=True)
class Aborted:
    """The result; what is on neither side may be held by a fence, which unloading ends."""

    taken_off: tuple[str, ...]  #: Namespaces whose flag was taken off now.
    cluster: bool  #: The flag of the cluster was, too.
    look: Look  #: Of blue behind it.
    on_no_side: tuple[str, ...] = ()  #: Marked topics whose producers green has not seen.
    unloaded: tuple[str, ...] = ()  #: Those of them that a broker had, and was told to close.
    troubles: tuple[str, ...] = ()  #: Why one could not be.


class Aborting:
    """Takes flags off and ends fences; leaves URLs and marks as they are, and may be run again."""

    def __init__(
        self, cluster: Callable[[], str], admin: MigrationAdmin, observer: Observer, record: MigrationRecord
    ) -> None:
        self._cluster = cluster
        self._admin = admin
        self._observer = observer
        self._record = record

    def abort(self, namespaces: Sequence[str]) -> Aborted:
        """Take the flags of these namespaces off, and the cluster's if it is set; read each back."""
        whole = self._abort_cluster()
        taken = [name for name in namespaces if self._abort_one(name)]
        expected = self._record.expected(namespaces)
        look = self._observer.look(namespaces, expected)
        lacking = self._observer.without_producers(look.of_state(TopicState.ROLLED_BACK), expected)
        unloaded, troubles = self._unload([seen.topic for seen in lacking if seen.loaded is not False])
        names = tuple(seen.topic for seen in lacking)
        return Aborted(tuple(taken), whole, look, names, tuple(unloaded), tuple(troubles))

    def _unload(self, topics: Sequence[str]) -> tuple[list[str], list[str]]:
        done, troubles = list[str](), list[str]()
        for topic in topics:
            try:
                self._admin.unload(topic)
            except BookwardenError as error:
                troubles.append(f"{topic} was not unloaded, and may be fenced: {error}; run abort again")
            else:
                done.append(topic)
        return done, troubles

    def _abort_cluster(self) -> bool:
        cluster = self._cluster()
        flag = self._admin.read_flag(cluster)
        if flag is None or not flag.migrated:
            return False
        off = ClusterFlag(False, flag.urls)
        self._admin.write_flag(cluster, off)
        if self._admin.read_flag(cluster) != off:
            raise PulsarError(
                f"the flag of cluster {cluster} was taken off, and its broker still has it: run abort again"
            )
        self._record.append("cluster flag off", cluster=cluster)
        return True

    def _abort_one(self, namespace: str) -> bool:
        was = self._admin.is_migrated(namespace)
        if was:
            self._admin.set_migrated(namespace, False)
            if self._admin.is_migrated(namespace):
                raise PulsarError(
                    f"the flag of {namespace} was taken off, and its broker still has it: run abort again"
                )
        self._record.append(ABORTED, namespace=namespace, by="abort", was_flagged=was)
        return was
