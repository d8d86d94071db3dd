"""`bookwarden cluster-migration abort`: flags taken off; blue redirects nobody any more."""

from __future__ import annotations

import click

from bookwarden.blue_green.aborting import Aborted
from bookwarden.blue_green.states import TopicSeen, TopicState
from bookwarden.cli.cluster_migration.scope import named_or_begun, namespaces_argument
from bookwarden.cli.cluster_migration.watch import describe_topic
from bookwarden.cli.shell.invocation import Invocation, output_option, pass_invocation, show_option
from bookwarden.cli.shell.output import Column, Document, Note, Part, counted, table_of
from bookwarden.wiring.blue_green import BlueGreenContext

_EPILOG = """\b
Exit codes: 0 no flag is set any more; 1 the same, and a topic that may be fenced was not unloaded, or a drained
subscription not made again; 4 no migration was begun; 5 another command changes one of these namespaces."""


@click.command(epilog=_EPILOG)
@namespaces_argument
@click.option("--dry-run", is_flag=True, help="Only list the flags that would be taken off.")
@show_option("Topics to list that were marked by then.")
@output_option
@pass_invocation
def abort(invocation: Invocation, namespaces: tuple[str, ...], dry_run: bool, show: int) -> None:
    """Take the flags off.

    At once, and without a question: it is also the way out where a broker restarted and topics are STRANDED. Topics
    load again, and consumers drain them. A topic that was marked accepts no message until it is started again, or
    reopened; clients that were redirected stay on green, and so does what they sent. A topic whose producers came to
    no side is unloaded, since its broker may hold it fenced and keep its consumers out. Subscriptions that blue
    deleted once they were drained are made again, at their end: applications that are restarted read nothing twice.
    """
    with BlueGreenContext(invocation.settings) as context:
        names = named_or_begun(context, namespaces)
        if dry_run:
            nodes = context.blue.nodes
            flagged = [name for name in names if nodes.is_flagged(name)]
            whole = nodes.is_cluster_flagged(context.record.cluster(lambda: context.blue.cluster))
            taken = ", ".join(flagged) or "no namespace, none is flagged"
            text = f"The flag would be taken off: {taken}{', and that of the whole cluster' if whole else ''}."
            invocation.write(Document({"would_take_off": flagged, "cluster": whole}, (Note(text),)))
            return
        with context.alone(names):
            done = context.aborting.abort(names)
    invocation.write(_describe(done, show))
    click.get_current_context().exit(1 if done.troubles else 0)


def _describe(done: Aborted, show: int) -> Document:
    marked = done.look.of_state(TopicState.ROLLED_BACK)
    cells = {
        Column("topic that accepts no message", whole=False): lambda seen: seen.topic,
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
    parts += [Note(trouble) for trouble in done.troubles]
    data = {
        "taken_off": done.taken_off,
        "cluster": done.cluster,
        "marked": [describe_topic(seen) for seen in marked],
        "on_no_side": done.on_no_side,
        "unloaded": done.unloaded,
        "made_again": done.made_again,
        "troubles": done.troubles,
        "gone": [seen.topic for seen in done.look.of_state(TopicState.GONE)],
    }
    return Document(data, tuple(parts))


def _unread(seen: TopicSeen) -> str:
    unread = describe_topic(seen)["unread"]
    return "?" if unread is None else f"{unread:,}"
