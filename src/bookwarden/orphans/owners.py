"""Owner of a listed ledger: the holder that its custom metadata names, read back from the listing's text."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final, NamedTuple

from bookwarden.ledgers.kinds import KINDS, Holder

_PARTITION: Final = re.compile(r"-partition-[0-9]+$")
_KINDS: Final = {kind.component.name: kind for kind in KINDS}


class Owner(NamedTuple):
    """A holder, and where it belongs; ``topic`` is the name of the managed ledger.

    That of a schema is the topic without partitions that has it; its partitions, which share it, are others.
    ``namespace`` is ``tenant/namespace``, or ``tenant/cluster/namespace`` in names of the first version.
    """

    holder: Holder
    tenant: str
    namespace: str
    topic: str


# The ledgers of a topic come together.
@lru_cache(maxsize=65_536)
def owner_of(kind: str, text: str) -> Owner | None:
    """Read a holder's text back, where `kind` is the name of its LedgerComponent.

    None where it is not the text of any holder of this kind, or of one that phase two would not take a mark of.
    """
    known = _KINDS.get(kind)
    holder = known.of_text(text) if known is not None else None
    if holder is None or not holder.is_markable():
        return None
    topic = holder.topic
    # tenant/namespace/persistent/topic, with a cluster after the tenant in names of the first version.
    namespace = topic.rpartition("/")[0].rpartition("/")[0]
    return Owner(holder, namespace.partition("/")[0], namespace, topic)


def without_partition(topic: str) -> str:
    """Return the name, among managed ledgers, of the topic that this one is a partition of; of others their own."""
    return _PARTITION.sub("", topic)
