"""May brokers be switched to another bookie cluster now? Judged from observations, before anything is changed.

What each line guards against was measured, or is in the sources of Pulsar 4.0 to 4.2; the remedy for each is in
docs/bookie-clusters.md, under the line's name.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from bookwarden.bookie_clusters.brokers import Broker
from bookwarden.bookie_clusters.registry import BookieCluster, Registry, Status
from bookwarden.disk_space import DiskSpace, summed
from bookwarden.findings import Finding, Found, Verdict, failing, fails, ok, some, warns


@dataclass(frozen=True, slots=True)
class ObservedCluster:
    """A registered bookie cluster; where its metadata does not answer all but ``error`` is empty."""

    error: str = ""  #: Why it did not answer; "" if it did.
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
    """The settings that a broker runs with; None where it did not report them, for the reason in ``error``.

    ``other_configuration`` is the URL of its configuration store if that is another one than its metadata store.
    """

    name: str
    settings: Mapping[str, str] | None = None
    error: str | None = None
    other_configuration: str | None = None

    @property
    def quorums(self) -> Quorums | None:
        """The quorums of ledgers for which nothing else is demanded; None if it did not report them."""
        given = self.settings or {}
        sizes = [given.get(f"managedLedgerDefault{name}", "") for name in ("EnsembleSize", "WriteQuorum", "AckQuorum")]
        return Quorums(*map(int, sizes)) if all(value.isdigit() for value in sizes) else None

    @property
    def digest(self) -> str:
        """The digest of its ledgers, by Pulsar's name; "" if it did not report it."""
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
class BookieMap:
    """Pulsar's own map of bookies: the groups by name, and the racks by bookie."""

    groups: Mapping[str, frozenset[str]]
    racks: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class TrialResult:
    """A ledger that was written on the target, read back and removed."""

    ledger_id: int | None = None  #: None where none was made.
    bookies: int = 0  #: How many got an entry, or should have got one.
    failed: Mapping[str, str] = field(default_factory=dict)  #: Why bookies took or gave back none, by id.
    denied: frozenset[str] = frozenset()  #: Those of them that ask for credentials.
    error: str = ""  #: Why it could not be made, filled or closed.
    left: str = ""  #: Why it, or one of an earlier precheck, is still there.


@dataclass(frozen=True, slots=True)
class PrecheckObservations:
    """Everything that is judged before a switch."""

    registry: Registry  #: As it is before the switch.
    target: str  #: Name of the bookie cluster to be made active.
    brokers: tuple[Broker, ...]  #: All live ones.
    settings: tuple[BrokerSettings, ...]  #: Of the live brokers.
    next_ledger_id: int | None  #: That the one generator gives next; None if it has not given any.
    clusters: Mapping[str, ObservedCluster]  #: By name, all that are registered.
    #: None where the metadata store has no policies of namespaces.
    namespaces: tuple[NamespacePlacement, ...] | None
    places: BookieMap  #: By Pulsar's own map.
    disks: Mapping[str, DiskSpace]  #: By id of the target's writable bookies.
    topics: tuple[tuple[str, Quorums], ...] = ()  #: Single topics that ask for quorums.
    unread_topics: tuple[str, ...] = ()  #: Why that is not known of the topics of a namespace.
    trial: TrialResult | None = None  #: None where none was made.
    is_rollback: bool = False  #: The target is the cluster that was active before.


_DEFAULT_RACK: Final = "/default-rack"
_SKIPS: Final = "autoSkipNonRecoverableData"


