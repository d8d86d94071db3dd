"""Observations of all that a switch of bookie clusters depends on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from bookwarden.disk_space import DiskSpace
from bookwarden.switching.brokers import Broker
from bookwarden.switching.registry import Registry


@dataclass(frozen=True, slots=True)
class ClusterSeen:
    """A registered bookie cluster; where its metadata does not answer all but ``trouble`` is empty."""

    trouble: str = ""  #: Why it did not answer; "" if it did.
    instance: str = ""  #: What its INSTANCEID node says; "" if there is none.
    writable: frozenset[str] = frozenset()  #: Ids of the bookies that take new ledgers now.
    read_only: frozenset[str] = frozenset()  #: Ids of the registered bookies that do not.
    known: frozenset[str] = frozenset()  #: Ids of the bookies that have a cookie, whether or not they run.
    own_next_id: int | None = None  #: That its own counter gives next; None where none was given yet.
    #: The largest id with metadata, where it is not shared of a ledger of ours or below the next id; None if none has.
    largest_ledger: int | None = None
    #: The largest id, from the next one of all clusters on, if that ledger is not ours; always None for a shared one.
    largest_of_others: int | None = None


@dataclass(frozen=True, slots=True)
class BrokerSettings:
    """The settings that a broker runs with; None where it did not tell them, for the reason in ``trouble``.

    ``other_configuration`` is the URL of its configuration store if that is another one than its metadata store.
    """

    name: str
    settings: Mapping[str, str] | None = None
    trouble: str | None = None
    other_configuration: str | None = None

    @property
    def quorums(self) -> Quorums | None:
        """The quorums of ledgers for which nothing else is demanded; None if it did not tell them."""
        given = self.settings or {}
        told = [given.get(f"managedLedgerDefault{name}", "") for name in ("EnsembleSize", "WriteQuorum", "AckQuorum")]
        return Quorums(*map(int, told)) if all(value.isdigit() for value in told) else None

    @property
    def digest(self) -> str:
        """The digest of its ledgers, by Pulsar's name; "" if it did not tell it."""
        return (self.settings or {}).get("managedLedgerDigestType", "")


@dataclass(frozen=True, slots=True)
class Quorums:
    """On how many bookies a ledger is written."""

    ensemble: int
    write: int
    acknowledged: int


@dataclass(frozen=True, slots=True)
class NamespacePlacement:
    """The demands of a namespace on the bookies of its ledgers; ``quorums`` is None where it takes the brokers'."""

    name: str
    quorums: Quorums | None = None
    groups: frozenset[str] = frozenset()  #: Bookie groups that its ledgers go to.
    spare_groups: frozenset[str] = frozenset()  #: Groups that are taken where those have not enough bookies.


@dataclass(frozen=True, slots=True)
class BookiePlaces:
    """Pulsar's own map of bookies: the groups by name, and the racks by bookie."""

    groups: Mapping[str, frozenset[str]]
    racks: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class TrialSeen:
    """A ledger that was written on the target, read back and removed."""

    ledger_id: int | None = None  #: None where none was made.
    bookies: int = 0  #: How many got an entry, or should have got one.
    failed: Mapping[str, str] = field(default_factory=dict)  #: Why bookies took or gave back none, by id.
    denied: frozenset[str] = frozenset()  #: Those of them that ask for credentials.
    trouble: str = ""  #: Why it could not be made, filled or closed.
    left: str = ""  #: Why it, or one of an earlier precheck, is still there.


@dataclass(frozen=True, slots=True)
class Observations:
    """Everything that is judged before a switch."""

    registry: Registry  #: As it is before the switch.
    target: str  #: Name of the bookie cluster to be made active.
    brokers: tuple[Broker, ...]  #: All live ones.
    settings: tuple[BrokerSettings, ...]  #: Of the live brokers.
    next_ledger_id: int | None  #: That the one generator gives next; None if it has not given any.
    clusters: Mapping[str, ClusterSeen]  #: By name, all that are registered.
    #: None where the metadata store has no policies of namespaces.
    namespaces: tuple[NamespacePlacement, ...] | None
    places: BookiePlaces  #: By Pulsar's own map.
    disks: Mapping[str, DiskSpace]  #: By id of the target's writable bookies.
    topics: tuple[tuple[str, Quorums], ...] = ()  #: Single topics that ask for quorums.
    unread_topics: tuple[str, ...] = ()  #: Why that is not known of the topics of a namespace.
    trial: TrialSeen | None = None  #: None where none was made.
    is_rollback: bool = False  #: The target is the cluster that was active before.
