"""Commands around the development cluster: a real Pulsar on this machine."""

from __future__ import annotations

import dataclasses
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import yaml

from bookwarden.cli.shell.invocation import Invocation, pass_invocation
from bookwarden.cli.shell.output import Cells, Column, Document, Facts, Note, Table, plain, table_of
from bookwarden.clusters.pulsar.connection import PulsarConnection
from bookwarden.config import CONFIG_VARIABLE, Settings, load_settings
from bookwarden.errors import RefusedError
from bookwarden_dev.devcluster.cluster import DevCluster
from bookwarden_dev.devcluster.releases.versions import PULSAR
from bookwarden_dev.devcluster.servers.settings import METADATA_STORES, PULSAR_VERSIONS, ClusterOptions
from bookwarden_dev.devcluster.state import ServerStatus, read_state

if TYPE_CHECKING:
    from bookwarden_dev.leaks import Leak

DEFAULT_HOME = Path("~/.local/share/bookwarden/dev")
_SETTINGS_FILE = "bookwarden.yaml"
_GRACE_SECONDS = 10
_LEAK_EPILOG = """\b
See them found and reclaimed:
  bookwarden follow &                    marks what leaves a node while it runs
  bookwarden dev leak
  bookwarden orphans scan                finds each that follow has not marked
  bookwarden orphans apply --plan PLAN --execute
  bookwarden sweep --once                deletes what is marked"""
_LEAK_NEXT = (
    "Find them: bookwarden orphans scan; then bookwarden orphans apply --plan PLAN --execute marks them, and "
    "bookwarden sweep --once deletes them. A bookwarden follow that ran meanwhile marks what a node named, after "
    f"{_GRACE_SECONDS} s."
)


@dataclass(frozen=True, slots=True)
class ClusterReport:
    """The development cluster at this moment."""

    home: Path  #: Folder of all its files.
    pulsar: str  #: The version of Pulsar.
    settings_file: Path  #: For bookwarden.
    service_url: str  #: Of the broker.
    admin_url: str  #: Of the broker.
    store_url: str  #: Of the metadata store.
    servers: tuple[ServerStatus, ...]  #: Each with its state, process id and address.


@click.group(epilog="Every command takes the cluster's addresses from --config HOME/bookwarden.yaml.")
def dev() -> None:
    """Run a small real Pulsar on this machine.

    One ZooKeeper, one bookie and one broker, each a process of its own on a free port of 127.0.0.1. They need Java
    17 or newer; the servers themselves are fetched once through Maven. An Oxia server, next to them or in the place of
    ZooKeeper, is built once by Go 1.24.2 or newer.
    """


_home = click.option(
    "--home",
    type=click.Path(path_type=Path, file_okay=False),
    default=str(DEFAULT_HOME),
    show_default=True,
    help="Folder that keeps the cluster's data, ports and logs.",
)


@dev.command()
@_home
@click.option(
    "--pulsar",
    type=click.Choice(list(PULSAR)),
    help=f"Version of a new cluster; {PULSAR_VERSIONS[0]} by default. A cluster keeps its version.",
)
@click.option(
    "--metadata",
    type=click.Choice(METADATA_STORES),
    help=f"Where a new cluster keeps its metadata; {METADATA_STORES[0]} by default. A cluster keeps to it.",
)
@click.option(
    "--with",
    "extra",
    type=click.Choice(["oxia"]),
    multiple=True,
    help="Also start this server, which the cluster itself does not use; later starts include it.",
)
@pass_invocation
def up(invocation: Invocation, home: Path, pulsar: str | None, metadata: str | None, extra: tuple[str, ...]) -> None:
    """Start the cluster unless it runs, and wait until it serves.

    Writes HOME/bookwarden.yaml, for --config. May be repeated. Oxia is built once, by Go 1.24.2 or newer, in some
    minutes.
    """
    home = home.expanduser().absolute()
    options = _options_of(home, pulsar, metadata, extra)
    cluster = DevCluster(home, options, detached=True, progress=invocation.say)
    _start_what_does_not_run(cluster, invocation)
    _write_settings(cluster)
    invocation.write(_describe(cluster))