@dataclass(frozen=True, slots=True)
class Precheck:
    """The result: all lines in the order to deal with them, and what they rest on."""

    seen: PrecheckObservations
    findings: tuple[Finding, ...]

    @property
    def failing(self) -> list[Finding]:
        """The checks that block the switch."""
        return failing(self.findings)

    def as_json(self) -> dict[str, Any]:
        """Return it by the field names of the proposal; each check says more."""
        registry, target = self.seen.registry, self.seen.target
        source, next_id = self.seen.clusters[registry.active].largest_ledger, self.seen.next_ledger_id
        ids = [one.verdict for one in self.findings if one.check == "ledger ids"]
        return {
            "ready": not self.failing,
            "idgenAdvancedBeyondSource": Verdict.FAILS not in ids,
            "sourceClusterName": registry.active,
            "targetClusterName": target,
            "sourceMaxHighOrderBit": None if source is None else source >> 32,
            "targetMaxHighOrderBit": None if next_id is None else next_id >> 32,
            "epoch": registry.epoch,
            "nextLedgerId": next_id,
            "largestLedgerIds": {name: each.largest_ledger for name, each in sorted(self.seen.clusters.items())},
            "checks": findings_data(self.findings),
        }


def findings_data(findings: Iterable[Finding]) -> list[dict[str, str]]:
    """Return the results of checks as values of JSON."""
    return [
        {"name": one.check, "severity": one.verdict.value, "evidence": one.seen, "whatToDo": one.advice}
        for one in findings
    ]


def judge(seen: PrecheckObservations) -> Precheck:
    """Judge all lines."""
    return Precheck(seen, tuple(Finding(check, *found) for check, line in _LINES.items() for found in line(seen)))


def judge_bookies(seen: PrecheckObservations) -> tuple[Finding, ...]:
    """Judge what brokers ask of the target's bookies, and the settings that decide what a missing ledger does."""
    return tuple(Finding(check, *found) for check in _OF_BOOKIES for found in _LINES[check](seen))


def judge_brokers(
    brokers: Iterable[Broker], registry: Registry, target: str, *, is_rollback: bool = False
) -> list[Finding]:
    """Judge what may change at any time, and is looked at again right before the switch: who follows, and sees what.

    A rollback passes brokers that act by an older epoch and know both clusters: that brokers disagree is harmless then.
    """
    both = (registry.cluster(registry.active), registry.cluster(target)) if is_rollback else ()
    found = (*_following(tuple(brokers), registry, both), *_views(tuple(brokers), registry, target))
    return [Finding("brokers", *one) for one in found]


def _target(seen: PrecheckObservations) -> Iterator[Found]:
    status = seen.registry.status_of(seen.target)
    if status is Status.ACTIVE:
        yield fails(f"{seen.target} is active already", "nothing: new ledgers go there")
    elif status is Status.DEPRECATED:
        yield fails(f"{seen.target} is DEPRECATED", "name another cluster, or let this one become active again first")
    else:
        yield ok(f"{seen.target} is STANDBY; {seen.registry.active} is active in epoch {seen.registry.epoch}")


def _brokers(seen: PrecheckObservations) -> Iterator[Found]:
    for one in judge_brokers(seen.brokers, seen.registry, seen.target, is_rollback=seen.is_rollback):
        yield one.verdict, one.seen, one.advice


def _following(brokers: tuple[Broker, ...], registry: Registry, passed: tuple[BookieCluster, ...]) -> Iterator[Found]:
    if not brokers:
        yield fails(
            "no broker is registered in the metadata store",
            "let the first of metadata_store.urls be the brokers' metadataStoreUrl; start the brokers",
        )
        return
    without = [one.name for one in brokers if one.follower is None and not one.error]
    if without:
        yield fails(
            f"{some(without)} does not follow the registry: it has no jar, and would write to one cluster only",
            "install the jar and its lines on that broker and restart it, or stop it: `bookie-clusters jar`",
        )
    faulty = [f"{one.name}: {one.error}" for one in brokers if one.error]
    if faulty:
        yield fails(some(faulty), "use the jar of this bookwarden on all brokers")
    late = [one for one in brokers if one.follower and not one.follows(registry.epoch)]
    known = [one for one in late if passed and all(map(one.knows, passed))]
    behind = [one.described() for one in late if one not in known]
    if behind:
        yield fails(
            f"the registry has epoch {registry.epoch}, and {some(behind)} acts by an older one",
            "wait; if it stays so, look for 'registry' in that broker's log",
        )
    if known:
        yield warns(
            f"the registry has epoch {registry.epoch}, and {some([one.described() for one in known])} acts by an older "
            "one, in which both clusters are",
            "roll back; then look for 'registry' in that broker's log, since it may not follow the rollback either",
        )
    foreign = [one.name for one in brokers if one.follower and one.follower.owner != registry.owner]
    if foreign:
        yield fails(
            f"{some(foreign)} follows the registry of another Pulsar cluster, not that of owner {registry.owner}",
            "set bookkeeper_bookwardenRegistry of all brokers to one registry",
        )
    if not (without or faulty or late or foreign):
        jars = sorted({one.follower.jar for one in brokers if one.follower})
        yield ok(f"{len(brokers)} live, all follow epoch {registry.epoch} with the jar {', '.join(jars)}")


