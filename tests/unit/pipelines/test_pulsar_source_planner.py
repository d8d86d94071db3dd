"""Batches that the source plans over a scripted broker: a checkpoint that is ahead, past the end, or replayed."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from bookwarden.errors import DataGoneError
from bookwarden.ledgers.managed_ledger import Position
from bookwarden.pipelines.pulsar_source.limits import Cap
from bookwarden.pipelines.pulsar_source.offsets import Offsets
from bookwarden.pipelines.pulsar_source.options import parse_options
from bookwarden.pipelines.pulsar_source.planner import BatchPlanner
from bookwarden.pipelines.pulsar_source.ranges import EntryRange

PARTITION = "persistent://t/n/marks-partition-0"
UNREAD = ((800, 50), (900, 10))
ALL = (EntryRange(800, 0, 49), EntryRange(900, 0, 9))


@dataclass
class ScriptedBroker:
    """A topic of one partition, as the admin REST tells of it."""

    ledgers: tuple[tuple[int, int], ...] = UNREAD
    cursor: str = "800:-1"
    address: str = ""

    def answer(self, path: str) -> object:
        if path.endswith("/partitions"):
            return {"partitions": 1}
        last = [ledger for ledger in self.ledgers if ledger[1]][-1]
        return {
            "lastConfirmedEntry": f"{last[0]}:{last[1] - 1}",
            "ledgers": [{"ledgerId": ledger, "entries": entries} for ledger, entries in self.ledgers],
            "cursors": {"job": {"markDeletePosition": self.cursor}},
        }


@contextmanager
def served(broker: ScriptedBroker) -> Iterator[ScriptedBroker]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps(broker.answer(self.path)).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        broker.address = f"http://127.0.0.1:{server.server_port}"
        try:
            yield broker
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def broker() -> Iterator[ScriptedBroker]:
    with served(ScriptedBroker()) as made:
        yield made


@dataclass
class Wanted:
    """What a planner asked to have acknowledged; nothing is."""

    positions: list[Offsets] = field(default_factory=list)
    unconfirmed: frozenset[str] = frozenset()

    def want(self, finished: Mapping[str, Position], marked: Mapping[str, Position]) -> None:
        self.positions.append(dict(finished))


class Run:
    """A run of a query: its planner, and what it wanted to acknowledge."""

    def __init__(self, broker: ScriptedBroker, **options: str) -> None:
        given = {"topic": "t/n/marks", "subscription": "job", "minPollMs": "0", **options}
        self.planner = BatchPlanner(parse_options({"serviceUrl": "pulsar://x:1", "adminUrl": broker.address, **given}))
        self.wanted = Wanted()
        if self.planner._acknowledger is not None:
            self.planner._acknowledger = self.wanted  # type: ignore[assignment]

    def latest(self, start: str) -> str:
        """Plan the batch behind an offset; its end."""
        return str(self.planner.latest({PARTITION: Position.parse(start)}, Cap())[PARTITION])

    def ranges(self, start: str, end: str) -> tuple[EntryRange, ...]:
        """The entries of a batch."""
        plan = self.planner.partitions({PARTITION: Position.parse(start)}, {PARTITION: Position.parse(end)})
        return plan.get(PARTITION, ())

    @property
    def acknowledged(self) -> set[str]:
        return {str(position) for wanted in self.wanted.positions for position in wanted.values()}


@pytest.mark.parametrize("start", ["512000:-1", "512000:33", "850:3", "900:10"])
def test_a_checkpoint_that_cannot_be_the_topics_is_refused_before_anything_is_acknowledged(
    broker: ScriptedBroker, start: str
) -> None:
    run = Run(broker)
    with pytest.raises(DataGoneError, match=f"offset {start}"):
        run.latest(start)
    assert run.acknowledged == set()


@pytest.mark.parametrize("start", ["850:-1", "900:4", "900:9"])
def test_a_checkpoint_ahead_of_its_subscription_goes_back_to_it_and_everything_is_read(
    broker: ScriptedBroker, start: str
) -> None:
    run = Run(broker)
    assert run.latest(start) == "800:-1"
    # Of the batch that goes back nothing is read, and nothing is acknowledged until it was read.
    assert run.ranges(start, "800:-1") == ()
    assert run.acknowledged == set()
    assert run.latest("800:-1") == "900:9"
    assert run.ranges("800:-1", "900:9") == ALL
    run.latest("900:9")
    assert run.acknowledged == {"800:-1", "900:9"}


def test_a_batch_that_goes_back_is_replayed_as_it_was(broker: ScriptedBroker) -> None:
    Run(broker).latest("900:4")
    replayed = Run(broker)
    assert replayed.ranges("900:4", "800:-1") == ()
    assert replayed.latest("800:-1") == "900:9"


def test_a_replayed_batch_is_read_as_it_was_and_then_what_lies_before_it(broker: ScriptedBroker) -> None:
    run = Run(broker)
    assert run.ranges("900:4", "900:7") == (EntryRange(900, 5, 7),)
    assert run.latest("900:7") == "800:-1"
    assert run.acknowledged == set()


def test_a_replayed_batch_whose_subscription_is_where_it_begins_is_not_read_again(broker: ScriptedBroker) -> None:
    broker.cursor = "900:4"
    run = Run(broker)
    assert run.ranges("900:4", "900:7") == (EntryRange(900, 5, 7),)
    assert run.latest("900:7") == "900:9"
    assert run.acknowledged == {"900:7"}


def test_a_cursor_that_falls_behind_while_the_query_runs_has_nothing_read_again(broker: ScriptedBroker) -> None:
    broker.cursor = "900:4"
    run = Run(broker)
    assert run.latest("900:4") == "900:9"
    broker.cursor = "800:20"
    assert run.latest("900:9") == "900:9"
    assert run.acknowledged == {"900:4", "900:9"}


def test_a_cursor_in_a_ledger_that_is_gone_is_gone_back_to_by_the_first_that_is_left(broker: ScriptedBroker) -> None:
    broker.cursor = "700:3"
    run = Run(broker)
    assert run.latest("900:4") == "800:-1"
    assert run.ranges("900:4", "800:-1") == ()


def test_a_new_checkpoint_starts_where_it_is_told_to(broker: ScriptedBroker) -> None:
    run = Run(broker, startingOffsets=json.dumps({PARTITION: "900:4"}))
    assert run.planner.initial() == {PARTITION: Position(900, 4)}
    assert run.latest("900:4") == "900:9"


def test_a_look_that_acknowledges_nothing_goes_by_its_checkpoint_alone(broker: ScriptedBroker) -> None:
    run = Run(broker, acknowledge="false")
    assert run.latest("900:4") == "900:9"
    with pytest.raises(DataGoneError, match="past the end"):
        run.latest("512000:-1")


def test_where_loss_is_tolerated_an_offset_past_the_end_goes_back_to_the_subscription(broker: ScriptedBroker) -> None:
    broker.cursor = "900:9"
    run = Run(broker, failOnDataLoss="false")
    assert run.latest("512000:33") == "900:9"
    assert run.acknowledged == set()
