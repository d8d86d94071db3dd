"""`bookwarden cluster-migration abort` and `reopen`: flags taken off, and marked topics that accept messages again."""

from __future__ import annotations

import dataclasses

import click

from bookwarden.cli.cluster_migration.options import named_or_begun, namespaces_argument
from bookwarden.cli.cluster_migration.watch import describe_topic
from bookwarden.cli.shell.invocation import Invocation, pass_invocation, show_option
from bookwarden.cli.shell.output import Column, Document, Note, Part, counted, table_of
from bookwarden.cluster_migration.aborting import AbortResult, MigrationAborter, ReopenResult, TopicReopener
from bookwarden.cluster_migration.scope import namespace_of
from bookwarden.cluster_migration.states import TopicState, TopicStatus
from bookwarden.errors import BookwardenError
from bookwarden.exit_codes import FAILED
from bookwarden.wiring.cluster_migration import ClusterMigration

_EPILOG = """\b
Exit codes: 0 no flag is set any more; 1 the same, and a topic that may be fenced was not unloaded, or a drained
subscription not made again; 4 no migration was begun; 5 another command changes one of these namespaces."""


@click.command(epilog=_EPILOG)
@namespaces_argument
@click.option("--dry-run", is_flag=True, help="Only list the flags that would be taken off.")
@show_option("Topics to list that were marked by then.")
@pass_invocation
def abort(invocation: Invocation, namespaces: list[str], dry_run: bool, show: int) -> None:
    """Take the flags off.

    At once, and without a question: it is also the way out where a broker restarted and topics are STRANDED. Topics
    load again, and consumers drain them. A topic that was marked accepts no message until it is started again, or
    reopened; clients that were redirected stay on green, and so does what they sent. A topic whose producers came to
    no side is unloaded, since its broker may hold it fenced and keep its consumers out. Subscriptions that blue
    deleted once they were drained are made again, at their end: applications that are restarted read nothing twice.
    """
    with ClusterMigration(invocation.settings) as migration:
        names = named_or_begun(migration, namespaces)
        if dry_run:
            nodes = migration.blue.nodes
            flagged = [name for name in names if nodes.is_flagged(name)]
            whole = nodes.is_cluster_flagged(migration.observer.cluster)
            taken = ", ".join(flagged) or "no namespace, none is flagged"
            text = f"The flag would be taken off: {taken}{', and that of the whole cluster' if whole else ''}."
            invocation.write(Document({"would_take_off": flagged, "cluster": whole}, (Note(text),)))
            return
        with migration.alone(names):
            done = MigrationAborter(migration.blue, migration.observer, migration.record).abort(names)
    invocation.write(_describe(done, show))
    click.get_current_context().exit(FAILED if done.errors else 0)


def _describe(done: AbortResult, show: int) -> Document:
    marked = done.snapshot.of_state(TopicState.ROLLED_BACK)
    cells = {
        Column("topic that accepts no message", whole=False, topics=True): lambda seen: seen.topic,
        Column("unread", right=True): lambda seen: _unread(seen),
    }
    taken = ", ".join(done.taken_off) or "no namespace, none was flagged"
    parts: list[Part] = [table_of(marked[:show], cells, empty="No topic was marked.")] if marked else []
    parts.append(Note(f"The flag is off: {taken}{', and that of the whole cluster' if done.cluster else ''}."))
    if marked:
        parts.append(
            Note(
                f"{counted(len(marked), 'topic')} had been marked. Let consumers drain them, then `start` again, or "
                "`cluster-migration reopen TOPIC` for each. What was sent to green is on green."
            )
        )
    if done.on_no_side:
        names = ", ".join(done.on_no_side[:show])
        parts.append(
            Note(
                f"Producers of {counted(len(done.on_no_side), 'topic')} are on no side, and send nothing until it is "
                f"started again, or reopened: {names}."
            )
        )
    if done.made_again:
        names = ", ".join(done.made_again[:show])
        parts.append(Note(f"{counted(len(done.made_again), 'drained subscription')} made again, at the end: {names}."))
    parts += [Note(error) for error in done.errors]
    data = {
        "taken_off": done.taken_off,
        "cluster": done.cluster,
        "marked": [describe_topic(seen) for seen in marked],
        "on_no_side": done.on_no_side,
        "unloaded": done.unloaded,
        "made_again": done.made_again,
        "troubles": done.errors,
        "gone": [seen.topic for seen in done.snapshot.of_state(TopicState.GONE)],
    }
    return Document(data, tuple(parts))


def _unread(seen: TopicStatus) -> str:
    unread = describe_topic(seen)["unread"]
    return "?" if unread is None else f"{unread:,}"


_REOPEN_EPILOG = """\b
Examples:
  bookwarden cluster-migration reopen persistent://shop/live/orders              shows what would be done
  bookwarden cluster-migration reopen persistent://shop/live/orders --execute
  bookwarden cluster-migration reopen persistent://shop/live/orders --undo

\b
Exit codes: 0 done, or planned; 4 no such topic; 5 its namespace is flagged, its user terminated it, or a broker keeps
it loaded; 1 some of several topics were left as they are."""


@click.command(epilog=_REOPEN_EPILOG)
@click.argument("topics", nargs=-1, required=True, metavar="TOPIC...")
@click.option("--execute", is_flag=True, help="Reopen; without it, only check.")
@click.option("--undo", is_flag=True, help="Put back what was changed, while nothing else has changed it, at once.")
@click.option("--dry-run", is_flag=True, help="With --undo: only check.")
@pass_invocation
def reopen(invocation: Invocation, topics: tuple[str, ...], execute: bool, undo: bool, dry_run: bool) -> None:
    """Have topics accept messages again, after an abort.

    Brokers cannot. The topic is unloaded, the mark is taken out of the node of its managed ledger by the version that
    was read, and it is unloaded again; what it had is kept in the record, and can be put back until it is used. Name
    each partition of a partitioned topic.
    """
    if execute and undo:
        raise click.UsageError("--undo changes something by itself: leave out --execute")
    if dry_run and not undo:
        raise click.UsageError("--dry-run is for --undo: without --execute nothing is changed")
    results: list[ReopenResult] = []
    failed: list[BookwardenError] = []
    acts = execute or (undo and not dry_run)
    changed = {namespace_of(topic) for topic in topics} if acts else set()
    with ClusterMigration(invocation.settings) as migration, migration.alone(changed):
        reopening = TopicReopener(migration.blue, migration.record)
        if undo:
            act = reopening.plan_back if dry_run else reopening.put_back
        else:
            act = reopening.reopen if execute else reopening.plan
        for topic in topics:
            try:
                results.append(act(topic))
            except BookwardenError as error:
                if len(topics) == 1:
                    raise
                failed.append(error)
                results.append(ReopenResult(topic, False, f"left as it is: {error}"))
    invocation.write(_describe_reopened(results, planned=not acts))
    click.get_current_context().exit(FAILED if failed else 0)


def _describe_reopened(results: list[ReopenResult], *, planned: bool) -> Document:
    cells = {
        Column("topic", whole=False, topics=True): lambda one: one.topic,
        Column("result", whole=False): lambda one: one.said,
    }
    note = "Nothing was changed." if planned else "Restart producers that gave up on these topics."
    return Document([dataclasses.asdict(one) for one in results], (table_of(results, cells), Note(note)))
