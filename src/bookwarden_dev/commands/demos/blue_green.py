"""The demo of a move from blue to green: its clusters, and the table of what became of each topic."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import yaml

from bookwarden.cli.shell.output import Column, Document, Facts, Note, table_of
from bookwarden.config import load_settings
from bookwarden_dev.commands.dev import settings_of
from bookwarden_dev.demo.blue_green_story import MoveFinale, MoveStory
from bookwarden_dev.demo.page import served_page
from bookwarden_dev.devcluster.blue_green import BlueAndGreen
from bookwarden_dev.devcluster.servers.specs import load_runtime


def play_move(home: Path, say: Callable[[str], None]) -> MoveFinale:
    """Run both clusters in a home, and play the story."""
    # First the requirements that may be missing, such as Java.
    load_runtime(progress=say)
    # Its lines about each connection that a broker closes would hide the story.
    logging.getLogger("pulsar").setLevel(logging.CRITICAL)
    say("starting two clusters, blue and green")
    with BlueAndGreen(home) as clusters:
        sides = clusters.settings(lambda cluster: _side(settings_of(cluster)))
        sides["journal"] = str(home / "cluster-migration")
        file = home / "bookwarden.yaml"
        file.write_text(yaml.safe_dump({**settings_of(clusters.blue), "cluster_migration": sides}), encoding="utf-8")
        settings = load_settings(file)
        with served_page(settings, say):
            finale = MoveStory(clusters, settings, say).play()
        say("stopping everything")
    return finale


def _side(settings: dict[str, object]) -> dict[str, object]:
    return {name: settings[name] for name in ("pulsar", "metadata_store")}


def describe_move(finale: MoveFinale, seconds: float) -> Document:
    """Make the table of every topic, what blue kept, and the verdict."""
    table = table_of(
        finale.topics,
        {
            Column("topic", whole=False): lambda end: end.account.flow.topic,
            Column("sent", right=True): lambda end: str(end.account.tally.sent),
            Column("failed", right=True): lambda end: str(end.account.tally.send_errors),
            Column("received", right=True): lambda end: str(end.account.tally.received),
            Column("lost", right=True): lambda end: str(end.account.tally.lost),
            Column("doubled", right=True): lambda end: str(end.account.tally.doubled),
            Column("longest gap", right=True): lambda end: f"{end.account.tally.longest_gap_s * 1000:.0f} ms",
            Column("on blue", right=True): lambda end: str(end.on_blue),
            Column("on green", right=True): lambda end: str(end.on_green),
            Column("blue keeps"): lambda end: f"{end.kept} of it" if end.kept else "nothing",
        },
        title="Every topic of the demo",
    )
    facts = Facts(
        (
            ("drained", f"{finale.drained_s:.0f} s after the start"),
            ("marked", f"{finale.marks} ledgers of blue, for the sweep"),
            ("blue keeps", ", ".join(finale.leftovers) or "nothing else"),
            ("not done", "; ".join(finale.faults) or "nothing"),
        )
    )
    sent = sum(end.account.tally.sent for end in finale.topics)
    return Document(finale, (table, facts, Note(f"{sent} sent, {finale.lost} lost; {seconds:.0f} s.")))
