"""Bad writes: nodes whose bytes are not what their writer meant, as far as anybody can tell them from good ones.

A list that lost its first ledgers is what a trim leaves, a cursor that names another ledger is one that was switched,
and a cursor's ledger whose metadata says another cursor's is that one's to whoever marks it by its id: no reader can
see that these are wrong, so no such damage is done. Nor does a list lose a ledger that was another topic's before:
nothing tells then that it was ever listed here.
"""

from __future__ import annotations

from random import Random

from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet

from bookwarden.errors import FormatError
from bookwarden.ledgers.custom_metadata import identify_holder
from bookwarden.ledgers.kinds import Holder, ManagedLedgerHolder
from bookwarden.ledgers.managed_ledger import signed_halves
from bookwarden.wire.ledger_metadata import decode_ledger_metadata
from bookwarden.wire.pb import managed_ledger_pb2, schema_locator_pb2

from . import nodes
from .brokers import a_topic
from .model import Topic, World

_UNREADABLE = (DecodeError, UnicodeDecodeError)


def damage_topic(world: World, rng: Random, kinds: tuple[str, ...]) -> None:
    """Damage the list of a topic."""
    topic = a_topic(world, rng)
    if topic is None or topic.creating or not topic.ledgers or _has_damaged_ledger(world, topic):
        return
    if not topic.is_own and "bad shadows" not in world.features:
        return
    value = nodes.managed_ledger(topic.ledgers, topic.properties)
    others = [nodes.cursor_node(cursor) for cursor in topic.cursors.values()] or [b"\x08\x05"]
    bad = nodes.damaged(rng.choice(kinds), value, rng.choice(others), rng)
    if bad != value and _shows(world, topic, bad):
        topic.damaged = True
        world.nodes.write(topic.path, bad)


def hide_topic(world: World, rng: Random) -> None:
    """Let an access list refuse the list of a topic to everybody but its broker, which is about to mend that."""
    topic = a_topic(world, rng)
    if topic is not None:
        topic.damaged = True
        world.nodes.hidden.add(topic.path)


def damage_cursor(world: World, rng: Random, kinds: tuple[str, ...]) -> None:
    """Damage the node of a cursor."""
    topic = a_topic(world, rng)
    if topic is None or not topic.cursors:
        return
    cursor = topic.cursors[rng.choice(sorted(topic.cursors))]
    value = nodes.cursor_node(cursor)
    foreign = nodes.managed_ledger(topic.ledgers, {})
    bad = nodes.damaged(rng.choice(kinds), value, foreign, rng)
    if bad != value and not _is_cursor(bad):
        topic.damaged = True
        world.nodes.write(topic.cursor_path(cursor), bad)


def damage_schema(world: World, rng: Random, kinds: tuple[str, ...]) -> None:
    """Damage the node of a schema."""
    cluster = rng.choice(world.clusters)
    whole = sorted(cluster.schemas.keys() - cluster.damaged_schemas)
    if whole:
        schema_id = rng.choice(whole)
        value = nodes.schema_locator(cluster.schemas[schema_id])
        bad = nodes.damaged(rng.choice(kinds), value, b"\x08\x05", rng)
        if not _is_schema(bad):
            cluster.damaged_schemas.add(schema_id)
            world.nodes.write(cluster.schema_path(schema_id), bad)


def damage_ledger(world: World, rng: Random, kinds: tuple[str, ...]) -> None:
    """Damage the metadata of a ledger whose topic is not damaged."""
    hurt = {one.ledger_id for topic in world.topics() if topic.damaged for one in topic.ledgers}
    hurt |= {ledger_id for topic in world.topics() for ledger_id in topic.creating}
    whole = [one for one in world.ledgers.values() if not one.damaged and one.ledger_id not in hurt]
    if whole:
        ledger = rng.choice(whole)
        other = rng.choice(list(world.ledgers.values())).raw
        bad = nodes.damaged(rng.choice(kinds), ledger.raw, other, rng)
        # Who lists a data ledger is looked up over all topics, whatever the ledger says.
        if isinstance(ledger.holder, ManagedLedgerHolder) or _holder_of(bad) in (None, ledger.holder):
            ledger.damaged = True
            world.nodes.write(ledger.path, bad)


def _has_damaged_ledger(world: World, topic: Topic) -> bool:
    ledgers = (world.ledgers.get(one.ledger_id) for one in topic.ledgers)
    return any(ledger is not None and ledger.damaged for ledger in ledgers)


def _shows(world: World, topic: Topic, value: bytes) -> bool:
    """Whether a reader can see that the list is not the broker's, or loses nothing by it."""
    try:
        node = managed_ledger_pb2.ManagedLedgerInfo.FromString(value)
    except _UNREADABLE:
        return True
    ids = [info.ledgerId for info in node.ledgerInfo]
    if len(UnknownFieldSet(node)) or not ids or not all(info.HasField("ledgerId") for info in node.ledgerInfo):
        return True
    if min(ids) < 0 or not _same_offloads(topic, node):
        return min(ids) < 0
    if topic.properties or node.properties:
        # A shadow's ledgers are held against its source's list, not its own.
        return False
    lost = [ledger for ledger in topic.ledgers if ledger.ledger_id not in ids]
    if any(one.ledger_id in world.ledgers and world.ledgers[one.ledger_id].holder != topic.holder for one in lost):
        return False
    return all(ledger.ledger_id > min(ids) and ledger.entries and ledger.closed_ms for ledger in lost)


def _same_offloads(topic: Topic, node: managed_ledger_pb2.ManagedLedgerInfo) -> bool:
    found = {info.ledgerId: info.offloadContext for info in node.ledgerInfo if info.HasField("offloadContext")}
    for ledger in topic.ledgers:
        context = found.get(ledger.ledger_id)
        if ledger.offload is None or context is None:
            if ledger.offload is not None and ledger.ledger_id in [info.ledgerId for info in node.ledgerInfo]:
                return False
            if context is not None:
                return False
            continue
        said = (context.uidMsb, context.uidLsb, context.complete, context.bookkeeperDeleted)
        if said != (*signed_halves(ledger.offload.uuid), ledger.offload.complete, ledger.offload.bookkeeper_deleted):
            return False
    return True


def _holder_of(value: bytes) -> Holder | None:
    try:
        return identify_holder(decode_ledger_metadata(value).custom)
    except FormatError:
        return None


def _is_cursor(value: bytes) -> bool:
    try:
        node = managed_ledger_pb2.ManagedCursorInfo.FromString(value)
    except _UNREADABLE:
        return False
    return node.HasField("cursorsLedgerId")


def _is_schema(value: bytes) -> bool:
    try:
        node = schema_locator_pb2.SchemaLocator.FromString(value)
    except _UNREADABLE:
        return False
    return node.HasField("info")