def _views(brokers: tuple[Broker, ...], registry: Registry, target: str) -> Iterator[Found]:
    followers = [(one.name, one.follower) for one in brokers if one.follower is not None]
    instance = registry.cluster(target).instance
    other = [
        f"{name} sees {follower.instances.get(target) or 'none'}"
        for name, follower in followers
        if follower.instances.get(target) != instance
    ]
    if other:
        yield fails(
            f"{target} is the instance {instance}, and {some(other)}",
            "let every broker reach the same metadata under the registered address",
        )
    cut_off = [name for name, follower in followers if target in follower.unreachable]
    if cut_off:
        yield fails(f"{some(cut_off)} cannot read the metadata of {target}", "repair the way from that broker to it")
    elsewhere = [
        f"{name} not {cluster}" for name, follower in followers for cluster in sorted(follower.unreachable - {target})
    ]
    if elsewhere:
        yield warns(
            f"other clusters cannot be read: {some(elsewhere)}",
            "ledgers that are only there cannot be read, with or without the switch",
        )
    if followers and not (other or cut_off):
        yield ok(f"all that follow reach {target} and see its instance {instance}")


def _metadata(seen: PrecheckObservations) -> Iterator[Found]:
    for name, each in sorted(seen.clusters.items()):
        instance = seen.registry.cluster(name).instance
        if each.error:
            seen_there = f"{name}: {each.error}"
            if name == seen.target:
                yield fails(seen_there, "start its metadata service, or repair the way to it")
            else:
                yield warns(seen_there, "what is only there cannot be read; copies and deletions wait for it")
        elif each.instance != instance:
            yield fails(
                f"INSTANCEID of {name} says {each.instance or 'nothing'}, and it was registered as {instance}",
                "this address has another cluster now: find out who changed it before anything else",
            )
        elif name == seen.target:
            yield ok(f"{name} answers, and is the instance {instance}")


