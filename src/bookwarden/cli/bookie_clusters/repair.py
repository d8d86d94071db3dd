"""`bookwarden bookie-clusters raise-ids`, `upgrade`, `set-uri` and `registry`: repairs of the registry."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

import click

from bookwarden.bookie_clusters.documents import import_data, raised_data, upgrade_data, uri_data
from bookwarden.bookie_clusters.registering import ClusterSpec, unasked
from bookwarden.bookie_clusters.registry import serialize_registry
from bookwarden.bookie_clusters.repair import (
    IdRaiser,
    ImportPlan,
    RaisePlan,
    RaiseResult,
    RegistryImport,
    Upgrade,
    UpgradePlan,
    UriChange,
    UriPlan,
    UriResult,
)
from bookwarden.cli.bookie_clusters.output import confirmed, describe_registry, wait_option
from bookwarden.cli.shell.invocation import Invocation, pass_invocation
from bookwarden.cli.shell.output import Document, Facts, Note
from bookwarden.cli.shell.questions import confirm, execute_option, yes_option
from bookwarden.cli.shell.steps import node_progress
from bookwarden.clusters.bookkeeper.service_uris import place_for_brokers
from bookwarden.durable import sync
from bookwarden.errors import FileError
from bookwarden.exit_codes import SOME_FAILED
from bookwarden.wiring.bookie_clusters import registration_of
from bookwarden.wiring.cluster import Cluster

_RAISE_EPILOG = """\b
When this is needed: docs/howto/repair-bookie-clusters.md and
docs/howto/leave-bookie-clusters.md."""


@click.command("raise-ids", epilog=_RAISE_EPILOG)
@click.option("--name", help="The bookie cluster that brokers are to use without the jar: its own counter.")
@click.option("--dry-run", is_flag=True, help="Look at all ids, change nothing.")
@yes_option
@pass_invocation
def raise_ids(invocation: Invocation, name: str | None, dry_run: bool, yes: bool) -> None:
    """Raise a counter of ledger ids above every id.

    Without --name it is the one of all clusters, which brokers with the jar use; brokers may run. With --name it is
    the cluster's own, which brokers without the jar will use: refused while a broker lives. May be repeated.
    """
    with Cluster(invocation.settings) as cluster:

        def ask(plan: RaisePlan) -> AbstractContextManager[Callable[[int], object]]:
            question = f"Raise the next ledger id of {_whose(plan)} from {plan.next_id} to {plan.free_id}?"
            what = f"raising the next ledger id below {plan.place.ledgers_root} by {plan.behind:,}"
            return confirmed(invocation, question, what, "passed", "ids", yes=yes)

        invocation.write(_describe_raise(IdRaiser(cluster.registry).raise_ids(name, dry_run=dry_run, confirm=ask)))


def _whose(plan: RaisePlan) -> str:
    return "all clusters" if plan.name is None else plan.name


def _describe_raise(result: RaiseResult) -> Document:
    plan, raised, dry_run = result
    pairs = (
        ("bookie cluster", _whose(plan)),
        ("counted below", f"{plan.place.ledgers_root} in {plan.place.url}"),
        ("next ledger id", str(plan.next_id)),
        ("none is taken from", str(plan.free_id)),
    )
    if not raised:
        note = "It is above every id already."
    elif dry_run:
        note = f"It would be raised by {raised:,}, after a question."
    elif plan.name is None:
        note = "It is above every id now."
    else:
        note = "It is above every id now. Start brokers with the stock lines, and none with the jar any more."
    notes = [Note(note)]
    if plan.leaps:
        notes.append(Note("It leaps to the next multiple of 2**32, since counting there would take too long."))
    return Document(raised_data(result), (Facts(pairs), *notes))


_URI_EPILOG = """\b
What is proven first, and what to do with your settings: docs/howto/repair-bookie-clusters.md."""


@click.command("set-uri", epilog=_URI_EPILOG)
@click.argument("name")
@click.option("--metadata-service-uri", "uri", required=True, metavar="URI", help="As its bookies have it now.")
@click.option("--dry-run", is_flag=True, help="Look at both addresses, change nothing.")
@wait_option
@yes_option
@pass_invocation
def set_uri(invocation: Invocation, name: str, uri: str, dry_run: bool, wait_s: float, yes: bool) -> None:
    """Change the address of a bookie cluster's metadata.

    It has to be the same cluster: the same INSTANCEID and ledgers root, with its bookies. Refused while a live broker's
    jar does not follow such a change. Then all live brokers are waited for; ends with 27 if one does not reach the
    cluster there in time. May be repeated.
    """
    with Cluster(invocation.settings) as cluster:
        wanted = ClusterSpec(name, uri, place_for_brokers(uri))

        def ask(plan: UriPlan) -> None:
            before = plan.before.registry.cluster(name).metadata_service_uri
            confirm(f"Change the address of {name} from {before} to {uri}?", yes=yes)

        result = UriChange(registration_of(cluster)).change(
            wanted, wait_s=wait_s, dry_run=dry_run, confirm=ask, say=invocation.say
        )
        invocation.write(_describe_uri(result))
    click.get_current_context().exit(SOME_FAILED if result.behind else 0)


def _describe_uri(result: UriResult) -> Document:
    plan, behind, dry_run = result
    cluster, before = plan.cluster, plan.before.registry.cluster(plan.cluster.name)
    pairs = (
        ("would be at" if dry_run else "is at", cluster.metadata_service_uri),
        ("metadata", f"{cluster.ledgers_root} in {cluster.store_url or 'the own store of Pulsar'}"),
        ("instance", cluster.instance),
        ("bookies", ", ".join(sorted(plan.bookies))),
        ("epoch", str(plan.after.epoch)),
    )
    notes = []
    if behind:
        back = (
            f"`set-uri {cluster.name} --metadata-service-uri {before.metadata_service_uri}` changes it back"
            if before != cluster
            else "`set-uri` with the former URI changes it back"
        )
        notes.append(
            Note(
                f"The address is changed, and was not reached in time by {', '.join(behind)}. Let these brokers reach "
                f"it, with their credentials and certificates, and repeat the command; or, if the former one answers, "
                f"{back}."
            )
        )
    notes.append(Note("Where metadata_store.bookkeeper_url names this cluster, set it to this URI as well."))
    return Document(uri_data(result), (Facts(pairs), *notes))


_UPGRADE_EPILOG = """\b
When this is needed: docs/bookie-clusters.md, "A registry of 0.1.0"."""


@click.command(epilog=_UPGRADE_EPILOG)
@click.option("--owner", "owners", multiple=True, help="An owner mark of an earlier registry. May be repeated.")
@click.option("--dry-run", is_flag=True, help="Look at everything, change nothing.")
@yes_option
@pass_invocation
def upgrade(invocation: Invocation, owners: tuple[str, ...], dry_run: bool, yes: bool) -> None:
    """Write down which ledgers are ours.

    Ends, in each cluster that does not count ids, the range in which ledgers without an owner mark are ours, and adds
    owner marks of earlier registries. Refused while a broker lives with an older jar, or without one. May be repeated.
    """
    with Cluster(invocation.settings) as cluster:

        def ask(plan: UpgradePlan) -> None:
            for line in _upgrade_notes(plan, dry_run=True):
                invocation.say(line)
            confirm("Write this into the registry?", yes=yes)

        plan = Upgrade(cluster.registry).upgrade(owners, dry_run=dry_run, confirm=ask)
        registry = plan.before.registry if dry_run else plan.after
        shown = describe_registry(cluster, registry, *_upgrade_notes(plan, dry_run=dry_run))
        invocation.write(Document(upgrade_data(cluster.url, plan, dry_run=dry_run), shown.parts))


def _upgrade_notes(plan: UpgradePlan, *, dry_run: bool) -> list[str]:
    are = "would be" if dry_run else "are"
    notes = []
    if plan.closed:
        where = ", ".join(plan.closed)
        notes.append(f"Ledgers without an owner mark {are} ours in {where} only below {plan.below}.")
    if plan.added:
        notes.append(f"Ledgers with the owner mark {', '.join(plan.added)} {are} ours too.")
    return notes or ["Nothing is left to upgrade."]


_REGISTRY_EPILOG = """\b
When to save it, and what an import refuses: docs/howto/repair-bookie-clusters.md."""
_FILE = click.Path(path_type=Path, dir_okay=False)


@click.group("registry", epilog=_REGISTRY_EPILOG)
def registry() -> None:
    """Save the registry of bookie clusters, and put it back."""


@registry.command("export")
@click.argument("file", type=_FILE)
@pass_invocation
def export_registry(invocation: Invocation, file: Path) -> None:
    """Save the registry into a file, which is replaced. Changes nothing else."""
    with Cluster(invocation.settings) as cluster:
        found = cluster.registry.require().registry
        written = file.with_name(f"{file.name}.tmp")
        try:
            written.write_bytes(serialize_registry(found))
            sync(written)
            written.replace(file)
        except OSError as error:
            with suppress(OSError):
                written.unlink()
            raise FileError(f"{file} cannot be written: {error.strerror}") from error
        invocation.write(describe_registry(cluster, found, f"Saved in {file}."))


@registry.command("import")
@click.argument("file", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@execute_option("Put it back; without this it is only compared.", former="--no-dry-run/--dry-run")
@yes_option
@pass_invocation
def import_registry(invocation: Invocation, file: Path, execute: bool, yes: bool) -> None:
    """Put a saved registry back where its node is gone, or is none.

    The next ledger id is raised above every id where its counter was lost too. Refused where a registry is there, where
    a cluster is another than in the file, and where brokers follow another owner, or another active cluster. Its epoch
    is then above every one that brokers followed. Without --execute the file is only compared with what is there.
    """
    saved = file.read_bytes()
    with Cluster(invocation.settings) as cluster:

        @contextmanager
        def confirm_import(plan: ImportPlan) -> Iterator[Callable[[int], object]]:
            raised = _raised(plan)
            question = f"Put the registry of {file} back, with {plan.registry.active} active"
            confirm(f"{question}{f', and raise {raised}' if raised else ''}?", yes=yes)
            with (
                node_progress(invocation, f"raising {raised}", "passed", "ids") if raised else unasked(plan) as progress
            ):
                yield progress

        result = RegistryImport(cluster.registry).put_back(saved, dry_run=not execute, confirm=confirm_import)
        plan, raised = result.plan, _raised(result.before)
        done = "Put back" if execute else "Would be put back"
        note = f"{done}: epoch {plan.saved_epoch} of {file} as {plan.registry.epoch}."
        if raised:
            note += f" {'Raised' if execute else 'Would be raised'}: {raised}."
        more = "See that brokers follow: `bookie-clusters status`." if execute else "With --execute, after a question."
        shown = describe_registry(cluster, plan.registry, note, more)
        invocation.write(Document(import_data(cluster.url, result), shown.parts))


def _raised(plan: ImportPlan) -> str:
    return f"the next ledger id from {plan.next_id} to {plan.free_id}" if plan.behind else ""
