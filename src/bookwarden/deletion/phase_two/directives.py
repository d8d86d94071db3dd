"""Switch directives in the stream of marks: what one comes to, by the registry of bookie clusters alone."""

from __future__ import annotations

from bookwarden.deletion.phase_two.decide import Decision, finish
from bookwarden.ledgers.metadata import ActiveCluster
from bookwarden.ledgers.outcomes import Outcome
from bookwarden.ledgers.switch_event import SwitchEvent


def judge_directive(event: SwitchEvent, active: ActiveCluster | None, owner: str | None) -> Decision:
    """Decide about a switch directive: it is acknowledged, and its row says what the registry says of it.

    ``owner`` is the owner mark of the registry, None where no cluster is registered. A directive that is late, doubled
    or forged changes nothing, and one that is lost is not missed: batches go by the registry.
    """
    if active is None or owner is None:
        return _directive("no bookie cluster is registered, so it changes nothing")
    now = f"bookie cluster {active.name} is active since epoch {active.epoch}"
    if event.owner != owner:
        return _directive(f"it is of the Pulsar cluster {event.owner!r}, and this one is {owner!r}; {now}")
    if (event.target, event.epoch) == (active.name, active.epoch):
        return _directive(f"{now}, by {event.origin}")
    return _directive(f"it says that {event.target!r} is active since epoch {event.epoch}; {now}")


def _directive(reason: str) -> Decision:
    return finish(Outcome.DIRECTIVE, reason)
