"""The demo of the trash: its servers, and the tables of what came back of each topic and subscription."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import yaml

from bookwarden.cli.shell.output import Column, Document, Facts, Note, table_of
from bookwarden.config import load_settings
from bookwarden_dev.commands.dev import settings_of
from bookwarden_dev.demo.page import served_page
from bookwarden_dev.demo.stage import MARKING_STORAGE, packaged_jar
from bookwarden_dev.demo.topics import ENTRIES_PER_LEDGER
from bookwarden_dev.demo.trash_story import BROKER_SETTINGS, TRASH_SETTINGS, TrashFinale, TrashStory
from bookwarden_dev.devcluster import ClusterOptions, DevCluster
from bookwarden_dev.devcluster.servers.specs import load_runtime


def play_trash(home: Path, say: Callable[[str], None]) -> TrashFinale:
    """Run the servers in a home, and play the story; NotFoundError where there is no jar for the broker."""
    options = ClusterOptions(
        max_entries_per_ledger=ENTRIES_PER_LEDGER,
        broker_settings={"managedLedgerStorageClassName": MARKING_STORAGE, **BROKER_SETTINGS},
        broker_jar=str(packaged_jar()),
    )
    # First the requirements that may be missing, such as Java.
    load_runtime(progress=say)
    # Its lines about each connection that the broker closes would hide the story.
    logging.getLogger("pulsar").setLevel(logging.CRITICAL)
    with DevCluster(home, options, progress=say) as cluster:
        file = home / "bookwarden.yaml"
        # For people who watch.
        deletion = {"unlisted_grace_seconds": 1.0, "two_phase_deletion_reconsume_later_in_seconds": 3.0}
        settings = {**settings_of(cluster), "deletion": deletion, "trash": TRASH_SETTINGS}
        file.write_text(yaml.safe_dump(settings), encoding="utf-8")
        loaded = load_settings(file)
        with served_page(loaded, say):
            finale = TrashStory(cluster, loaded, file, say).play()
        say("stopping everything")
    return finale


def describe_trash(finale: TrashFinale, seconds: float) -> Document:
    """Make the tables of every topic and subscription that came back, of what expired, and the verdict."""
    topics = table_of(
        finale.topics,
        {
            Column("topic", whole=False): lambda end: end.topic,
            Column("restored"): lambda end: "under the live one" if end.under_live else "as it was",
            Column("ledgers back", right=True): lambda end: f"{end.ledgers_back} of {end.ledgers}",
            Column("read back", right=True): lambda end: f"{end.read} of {end.sent}",
            Column("by schema version"): lambda end: ", ".join(
                f"{count} of {version}" for version, count in sorted(end.versions.items())
            ),
            Column("ok"): lambda end: _yes(end.as_it_should),
        },
        title="Every topic that came back",
    )
    subscriptions = table_of(
        [(end.topic, each) for end in finale.topics for each in end.subscriptions],
        {
            Column("topic", whole=False): lambda row: row[0].rpartition("/")[2],
            Column("subscription"): lambda row: row[1].name,
            Column("was at"): lambda row: row[1].was.mark_delete,
            Column("came back at"): lambda row: row[1].restored.mark_delete + (", joined" if row[1].joined else ""),
            Column("left", right=True): lambda row: str(row[1].expected),
            Column("lost", right=True): lambda row: str(row[1].lost),
            Column("doubled", right=True): lambda row: str(row[1].doubled),
            Column("ok"): lambda row: _yes(row[1].as_it_should),
        },
        title="Every subscription of them",
    )
    outcomes = ", ".join(f"{count} {outcome}" for outcome, count in sorted(finale.expired_outcomes.items()))
    gone = finale.expired_ledgers - finale.expired_left
    facts = Facts(
        (
            ("refused", finale.refusal),
            ("expired", f"{finale.expired}: {gone} of {finale.expired_ledgers} ledgers are gone ({outcomes})"),
            ("too late", finale.too_late),
            ("in the trash", ", ".join(finale.in_trash) or "nothing more of them"),
        )
    )
    verdict = (
        "All came back as it was, and what expired is gone" if finale.as_it_should else "NOT all is as it should be"
    )
    return Document(finale, (topics, subscriptions, facts, Note(f"{verdict}; {seconds:.0f} s.")))


def _yes(good: bool) -> str:
    return "yes" if good else "NO"
