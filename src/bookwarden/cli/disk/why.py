"""The command disk why: what holds the oldest ledger of a topic."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import click

from bookwarden.cli.shell.invocation import Invocation, parse_topic, pass_invocation
from bookwarden.cli.shell.output import Document, Facts, Note, Part, moment
from bookwarden.config import Settings
from bookwarden.findings import size_text
from bookwarden.ledgers.pins import Pin, TopicPins, held_text, summary_of
from bookwarden.preflight import require_stores
from bookwarden.topic_pins import PinSearch
from bookwarden.wiring.cluster import Cluster
from bookwarden.wiring.topic_pins import pin_search_of

_EPILOG = """\b
Examples:
  bookwarden disk why persistent://sales/eu/orders
  bookwarden disk why sales/eu/orders --from zk-snapshot:FILE

\b
What each of them means, and what to do: docs/disk.md."""


@click.command("why", epilog=_EPILOG)
@click.argument("topic", type=parse_topic)
@click.option("--from", "snapshot", metavar="URL", help="Read a snapshot of the metadata store: zk-snapshot:FILE.")
@pass_invocation
def why(invocation: Invocation, topic: str, snapshot: str | None) -> None:
    """Show what holds the oldest ledger of a topic.

    Asks metadata, bookies and brokers why the ledger is not trimmed, and says what to do. Loads no topic, and changes
    nothing.
    """
    with pin_search(invocation.settings, snapshot) as search:
        found = search.of_topic(topic)
    invocation.write(describe_pins(found))


@contextmanager
def pin_search(settings: Settings, snapshot: str | None) -> Iterator[PinSearch]:
    """Search the live cluster, or a snapshot of its metadata."""
    if snapshot is None:
        with Cluster(settings) as cluster:
            require_stores(cluster)
            yield pin_search_of(cluster)
    else:
        # Late, since it costs a live search a tenth of a second.
        from bookwarden.wiring.scan import ScanSources

        with ScanSources(settings, snapshot) as sources:
            yield pin_search_of(sources.cluster, of_snapshot=True, now_ms=sources.snapshot_ms)


def describe_pins(found: Sequence[TopicPins]) -> Document:
    """Describe what holds the ledgers of a topic, or of each of its partitions."""
    parts: list[Part] = [Note(f"{summary_of(found)}.")] if len(found) > 1 else []
    for one in found:
        parts += _of_topic(one)
    unseen = dict.fromkeys(text for one in found for text in one.unseen)
    parts += [Note(f"Not seen: {text}.") for text in unseen]
    return Document({"topics": [pins_data(one) for one in found]}, tuple(parts))


def _of_topic(one: TopicPins) -> list[Part]:
    facts = [
        ("ledgers", f"{len(one.ledgers):,} in BookKeeper, {size_text(one.bytes)} of messages"),
        ("oldest", _oldest(one)),
        ("loaded", {True: "yes", False: "no", None: "not known"}[one.loaded]),
    ]
    if one.outlook:
        facts.append(("held by", one.outlook))
    parts: list[Part] = [Facts(tuple(facts), one.topic)]
    return parts + [_of_pin(one, pin) for pin in one.pins]


def _oldest(one: TopicPins) -> str:
    if not one.ledgers:
        return "none"
    closed = f", closed {moment(one.closed_ms)}" if one.closed_ms else ""
    return f"ledger {one.ledgers[0]}{closed}"


def _of_pin(one: TopicPins, pin: Pin) -> Facts:
    return Facts(
        (
            ("holds", held_text(one, pin)),
            ("why", pin.what),
            ("what to do", pin.todo),
            *((("command", pin.command),) if pin.command else ()),
        ),
        pin.title,
    )


def pins_data(one: TopicPins) -> dict[str, object]:
    """Return what holds a topic for programs."""
    return {**one._asdict(), "pins": [pin._asdict() for pin in one.pins]}