@dev.command()
@_home
@pass_invocation
def down(invocation: Invocation, home: Path) -> None:
    """Stop the cluster; its data stays."""
    cluster = DevCluster.attach(home.expanduser().absolute(), progress=invocation.say)
    cluster.down()
    invocation.write(Document({"home": cluster.home, "running": False}, (Note(f"stopped; data is in {cluster.home}"),)))


@dev.command()
@_home
@pass_invocation
def status(invocation: Invocation, home: Path) -> None:
    """Show which servers run, where they listen, and how to use them."""
    invocation.write(_describe(DevCluster.attach(home.expanduser().absolute(), progress=invocation.say)))


@dev.command(epilog=_LEAK_EPILOG)
@_home
@click.option(
    "--pause",
    type=click.FloatRange(min=0),
    default=5.0,
    show_default=True,
    help="Seconds for which all is healthy, so that a follow that runs sees the topics.",
)
@pass_invocation
def leak(invocation: Invocation, home: Path, pause: float) -> None:
    """Make ledgers leak, one or more of each kind, to see what finds them.

    In a namespace of its own: a trim that a killed broker did not finish, a topic whose node is removed, a ledger that
    no list ever had, a cursor's former ledger, and one of a schema. The cluster's broker is killed for it, and started
    again. Only for a running cluster of `dev up` with its metadata in ZooKeeper.
    """
    # Imported late: `dev up` needs no clients of a cluster.
    from bookwarden.wiring.cluster import Cluster
    from bookwarden_dev.leaks import make_leaks

    servers = DevCluster.attach(home.expanduser().absolute(), progress=invocation.say)
    with Cluster(_settings_to_leak(servers, invocation)) as cluster:
        leaks = make_leaks(servers, cluster, invocation.say, lambda: _stay_healthy(pause))
    cells: Cells[Leak] = {
        Column("kind"): lambda one: one.kind,
        Column("ledgers", whole=False): lambda one: ", ".join(map(str, one.ledgers)),
        Column("topic", whole=False): lambda one: one.topic,
        Column("found by", whole=False): lambda one: ", ".join(one.found_by),
        Column("how it came about", whole=False): lambda one: one.how,
    }
    data = {"leaks": [{**plain(one), "found_by": one.found_by} for one in leaks]}
    invocation.write(Document(data, (table_of(leaks, cells), Note(_LEAK_NEXT))))


def _stay_healthy(seconds: float) -> None:
    """Wait, since a follow does not see what is named and dropped between two of its looks."""
    time.sleep(seconds)


def _settings_to_leak(cluster: DevCluster, invocation: Invocation) -> Settings:
    """Return the settings of the cluster; RefusedError where `dev up` did not make it, or other settings are given."""
    home = cluster.home
    file = home / _SETTINGS_FILE
    if not file.is_file():
        raise RefusedError(f"{home} is no cluster of `bookwarden dev up`: nothing is made to leak elsewhere")
    given = invocation.config or os.environ.get(CONFIG_VARIABLE)
    if given is not None and Path(given).expanduser().resolve() != file.resolve():
        raise RefusedError(f"the settings are {given}, and those of the cluster in {home} are {file}: give these")
    settings = load_settings(file, invocation.overrides)
    if settings.metadata_store.urls != (cluster.store_url,):
        raise RefusedError(f"the settings name another metadata store than the cluster in {home}: nothing leaks there")
    if cluster.options.metadata != "zookeeper":
        raise RefusedError(
            "a broker is made to fail by permissions of ZooKeeper, which Oxia has not: use another --home"
        )
    if not all(server.ready for server in cluster.status()):
        raise RefusedError(f"not all servers in {home} run: start them with `bookwarden dev up`")
    return settings


def _options_of(home: Path, pulsar: str | None, metadata: str | None, extra: tuple[str, ...]) -> ClusterOptions:
    before = read_state(home)
    if before is None:
        options = ClusterOptions(pulsar=pulsar or PULSAR_VERSIONS[0], metadata=metadata or METADATA_STORES[0])
    else:
        options = before.options
        _refuse_another(home, f"of Pulsar {options.pulsar}", options.pulsar, pulsar)
        _refuse_another(home, f"with its metadata in {options.metadata}", options.metadata, metadata)
    return dataclasses.replace(options, oxia=options.oxia or "oxia" in extra)


