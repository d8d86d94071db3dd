"""The scope of a build, and the ledgers of the source by it: to be copied, copied already, or to stay."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Final, NamedTuple

from pydantic import PlainSerializer

from bookwarden.bookie_clusters.registry import NOT_OURS, OTHER, UNREADABLE, Registry, Status, is_ours
from bookwarden.errors import FormatError, RefusedError
from bookwarden.ledgers.custom_metadata import identify_holder, is_unfinished, names_no_holder, why_not_superseded
from bookwarden.ledgers.kinds import KIND_BY_COMPONENT, Holder, LedgerComponent, SchemaHolder
from bookwarden.ledgers.metadata import LedgerMetadata, LedgerReading, LedgerState, place_in
from bookwarden.ledgers.names import TopicName
from bookwarden.ledgers.outcomes import CopyOutcome
from bookwarden.records import Names

#: The kinds that PIP-477 moves: small, and in use for as long as their topic is.
LONG_LIVED: Final = frozenset({LedgerComponent.SCHEMA_STORAGE, LedgerComponent.MANAGED_CURSOR})
#: All kinds.
ALL_KINDS: Final = frozenset(LedgerComponent)


class Route(NamedTuple):
    """The bookie clusters of a build, by name."""

    source: str
    target: str


def _values_of(kinds: frozenset[LedgerComponent]) -> list[str]:
    return sorted(kind.value for kind in kinds)


_Kinds = Annotated[frozenset[LedgerComponent], PlainSerializer(_values_of, return_type=list[str])]


@dataclass(frozen=True, slots=True)
class Scope:
    """The holders whose ledgers are copied: of these kinds, and within any of these names, if there are some."""

    kinds: _Kinds = LONG_LIVED
    tenants: Names = frozenset()
    namespaces: Names = frozenset()  #: As ``tenant/namespace``.
    topics: Names = frozenset()  #: In full; one without a partition stands for all of its own.

    def wanted(self, holder: Holder) -> bool:
        """Return whether the ledgers of this holder are copied."""
        if holder.component not in self.kinds:
            return False
        if not (self.tenants or self.namespaces or self.topics):
            return True
        try:
            topic = TopicName.of_managed_ledger(holder.topic)
        except FormatError:
            # No name that anybody can ask for is its.
            return False
        if topic.tenant in self.tenants or holder.topic.rsplit("/", 2)[0] in self.namespaces:
            return True
        if isinstance(holder, SchemaHolder):
            return any(TopicName.parse(one).schema_id == holder.schema_id for one in self.topics)
        return str(topic) in self.topics or str(topic.base) in self.topics

    def __str__(self) -> str:
        labels = [KIND_BY_COMPONENT[kind].ledgers_label for kind in LedgerComponent if kind in self.kinds]
        kinds = "all kinds" if self.kinds == ALL_KINDS else ", ".join(labels)
        names = [*sorted(self.tenants), *sorted(self.namespaces), *sorted(self.topics)]
        return f"{kinds} of {', '.join(names)}" if names else kinds


def scope_of(
    *, every_kind: bool, tenants: tuple[str, ...], namespaces: tuple[str, ...], topics: tuple[str, ...]
) -> Scope:
    """Make the scope that an operator asks for; FormatError for a name that is none."""
    for name in namespaces:
        if name.count("/") not in (1, 2) or not all(name.split("/")):
            raise FormatError(f"{name!r} is no namespace: expected tenant/namespace")
    named = frozenset(str(TopicName.parse(topic)) for topic in topics)
    kinds = ALL_KINDS if every_kind else LONG_LIVED
    return Scope(kinds, frozenset(tenants), frozenset(namespaces), named)


def route_of(registry: Registry, source: str | None = None, target: str | None = None) -> Route:
    """Return what is copied from and to; what is None is chosen.

    The target is then the active cluster; the source the only other one, the active one if that is not the target, or
    the one that was active before. RefusedError where a cluster is not registered or they are the same, where the
    target must not become active, and where the source cannot be chosen.
    """
    to = registry.cluster(target or registry.active).name
    since = source or _source_for(registry, to)
    if registry.cluster(since).name == to:
        raise RefusedError(f"nothing is copied: bookie cluster {to} cannot be both source and target")
    if registry.status_of(to) is Status.DEPRECATED:
        raise RefusedError(f"nothing is copied: bookie cluster {to} is DEPRECATED, and is to become empty")
    return Route(since, to)


def _source_for(registry: Registry, target: str) -> str:
    others = sorted(registry.clusters.keys() - {target})
    if not others:
        raise RefusedError("nothing is copied: there is no other bookie cluster than the target")
    if len(others) == 1:
        return others[0]
    if target != registry.active:
        return registry.active
    if registry.directive is not None and registry.directive.source in others:
        return registry.directive.source
    raise RefusedError(f"nothing is copied: say which of {', '.join(others)} is the source, with --src-cluster")


#: Of a drain.
EVERYTHING: Final = Scope(ALL_KINDS)


class LedgerToCopy(NamedTuple):
    """A ledger of the source; without an outcome it is to be copied."""

    ledger_id: int  #: Of its metadata on the source.
    kind: str  #: For people.
    holder: Holder | None  #: None where it is unknown.
    size: int  #: In bytes, of one copy of each entry; 0 while it is open.
    entries: int = 0  #: Of it; 0 while it is open.
    outcome: CopyOutcome | None = None  #: COMPLETE or LEFT_OUT; OPEN and FAILED for one that is to be looked at again.


def candidate_of(
    ledger_id: int,
    metadata: LedgerMetadata | None,
    registry: Registry,
    source: str,
    *,
    wanted: Callable[[Holder], bool],
    holder_of: Callable[[int], Holder | None] = lambda _: None,
) -> LedgerToCopy | None:
    """Sort a ledger by its metadata on the source, None for what is not understood.

    None if it is another Pulsar cluster's in a shared source; elsewhere each ledger is sorted, and one of Pulsar's that
    is not ours FAILED, since the registry may be wrong. ``holder_of`` says whose a ledger is that does not say it.
    """
    shared = registry.cluster(source).shared
    if metadata is None:
        # Whatever client made it: the report says that it cannot be copied.
        return None if shared else LedgerToCopy(ledger_id, UNREADABLE, None, 0)
    ours = is_ours(registry, registry.cluster(source), ledger_id, metadata.custom)
    if shared and not ours:
        return None
    holder = holder_of(ledger_id) if names_no_holder(metadata.custom) else identify_holder(metadata.custom)
    size, entries = metadata.length, 1 + (-1 if metadata.last_entry_id is None else metadata.last_entry_id)
    kind = NOT_OURS if not ours else OTHER if holder is None else holder.ledgers_label
    if holder is None or is_unfinished(metadata) or not wanted(holder):
        return LedgerToCopy(ledger_id, kind, holder, size, entries, CopyOutcome.LEFT_OUT)
    if not ours:
        return LedgerToCopy(ledger_id, kind, holder, size, entries, CopyOutcome.FAILED)
    outcome = None if metadata.state is LedgerState.CLOSED else CopyOutcome.OPEN
    return LedgerToCopy(ledger_id, kind, holder, size, entries, outcome)


def with_target(candidate: LedgerToCopy, reading: LedgerReading, route: Route) -> LedgerToCopy:
    """Return a closed one as complete, if the target is read to have it whole: no bookie needs to be asked then."""
    former, kept = place_in(reading, route.source), place_in(reading, route.target)
    if former is None or kept is None or why_not_superseded(former, kept, route.target) is not None:
        return candidate
    return candidate._replace(outcome=CopyOutcome.COMPLETE)
