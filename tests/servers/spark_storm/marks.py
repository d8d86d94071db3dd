"""Marks of every kind for a sweep that is killed, and the account of each of them afterwards."""

from __future__ import annotations

import json
import random
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from click.testing import CliRunner

from bookwarden.cli.main import cli
from bookwarden.clusters.bookkeeper.ledger_paths import ledger_path
from bookwarden.clusters.pulsar.messages.producers import ConfirmedProducers
from bookwarden.clusters.pulsar.rest.admin import PulsarAdmin
from bookwarden.deletion.journal.entries import JournalEntry
from bookwarden.deletion.journal.reading import JournalFolder, JournalReader
from bookwarden.ledgers.kinds import LedgerComponent, ManagedLedgerHolder
from bookwarden.ledgers.pending_deletion import LedgerType, PendingDeletion
from bookwarden.ledgers.received import ORIGIN_MESSAGE_ID
from bookwarden.metastore.interface import MetadataStore, Write
from bookwarden.wiring.cluster import Cluster
from bookwarden.wiring.pulsar import connection_of
from servers.deletion_site import DeletionSite
from servers.population import Population, closed_ledger, tags_of

_HOLDERS = 200
# Far above those that brokers get; each case has its own.
_FIRST_ID, _IDS_OF_A_CASE = 7_000_000_000, 1_000_000
#: Of twenty marks: those of each kind, and what becomes of them.
KINDS = {
    "unnamed": (14, "deleted"),
    "named": (2, "still referenced"),
    "foreign": (1, "mismatch"),
    "absent": (1, "already gone"),
    "unreadable": (1, "gave up"),
    "malformed": (1, "malformed"),
}
_SENT_ON = ("retry", "waiting", "delayed")
#: With which every mark is settled within the time of a test.
SETTINGS = {
    "deletion.two_phase_deletion_max_retry_delete_count": "2",
    "sweep.ledgers_per_step": "250",
    "sweep.trigger_seconds": "1",
}


@dataclass(frozen=True)
class Account:
    """What became of all marks of a case, and what was done twice."""

    marks: int
    outcomes: Counter[str]
    settled_again: int  #: Final outcomes beyond one for each mark.
    dead_letters_again: int  #: Dead letters beyond one for each mark that has one.
    retries_again: int  #: Messages in the retry topic beyond one for each outcome that sends one.
    journaled_again: int  #: Records of the journal beyond one for each deleted ledger.

    def __str__(self) -> str:
        outcomes = ", ".join(f"{count} {outcome}" for outcome, count in sorted(self.outcomes.items()))
        again = {
            "settled": self.settled_again,
            "dead letters": self.dead_letters_again,
            "retries": self.retries_again,
            "journaled": self.journaled_again,
        }
        twice = ", ".join(f"{count} {what}" for what, count in again.items() if count)
        return f"{self.marks} marks: {outcomes}; done twice: {twice or 'nothing'}; backlog 0"


