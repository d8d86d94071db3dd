"""Clients of a Pulsar cluster, counted while they are open."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from bookwarden.clusters.pulsar.connection import PulsarConnection
from bookwarden.clusters.pulsar.rest.admin import PulsarAdmin


class ClientCounts:
    """How many clients of each kind are open, and were at once."""

    def __init__(self) -> None:
        self.open: Counter[str] = Counter()
        self.most: Counter[str] = Counter()

    def opened(self, kind: str) -> None:
        self.open[kind] += 1
        self.most[kind] = max(self.most[kind], self.open[kind])

    def watched(self, kind: str, client: Any) -> Any:
        """Count a client until its first close."""
        self.opened(kind)
        close: Callable[[], None] | None = client.close

        def closing() -> None:
            nonlocal close
            if close is not None:
                self.open[kind] -= 1
                ended, close = close, None
                ended()

        client.close = closing
        return client


@contextmanager
def clients_counted() -> Iterator[ClientCounts]:
    """Count the clients that this process opens and closes meanwhile."""
    counts = ClientCounts()
    client, made = PulsarConnection.client, PulsarAdmin.__init__

    def init(admin: PulsarAdmin, *arguments: Any, **options: Any) -> None:
        made(admin, *arguments, **options)
        counts.watched("admin", admin)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PulsarAdmin, "__init__", init)
        patch.setattr(
            PulsarConnection, "client", lambda *given, **options: counts.watched("pulsar", client(*given, **options))
        )
        yield counts
