"""The commands of the trash: list what is in it, restore, let go (docs/trash-restore.md)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import click

from bookwarden.cli.shell.invocation import Invocation, operator, parse_topic, pass_invocation
from bookwarden.cli.shell.output import Cells, Column, Document, Facts, Note, Part, Table, counted, moment, table_of
from bookwarden.errors import FormatError, NotFoundError, RefusedError
from bookwarden.exit_codes import SOME_FAILED
from bookwarden.ledgers.names import TopicName, encode_local_name
from bookwarden.ledgers.trash import FormerPolicies
from bookwarden.preflight import require_marking
from bookwarden.trash.from_ledgers import RebuiltTopic
from bookwarden.trash.generations import (
    FROM_LEDGERS,
    TrashedGeneration,
    is_log,
    logs_of,
    partitioned_node,
)
from bookwarden.trash.namespace_restore import deleted_with
from bookwarden.trash.other_name import under_name
from bookwarden.trash.plan import NotRestored, RestorePlan, RestoreRequest
from bookwarden.trash.policy_restore import former_policies
from bookwarden.trash.records import by_node
from bookwarden.trash.release import ReleaseReport, release
from bookwarden.trash.restore import RestoreResult, why_gone
from bookwarden.trash.summary import Summary, unseen_policies
from bookwarden.wiring.cluster import Cluster
from bookwarden.wiring.deletion import marker_of
from bookwarden.wiring.roots import roots_proof_of
from bookwarden.wiring.trash import TrashOperations

_LOGS: Final = "acknowledgements in transactions that were open"
#: The sweep looks for the policies of deleted topics every 15 s.
_POLICIES_WAIT_S: Final = 40.0
_SET_AGAIN: Final = (
    "Set policies that do not come back again, retention first: a broker trims what all subscriptions have consumed."
)
_Done = tuple[TrashedGeneration, RestorePlan | None, RestoreResult | None]

_LIST_EPILOG: Final = """\b
A generation is one life of a topic, by when its node was made, in ms since 1970: --generation of `restore`."""
_RESTORE_EPILOG: Final = """\b
Exit codes: 0 planned, or restored; 27 restored, and a ledger was deleted meanwhile, or the loaded topic differs.

