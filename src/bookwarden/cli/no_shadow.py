"""The commands about nodes that cannot be read and may be shadow topics, so that the sweep keeps all data ledgers."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import click

from bookwarden.cli.shell.invocation import Invocation, operator, pass_invocation
from bookwarden.cli.shell.output import Cells, Column, Document, Note, Table, counted, moment, table_of
from bookwarden.cli.shell.questions import confirm, yes_option
from bookwarden.clusters.pulsar.references.no_shadow import NodeContent, NoShadow, NoShadowRecords
from bookwarden.clusters.pulsar.references.shadows import ShadowDoubt, read_doubt, read_shadows
from bookwarden.errors import NotFoundError, RefusedError
from bookwarden.metastore.interface import MetadataStore
from bookwarden.wiring.cluster import Cluster

_EPILOG = """\b
Examples:
  bookwarden no-shadow list
  bookwarden no-shadow add /managed-ledgers/t/ns/persistent/orders --why "no shadow topics here" --dry-run
  bookwarden no-shadow remove /managed-ledgers/t/ns/persistent/orders

\b
When the sweep waits for such a node: docs/sweep.md, "A doubt about very many marks"."""
_OWN_MARKS = "Marks of its own ledgers are retried as before: which ledgers it lists is not known."


@click.group("no-shadow", epilog=_EPILOG)
def no_shadow() -> None:
    """Take an unreadable node as no shadow topic.

    A topic's node that cannot be read may be a shadow topic, which lists ledgers of any other topic. So the sweep keeps
    all data ledgers until the node is repaired, or until a person who knows says that it is no shadow topic.
    """


@no_shadow.command("list")
@pass_invocation
def list_doubts(invocation: Invocation) -> None:
    """List nodes that may be shadow topics, and those taken as none.

    Reads the nodes of all topics.
    """
    with Cluster(invocation.settings) as cluster:
        doubts = [doubt for store in cluster.stores.values() for doubt in read_shadows(store, lists=False).doubts]
        records = [record for store in cluster.stores.values() for record in NoShadowRecords(store).read().values()]
    counting = {doubt.taken for doubt in doubts}
    void = [record for record in records if record not in counting]
    left = [doubt for doubt in doubts if doubt.taken is None]
    note = (
        f"The sweep keeps all data ledgers because of {counted(len(left), 'node')}."
        if left
        else "No node keeps the sweep from deleting data ledgers."
    )
    data = {"doubts": [_data(doubt) for doubt in doubts], "void": void}
    invocation.write(Document(data, (_table(doubts), *(Note(_void(record)) for record in void), Note(note))))


@no_shadow.command("add")
@click.argument("path")
@click.option("--why", required=True, metavar="TEXT", help="How it is known that it is no shadow topic; is kept.")
@click.option("--dry-run", is_flag=True, help="Only show the node.")
@yes_option
@pass_invocation
def add(invocation: Invocation, path: str, why: str, dry_run: bool, yes: bool) -> None:
    """Take a node as no shadow topic, as long as it does not change.

    If it is one, the ledgers that it lists are deleted when their source lets them go. Refused for a node that the
    metadata store refuses to show.
    """
    with Cluster(invocation.settings) as cluster:
        found = _doubts_at(cluster, path)
        shown = _table([doubt for _, doubt, _ in found])
        if dry_run:
            invocation.write(Document(_document(found), (shown, Note("Nothing was changed."))))
            return
        if not yes:
            for _, doubt, content in found:
                invocation.say(f"{doubt}; {_size(content)}")
        confirm(f"Take {path} as no shadow topic? If it is one, ledgers that it lists may be deleted.", yes=yes)
        for store, doubt, content in found:
            now = read_doubt(store, path)
            if now is None or now.content != content:
                raise RefusedError(f"{path} has changed since it was shown: nothing was done for it; look again")
            NoShadowRecords(store).write(NoShadow(doubt.path, content, operator(), int(time.time() * 1000), why))
        notes = Note(f"{path} counts as no shadow topic until it changes."), Note(_OWN_MARKS)
        invocation.write(Document(_document(_doubts_at(cluster, path)), (shown, *notes)))


@no_shadow.command("remove")
@click.argument("path")
@click.option("--dry-run", is_flag=True, help="Only say whether the node was taken as none.")
@pass_invocation
def remove(invocation: Invocation, path: str, dry_run: bool) -> None:
    """Take back that a node is no shadow topic.

    Deletes nothing else: the sweep keeps all data ledgers again while the node cannot be read.
    """
    with Cluster(invocation.settings) as cluster:
        records = [NoShadowRecords(store) for store in cluster.stores.values()]
        found = [path in one.read() if dry_run else one.remove(path) for one in records]
    if not any(found):
        raise NotFoundError(f"{path} was not taken as no shadow topic: `bookwarden no-shadow list` shows what was")
    text = f"{path} {'would be taken as a possible' if dry_run else 'may be a'} shadow topic again."
    invocation.write(Document({"path": path, "removed": not dry_run}, (Note(text),)))


_Found = tuple[MetadataStore, ShadowDoubt, NodeContent]


def _doubts_at(cluster: Cluster, path: str) -> list[_Found]:
    """Find the unreadable node in each root; raise unless there is one that was read."""
    found = []
    for store in cluster.stores.values():
        doubt = read_doubt(store, path)
        if doubt is None:
            continue
        if doubt.content is None:
            raise RefusedError(
                f"{doubt}: a node that cannot be looked at is not taken as no shadow topic: grant the right to read it"
            )
        found.append((store, doubt, doubt.content))
    if not found:
        raise NotFoundError(
            f"no metadata root has a node {path} that cannot be read: `bookwarden no-shadow list` shows those that are"
        )
    return found


def _document(found: Sequence[_Found]) -> dict[str, Any]:
    return {"doubts": [_data(doubt) for _, doubt, _ in found]}


def _data(doubt: ShadowDoubt) -> dict[str, Any]:
    return {"path": doubt.path, "reason": doubt.reason, "content": doubt.content, "taken": doubt.taken}


def _table(doubts: Sequence[ShadowDoubt]) -> Table:
    cells: Cells[ShadowDoubt] = {
        Column("node", whole=False): lambda doubt: doubt.path,
        Column("value"): lambda doubt: "not shown" if doubt.content is None else _size(doubt.content),
        Column("why it cannot be read", whole=False): lambda doubt: doubt.reason,
        Column("taken as no shadow topic", whole=False): lambda doubt: "-" if doubt.taken is None else _by(doubt.taken),
    }
    return table_of(doubts, cells, empty="The node of every topic can be read.")


def _size(content: NodeContent) -> str:
    return f"{counted(content.size, 'byte')}, version {content.version}"


def _by(record: NoShadow) -> str:
    return f"by {record.by} at {moment(record.at_ms)}: {record.why}"


def _void(record: NoShadow) -> str:
    return f"{record.path} was taken as no shadow topic {_by(record)}; this is void, since the node has changed."
