"""What must hold after every step, and when all is quiet at the end."""

from __future__ import annotations

from bookwarden.clusters.bookkeeper.ledger_paths import ledger_path
from bookwarden.clusters.bookkeeper.undone import UNDONE_ROOT
from bookwarden.ledgers.received import ReceivedMark
from bookwarden.orphans.applying import ApplyResult
from bookwarden.orphans.classes import PLANNED, Cause, LedgerClass
from bookwarden.orphans.plan import Candidate

from .channel import Topics
from .model import Ledger, World
from .scanning import Scan
from .violation import Violation


def nothing_needed_is_gone(world: World) -> None:
    """Raise Violation for a ledger, or an offloaded copy, that somebody needs and that is not there."""
    for ledger_id, reason in world.needed():
        ledger = world.ledgers.get(ledger_id)
        if ledger is None or not world.nodes.has(ledger.path):
            raise Violation("lost", f"ledger {ledger_id} is gone, and {reason}")
    for uuid, reason in world.needed_copies():
        if uuid not in world.copies:
            raise Violation("lost", f"offloaded copy {uuid} is gone, and {reason}")


def leaks(world: World) -> list[Ledger]:
    """Give the ledgers that BookKeeper has and nobody needs; what an operator once put back is no leak."""
    needed = {ledger_id for ledger_id, _ in world.needed()}
    return [one for one in world.ledgers.values() if one.ledger_id not in needed and one.ledger_id not in world.undone]


def nothing_needed_is_planned(world: World, scan: Scan) -> None:
    """Raise Violation for a ledger in a plan that somebody needs, as far as metadata and entries can tell of it.

    Of what only a broker's memory has, what an undo put back, and whether an offloaded copy is whole, the sweep judges.
    """
    unseen = set(world.kept)
    for topic in world.topics():
        unseen |= topic.in_memory | {topic.compacting}
    # A compaction that ended since it was listed; only a longer one than any is planned.
    unseen |= {one.ledger_id for one in scan.candidates if one.state == "OPEN" and one.holder.startswith("compacted:")}
    planned = {
        one.ledger_id for one in scan.candidates if one.cause != Cause.OFFLOADED.value and _is_as_listed(world, one)
    } - unseen
    for ledger_id, reason in world.needed():
        if ledger_id in planned:
            raise Violation("planned", f"ledger {ledger_id} is a candidate of {scan.plan.plan_id}, and {reason}")


def _is_as_listed(world: World, one: Candidate) -> bool:
    """Say whether it is still the ledger that was listed, and no other that got its id during the scan."""
    node = world.nodes.get(one.path)
    return node is None or node.created_ms == one.created_ms


def every_leak_is_told(world: World, topics: Topics, scan: Scan | None, applied: ApplyResult | None) -> None:
    """Raise Violation for a leak of which nobody has heard, once all was looked at in peace.

    ``scan`` is None where it was refused, and ``applied`` where its plan was: whoever is refused is told why.
    """
    if scan is None:
        return
    marked = {_id(message.received()) for message in (*topics.letters, *topics.waiting)}
    listed = {one.ledger_id for topic in world.topics() for one in topic.ledgers}
    for ledger in leaks(world):
        if world.nodes.has(ledger_path(UNDONE_ROOT, ledger.ledger_id)):
            # An undo that was killed leaves the record that keeps a ledger; each mark is told so.
            continue
        found = scan.classes.get(ledger.ledger_id)
        is_named = found is not None and found.ledger_class is LedgerClass.REFERENCED
        if ledger.ledger_id in world.again and (is_named or ledger.ledger_id in listed):
            # A node names the former ledger of this id, such as one of which only the offloaded copy is left; where it
            # is another topic's, the sweep tells so.
            continue
        if found is None or found.ledger_class is LedgerClass.REFERENCED:
            kind = "not listed" if found is None else found.ledger_class.value
            raise Violation(
                "leak", f"ledger {ledger.ledger_id} of {ledger.holder} is leaked, and the scan says: {kind}"
            )
        if found.ledger_class.value not in PLANNED or ledger.ledger_id in marked or applied is None:
            continue
        told = {one.ledger_id for one in (*applied.held_back, *applied.dropped)}
        if ledger.ledger_id not in told:
            raise Violation("leak", f"ledger {ledger.ledger_id} of {ledger.holder} is planned each time and stays")


def _id(received: ReceivedMark) -> int | None:
    return received.mark.ledger_id if received.mark is not None else None
