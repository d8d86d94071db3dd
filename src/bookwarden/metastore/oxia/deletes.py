"""Versioned deletes on the write streams of an Oxia namespace, with a result for each key whatever happens."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from bookwarden.errors import StoreError, StoreUnavailableError
from bookwarden.ledgers.metadata import DeleteResult
from bookwarden.metastore.deadline import Deadline
from bookwarden.metastore.doomed_nodes import BatchDelete, Target
from bookwarden.metastore.interface import Versioned
from bookwarden.metastore.oxia.channels import ServerLost
from bookwarden.metastore.oxia.children import Parents
from bookwarden.metastore.oxia.reads import OxiaReader
from bookwarden.metastore.oxia.shards import OxiaCluster, ShardMap
from bookwarden.metastore.oxia.writes import PendingWrite, ShardWriters
from bookwarden.wire.pb import oxia_client_pb2 as pb

_LOG = logging.getLogger(__name__)


class _Delete(NamedTuple):
    paths: list[str]
    pending: PendingWrite


@dataclass
class OxiaBatchDelete(BatchDelete):
    """Versioned deletes on the write streams.

    Each delete of a request succeeds or fails alone. Oxia answers alike for an absent key and another version, so
    refused keys are read; and it deletes a key that has children, so those are asked for before anything is sent,
    as Pulsar does. A key unchanged after a lost answer is sent again, behind any write that may still be under way.
    """

    cluster: OxiaCluster
    reader: OxiaReader
    writers: ShardWriters
    _failure: StoreError | None = None

    def _send_and_settle(self, targets: Sequence[Target]) -> None:
        deadline = self.cluster.deadline()
        try:
            left = {target.path: target for target in targets}
            for path in Parents(self.cluster, self.reader).among(list(left), deadline):
                self.results[path] = DeleteResult.LOST_RACE
                del left[path]
            self._work_off(left, deadline)
        except StoreUnavailableError:
            raise
        except StoreError as error:
            self._failure = self._failure or error

    def _end(self, targets: Sequence[Target]) -> None:
        if self._failure is not None:
            if DeleteResult.DELETED not in self.results.values():
                raise self._failure
            _LOG.error("a batch of deletes ends early, with outcomes unknown: %s", self._failure)

    def _read(self, paths: Sequence[str], deadline: Deadline) -> list[Versioned | None]:
        return self.reader.get_many(paths, deadline)

    def _work_off(self, targets: dict[str, Target], deadline: Deadline) -> None:
        left = targets
        while left and self._failure is None:
            shards = self.cluster.shards(deadline)
            again, lost = self._send_all(shards, left, deadline)
            left = {target.path: target for target in again}
            if left and lost is not None and self._failure is None:
                self.cluster.wait_for_news(shards, lost, deadline)

    def _send_all(
        self, shards: ShardMap, left: dict[str, Target], deadline: Deadline
    ) -> tuple[list[Target], ServerLost | None]:
        """Send each key once; return the keys to send again, and the reason."""
        most = self.cluster.in_flight * len(shards.shards)
        window: deque[_Delete] = deque()
        last: dict[int, PendingWrite] = {}
        again: list[Target] = []
        lost: ServerLost | None = None
        for shard, paths in self.reader.batches(shards, left):
            if lost is not None or self._failure is not None:
                again += [left[path] for path in paths]
                continue
            self.cluster.keep_rate(len(paths), deadline)
            last[shard.id] = self.writers.send(shard, _request_of(paths, left), last.get(shard.id))
            window.append(_Delete(paths, last[shard.id]))
            if len(window) >= most:
                lost = self._settle(window.popleft(), left, again, deadline)
        while window:
            lost = self._settle(window.popleft(), left, again, deadline) or lost
        return again, lost

    def _settle(
        self, delete: _Delete, left: dict[str, Target], again: list[Target], deadline: Deadline
    ) -> ServerLost | None:
        """Wait for one request; settle its keys or add them to ``again``."""
        lost: ServerLost | None = None
        try:
            answers = dict(zip(delete.paths, delete.pending.get(deadline).deletes, strict=True))
        except ServerLost as error:
            lost = error
        except StoreError as error:
            self._failure = self._failure or error
        else:
            self._sent = True
            refused = [left[path] for path, answer in answers.items() if answer.status != pb.OK]
            for target in refused:
                del answers[target.path]
            self.results.update(dict.fromkeys(answers, DeleteResult.DELETED))
            if refused:
                # A key that has the same version after all was made again with it since.
                self._record(self._still_to_delete(refused, deadline), DeleteResult.LOST_RACE)
            deadline.progress()
            return None
        targets = [left[path] for path in delete.paths]
        if not delete.pending.may_be_done:
            again += targets
            return lost
        self._sent = True
        again += self._still_to_delete([target._replace(in_doubt=True) for target in targets], deadline)
        return lost


def _request_of(paths: Iterable[str], targets: Mapping[str, Target]) -> pb.WriteRequest:
    request = pb.WriteRequest()
    for path in paths:
        request.deletes.add(key=path, expected_version_id=targets[path].version)
    return request
