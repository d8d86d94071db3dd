"""Versioned deletes over a ZooKeeper session, batched, with a result for each node whatever happens."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from bookwarden.errors import StoreAccessError, StoreMigratingError
from bookwarden.ledgers.metadata import Condition, DeleteResult
from bookwarden.metastore.deadline import Deadline
from bookwarden.metastore.doomed_nodes import BatchDelete, DoomedNode
from bookwarden.metastore.interface import Versioned
from bookwarden.metastore.paths import parent_of
from bookwarden.metastore.request_batches import halves, split
from bookwarden.metastore.write_conditions import NoConditions, WriteConditions
from bookwarden.metastore.zookeeper import requests as wire
from bookwarden.metastore.zookeeper.batches import BatchReader, ConditionalMulti
from bookwarden.metastore.zookeeper.session import (
    ACCESS_REFUSED_TEXT,
    PendingReply,
    ReplyLost,
    ServerRefusal,
    ZooKeeperSession,
)

_LOG = logging.getLogger(__name__)

_RESULT_OF_CODE: Final = {
    wire.NO_NODE: DeleteResult.ABSENT,
    wire.BAD_VERSION: DeleteResult.LOST_RACE,
    wire.NOT_EMPTY: DeleteResult.LOST_RACE,
}


@dataclass(frozen=True, slots=True)
class _Delete:
    targets: list[DoomedNode]
    demanded: list[Condition]
    request: ConditionalMulti
    reply: PendingReply


@dataclass
class ZooKeeperBatchDelete(BatchDelete):
    """Versioned deletes in multis.

    A multi is all or nothing. When one is refused, its nodes are read again; the ones that cannot be deleted are
    settled, and the others sent once more. After a lost reply the unchanged nodes are sent in smaller batches, since
    the server may not take the batch itself. When the conditions forbid more writes, the multis under way are waited
    for.
    """

    session: ZooKeeperSession
    reader: BatchReader
    conditions: WriteConditions = field(default_factory=NoConditions)
    _access_refused: bool = False
    _forbidden: StoreMigratingError | None = None

    def _send_and_settle(self, targets: Sequence[DoomedNode]) -> None:
        settings = self.session.connection
        size = self.session.pace.most_nodes(settings.batch_size)
        batches = split(targets, size, settings.max_request_bytes, _all_paths)
        try:
            self._work_off(deque(batches), self.session.deadline())
        except StoreAccessError:
            self._access_refused = True

    def _end(self, targets: Sequence[DoomedNode]) -> None:
        if self._forbidden is not None:
            if not self._sent:
                raise self._forbidden
            left = len(targets) - len(self.results)
            _LOG.warning("%d of %d deletes were not sent: %s", left, len(targets), self._forbidden)
        if self._access_refused and DeleteResult.DELETED not in self.results.values():
            raise StoreAccessError(f"{len(targets)} nodes cannot be deleted: {ACCESS_REFUSED_TEXT}")

    def _read(self, paths: Sequence[str], deadline: Deadline) -> list[Versioned | None]:
        return self.reader.read(paths, deadline)

    def _work_off(self, queue: deque[list[DoomedNode]], deadline: Deadline) -> None:
        window: deque[_Delete] = deque()
        try:
            while queue or window:
                self._fill(window, queue, deadline)
                if not window:
                    break
                delete = window[0]
                again = self._settle(delete, deadline)
                window.popleft()
                queue.extend(again)
        finally:
            for delete in window:
                self._withdraw(delete)

    def _fill(self, window: deque[_Delete], queue: deque[list[DoomedNode]], deadline: Deadline) -> None:
        try:
            while queue and len(window) < self.session.connection.in_flight:
                window.append(self._send(queue[0], deadline))
                queue.popleft()
        except StoreMigratingError as error:
            self._forbidden = error
            queue.clear()

    def _send(self, targets: list[DoomedNode], deadline: Deadline) -> _Delete:
        # Most targets share their holder's node.
        demanded = list(dict.fromkeys([some for target in targets for some in target.conditions]))
        operations = [
            *[wire.check_operation(path, version) for path, version in demanded],
            *[wire.delete_operation(target.path, target.version) for target in targets],
        ]
        request = ConditionalMulti(operations, self.conditions, self.session.absolute)
        return _Delete(targets, demanded, request, self.session.send(request, deadline))

    def _withdraw(self, delete: _Delete) -> bool:
        withdrawn = delete.request.withdraw()
        self._sent = self._sent or not withdrawn
        return withdrawn

    def _settle(self, delete: _Delete, deadline: Deadline) -> list[list[DoomedNode]]:
        """Wait for one multi; return the batches to send again."""
        try:
            results = delete.reply.get()
        except ReplyLost as lost:
            return self._settle_lost(delete, lost, deadline)
        except ServerRefusal as refusal:
            _LOG.warning("%d deletes were refused: %s", len(delete.targets), refusal)
            self._record(delete.targets, DeleteResult.UNKNOWN)
            return []
        results = delete.request.results_of(results)
        if results is None:
            deadline.progress()
            return [delete.targets]
        self._sent = True
        failed = wire.failed_at(results)
        if failed is None:
            self._record(delete.targets, DeleteResult.DELETED)
            deadline.progress()
            return []
        if failed < len(delete.demanded):
            return self._settle_changed(delete.targets, delete.demanded[failed], deadline)
        culprit = delete.targets[failed - len(delete.demanded)]
        return self._settle_refused(delete.targets, culprit, results[failed], deadline)

    def _settle_changed(
        self, targets: list[DoomedNode], changed: Condition, deadline: Deadline
    ) -> list[list[DoomedNode]]:
        """Settle the nodes that depend on the changed one as lost races; send the others again."""
        self._record([target for target in targets if changed in target.conditions], DeleteResult.LOST_RACE)
        deadline.progress()
        again = [target for target in targets if changed not in target.conditions]
        return [again] if again else []

    def _settle_lost(self, delete: _Delete, lost: ReplyLost, deadline: Deadline) -> list[list[DoomedNode]]:
        withdrawn = self._withdraw(delete)
        self.session.require_time(deadline, lost)
        if withdrawn:
            return [delete.targets]
        # The sync waits for a delete that reached the leader before the connection broke.
        self.session.sync(deadline)
        doubtful = [target._replace(in_doubt=True) for target in delete.targets]
        return halves(self._still_to_delete(doubtful, deadline))

    def _settle_refused(
        self, targets: list[DoomedNode], culprit: DoomedNode, code: int, deadline: Deadline
    ) -> list[list[DoomedNode]]:
        rest = [target for target in targets if target is not culprit]
        if code == wire.NO_AUTH:
            # The right to delete belongs to the parent, so its other children are refused too.
            parent = parent_of(culprit.path)
            refused = [target for target in targets if parent_of(target.path) == parent]
            rest = [target for target in rest if parent_of(target.path) != parent]
            self._access_refused = True
            self._record(refused, DeleteResult.UNKNOWN)
        else:
            self._record([culprit], _result_of_code(culprit, code))
        deadline.progress()
        again = self._still_to_delete(rest, deadline)
        return [again] if again else []

    def _still_to_delete(self, targets: Sequence[DoomedNode], deadline: Deadline) -> list[DoomedNode]:
        again = super()._still_to_delete(targets, deadline)
        if len(again) < len(targets):
            deadline.progress()
        return again


def _all_paths(target: DoomedNode) -> str:
    """Return a text as long as all paths of this node in a request, at most."""
    return "".join([target.path, *(some.path for some in target.conditions)]) if target.conditions else target.path


def _result_of_code(target: DoomedNode, code: int) -> DeleteResult:
    if code == wire.NO_NODE and target.in_doubt:
        return DeleteResult.DELETED
    return _RESULT_OF_CODE.get(code, DeleteResult.UNKNOWN)
