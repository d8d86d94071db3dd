"""Questions that only a broker with the topic loaded answers: its compacted ledger in use, and its subscriptions.

Formats: ``internalStats`` (PersistentTopicInternalStats), ``stats`` and ``compaction`` (LongRunningProcessStatus) of
Pulsar 4.0. Each of them loads the topic on its owner.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any

from bookwarden.clusters.pulsar.rest.admin import PulsarAdmin
from bookwarden.clusters.pulsar.rest.topic_positions import topic_path
from bookwarden.errors import FormatError, PulsarUnavailableError
from bookwarden.ledgers.managed_ledger import COMPACTED_LEDGER_PROPERTY, COMPACTION_CURSOR
from bookwarden.ledgers.names import TopicName

# A failure that took this long is not risked again at once: a batch may ask about many topics.
_SLOW_S = 2.0
_PAUSE_S = 30.0
# Anything else may be a compaction under way.
_AT_REST = frozenset({"NOT_RUN", "SUCCESS", "ERROR"})


@dataclass(frozen=True, slots=True)
class TopicCompaction:
    """A topic's compaction by its owner: whether one may be under way, and whether it has a subscription.

    ``ledger_ids`` are the compacted ledgers in use and recorded, mostly one and the same.
    """

    running: bool
    subscribed: bool
    ledger_ids: frozenset[int]
    recorded: bool = False  #: No acknowledgement of the subscription, which may name a ledger, waits to be recorded.


def broker_clock(admin: PulsarAdmin) -> int:
    """Read a broker's clock from the Date of an answer, in milliseconds since the epoch, exact to a second.

    Raises PulsarError where no broker answers, FormatError where the answer has no date.
    """
    stated = admin.request("GET", "/clusters", ok=(200,)).headers.get("Date", "")
    try:
        return int(parsedate_to_datetime(stated).timestamp() * 1000)
    except ValueError as error:
        raise FormatError(f"the broker's answer has no date that can be read, it says {stated!r}") from error


class Brokers:
    """Asks the owners of topics. Each call raises PulsarError, NotFoundError or FormatError where nothing is known."""

    def __init__(self, admin: PulsarAdmin, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._admin = admin
        self._clock = clock
        self._paused_until = float("-inf")

    def compaction(self, topic: str) -> TopicCompaction:
        """Return the topic's compaction by its owner's answer, and then its compacted ledgers.

        A compaction that another process runs, or the topic's former owner, is recognized by its consumer.
        """
        path = _path(topic)
        status = self._ask(f"{path}/compaction")
        stats = self._ask(f"{path}/stats")
        internal = self._ask(f"{path}/internalStats")
        try:
            subscriptions = stats["subscriptions"]
            compactor = subscriptions.get(COMPACTION_CURSOR) or {}
            running = status["status"] not in _AT_REST or bool(compactor.get("consumers"))
            ledger_ids = read_compacted_ledgers(internal)
            return TopicCompaction(running, COMPACTION_CURSOR in subscriptions, ledger_ids, _is_recorded(internal))
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise FormatError(f"what the broker says of {topic} lacks or misshapes {error}") from error

    def subscriptions(self, topic: str) -> frozenset[str]:
        """List the subscriptions that the owner knows, those without a cursor in the metadata too."""
        try:
            return frozenset(str(name) for name in self._ask(f"{_path(topic)}/stats")["subscriptions"])
        except (KeyError, TypeError) as error:
            raise FormatError(f"the stats of {topic} lack or misshape {error}") from error

    def _ask(self, path: str) -> Any:
        begun = self._clock()
        if begun < self._paused_until:
            raise PulsarUnavailableError("the brokers did not answer a moment ago")
        try:
            return self._admin.get_json(path)
        except PulsarUnavailableError:
            now = self._clock()
            if now - begun >= _SLOW_S:
                self._paused_until = now + _PAUSE_S
            raise

    def close(self) -> None:
        """Close the idle connections."""
        self._admin.close()


def _path(topic: str) -> str:
    if TopicName.parse(topic).cluster is not None:
        raise FormatError(f"{topic} has a name of the first version, which the admin REST cannot be asked for")
    return topic_path(topic)


def _is_recorded(internal: Mapping[str, Any]) -> bool:
    """Return whether the compaction's cursor has no acknowledgement in memory that its stats do not show yet.

    It keeps them back while it changes its ledger and while a read is under way (ManagedCursorImpl.
    internalAsyncMarkDelete). A cursor that says nothing of both is not known.
    """
    cursor = internal["cursors"].get(COMPACTION_CURSOR, {})
    return cursor.get("state") in ("Open", "NoLedger") and cursor.get("pendingReadOps") == 0


def read_compacted_ledgers(internal: Mapping[str, Any]) -> frozenset[int]:
    """List the compacted ledgers of an answer of ``internalStats``: the one in use, and the one recorded."""
    recorded = internal["cursors"].get(COMPACTION_CURSOR, {}).get("properties") or {}
    named = {int(internal["compactedLedger"]["ledgerId"]), int(recorded.get(COMPACTED_LEDGER_PROPERTY, -1))}
    return frozenset(ledger_id for ledger_id in named if ledger_id >= 0)
