"""The node that names the deletion topic to brokers that mark what leaves their metadata."""

from __future__ import annotations

from bookwarden.metastore.interface import MetadataStore
from bookwarden.wire.broker_marks import DELETION_TOPIC_NODE


def provide_deletion_topic_node(store: MetadataStore, value: bytes, *, dry_run: bool = False) -> str:
    """Write the node if it is missing or has another value; return its state, as a Provision has it.

    Raises StoreError, also where another init comes first. Brokers read it at each send: what is in their outboxes goes
    where it then names.
    """
    found = store.get(DELETION_TOPIC_NODE)
    if found is not None and found.value == value:
        return "exists"
    if dry_run:
        return "would create" if found is None else "would replace"
    if found is None:
        store.create(DELETION_TOPIC_NODE, value, make_parents=True)
        return "created"
    store.put(DELETION_TOPIC_NODE, value, found.version)
    return "replaced"
