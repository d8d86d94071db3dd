"""Nodes of the trash: its records, which are those of the outbox's format 2, and the lease.

Format: docs/trash.md. The jar's side is broker/src/main/java/bookwarden/broker/marks: `OutboxFormat`, `Trash` and
`TrashLease`.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any, Final
from urllib.parse import quote

from bookwarden.errors import FormatError
from bookwarden.ledgers.managed_ledger import Position
from bookwarden.ledgers.trash import (
    FormerNode,
    FormerPolicies,
    KeepRule,
    LostPermissions,
    NamespaceCopy,
    PolicyEvent,
    Roles,
    TrashLease,
    TrashRecord,
)
from bookwarden.wire.pb import managed_ledger_pb2 as pb
from bookwarden.wire.protobuf import parse

_ROOT: Final = "/bookwarden/trash"
#: Below it a folder for each start of a broker, in that blocks, in these the nodes, as in the outbox.
TRASH_RECORDS: Final = f"{_ROOT}/records"
#: Written by the sweep, read by brokers.
TRASH_LEASE: Final = f"{_ROOT}/lease"
#: Below it a node for each managed ledger that is being restored.
TRASH_RESTORES: Final = f"{_ROOT}/restores"
#: Below it a node for each life of a namespace: its policies as they were last seen.
TRASH_NAMESPACES: Final = f"{_ROOT}/namespaces"
#: Below it a node for each definition that events of policies are written by, named by its SHA-256.
TRASH_EVENT_SCHEMAS: Final = f"{_ROOT}/event-schemas"
#: The format of records, and of nodes of the outbox whose drops are to be kept.
RECORDS_FORMAT: Final = 2
_LEASE_FORMAT: Final = 1
_COPY_FORMAT: Final = 1
# A server takes requests of 1 MiB unless it is set to take more.
_WITH_POLICIES_BYTES: Final = 600_000


def restore_node(managed_ledger: str) -> str:
    """Return the path of the node of a managed ledger that is being restored."""
    return f"{TRASH_RESTORES}/{quote(managed_ledger, safe='')}"


def encode_records(records: Iterable[TrashRecord]) -> bytes:
    """Return the value of a node with these records."""
    return _dump({"format": RECORDS_FORMAT, "drops": [_drop(record) for record in records], "drivers": []})


def decode_records(raw: bytes) -> list[TrashRecord]:
    """Return the records of a node, of the trash or of the outbox.

    Raises FormatError for another format, also that of the outbox's drops that are not kept, and for what is not as
    it must be.
    """
    try:
        return [_record(drop) for drop in _fields(raw, "trash", RECORDS_FORMAT)["drops"]]
    except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        raise FormatError(f"trash: a node is not as it must be: {type(error).__name__} {error}") from error


def has_records(raw: bytes) -> bool:
    """Return whether a node of the outbox has drops that brokers keep, and so no marks."""
    try:
        decode_records(raw)
    except FormatError:
        return False
    return True


def without_records(raw: bytes, gone: Collection[TrashRecord]) -> bytes | None:
    """Rewrite a node without some records, the others as they are; None where none is left.

    Raises FormatError as decoding does.
    """
    try:
        fields = _fields(raw, "trash", RECORDS_FORMAT)
        fields["drops"] = [drop for drop in fields["drops"] if _record(drop) not in gone]
    except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        raise FormatError(f"trash: a node is not as it must be: {type(error).__name__} {error}") from error
    return _dump(fields) if fields["drops"] else None


def with_policies(raw: bytes, found: Mapping[TrashRecord, FormerPolicies]) -> bytes:
    """Add policies to the records of a node that have none yet, the rest as it is.

    Those that the node has no room for are said to be unseen. Raises FormatError as decoding does.
    """
    try:
        fields = _fields(raw, "trash", RECORDS_FORMAT)
        size = len(raw)
        for drop in fields["drops"]:
            policies = None if "policies" in drop else found.get(_record(drop))
            if policies is None:
                continue
            added = _policies_fields(policies)
            size += len(_dump(added))
            if size > _WITH_POLICIES_BYTES:
                added = _policies_fields(FormerPolicies(unseen=("there was no room for its policies and permissions",)))
            drop["policies"] = added
    except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        raise FormatError(f"trash: a node is not as it must be: {type(error).__name__} {error}") from error
    return _dump(fields)


def copy_node(copy: NamespaceCopy) -> str:
    """Return the path of the node of a namespace's copy."""
    return f"{TRASH_NAMESPACES}/{quote(copy.namespace, safe='')}-{copy.created_ms}"


