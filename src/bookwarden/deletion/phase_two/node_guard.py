"""Guard of what its holder does not name: can the holder's nodes be right, and is the ledger as empty as it must be?

A ledger that is not closed may have entries, which its metadata does not say: a data ledger inside its topic's list
goes only if the bookies say that it has none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from bookwarden.deletion.node_check import BookieReads, NodeCheck, NodeDoubt, Suspect
from bookwarden.deletion.phase_two.decide import Action, Decision, finish, judge_proven, retry
from bookwarden.deletion.phase_two.guards import Candidate, Guard
from bookwarden.deletion.ports import LastEntryReader
from bookwarden.errors import BookieError, FormatError, NotFoundError
from bookwarden.ledgers.live_references import LiveReferences
from bookwarden.ledgers.outcomes import Outcome

_OF_COPIES: Final = (Action.DELETE_COPY, Action.PROVE_COPY)


class NodeGuard(Guard):
    """Guard of ledgers and copies whose holder may name them; ``entries`` is None without bookies to ask."""

    actions = (Action.DELETE, Action.PROVE_EMPTY, *_OF_COPIES)

    def __init__(self, nodes: NodeCheck, entries: LastEntryReader | None) -> None:
        self._nodes = nodes
        self._entries = entries

    def review(self, candidates: Sequence[Candidate]) -> list[Decision]:
        """Check the nodes of all holders, and then the entries of ledgers that must have none; StoreError as there."""
        bookies = BookieReads(self._entries)
        doubts = self._nodes.doubts([_suspect(one) for one in candidates], bookies)
        return [_decision(one, doubt, bookies) for one, doubt in zip(candidates, doubts, strict=True)]


def _suspect(one: Candidate) -> Suspect:
    nodes = one.references.nodes if isinstance(one.references, LiveReferences) else ()
    return Suspect(one.holder, one.reading, nodes, one.decision.action in _OF_COPIES, one.waives)


def _decision(one: Candidate, doubt: NodeDoubt | None, bookies: BookieReads) -> Decision:
    if doubt is not None:
        return retry(str(doubt), Outcome.DAMAGED_HOLDER)
    if one.decision.action is not Action.PROVE_EMPTY or not isinstance(one.references, LiveReferences):
        return one.decision
    try:
        last = bookies.last_entry(one.mark.ledger_id)
    except NotFoundError:
        return finish(Outcome.ALREADY_GONE, "gone between check and delete")
    except (BookieError, FormatError) as error:
        return retry(f"it is not closed, and whether it has entries is not known: {error}")
    if last is None:
        return Decision(Action.DELETE, Outcome.DELETED, "")
    return judge_proven(one.mark, one.references, one.message.attempts)