def _refuse_another(home: Path, kind: str, kept: str, asked: str | None) -> None:
    if asked not in (None, kept):
        raise RefusedError(
            f"{home} holds a cluster {kind}, not {asked}: choose another --home, or stop it with `bookwarden dev down` "
            "and remove the folder"
        )


def _start_what_does_not_run(cluster: DevCluster, invocation: Invocation) -> None:
    idle = [server for server in cluster.servers if not server.is_running()]
    if set(idle) <= set(cluster.extra):
        for server in idle:
            invocation.say(f"starting {server.name} in addition to the cluster")
            server.start(wait=False)
        for server in cluster.servers:
            server.wait_until_ready()
        return
    # If one server died all are started again: they wait for each other in this order.
    if len(idle) < len(cluster.servers):
        cluster.down()
    cluster.up()


def settings_of(cluster: DevCluster) -> dict[str, Any]:
    """Return settings for this cluster: all files in its home, and graces that are short enough for a first look."""
    home = cluster.home
    return {
        "pulsar": _pulsar_settings(cluster.connection()),
        "metadata_store": {"urls": [cluster.store_url]},
        "deletion": {
            "unlisted_grace_seconds": _GRACE_SECONDS,
            "two_phase_deletion_reconsume_later_in_seconds": _GRACE_SECONDS,
        },
        "sweep": {name: str(home / "sweep" / name) for name in ("checkpoint", "outcomes", "journal")},
        "follow": {
            "checkpoint": str(home / "follow" / "checkpoint"),
            "outcomes": str(home / "follow" / "outcomes"),
            "grace_seconds": _GRACE_SECONDS,
        },
        "orphans": {
            "folder": str(home / "orphans"),
            "min_age_days": 0,
            "longest_compaction_hours": 0,
            "seen_apart_hours": 0,
            "max_share": 1,
        },
        "disk": {"folder": str(home / "disk")},
        "cluster_migration": {"journal": str(home / "cluster-migration")},
    }


def _pulsar_settings(connection: PulsarConnection) -> dict[str, Any]:
    given = dataclasses.asdict(connection)
    names = ("service_url", "admin_url", "auth", "token", "token_file", "tls_trust_certs_file")
    return {name: given[name] for name in names if given[name] is not None}


def _write_settings(cluster: DevCluster) -> None:
    path = cluster.home / _SETTINGS_FILE
    temporary = path.with_suffix(".new")
    # It may hold a token.
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
        file.write(
            "# Written by `bookwarden dev up`: the development cluster in this folder.\n"
            "# Its graces and ages are for a first look: elsewhere keep the defaults of conf/bookwarden.yaml.\n"
        )
        yaml.safe_dump(settings_of(cluster), file, sort_keys=False)
    os.replace(temporary, path)


def _describe(cluster: DevCluster) -> Document:
    servers = tuple(cluster.status())
    file = cluster.home / _SETTINGS_FILE
    version = cluster.options.pulsar
    addresses = (cluster.service_url, cluster.admin_url, cluster.store_url)
    report = ClusterReport(cluster.home, version, file, *addresses, servers)
    table = Table(
        (Column("server"), Column("state"), Column("pid", right=True), Column("address", whole=False)),
        tuple((server.name, _state(server), str(server.pid or "-"), server.address) for server in servers),
    )
    facts = Facts((("home", str(cluster.home)), ("pulsar", version), ("settings", str(file))))
    if not all(server.ready for server in servers):
        return Document(report, (table, facts, Note("`bookwarden dev up` starts what does not run.")))
    return Document(report, (table, facts, Note(f"Use it:  export {CONFIG_VARIABLE}={file}")))


def _state(server: ServerStatus) -> str:
    if server.pid is None:
        return "stopped"
    return "ready" if server.ready else "starting"
