"""Multis whose changes happen only under conditions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from bookwarden.metastore.write_conditions import WriteConditions
from bookwarden.metastore.zookeeper import requests as wire


class ConditionalMulti(wire.Multi):
    """A multi that has the present conditions before its operations.

    Making one raises the conditions' error when nothing may be written. ``absolute`` puts the chroot before a path.
    """

    def __init__(
        self, operations: Sequence[bytes], conditions: WriteConditions, absolute: Callable[[str], str]
    ) -> None:
        self._conditions = conditions
        self._demanded = conditions.current()
        checks = [wire.check_operation(absolute(path), version) for path, version in self._demanded]
        super().__init__([*checks, *operations])

    def results_of(self, results: list[Any]) -> list[Any] | None:
        """Leave out the results of the conditions; None when one of them failed, so that nothing was changed."""
        failed = wire.failed_at(results)
        if failed is not None and failed < len(self._demanded):
            self._conditions.failed(self._demanded[failed])
            return None
        return results[len(self._demanded) :]
