"""The registry for people and programs, in the words of PIP-477."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import click

from bookwarden.bookie_clusters.registry import Registry, cluster_data, registry_data
from bookwarden.cli.shell.invocation import Invocation
from bookwarden.cli.shell.output import Column, Document, Facts, Note, Part, Table, moment
from bookwarden.cli.shell.questions import confirm
from bookwarden.cli.shell.steps import node_progress
from bookwarden.wiring.cluster import Cluster

#: Of commands that wait for brokers.
wait_option: Final = click.option(
    "--timeout",
    "wait_s",
    type=click.FloatRange(min=0),
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="Maximum seconds to wait for brokers.",
)
_COLUMNS = (
    Column("name"),
    Column("status"),
    Column("metadataServiceUri", whole=False),
    Column("bootstrap"),
    Column("shared"),
    Column("since epoch", right=True),
)
#: What a command that only looks says then.
NONE_REGISTERED = Note(
    "No bookie cluster is registered: brokers use the one of their bookkeeperMetadataServiceUri alone."
)


@contextmanager
def confirmed(
    invocation: Invocation, question: str, what: str, done: str, unit: str, *, yes: bool
) -> Iterator[Callable[[int], object]]:
    """Ask before the block, and show its progress; the others are as for `node_progress`."""
    confirm(question, yes=yes)
    with node_progress(invocation, what, done, unit) as progress:
        yield progress


def describe_registry(cluster: Cluster, registry: Registry | None, *notes: str) -> Document:
    """Describe all bookie clusters, and the newest order to switch."""
    data = registry_data(cluster.url, registry)
    if registry is None:
        return Document(data, (NONE_REGISTERED, *notes_of(cluster, notes)))
    clusters = data["clusters"]
    rows = tuple(
        (
            one["name"],
            one["status"],
            one["metadataServiceUri"],
            *("yes" if one[name] else "no" for name in ("bootstrap", "shared")),
            str(one["since"]),
        )
        for one in clusters
    )
    pairs = [
        ("registry", f"{cluster.url}, epoch {registry.epoch}"),
        ("ledger ids from", registry.id_root),
        ("owner", registry.owner),
    ]
    pairs += directive_facts(registry)
    parts: list[Part] = [Facts(tuple(pairs)), Table(_COLUMNS, rows), *notes_of(cluster, notes)]
    return Document(data, tuple(parts))


def directive_facts(registry: Registry) -> list[tuple[str, str]]:
    """Describe the newest order to switch that the registry names."""
    if registry.directive is None:
        return []
    one = registry.directive
    given = f"from {one.source}, epoch {one.epoch}, by {one.origin} at {moment(one.time_ms)}"
    return [("switch target", f"{one.target} ({given})")]


def describe_cluster(registry: Registry, name: str) -> Document:
    """Describe one bookie cluster."""
    data = cluster_data(registry, name)
    pairs = tuple(
        (
            field,
            ("yes" if value else "no") if isinstance(value, bool) else "Pulsar's own" if value is None else str(value),
        )
        for field, value in data.items()
    )
    return Document(data, (Facts(pairs),))


def notes_of(cluster: Cluster, notes: Sequence[str]) -> list[Note]:
    """Return these notes, and what there is to say of further metadata roots in the settings."""
    others = cluster.settings.metadata_store.urls[1:]
    more = (
        f"The registry is that of {cluster.url}; {', '.join(others)} in metadata_store.urls belong to other "
        "Pulsar clusters, which do not follow it. Where bookie clusters are registered, sweep, scan and undo refuse "
        "settings with more than one root."
    )
    return [Note(text) for text in (*notes, *((more,) if others else ()))]