def _ledger_ids(seen: PrecheckObservations) -> Iterator[Found]:
    largest = {name: each.largest_ledger for name, each in seen.clusters.items() if each.largest_ledger is not None}
    next_id = -1 if seen.next_ledger_id is None else seen.next_ledger_id
    ahead = {name: ledger_id for name, ledger_id in sorted(largest.items()) if ledger_id >= next_id}
    own = [f"{name} has {ledger_id}" for name, ledger_id in ahead.items() if not seen.registry.cluster(name).shared]
    root = f"{seen.registry.id_root}/idgen"
    next_one = "no id was given yet" if seen.next_ledger_id is None else f"the next id is {next_id}"
    if own:
        yield fails(
            f"{next_one} (by {root}), and {some(own)}: topics sort ledgers by id, and would lose what came before",
            "find and stop what gives ids there by another counter; then raise this one: `bookie-clusters raise-ids`",
        )
    foreign = [f"{name} has {ledger_id}" for name, ledger_id in ahead.items() if seen.registry.cluster(name).shared]
    if foreign:
        yield warns(
            f"{next_one}, and {some(foreign)}, of another Pulsar cluster that writes there too",
            "nothing: ours come from one counter, and an id that is taken is passed over",
        )
    others = [
        f"{name} has {each.largest_of_others}"
        for name, each in sorted(seen.clusters.items())
        if each.largest_of_others is not None
    ]
    if others:
        yield warns(
            f"{next_one}, and {some(others)}, which is not ours: another client makes ledgers there by its own ids",
            "nothing if it is known, as Functions are: brokers pass these ledgers over, and ids that they take",
        )
    unknown = sorted(name for name, each in seen.clusters.items() if each.error)
    if unknown:
        yield warns(
            f"the ids of {some(unknown)} cannot be read", "nothing if its ledgers came from the brokers' one counter"
        )
    below = {name: each.unmarked_below or 0 for name, each in seen.registry.clusters.items()}
    behind = [
        f"{name} gives {each.own_next_id or 0} next, and ledgers without an owner mark are ours below {below[name]}"
        for name, each in sorted(seen.clusters.items())
        if not each.error and (each.own_next_id or 0) < below[name]
    ]
    if behind:
        yield warns(
            f"counters that clusters have themselves are behind: {some(behind)}",
            "let no client with the URI of that cluster make ledgers there; `bookie-clusters raise-ids --name NAME`, "
            "with all brokers stopped, raises the counter",
        )
    open_ = [each.name for each in seen.registry.open_ranges()] if len(seen.registry.clusters) > 1 else []
    if open_:
        yield warns(
            f"every ledger without an owner mark in {some(open_)} counts as ours, as with 0.1.0: one that another "
            "client makes there is read in place of ours",
            "`bookwarden bookie-clusters upgrade`, once all brokers have the jar of this bookwarden",
        )
    if not own:
        counted = some([f"{name}: {ledger_id}" for name, ledger_id in sorted(largest.items())]) or "no ledgers"
        yield ok(
            f"{next_one}, above every id of all that were read ({counted}); it serves all clusters, so back as well"
        )


def _bookies(seen: PrecheckObservations) -> Iterator[Found]:
    target = seen.clusters[seen.target]
    if target.error:
        return
    needed = _needed(seen)
    writable = len(target.writable)
    if not needed:
        yield warns("no broker reported its quorums", "see that the target has as many bookies as ensembles have")
    for quorums, who in sorted(needed.items(), key=lambda each: each[0].ensemble):
        wanted = f"an ensemble of {quorums.ensemble} ({some(who)})"
        if quorums.ensemble > writable:
            yield fails(
                f"{seen.target} has {writable} writable bookies, too few for {wanted}: no ledger could be created",
                "start bookies there, or make that ensemble smaller",
            )
        elif quorums.ensemble == writable:
            yield warns(
                f"{seen.target} has {writable} writable bookies, no spare for {wanted}",
                "one bookie that fails then stops new ledgers: start another",
            )
    most = max((quorums.ensemble for quorums in needed), default=0)
    if 0 < most < writable:
        yield ok(f"{seen.target} has {writable} writable bookies; the largest ensemble is {most}")
    if target.read_only:
        yield warns(f"read-only there: {some(sorted(target.read_only))}", "find out why; they take no new ledgers")
    if seen.unread_topics:
        yield warns(
            f"policies of topics were not read: {some(list(seen.unread_topics))}",
            "see that no topic there asks for more bookies: `pulsar-admin topicPolicies get-persistence`",
        )
    absent = sorted(target.known - target.writable - target.read_only)
    if absent:
        yield warns(f"not running there: {some(absent)}", "start them, or decommission them")


