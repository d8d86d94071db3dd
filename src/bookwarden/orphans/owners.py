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

    For a schema it is the partitioned topic itself, whose partitions share the schema.
    ``namespace`` is ``tenant/namespace``, or ``tenant/cluster/namespace`` in names of the first version.
    """

    holder: Holder
    tenant: str
    namespace: str
    topic: str


# The ledgers of a topic come one after another.
@lru_cache(maxsize=16_384)
def owner_of(kind: str, text: str) -> Owner | None:
    """Parse a holder's text, where `kind` is the name of its LedgerComponent.

    None where it is not the text of a holder of this kind, or of one whose marks phase two refuses.
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
    """Return the managed ledger's name without ``-partition-N``: that of the partitioned topic."""
    return _PARTITION.sub("", topic)