def encode_copy(copy: NamespaceCopy) -> bytes:
    """Return the value of the node of a namespace's copy."""
    fields: dict[str, Any] = {"format": _COPY_FORMAT, "namespace": copy.namespace, "created": copy.created_ms}
    fields["policies"] = b64encode(copy.policies).decode()
    if copy.local is not None:
        fields["local"] = b64encode(copy.local).decode()
    if copy.gone_ms:
        fields |= {"gone": copy.gone_ms, "alive": copy.alive_ms}
    fields["permissions"] = [
        {"topic": one.topic, "roles": one.roles, "seen": one.seen_ms, "gone": one.gone_ms} for one in copy.permissions
    ]
    return _dump(fields)


def decode_copy(raw: bytes) -> NamespaceCopy:
    """Return a namespace's copy; FormatError for another format, and for what is not as it must be."""
    try:
        fields = _fields(raw, "trash", _COPY_FORMAT)
        local = fields.get("local")
        return NamespaceCopy(
            _text(fields["namespace"]),
            int(fields["created"]),
            b64decode(fields["policies"], validate=True),
            None if local is None else b64decode(local, validate=True),
            int(fields.get("gone", 0)),
            int(fields.get("alive", 0)),
            tuple(
                LostPermissions(_text(one["topic"]), _roles(one["roles"]), int(one["seen"]), int(one["gone"]))
                for one in fields["permissions"]
            ),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise FormatError(f"trash: the copy of a namespace is not as it must be: {error!r}") from error


def listed_bytes(record: TrashRecord) -> int:
    """Return the bytes of the ledgers that left a list, as it had them: one copy; 0 of one that was open.

    Other records have none: the ledgers of a deleted topic's node left its list, or were removed one by one, before.
    Raises FormatError for an entry that is none.
    """
    return sum(parse(pb.ManagedLedgerInfo.LedgerInfo(), entry, "entry of a list").size for entry in record.entries)


def encode_lease(lease: TrashLease) -> bytes:
    """Return the value of TRASH_LEASE."""
    keep = [
        {"namespaces": rule.namespaces, "deletedSeconds": rule.deleted_s, "trimmedSeconds": rule.trimmed_s}
        for rule in lease.keep
    ]
    fields = {"format": _LEASE_FORMAT, "deferUntil": lease.defer_until_ms, "renewedBy": lease.renewed_by}
    return _dump({**fields, "maxBytes": lease.max_bytes, "keep": keep})


def decode_lease(raw: bytes) -> TrashLease:
    """Return what TRASH_LEASE says; FormatError for another format, and for what is not as it must be."""
    try:
        fields = _fields(raw, TRASH_LEASE, _LEASE_FORMAT)
        keep = tuple(
            KeepRule(str(rule["namespaces"]), int(rule["deletedSeconds"]), int(rule["trimmedSeconds"]))
            for rule in fields["keep"]
        )
        return TrashLease(int(fields["deferUntil"]), str(fields["renewedBy"]), int(fields["maxBytes"]), keep)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise FormatError(f"{TRASH_LEASE} is not as it must be: {type(error).__name__} {error}") from error


def _fields(raw: bytes, what: str, of_format: int) -> dict[str, Any]:
    fields: dict[str, Any] = json.loads(raw)
    if fields["format"] != of_format:
        raise FormatError(f"{what}: format {fields['format']!r} is not {of_format}: another bookwarden wrote it")
    return fields


def _dump(fields: Mapping[str, Any]) -> bytes:
    return json.dumps(fields, separators=(",", ":")).encode()


def _record(drop: Mapping[str, Any]) -> TrashRecord:
    schema = drop.get("schema")
    node = drop.get("node") if schema is None else schema
    return TrashRecord(
        managed_ledger=_text(drop["managedLedger"]),
        time_ms=int(drop["time"]),
        created_ms=int(drop["created"]),
        cursor=None if drop.get("cursor") is None else _text(drop["cursor"]),
        schema_id=None if schema is None else _text(schema["id"]),
        data=_ids(drop, "data"),
        cursors=_ids(drop, "cursors"),
        buckets=_ids(drop, "buckets"),
        compacted=_ids(drop, "compacted"),
        schemas=_ids(drop, "schemas"),
        entries=tuple(b64decode(entry, validate=True) for entry in drop.get("entries", ())),
        node=None if node is None else _node(node),
        partitioned=None if "partitioned" not in drop else b64decode(drop["partitioned"], validate=True),
        position=None if "position" not in drop else Position(*map(int, drop["position"])),
        policies=None if "policies" not in drop else _policies(drop["policies"]),
    )


def _roles(fields: Mapping[str, Any]) -> Roles:
    return {_text(role): tuple(map(_text, actions)) for role, actions in fields.items()}


def _policies(fields: Mapping[str, Any]) -> FormerPolicies:
    return FormerPolicies(
        {_text(topic): _roles(roles) for topic, roles in fields.get("permissions", {}).items()},
        tuple(
            PolicyEvent(_text(one["key"]), b64decode(one["value"], validate=True), _text(one["schema"]))
            for one in fields.get("events", ())
        ),
        {_text(path): b64decode(value, validate=True) for path, value in fields.get("nodes", {}).items()},
        tuple(map(_text, fields.get("unseen", ()))),
    )


def _policies_fields(policies: FormerPolicies) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    if policies.permissions:
        fields["permissions"] = policies.permissions
    if policies.events:
        fields["events"] = [
            {"key": one.key, "value": b64encode(one.value).decode(), "schema": one.schema} for one in policies.events
        ]
    if policies.nodes:
        fields["nodes"] = {path: b64encode(value).decode() for path, value in policies.nodes.items()}
    if policies.unseen:
        fields["unseen"] = policies.unseen
    return fields


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not a text")
    return value


def _ids(drop: Mapping[str, Any], field: str) -> tuple[int, ...]:
    # Each id is written as its distance from the one before.
    return tuple(accumulate(int(distance) for distance in drop.get(field, ())))


def _node(fields: Mapping[str, Any]) -> FormerNode:
    part, parts = fields.get("part", (1, 1))
    value = b64decode(fields["value"], validate=True)
    return FormerNode(
        value, int(fields["version"]), int(fields["created"]), int(fields["modified"]), int(part), int(parts)
    )


def _drop(record: TrashRecord) -> dict[str, Any]:
    fields: dict[str, Any] = {"managedLedger": record.managed_ledger}
    if record.cursor is not None:
        fields["cursor"] = record.cursor
    fields |= {"time": record.time_ms, "created": record.created_ms}
    for field in ("data", "cursors", "buckets", "compacted", "schemas"):
        ids: Sequence[int] = getattr(record, field)
        if ids:
            fields[field] = [ids[0], *(later - earlier for earlier, later in pairwise(ids))]
    if record.entries:
        fields["entries"] = [b64encode(entry).decode() for entry in record.entries]
    node = record.node
    if node is not None:
        former: dict[str, Any] = {"value": b64encode(node.value).decode(), "version": node.version}
        former |= {"created": node.created_ms, "modified": node.modified_ms}
        if node.parts != 1:
            former["part"] = [node.part, node.parts]
        if record.schema_id is None:
            fields["node"] = former
        else:
            fields["schema"] = {"id": record.schema_id, **former}
    if record.partitioned is not None:
        fields["partitioned"] = b64encode(record.partitioned).decode()
    if record.position is not None:
        fields["position"] = list(record.position)
    if record.policies is not None:
        fields["policies"] = _policies_fields(record.policies)
    return fields