@dataclass
class Marks:
    """Marks of a case, by kind: the paths of their ledgers by id."""

    site: DeletionSite
    store: MetadataStore
    journal: Path
    ledgers: dict[str, dict[int, str]] = field(default_factory=lambda: defaultdict(dict))
    malformed: int = 0

    @property
    def count(self) -> int:
        return sum(map(len, self.ledgers.values())) + self.malformed

    def plant(self, case: int, count: int, seed: int) -> None:
        """Make the ledgers and topics, and mark all in an order by chance."""
        population, chance = Population(self.store), random.Random(seed)
        shares = [kind for kind, (share, _) in KINDS.items() for _ in range(share)]
        ids = iter(range(_FIRST_ID + case * _IDS_OF_A_CASE, _FIRST_ID + (case + 1) * _IDS_OF_A_CASE))
        marks: list[PendingDeletion] = []
        named: defaultdict[ManagedLedgerHolder, list[int]] = defaultdict(list)
        # What a topic keeps is the newest of its ledgers.
        for number, kind in enumerate(sorted((shares[n % len(shares)] for n in range(count)), key="named".__eq__)):
            if kind == "malformed":
                self.malformed += 1
                continue
            ledger_id, holder = next(ids), self._holder(number)
            self.ledgers[kind][ledger_id] = ledger_path("/ledgers", ledger_id)
            if kind == "named":
                named[holder].append(ledger_id)
            marks.append(PendingDeletion(holder.name, LedgerComponent.MANAGED_LEDGER, LedgerType.LEDGER, ledger_id))
        holders = {mark.ledger_id: ManagedLedgerHolder(mark.topic_name) for mark in marks}
        writes = [Write(path, value, None) for path, value in self._nodes(holders)]
        assert not any(self.store.write_many(writes))
        for holder, ledger_ids in named.items():
            population.names(holder, ledger_ids)
        chance.shuffle(marks)
        self.site.mark(*marks)
        self._send_malformed(chance)

    def _holder(self, number: int) -> ManagedLedgerHolder:
        return ManagedLedgerHolder(f"{self.site.namespace}/persistent/orders-{number % _HOLDERS}")

    def _nodes(self, holders: dict[int, ManagedLedgerHolder]) -> Iterator[tuple[str, bytes]]:
        other = tags_of(ManagedLedgerHolder(f"{self.site.namespace}/persistent/another-topic"))
        for kind, ledgers in self.ledgers.items():
            for ledger_id, path in ledgers.items():
                if kind == "unreadable":
                    yield path, b"BookieMetadataFormatVersion\t3\n\xff\xff"
                elif kind != "absent":
                    yield path, closed_ledger(other if kind == "foreign" else tags_of(holders[ledger_id]))

    def _send_malformed(self, chance: random.Random) -> None:
        settings = self.site.settings
        producers = ConfirmedProducers(connection_of(settings.pulsar).client)
        try:
            for number in range(self.malformed):
                payload = chance.randbytes(20)
                key = self._holder(number).name
                producers.send(settings.deletion.topic, b"\xff" + payload, schema=None, key=key, properties={})
            producers.flush()
        finally:
            producers.close()

    def left(self) -> int:
        """Count the ledgers to be deleted that are still there."""
        return sum(value is not None for value in self._read("unnamed"))

    def _read(self, kind: str) -> list[object]:
        paths = list(self.ledgers[kind].values())
        return [value for at in range(0, len(paths), 1000) for value in self.store.get_many(paths[at : at + 1000])]

    def settled(self) -> bool:
        """Return whether nothing is in flight any more."""
        return self.site.backlog() == 0

    def account(self, config: Path, environment: Mapping[str, str]) -> Account:
        """Account for each mark; AssertionError where one is lost, or a ledger that must stay is gone."""
        assert self.site.backlog() == 0
        assert self.left() == 0
        for kind in ("named", "foreign", "unreadable"):
            assert None not in self._read(kind), f"a ledger that is {kind} was deleted"
        rows, finals = self.site.outcomes(), defaultdict[int | None, list[str]](list)
        for row in rows:
            if row["outcome"] not in _SENT_ON:
                finals[row["ledger_id"]].append(row["outcome"])
        journaled = self._journaled(config, environment)
        again = len(finals.pop(None, [])) - self.malformed
        assert again >= 0, f"{-again} malformed marks have no outcome"
        for kind, ledgers in self.ledgers.items():
            expected = {KINDS[kind][1], "already gone"} if kind == "unnamed" else {KINDS[kind][1]}
            for ledger_id in ledgers:
                outcomes = finals.pop(ledger_id, [])
                assert outcomes, f"ledger {ledger_id}, {kind}, has no outcome"
                assert set(outcomes) <= expected, f"ledger {ledger_id}, {kind}: {outcomes}"
                again += len(outcomes) - 1
        assert not finals, f"outcomes of ledgers without a mark: {list(finals)[:5]}"
        dead_letters = self._dead_letters()
        sent = sum(row["outcome"] in _SENT_ON for row in rows)
        return Account(
            self.count,
            Counter(row["outcome"] for row in rows),
            again,
            dead_letters,
            self._messages_of(f"{self.site.namespace}/deletion-RETRY") - sent,
            journaled - len(self.ledgers["unnamed"]),
        )

    def _journaled(self, config: Path, environment: Mapping[str, str]) -> int:
        """Count the journal's records; each ledger that is gone has one, no other has, and undo lists them all."""
        records = [one for one in JournalReader(JournalFolder(self.journal)) if isinstance(one, JournalEntry)]
        assert {record.ledger_id for record in records} == set(self.ledgers["unnamed"])
        options = ["--config", str(config), "-o", "json", "undo", "--list"]
        listed = CliRunner().invoke(cli, options, env=dict(environment))
        assert listed.exit_code == 0, listed.output
        found = json.loads(listed.stdout)
        assert sum(run["ledgers"] for run in found["runs"]) == len(records)
        return len(records)

    def _dead_letters(self) -> int:
        """Count the dead letters beyond one for each mark that has to have one."""
        with Cluster(self.site.settings) as cluster:
            topics = cluster.deletion_topics
            found = list(topics.dead_letters.read())
        outcomes = Counter[str]()
        for outcome, _ in {(one.outcome, one.received.properties[ORIGIN_MESSAGE_ID]) for one in found}:
            outcomes[outcome] += 1
        assert outcomes == Counter({"malformed": self.malformed, "gave up": len(self.ledgers["unreadable"])}), outcomes
        return len(found) - outcomes.total()

    def _messages_of(self, topic: str) -> int:
        with closing(PulsarAdmin(connection_of(self.site.settings.pulsar), timeout_s=60)) as admin:
            return int(admin.get_json(f"/persistent/{topic}/partitioned-stats")["msgInCounter"])
