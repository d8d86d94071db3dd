"""Marks that no honest producer sends: of live ledgers, of other holders, with impossible fields and properties."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random

from bookwarden.errors import MalformedMarkError
from bookwarden.ledgers.kinds import Holder, ManagedLedgerHolder
from bookwarden.ledgers.managed_ledger import signed_halves
from bookwarden.ledgers.pending_deletion import LedgerType, OffloadContext, PendingDeletion, mark_of_holder
from bookwarden.ledgers.received import DELAY_TIME, FIRST_PUBLISHED, FIRST_READ, RECONSUME_TIMES, VERIFIED_AT

from .channel import DELETION, RETRY, Topics, send_mark
from .model import Ledger, World

OTHER_BOOKIES = "other-bookies"
_EXTREMES = (2**62, 2**53, -5, 253_402_300_800_000)


def forge(world: World, topics: Topics, rng: Random, features: frozenset[str]) -> None:
    """Send one forged mark, sometimes twice."""
    mark = _mark(world, rng)
    if mark is None:
        return
    if rng.random() < 0.3:
        mark = replace(mark, marked_at=rng.choice((1, 1_500_000_000_000)))
    if "forged times" in features and rng.random() < 0.3:
        mark = replace(mark, marked_at=rng.choice(_EXTREMES))
    if "other bookies" in features and rng.random() < 0.3:
        mark = replace(mark, bookie_cluster=OTHER_BOOKIES)
    topic = RETRY if rng.random() < 0.2 else DELETION
    change: Callable[[bytes], bytes] = bytes if rng.random() < 0.9 else _garbled(rng)
    for _ in range(rng.choice((1, 1, 1, 2))):
        try:
            send_mark(topics, mark, topic=topic, properties=_properties(world, rng, topic, features), change=change)
        except MalformedMarkError:
            # Avro cannot hold it: nobody can send it either.
            return


def _mark(world: World, rng: Random) -> PendingDeletion | None:
    if not world.ledgers:
        return None
    ledger = rng.choice(_worth_a_try(world, rng) if rng.random() < 0.4 else list(world.ledgers.values()))
    holder: Holder = ledger.holder
    ledger_id = ledger.ledger_id
    chance = rng.random()
    if chance < 0.15:
        holder = rng.choice(list(world.ledgers.values())).holder
    elif chance < 0.25:
        ledger_id = rng.choice((world.largest_id + 1 + rng.randrange(5), 2**63 - 1, rng.randrange(1, 99)))
    mark = mark_of_holder(ledger_id, holder, "forged")
    if rng.random() < 0.15 and isinstance(holder, ManagedLedgerHolder) and world.copies:
        uuid = rng.choice(list(world.copies))
        msb, lsb = signed_halves(uuid)
        context = OffloadContext(msb, lsb, "S3", {"bucket": "b"})
        named = world.copies[uuid].ledger_id if rng.random() < 0.8 else ledger_id
        return replace(mark, ledger_id=named, ledger_type=LedgerType.OFFLOAD_LEDGER, offload_context=context)
    return mark


def _worth_a_try(world: World, rng: Random) -> list[Ledger]:
    """Give the ledgers about which something is unusual, or those of just now; all where that is none."""
    young = {ledger_id for topic in world.topics() for ledger_id in topic.creating}
    if young and rng.random() < 0.5:
        return [world.ledgers[ledger_id] for ledger_id in sorted(young)]
    ids = set(world.kept)
    for topic in world.topics():
        if topic.damaged or not topic.is_own or topic.name.local_name.startswith("rescued"):
            ids.update(ledger.ledger_id for ledger in topic.ledgers)
        ids.update(topic.in_memory)
        ids.update(one.ledger_id for one in topic.ledgers if one.offload and one.offload.bookkeeper_deleted)
    found = [ledger for ledger in world.ledgers.values() if ledger.ledger_id in ids or ledger.damaged]
    return found or list(world.ledgers.values())


def _properties(world: World, rng: Random, topic: str, features: frozenset[str]) -> dict[str, str]:
    chance = rng.random()
    if chance < 0.5:
        return {}
    properties = {RECONSUME_TIMES: rng.choice(("0", "1", "3", "999999999", "-3", "1" + "0" * 30))}
    if chance < 0.7:
        properties[DELAY_TIME] = rng.choice(("600000", "-1", "1" + "0" * 18))
        properties[FIRST_PUBLISHED] = rng.choice(("0", "-1", "x"))
    if "forged verification" in features and chance > 0.7 and topic == DELETION:
        properties[VERIFIED_AT] = rng.choice(("1", str(world.clock.ms - 10**9)))
        # Nothing counts as verified before it was read.
        properties[FIRST_READ] = properties[VERIFIED_AT]
    return properties


def _garbled(rng: Random) -> Callable[[bytes], bytes]:
    seed = rng.randrange(2**32)

    def change(payload: bytes) -> bytes:
        draw = Random(seed)
        at = draw.randrange(len(payload))
        return payload[:at] + bytes([payload[at] ^ (1 << draw.randrange(8))]) + payload[at + draw.randrange(1, 3) :]

    return change
