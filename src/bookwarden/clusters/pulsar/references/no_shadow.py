"""Records of nodes that cannot be read, and that a person took as no shadow topic: one node for each.

They are in the store that has the node, below ``/bookwarden/no-shadow``, named by its encoded path; the value is JSON:
path, version, sha256 and size of the node's value, by, at (ms since the epoch), why. A record counts only for the node
as it was then. Pulsar's migration to another store copies the records like all nodes.
"""

from __future__ import annotations

import hashlib
import json
import logging
from dataclasses import asdict, dataclass
from typing import Final

from bookwarden.errors import FormatError, LostRaceError, OutcomeUnknownError
from bookwarden.ledgers.metadata import DeleteResult
from bookwarden.ledgers.names import encode_local_name
from bookwarden.metastore.interface import MetadataStore, Versioned

logger = logging.getLogger(__name__)
NO_SHADOW_ROOT: Final = "/bookwarden/no-shadow"
_GONE: Final = (DeleteResult.DELETED, DeleteResult.ABSENT)


@dataclass(frozen=True, slots=True)
class NodeContent:
    """A node's value as it was read, without the bytes."""

    version: int
    sha256: str
    size: int  #: In bytes.

    @classmethod
    def of(cls, node: Versioned) -> NodeContent:
        """Return that of a node."""
        return cls(node.version, hashlib.sha256(node.value).hexdigest(), len(node.value))


@dataclass(frozen=True, slots=True)
class NoShadow:
    """A node that cannot be read, and that was taken as no shadow topic as long as it does not change."""

    path: str
    content: NodeContent
    by: str  #: User and machine.
    at_ms: int
    why: str


class NoShadowRecords:
    """The records of one metadata root. Every call may raise StoreError."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    def read(self) -> dict[str, NoShadow]:
        """Return the records by path; one that cannot be understood counts for nothing, and is logged."""
        names = self._store.children_of(NO_SHADOW_ROOT)
        nodes = self._store.get_many([f"{NO_SHADOW_ROOT}/{name}" for name in names]) if names else []
        found = {}
        for name, node in zip(names, nodes, strict=True):
            if node is None:
                continue
            try:
                record = _decode(node.value)
            except FormatError as error:
                logger.warning("%s/%s counts for nothing: %s", NO_SHADOW_ROOT, name, error)
                continue
            found[record.path] = record
        return found

    def write(self, record: NoShadow) -> None:
        """Write a record over an earlier one of the same node."""
        path, value = _path_of(record.path), _encode(record)
        try:
            self._store.create(path, value, make_parents=True)
        except LostRaceError:
            node = self._store.get(path)
            if node is None:
                raise
            self._store.put(path, value, node.version)

    def remove(self, path: str) -> bool:
        """Remove the record of a node; return whether there was one."""
        at = _path_of(path)
        node = self._store.get(at)
        if node is None:
            return False
        if self._store.delete_many([(at, node.version)])[0] not in _GONE:
            raise OutcomeUnknownError(f"the record {at} may still be there: run the command again")
        return True


def _path_of(path: str) -> str:
    return f"{NO_SHADOW_ROOT}/{encode_local_name(path)}"


def _encode(record: NoShadow) -> bytes:
    fields = {
        "path": record.path,
        **asdict(record.content),
        "by": record.by,
        "at": record.at_ms,
        "why": record.why,
    }
    return json.dumps(fields, indent=1).encode()


def _decode(value: bytes) -> NoShadow:
    try:
        fields = json.loads(value)
        content = NodeContent(int(fields["version"]), str(fields["sha256"]), int(fields["size"]))
        return NoShadow(str(fields["path"]), content, str(fields["by"]), int(fields["at"]), str(fields["why"]))
    except (ValueError, KeyError, TypeError) as error:
        raise FormatError(f"it is no record of a node taken as no shadow topic: {error}") from error