def _needed(seen: PrecheckObservations) -> dict[Quorums, list[str]]:
    """Return who asks for which quorums: the brokers' defaults, and the namespaces and topics with their own."""
    needed: defaultdict[Quorums, list[str]] = defaultdict(list)
    for broker in seen.settings:
        if broker.quorums is not None:
            needed[broker.quorums].append(broker.name)
    for namespace in seen.namespaces or ():
        if namespace.quorums is not None:
            needed[namespace.quorums].append(namespace.name)
    for topic, quorums in seen.topics:
        needed[quorums].append(topic)
    return needed


def _groups(seen: PrecheckObservations) -> Iterator[Found]:
    target = seen.clusters[seen.target]
    if target.error:
        return
    default = max((broker.quorums.ensemble for broker in seen.settings if broker.quorums), default=1)
    asked = [
        (one.name, one.groups, one.spare_groups, one.quorums.ensemble if one.quorums else default)
        for one in seen.namespaces or ()
        if one.groups
    ]
    for broker in seen.settings:
        settings = broker.settings or {}
        groups = _names(settings.get("bookkeeperClientIsolationGroups", ""))
        if groups:
            spare = _names(settings.get("bookkeeperClientSecondaryIsolationGroups", ""))
            asked.append((broker.name, groups, spare, default))
    faults = False
    for who, groups, spare_groups, ensemble in asked:
        first = _bookies_of(seen, groups) & target.writable
        all_of_them = first | (_bookies_of(seen, spare_groups) & target.writable)
        named = f"{who}: the groups {', '.join(sorted(groups | spare_groups))} have {len(all_of_them)}"
        if len(all_of_them) < ensemble:
            faults = True
            yield fails(
                f"{named} writable bookies in {seen.target}, and an ensemble has {ensemble}: publishing would stop",
                "add bookies of the target to these groups: `pulsar-admin bookies set-bookie-rack --group`",
            )
        elif len(first) < ensemble:
            faults = True
            yield warns(
                f"{who}: the groups {', '.join(sorted(groups))} have {len(first)} writable bookies in {seen.target}, "
                "so bookies of the secondary groups are taken",
                "add bookies of the target to them, unless that is meant",
            )
    if seen.namespaces is None:
        yield warns("the metadata store has no policies of namespaces", _ELSEWHERE)
    elif not faults:
        yield ok(
            f"{seen.target} has bookies for all {len(asked)} that ask for groups of bookies"
            if asked
            else "no namespace and no broker asks for groups of bookies"
        )


def _bookies_of(seen: PrecheckObservations, groups: frozenset[str]) -> frozenset[str]:
    return frozenset().union(*(seen.places.groups.get(group, frozenset()) for group in groups))


def _names(text: str) -> frozenset[str]:
    return frozenset(name.strip() for name in text.split(",") if name.strip())


def _racks(seen: PrecheckObservations) -> Iterator[Found]:
    target = seen.clusters[seen.target]
    if target.error:
        return
    racks = {bookie: rack for bookie, rack in seen.places.racks.items() if rack != _DEFAULT_RACK}
    without = sorted(target.writable - racks.keys())
    there = {racks[bookie] for bookie in target.writable if bookie in racks} | ({_DEFAULT_RACK} if without else set())
    for broker in seen.settings:
        settings = broker.settings or {}
        least = settings.get("bookkeeperClientMinNumRacksPerWriteQuorum", "")
        is_enforced = settings.get("bookkeeperClientEnforceMinNumRacksPerWriteQuorum", "").lower() == "true"
        if is_enforced and least.isdigit() and len(there) < int(least):
            yield fails(
                f"{broker.name} demands {least} racks for each write quorum, and the bookies of {seen.target} are in "
                f"{len(there)}",
                "name their racks: `pulsar-admin bookies set-bookie-rack`",
            )
            return
    if racks and without:
        yield warns(
            f"bookies of {seen.target} without a rack, though others have one: {some(without)}",
            "name their racks: `pulsar-admin bookies set-bookie-rack`; replicas may share one until then",
        )
    else:
        yield ok(f"racks of the bookies of {seen.target}: {', '.join(sorted(there))}")