\b
What comes back and what does not: docs/trash-restore.md."""
_PURGE_EPILOG: Final = """\b
Exit codes: 0 planned, or let go; 27 some of it is left, as the output says: run it again."""


@click.group()
def trash() -> None:
    """Bring deleted topics and trimmed ledgers back.

    Brokers in mode two-phase keep what they drop for a time, where the settings below trash say so:
    docs/trash.md.
    """


def _in_scope(name: str | None) -> Callable[[str], bool]:
    """Return whether a managed ledger is of this topic, of a partition of it, or of this namespace."""
    if name is None:
        return lambda _: True
    if "://" not in name and name.count("/") == 1:
        prefix = f"{name}/persistent/"
        return lambda managed_ledger: managed_ledger.startswith(prefix)
    topic = TopicName.parse(parse_topic(name))

    def is_of_topic(managed_ledger: str) -> bool:
        try:
            found = TopicName.of_managed_ledger(managed_ledger)
        except FormatError:
            return False
        return topic in (found, found.base)

    return is_of_topic


@trash.command("list", epilog=_LIST_EPILOG)
@click.argument("name", metavar="[TOPIC|NAMESPACE]", required=False)
@pass_invocation
def show(invocation: Invocation, name: str | None) -> None:
    """Show what is in the trash, the newest of each topic first.

    Reads the records of brokers and asks BookKeeper which of their ledgers are still there.
    """
    is_asked = _in_scope(name)
    with Cluster(invocation.settings) as cluster:
        operations = TrashOperations(cluster)
        content = operations.records.read()
        found = [trashed for trashed in content.generations if is_asked(trashed.managed_ledger)]
        under_way = operations.restore.under_way()
        summaries = operations.records.summarize(found, cluster.bookkeeper.catalog, under_way)
        absent = [copy for copy in operations.namespaces.absent() if is_asked(f"{copy.namespace}/persistent/")]
    empty = "The trash is empty." if name is None else f"The trash has nothing of {name}."
    parts: list[Part] = [table_of(summaries, _CELLS, empty=empty)]
    parts += [Note(f"{path}: {why}") for path, why in content.unreadable.items()]
    parts += [
        Note(f"The namespace {copy.namespace} is gone since {moment(copy.gone_ms)}: restore it with --namespace.")
        for copy in absent
    ]
    namespaces = {copy.namespace: copy.gone_ms for copy in absent}
    data = {"generations": summaries, "namespaces": namespaces, "unreadable": content.unreadable}
    invocation.write(Document(data, tuple(parts)))


_CELLS: Final[Cells[Summary]] = {
    Column("topic", topics=True): lambda one: one.topic,
    Column("generation", right=True): lambda one: str(one.generation),
    Column("what"): lambda one: one.what,
    Column("when"): lambda one: moment(one.dropped_ms),
    Column("broker", whole=False): lambda one: ", ".join(one.brokers),
    Column("ledgers", right=True): lambda one: f"{one.ledgers:,}",
    Column("bytes", right=True): lambda one: f"{one.bytes:,}",
    Column("subscriptions", whole=False): lambda one: ", ".join(one.subscriptions),
    Column("expires"): lambda one: moment(one.expires_ms) if one.expires_ms else "",
    Column("missing", whole=False): lambda one: "; ".join(one.missing),
    Column("restore", whole=False): lambda one: one.restore,
}


@trash.command("restore", epilog=_RESTORE_EPILOG)
@click.argument("topic", type=parse_topic, required=False)
@click.option("--namespace", metavar="NAMESPACE", help="A deleted namespace, with the topics that went with it.")
@click.option(
    "--generation",
    type=int,
    metavar="G",
    help="Which life of the topic; without it the newest that is over, or else what the live topic dropped.",
)
@click.option("--subscription", metavar="S", help="This subscription alone.")
@click.option("--under-live", is_flag=True, help="Put it under a topic of that name which is there now.")
@click.option(
    "--as",
    "name_as",
    type=parse_topic,
    metavar="NAME",
    help="Restore a deleted topic under this name, which no topic has; its own may be in use again.",
)
@click.option(
    "--from-ledgers",
    is_flag=True,
    help="Put together what no trash has, from all ledgers whose metadata names the topic.",
)
@click.option("--execute", is_flag=True, help="Restore; without it the command only says what would come back.")
@pass_invocation
def restore(
    invocation: Invocation,
    topic: str | None,
    namespace: str | None,
    generation: int | None,
    subscription: str | None,
    under_live: bool,
    name_as: str | None,
    from_ledgers: bool,
    execute: bool,
) -> None:
    """Put a topic, its subscriptions or its ledgers back.

    A partitioned topic comes back with all partitions that were deleted with it. A live topic is unloaded before its
    list is written. Killed anywhere, the same command goes on.

    With --as a deleted topic comes back under another name, whatever its own name has now; of a partitioned topic give
    the partitioned names.

    With --from-ledgers a topic comes back that lost its node without a trash: its messages, the subscriptions whose
    ledgers are there, and its schema. With --under-live what left the list of a topic that is there comes back under it
    too. The metadata of all ledgers is read for it.
    """
    if (topic is None) is (namespace is None):
        raise click.UsageError("name a topic, or a namespace with --namespace.")
    if from_ledgers and generation is not None:
        raise click.UsageError("--generation is of what the trash has, and --from-ledgers of what it does not have")
    if namespace is not None:
        if generation is not None or subscription is not None or from_ledgers or name_as is not None:
            raise click.UsageError("--generation, --subscription, --as and --from-ledgers go with a topic.")
        _restore_namespace(invocation, namespace, RestoreRequest(under_live=under_live), execute)
        return
    assert topic is not None
    other = None if name_as is None else TopicName.parse(name_as)
    if other is not None and (under_live or from_ledgers):
        raise click.UsageError(
            "--as is for what the trash has, under a name that no topic has: not with --under-live or --from-ledgers"
        )
    name, cursor = TopicName.parse(topic), None if subscription is None else encode_local_name(subscription)
    with Cluster(invocation.settings) as cluster:
        operations = TrashOperations(cluster, operator=operator(), say=invocation.say)
        found = operations.records.read().generations
        lost: dict[str, tuple[NotRestored, ...]] = {}
        if from_ledgers:
            rebuilt = _rebuilt(cluster, operations, found, name, under_live=under_live)
            chosen = [one.trashed for one in rebuilt]
            lost = {one.trashed.managed_ledger: one.lost for one in rebuilt}
        else:
            chosen = _choose(found, name, generation, cursor)
        if execute and not from_ledgers:
            in_trash = {one.managed_ledger for one in found}
            is_asked = _in_scope(str(name))
            finished = operations.restore.finish(lambda one: is_asked(one) and one not in in_trash)
            if finished and not chosen:
                invocation.write(Document({"executed": True, "topics": []}, (Note("It is restored already."),)))
                return
        if not chosen:
            raise NotFoundError(_not_found(name, generation))
        if other is not None:
            _require_other(name, other)
        node = None if name.partition is not None else partitioned_node(chosen)
        request = RestoreRequest(cursor, under_live)
        logs = [] if from_ledgers or cursor is not None else logs_of(chosen, found)
        done, kept = _restored_logs(invocation, operations, logs, chosen, request, execute, other)
        done += _restored(invocation, operations, chosen, node, request, execute, other)
        lost[chosen[0].managed_ledger] = (*lost.get(chosen[0].managed_ledger, ()), *kept)
    partitions = 0 if node is None else int(json.loads(node)["partitions"])
    done = [(one, _with_lost(plan, lost.get(one.managed_ledger, ())), result) for one, plan, result in done]
    invocation.write(_describe(done, partitions, executed=execute))
    click.get_current_context().exit(0 if _is_whole(done) else SOME_FAILED)


def _restored(
    invocation: Invocation,
    operations: TrashOperations,
    chosen: Sequence[TrashedGeneration],
    node: bytes | None,
    request: RestoreRequest,
    execute: bool,
    other: TopicName | None = None,
) -> list[_Done]:
    """Restore one topic, or partitions of one, whose own node is to be ``node``; without ``execute`` plan it.

    Under an ``other`` name, if one is given.
    """
    if execute and chosen:
        chosen = operations.records.with_policies(chosen, _POLICIES_WAIT_S)
    if other is not None:
        chosen = [under_name(one, other) for one in chosen]
    if not execute or not chosen:
        return [(one, operations.restore.plan(one, request), None) for one in chosen]
    invocation.say(f"restoring {_topic(chosen[0])}{' and its other partitions' if len(chosen) > 1 else ''}")
    results = (
        [operations.restore.run(one, request) for one in chosen]
        if node is None
        else operations.restore.run_partitions(chosen, request, node)
    )
    return [(one, result.plan, result) for one, result in zip(chosen, results, strict=True)]


def _require_other(name: TopicName, other: TopicName) -> None:
    """Refuse a name under which the topic cannot come back."""
    if other == name:
        raise RefusedError(f"--as {other} is the topic's own name: restore it without")
    if name.partition is not None or other.partition is not None:
        raise RefusedError("--as is for whole topics: give the names of partitioned topics, their partitions follow")
    for one in (name, other):
        if is_log(one.managed_ledger):
            raise RefusedError(
                f"{one} is a subscription's log of acknowledgements, which comes back with its topic alone"
            )
    if other.cluster is not None:
        raise RefusedError(f"{other} has a name of the first version, under which nothing is restored")


def _restored_logs(
    invocation: Invocation,
    operations: TrashOperations,
    logs: Sequence[TrashedGeneration],
    topics: Sequence[TrashedGeneration],
    request: RestoreRequest,
    execute: bool,
    other: TopicName | None,
) -> tuple[list[_Done], list[NotRestored]]:
    """Restore what brokers read with these topics, before them; return what stays as it is, too."""
    done: list[_Done] = []
    kept: list[NotRestored] = []
    if logs and other is not None:
        return [], [NotRestored(_LOGS, "the subscriptions of another name begin without them")]
    if logs:
        # If they are refused nothing is written.
        for one in topics:
            operations.restore.plan(one, request)
    for log in logs:
        try:
            done += _restored(invocation, operations, [log], None, RestoreRequest(), execute)
        except RefusedError as error:
            # Clients of a live topic have begun another one.
            if not request.under_live:
                raise
            kept.append(NotRestored(_LOGS, str(error)))
    return done, kept


def _is_whole(done: Iterable[_Done]) -> bool:
    return all(result is None or not (result.gone or result.problems or result.left) for _, _, result in done)


def _restore_namespace(invocation: Invocation, namespace: str, request: RestoreRequest, execute: bool) -> None:
    done: list[_Done] = []
    failed: dict[str, str] = {}
    with Cluster(invocation.settings) as cluster:
        operations = TrashOperations(cluster, operator=operator(), say=invocation.say)
        copy = operations.namespaces.find(namespace)
        is_there = operations.namespaces.is_there(copy)
        found = operations.records.read().generations
        topics: dict[str, list[TrashedGeneration]] = {}
        for one in deleted_with(copy, found):
            topics.setdefault(str(TopicName.of_managed_ledger(one.managed_ledger).base), []).append(one)
        if execute:
            operations.namespaces.write(copy)
            in_trash = {one.managed_ledger for one in found}
            is_asked = _in_scope(namespace)
            operations.restore.finish(lambda one: is_asked(one) and one not in in_trash)
        # What brokers read with a topic comes back before it.
        for topic, chosen in sorted(topics.items(), key=lambda one: (not is_log(one[1][0].managed_ledger), one)):
            try:
                node = partitioned_node(chosen)
                done += _restored(invocation, operations, _in_order(chosen), node, request, execute)
            except RefusedError as error:
                # The others come back without it.
                failed[topic] = str(error)
    policies = "they are there" if is_there else "made again" if execute else "to be made again"
    facts = Facts((("namespace", namespace), ("policies", policies), ("topics", f"{len(topics):,}")))
    parts: list[Part] = [facts, *_parts_of(done, executed=execute)]
    if failed:
        columns = (Column("not restored", topics=True), Column("why", whole=False))
        parts.insert(1, Table(columns, tuple(failed.items())))
    data = {"executed": execute, "namespace": namespace, "policies": policies, "not_restored": failed}
    invocation.write(Document({**data, "topics": [_data(*one) for one in done]}, tuple(parts)))
    click.get_current_context().exit(SOME_FAILED if failed or not _is_whole(done) else 0)


def _rebuilt(
    cluster: Cluster,
    operations: TrashOperations,
    found: Sequence[TrashedGeneration],
    name: TopicName,
    *,
    under_live: bool,
) -> list[RebuiltTopic]:
    """Put the topic together from its ledgers; RefusedError where the trash has it, which has more."""
    is_asked, under_way = _in_scope(str(name)), operations.restore.under_way()
    if any(is_asked(one.managed_ledger) and one.topic is not None for one in found):
        raise RefusedError(f"the trash has {name}, with more than its ledgers tell: restore it without --from-ledgers")
    # Another Pulsar cluster that shares the BookKeeper may have a topic of that name.
    roots_proof_of(cluster).require()
    return operations.from_ledgers.find(name, under_live=under_live, under_way=under_way)


def _with_lost(plan: RestorePlan | None, lost: tuple[NotRestored, ...]) -> RestorePlan | None:
    return plan if plan is None or not lost else replace(plan, lost=(*plan.lost, *lost))


def _choose(
    found: Sequence[TrashedGeneration], name: TopicName, generation: int | None, cursor: str | None
) -> list[TrashedGeneration]:
    """Return the generation of the topic, or of each of its partitions in order; of several the one to prefer."""
    own = [one for one in found if one.managed_ledger == name.managed_ledger]
    if not own and name.partition is None:
        of_base = _in_scope(str(name))
        own = [one for one in found if of_base(one.managed_ledger)]
    newest: dict[str, TrashedGeneration] = {}
    # The newest of each comes first: of lives that are over, or else what a live topic dropped.
    for one in sorted(own, key=lambda one: one.topic is None):
        has_it = cursor is None or cursor in one.cursors or cursor in one.removed
        if has_it and (generation is None or generation == one.generation.created_ms):
            newest.setdefault(one.managed_ledger, one)
    if generation is not None and len(newest) > 1:
        raise RefusedError(f"{name} has partitions: --generation goes with one of them")
    return _in_order(newest.values())


def _in_order(chosen: Iterable[TrashedGeneration]) -> list[TrashedGeneration]:
    return sorted(chosen, key=lambda one: TopicName.of_managed_ledger(one.managed_ledger).partition or 0)


def _not_found(name: TopicName, generation: int | None) -> str:
    of = "" if generation is None else f" of generation {generation}"
    return (
        f"the trash has nothing{of} of {name}: `bookwarden trash list` shows what it has, and --from-ledgers what its "
        "ledgers tell of a topic that it never had, with --under-live of one that is there and lost them off its list"
    )


def _describe(
    done: Sequence[_Done],
    partitions: int,
    *,
    executed: bool,
) -> Document:
    parts = _parts_of(done, executed=executed)
    if partitions:
        parts.insert(0, Note(f"It is a topic of {partitions} partitions."))
    data = {"executed": executed, "partitions": partitions, "topics": [_data(*one) for one in done]}
    return Document(data, tuple(parts))


def _parts_of(done: Sequence[_Done], *, executed: bool) -> list[Part]:
    parts: list[Part] = []
    for trashed, plan, result in done:
        parts += _parts(trashed, plan, result)
    if any(unseen_policies(trashed) for trashed, _, _ in done):
        parts.append(Note(_SET_AGAIN))
    if not executed:
        parts.append(Note("Nothing was changed; --execute does it."))
    return parts


def _parts(trashed: TrashedGeneration, plan: RestorePlan | None, result: RestoreResult | None) -> list[Part]:
    created_ms = trashed.generation.created_ms
    life = "from its ledgers" if created_ms == FROM_LEDGERS else str(created_ms)
    origin = [] if trashed.origin is None else [("restored from", _topic(trashed.origin))]
    facts = [("topic", _topic(trashed)), *origin, ("generation", life)]
    parts: list[Part] = []
    if plan is not None:
        schema = "-" if plan.schema_versions is None else counted(plan.schema_versions, "version")
        facts += [
            ("ledgers", f"{len(plan.ledgers):,}, with {plan.entries:,} entries and {plan.size:,} bytes"),
            ("schema", schema),
            ("live topic", "yes: it is unloaded, and the rest is put under it" if plan.is_live else "no"),
            *_facts_of_policies(trashed, plan),
        ]
    if result is not None:
        facts.append(("result", "restored" if not result.problems else "restored, and it differs"))
    parts.append(Facts(tuple(facts)))
    if plan is not None and plan.cursors:
        columns = (Column("subscription", whole=False), Column("goes on after"), Column("live one"))
        rows = [
            (cursor.subscription, _position(cursor.position), "joined" if cursor.joined else "")
            for cursor in plan.cursors
        ]
        parts.append(Table(columns, tuple(rows)))
    lost: list[NotRestored] = [] if plan is None else list(plan.lost)
    if plan is not None and not plan.is_live:
        lost += [NotRestored("policies", f"the trash does not have {what}") for what in unseen_policies(trashed)]
    if result is not None:
        lost += [NotRestored(f"ledger {one}", why_gone(trashed, one)) for one in result.gone]
        lost += [NotRestored("the loaded topic", problem) for problem in result.problems]
        lost += [NotRestored("the trash", each) for each in result.left]
    if lost:
        heads = (Column("does not come back as it was", whole=False), Column("why", whole=False))
        parts.append(Table(heads, tuple((one.what, one.why) for one in lost)))
    return parts


def _policies(found: FormerPolicies) -> list[str]:
    return [*(event.key for event in found.events), *found.nodes]


def _facts_of_policies(trashed: TrashedGeneration, plan: RestorePlan) -> list[tuple[str, str]]:
    """Describe what is put back besides nodes: a live topic keeps its own."""
    found = former_policies(trashed)
    if plan.is_live:
        return [("policies", "those of the live topic stay")]
    permissions = [
        f"{role}: {', '.join(actions)} on {topic}"
        for topic, roles in found.permissions.items()
        for role, actions in roles.items()
    ]
    return [
        ("policies", ", ".join(_policies(found)) or "-"),
        ("permissions", "; ".join(permissions) or "-"),
    ]


def _position(position: object) -> str:
    return "-" if position is None else ":".join(map(str, position)) if isinstance(position, tuple) else str(position)


def _topic(trashed: TrashedGeneration) -> str:
    return str(TopicName.of_managed_ledger(trashed.managed_ledger))


def _data(trashed: TrashedGeneration, plan: RestorePlan | None, result: RestoreResult | None) -> Mapping[str, object]:
    fields: dict[str, Any] = {"topic": _topic(trashed), "generation": trashed.generation.created_ms}
    if trashed.origin is not None:
        fields["restored_from"] = _topic(trashed.origin)
    if plan is not None:
        fields |= {
            "live": plan.is_live,
            "ledgers": plan.ledgers,
            "entries": plan.entries,
            "bytes": plan.size,
            "subscriptions": [
                {"name": one.subscription, "position": _position(one.position), "joined": one.joined}
                for one in plan.cursors
            ],
            "schema_versions": plan.schema_versions,
            "lost": plan.lost,
            "permissions": former_policies(trashed).permissions,
            "policies": _policies(former_policies(trashed)),
            "unseen": unseen_policies(trashed),
        }
    if result is not None:
        fields |= {"gone": result.gone, "problems": result.problems, "left": result.left}
    return fields


@trash.command("purge", epilog=_PURGE_EPILOG)
@click.argument("name", metavar="[TOPIC|NAMESPACE]", required=False)
@click.option("--execute", is_flag=True, help="Let go; without it the command only says of what.")
@pass_invocation
def purge(invocation: Invocation, name: str | None, execute: bool) -> None:
    """Mark what the trash has, before it expires.

    The sweep deletes its ledgers then, and nothing brings them back. What is being restored stays.
    """
    is_asked = _in_scope(name)
    with Cluster(invocation.settings) as cluster:
        if execute:
            require_marking(cluster)
        operations = TrashOperations(cluster)
        asked = [trashed for trashed in operations.records.read().generations if is_asked(trashed.managed_ledger)]
        under_way = operations.restore.under_way()
        free = [trashed for trashed in asked if trashed.managed_ledger not in under_way]
        due = by_node(one for trashed in free for one in trashed.found).items()
        marker, catalog = marker_of(cluster) if execute else None, cluster.bookkeeper.deletion_catalog
        report = release(operations.records.nodes, marker, due, "purged from the trash", catalog)
    kept = [_topic(trashed) for trashed in asked if trashed not in free]
    invocation.write(_purged(report, kept))
    click.get_current_context().exit(SOME_FAILED if report.kept or kept else 0)


def _purged(report: ReleaseReport, restored: Iterable[str]) -> Document:
    marks = {kind.value: number for kind, number in report.marks.items()}
    sent = ", ".join(f"{number:,} {kind}" for kind, number in marks.items()) or "none"
    parts: list[Part] = [
        Facts(
            (
                ("records let go" if report.executed else "records to let go", f"{report.records:,}"),
                ("gone from BookKeeper", f"{report.gone:,}"),
                ("marks sent" if report.executed else "marks to send", sent),
            )
        )
    ]
    kept = [*report.kept.items(), *((topic, "it is being restored") for topic in restored)]
    if kept:
        columns = (Column("left in the trash", whole=False), Column("why", whole=False))
        parts.append(Table(columns, tuple(kept)))
    if not report.executed:
        parts.append(Note("Nothing was changed; --execute does it." if report.records else "Nothing is to be done."))
    data = {
        "executed": report.executed,
        "records": report.records,
        "gone": report.gone,
        "marks": marks,
        "kept": dict(kept),
    }
    return Document(data, tuple(parts))
