"""The end of a migration before its time: flags taken off, and a list of what was marked by then."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bookwarden.blue_green.observing import Look, Observer
from bookwarden.blue_green.ports import MigrationAdmin
from bookwarden.blue_green.record import ABORTED, MigrationRecord
from bookwarden.errors import PulsarError
from bookwarden.redirects import ClusterFlag


@dataclass(frozen=True, slots=True)
class Aborted:
    """The namespaces whose flag was taken off now, whether that of the cluster was, and what blue has after it."""

    taken_off: tuple[str, ...]
    cluster: bool
    look: Look


class Aborting:
    """Takes flags off; leaves URLs and topics as they are, and may be run again."""

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
        return Aborted(tuple(taken), whole, self._observer.look(namespaces, self._record.expected(namespaces)))

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
