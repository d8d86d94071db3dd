"""The commands about the bookie clusters of a Pulsar cluster, between which it is switched while brokers run."""

from __future__ import annotations

from typing import Final

import click

from bookwarden.cli.shell.late import LateCommand

_EPILOG = """\b
Set-up, runbook and what each refusal means: docs/bookie-clusters.md."""

#: Name, place and summary of each; it is imported when it is called.
_COMMANDS: Final = (
    ("list", "listing:list_clusters", "List the registered bookie clusters."),
    ("get", "listing:get_cluster", "Show one bookie cluster."),
    ("register", "register:register", "Register a bookie cluster."),
    ("unregister", "unregister:unregister", "Unregister a bookie cluster."),
    ("deprecate", "unregister:deprecate", "Keep a bookie cluster from becoming active."),
    ("upgrade", "repair:upgrade", "Write down which ledgers are ours."),
    ("set-uri", "repair:set_uri", "Change the address of a bookie cluster's metadata."),
    ("registry", "repair:registry", "Save the registry of bookie clusters, and put it back."),
    ("raise-ids", "repair:raise_ids", "Raise a counter of ledger ids above every id."),
    ("jar", "listing:jar", "Write the jar for brokers to a file."),
    ("precheck", "switch:precheck", "Check whether brokers can be switched."),
    ("switch", "switch:switch", "Make another bookie cluster active."),
    ("status", "status:status", "Show where a switch stands."),
    ("unload", "unload:unload", "Unload topics that still write elsewhere."),
    ("rollback", "switch:rollback", "Return to the bookie cluster before the switch."),
    ("build", "build:build", "Copy ledgers to the active bookie cluster."),
    ("promote", "promote:promote", "Have brokers read copies in the active cluster."),
    ("list-cleanup-targets", "cleanup:list_cleanup_targets", "Count what former bookie clusters no longer need."),
    ("cleanup", "cleanup:cleanup", "Mark what former bookie clusters no longer need."),
    ("drain", "drain:drain", "Empty a former bookie cluster."),
    ("move", "move:move", "Move all ledgers while brokers are stopped."),
    ("set-read-mode", "listing:set_read_mode", "Change nothing; say what takes its place."),
    ("close-client", "listing:close_client", "Change nothing; say what takes its place."),
)


@click.group("bookie-clusters", epilog=_EPILOG)
def bookie_clusters() -> None:
    """Register bookie clusters, and switch between them.

    A Pulsar cluster whose brokers have bookwarden's jar can have several bookie clusters: new ledgers go to the active
    one, and all are read. A switch makes another one active while brokers run (PIP-470, PIP-477).
    """


for _name, _place, _summary in _COMMANDS:
    bookie_clusters.add_command(LateCommand(_name, f"bookwarden.cli.bookie_clusters.{_place}", _summary))
