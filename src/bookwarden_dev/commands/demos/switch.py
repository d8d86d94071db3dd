"""The demo of a live switch: its servers, and the table of what became of each topic."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import yaml

from bookwarden.cli.shell.output import Column, Document, Facts, Note, table_of
from bookwarden.config import load_settings
from bookwarden_dev.demo.page import served_page
from bookwarden_dev.demo.stage import packaged_jar
from bookwarden_dev.demo.switch_story import SwitchFinale, SwitchStory
from bookwarden_dev.devcluster.bookie_clusters import SwitchablePulsar
from bookwarden_dev.devcluster.servers.settings import PULSAR_VERSIONS
from bookwarden_dev.devcluster.servers.specs import load_runtime


def play_switch(home: Path, say: Callable[[str], None], version: str = PULSAR_VERSIONS[0]) -> SwitchFinale:
    """Run the servers in a home, and play the story; NotFoundError where there is no jar for the brokers."""
    jar = packaged_jar()
    # First the requirements that may be missing, such as Java.
    load_runtime(version, say)
    # Its lines about each connection that a stopped broker closes would hide the story.
    logging.getLogger("pulsar").setLevel(logging.CRITICAL)
    with SwitchablePulsar(home, jar, brokers=[version] * 2, progress=say) as pulsar:
        connection = pulsar.connection()
        file = home / "bookwarden.yaml"
        addresses = {"service_url": connection.service_url, "admin_url": connection.admin_url}
        settings = {
            "pulsar": addresses,
            "metadata_store": {"urls": [pulsar.store_url]},
            "sweep": {name: str(home / name) for name in ("checkpoint", "outcomes", "journal")},
            "follow": {"outcomes": str(home / "follow-outcomes")},
            **{name: {"folder": str(home / name)} for name in ("orphans", "disk")},
            # For people who watch.
            "deletion": {"unlisted_grace_seconds": 1.0, "two_phase_deletion_reconsume_later_in_seconds": 3.0},
        }
        file.write_text(yaml.safe_dump(settings), encoding="utf-8")
        loaded = load_settings(file)
        with served_page(loaded, say):
            finale = SwitchStory(pulsar, loaded, file, say).play()
        say("stopping everything")
    return finale


def describe_switch(finale: SwitchFinale, seconds: float) -> Document:
    """Make the table of every topic, the switches, and the verdict."""
    names = list(finale.topics[0].ledgers)
    table = table_of(
        finale.topics,
        {
            Column("topic", whole=False): lambda end: end.tally.topic,
            Column("sent", right=True): lambda end: str(end.tally.sent),
            Column("failed", right=True): lambda end: str(end.tally.send_errors),
            Column("received", right=True): lambda end: str(end.tally.received),
            Column("lost", right=True): lambda end: str(max(end.tally.lost, end.unread)),
            Column("doubled", right=True): lambda end: str(end.tally.doubled),
            Column("longest gap", right=True): lambda end: f"{end.tally.longest_gap_s * 1000:.0f} ms",
            Column("ledgers"): lambda end: ", ".join(f"{end.ledgers[name]} on {name}" for name in names),
        },
        title="Every topic of the demo",
    )
    turns = tuple(
        (
            f"{turn.source} to {turn.target}",
            f"all brokers followed in {turn.followed_s * 1000:.0f} ms, longest gap {turn.longest_gap_s * 1000:.0f} ms",
        )
        for turn in finale.turns
    )
    swept = ", ".join(f"{count} {outcome}" for outcome, count in sorted(finale.swept.items()))
    facts = Facts(
        (
            *turns,
            ("astray", "; ".join(finale.astray) or "no ledger names a bookie of another cluster"),
            ("swept", swept or "nothing"),
            *(("directive", row) for row in finale.directives),
        )
    )
    sent = sum(end.tally.sent for end in finale.topics)
    return Document(finale, (table, facts, Note(f"{sent} sent, {finale.lost} lost; {seconds:.0f} s.")))