def _broker_settings(seen: PrecheckObservations) -> Iterator[Found]:
    silent = [f"{broker.name}: {broker.error}" for broker in seen.settings if broker.settings is None]
    if silent:
        yield warns(f"not reported by {some(silent)}", "check autoSkipNonRecoverableData and the quorums there")
    answering = [broker for broker in seen.settings if broker.settings is not None]
    skipping = sorted(each.name for each in answering if (each.settings or {}).get(_SKIPS, "").lower() == "true")
    if skipping:
        yield fails(
            f"{some(skipping)} has {_SKIPS}=true: a ledger that cannot be found for a moment is "
            "acknowledged for ever, unread",
            "set it to false; it is a dynamic setting",
        )
    digests = {each.digest for each in answering} - {""}
    if len(digests) > 1:
        yield warns(f"the brokers write different digests: {', '.join(sorted(digests))}", "set one on all of them")
    elsewhere = sorted({broker.other_configuration for broker in seen.settings if broker.other_configuration})
    if elsewhere:
        yield warns(f"the brokers' configuration store is {some(elsewhere)}", _ELSEWHERE)
    if answering and not skipping and len(digests) <= 1:
        yield ok(f"{_SKIPS} is false, the digest is {', '.join(digests) or 'not reported'}")


def _disks(seen: PrecheckObservations) -> Iterator[Found]:
    full, silent, free = summed(seen.disks)
    if full:
        yield warns(some(full), "make room or add bookies before all new data goes there")
    if silent:
        yield warns(f"not checked: {some(silent)}", "look at the disks of these bookies yourself")
    if seen.disks and not full and not silent:
        yield ok(f"{free / 1e9:,.1f} GB free on {len(seen.disks)} bookies of {seen.target}")


def _trial(seen: PrecheckObservations) -> Iterator[Found]:
    trial = seen.trial
    if trial is None:
        return
    named = f"ledger {trial.ledger_id}"
    failed = [why for bookie, why in sorted(trial.failed.items()) if bookie not in trial.denied]
    if trial.error:
        yield fails(
            f"no ledger could be made and closed in {seen.target}: {trial.error}",
            "put that right: brokers would fail too",
        )
    if failed:
        most = max((quorums.ensemble for quorums in _needed(seen)), default=1)
        # A broker takes another bookie in the place of one that fails, as long as there is one.
        works = len(seen.clusters[seen.target].writable) - len(failed)
        yield (warns if works >= most else fails)(
            f"{named} in {seen.target}: {some(failed)}; {works} others work, and the largest ensemble is {most}",
            "look at these bookies and their logs; if brokers reach them, and this machine cannot: --no-trial",
        )
    if trial.denied:
        yield warns(
            f"{some(sorted(trial.denied))} asked for credentials, so that no ledger was written there",
            "see that the brokers have credentials for these bookies, and watch the first ledgers after the switch: "
            "docs/bookie-clusters.md, 'Precheck'",
        )
    if trial.left:
        yield warns(f"left there: {trial.left}", "nothing: the next precheck removes it")
    if not (trial.error or failed or trial.denied):
        end = "closed" if trial.left else "closed and deleted"
        yield ok(
            f"{named} was written to {trial.bookies} bookies of {seen.target} from this machine, read back and "
            f"compared, {end}; that brokers reach these bookies is not checked"
        )


_ELSEWHERE: Final = "check persistence policies and bookie affinity groups of the namespaces yourself"

_LINES: Final[Mapping[str, Callable[[PrecheckObservations], Iterator[Found]]]] = {
    "target": _target,
    "brokers": _brokers,
    "metadata": _metadata,
    "ledger ids": _ledger_ids,
    "bookies": _bookies,
    "affinity groups": _groups,
    "racks": _racks,
    "broker settings": _broker_settings,
    "disk space": _disks,
    "trial ledger": _trial,
}
_OF_BOOKIES: Final = ("bookies", "affinity groups", "racks", "broker settings", "disk space")
