"""Names of topics, managed ledgers, cursors and schemas, and the encoding between them.

Pulsar names a managed ledger ``<tenant>/<namespace>/<domain>/<encoded local name>``, where the encoding is
that of ``java.net.URLEncoder`` (TopicName.getPersistenceNamingEncoding and common.util.Codec in Pulsar 4.0).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from urllib.parse import quote_plus, unquote_plus

from bookwarden.errors import FormatError

# NamedEntity.checkName; the parts of a name also become parts of a metadata path, hence no "." and no "..".
_ENTITY = re.compile(r"[-=:.\w]+", re.ASCII)
_RELATIVE = (".", "..")
_PARTITION = re.compile(r"^(?P<base>.+)-partition-(?P<index>0|[1-9][0-9]*)$")


def encode_local_name(text: str) -> str:
    """Encode one path segment as ``java.net.URLEncoder`` does with UTF-8.

    Raises FormatError for a segment that cannot stand in a path, and for text that is not valid Unicode.
    """
    if not text or text in _RELATIVE:
        raise FormatError(f"name {text!r} cannot be a part of a metadata path")
    try:
        return quote_plus(text, safe="*").replace("~", "%7E")
    except UnicodeEncodeError as error:
        raise FormatError(f"name {text!r} is not valid Unicode: {error.reason}") from error


def decode_local_name(text: str) -> str:
    """Decode one path segment as ``java.net.URLDecoder`` does with UTF-8."""
    return unquote_plus(text)


def _decode_canonical(encoded: str) -> str:
    decoded = decode_local_name(encoded)
    if encode_local_name(decoded) != encoded:
        raise FormatError(f"name {encoded!r} is not encoded as Pulsar encodes names")
    return decoded


def _check_entities(name: str, entities: Sequence[str]) -> None:
    for entity in entities:
        if entity in _RELATIVE or not _ENTITY.fullmatch(entity):
            raise FormatError(f"name {name!r}: {entity!r} has a character that Pulsar allows in no tenant or namespace")


@dataclass(frozen=True, slots=True, order=True)
class TopicName:
    """A topic of Pulsar; ``local_name`` is decoded and keeps its ``-partition-N`` suffix.

    ``cluster`` is set only for names of the first version (``tenant/cluster/namespace``).
    """

    tenant: str
    namespace: str
    local_name: str
    domain: str = "persistent"
    cluster: str | None = None

    @classmethod
    def parse(cls, text: str) -> TopicName:
        """Read ``domain://tenant/namespace/topic``, ``tenant/namespace/topic`` or a bare ``topic``.

        Raises FormatError for anything else.
        """
        domain, separator, rest = text.partition("://")
        if not separator:
            domain, rest = "persistent", text
        if domain not in ("persistent", "non-persistent"):
            raise FormatError(f"topic name {text!r}: unknown domain {domain!r}; expected persistent://")
        parts = rest.split("/")
        if not separator and len(parts) == 1:
            parts = ["public", "default", *parts]
        if not all(parts):
            raise FormatError(f"topic name {text!r} has an empty part; expected tenant/namespace/topic")
        if len(parts) == 3:
            _check_entities(text, parts[:2])
            return cls(parts[0], parts[1], parts[2], domain)
        if separator and len(parts) >= 4:
            _check_entities(text, parts[:3])
            return cls(parts[0], parts[2], "/".join(parts[3:]), domain, parts[1])
        raise FormatError(f"topic name {text!r} has too few parts; expected tenant/namespace/topic")

    @classmethod
    def of_managed_ledger(cls, name: str) -> TopicName:
        """Read the name of a managed ledger, ``tenant/namespace/persistent/encoded``.

        Raises FormatError when it has neither four parts, nor five as names of the first version have, and when
        its last part is not encoded as Pulsar does it, since the topic would then name another managed ledger.
        """
        parts = name.split("/")
        if len(parts) not in (4, 5):
            raise FormatError(f"managed ledger name {name!r}: expected tenant/namespace/persistent/topic")
        *entities, domain, encoded = parts
        _check_entities(name, [*entities, domain])
        cluster = entities[1] if len(entities) == 3 else None
        return cls(entities[0], entities[-1], _decode_canonical(encoded), domain, cluster)

    @classmethod
    def of_schema(cls, schema_id: str) -> TopicName:
        """Read the id of a schema, ``tenant/namespace/encoded``; raise FormatError for anything else."""
        parts = schema_id.split("/")
        if len(parts) != 3:
            raise FormatError(f"schema id {schema_id!r}: expected tenant/namespace/topic")
        _check_entities(schema_id, parts[:2])
        return cls(parts[0], parts[1], _decode_canonical(parts[2]))

    @property
    def managed_ledger(self) -> str:
        """The name of the topic's managed ledger, which is also its path below ``/managed-ledgers``."""
        encoded = encode_local_name(self.local_name)
        if self.cluster is None:
            return f"{self.tenant}/{self.namespace}/{self.domain}/{encoded}"
        return f"{self.tenant}/{self.cluster}/{self.namespace}/{self.domain}/{encoded}"

    @property
    def namespace_name(self) -> str:
        """The namespace with its tenant, without the cluster of the first version."""
        return f"{self.tenant}/{self.namespace}"

    @property
    def partition(self) -> int | None:
        """The index behind ``-partition-``, or None for a topic that is no partition."""
        match = _PARTITION.match(self.local_name)
        return int(match["index"]) if match else None

    @property
    def base(self) -> TopicName:
        """The partitioned topic that this partition belongs to; the topic itself if it is none."""
        match = _PARTITION.match(self.local_name)
        return replace(self, local_name=match["base"]) if match else self

    def partition_name(self, index: int) -> TopicName:
        """Return the partition of this partitioned topic."""
        return replace(self, local_name=f"{self.local_name}-partition-{index}")

    @property
    def schema_id(self) -> str:
        """The id under which all partitions keep their schema; the cluster is dropped (getSchemaName)."""
        return f"{self.tenant}/{self.namespace}/{encode_local_name(self.base.local_name)}"

    def __str__(self) -> str:
        middle = self.namespace if self.cluster is None else f"{self.cluster}/{self.namespace}"
        return f"{self.domain}://{self.tenant}/{middle}/{self.local_name}"
