"""`bookwarden trash`: what is in it listed, restores planned and carried out, and what is let go."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner, Result

from bookwarden.cli import inflight
from bookwarden.cli.main import cli
from bookwarden.clusters.bookkeeper.ledger_paths import LedgerLayout, ledger_path
from bookwarden.ledgers.custom_metadata import expected_custom_metadata
from bookwarden.ledgers.kinds import ManagedLedgerHolder
from bookwarden.ledgers.metadata import LedgerMetadata, LedgerState, Segment
from bookwarden.ledgers.names import TopicName
from bookwarden.ledgers.pending_deletion import LedgerType, PendingDeletion
from bookwarden.ledgers.trash import FormerNode, KeepRule, NamespaceCopy, TrashLease, TrashRecord
from bookwarden.metastore.memory import MemoryStore, shared_memory_store
from bookwarden.wire.ledger_metadata import encode_ledger_metadata
from bookwarden.wire.managed_ledger import ledger_entries
from bookwarden.wire.trash import TRASH_LEASE, copy_node, encode_copy, encode_lease, restore_node
from bookwarden.wiring.cluster import Cluster
from unit.trash.trash_world import NODE, TOPIC, Broker, World, cursor, listing, locator, position_entry


class Sender:
    """The deletion topic."""

    def __init__(self) -> None:
        self.sent: list[PendingDeletion] = []
        self.fails = False

    def send_all(self, marks: Sequence[PendingDeletion]) -> list[str | None]:
        self.sent += marks
        return ["no room" if self.fails else None for _ in marks]

    def close(self) -> None:
        """End."""


class Site(World):
    """A world in the store that commands open."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.sender = Sender()
        made = shared_memory_store(name)
        # What the world has is what the commands find.
        made.__dict__ = self.store.__dict__
        self.url = f"memory:{name}"


@pytest.fixture
def site(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Site:
    monkeypatch.setattr(MemoryStore, "close", lambda _: None)
    made = Site(request.node.name)
    made.ledger(5, 6, 40, 50)
    made.ledger(7, last=None)
    made.entries.by_ledger = {40: position_entry((5, 3))}
    made.topic(listing((5, 10), (6, 10), (7, 0)), {"s%2F1": cursor(40, (5, 0))}, locator((50, b"A")))
    made.delete()
    monkeypatch.setattr(Cluster, "topics", Broker(made.store, made.entries))
    monkeypatch.setattr(Cluster, "mark_sender", made.sender)
    monkeypatch.setattr("bookwarden.wiring.bookkeeper.LastEntries", lambda *_: made.entries)
    monkeypatch.setattr("bookwarden.cli.trash.require_marking", lambda _: None)
    return made


def run(site: Site, *arguments: str) -> Result:
    return CliRunner().invoke(cli, ["--set", f"metadata_store.urls=['{site.url}']", "trash", *arguments])


def data(site: Site, *arguments: str, code: int = 0) -> Any:
    result = run(site, *arguments, "-o", "json")
    assert result.exit_code == code, result.output
    return json.loads(result.stdout)


def test_the_list_says_what_there_is_until_when_and_what_is_missing(site: Site) -> None:
    rules = (KeepRule("t/*", 3600, 60),)
    site.store.create(TRASH_LEASE, encode_lease(TrashLease(10, "sweep", 1, rules)), make_parents=True)
    site.store.create("/bookwarden/trash/records/b1.example:8080-0123abcd/0/99", b"{}")
    site.store.delete_many([(site.stored(6).path, 0)])
    (one,) = data(site, "list")["generations"]
    dropped = one["dropped_ms"]
    assert one == {
        "topic": "persistent://t/n/a",
        "generation": site.trashed().generation.created_ms,
        "what": "topic",
        "dropped_ms": dropped,
        "brokers": ["b1.example:8080"],
        "ledgers": 5,
        "bytes": 2000,
        "subscriptions": ["s/1"],
        "schema": True,
        "expires_ms": one["expires_ms"],
        "missing": [
            "its policies and permissions: the sweep has not looked for them yet",
            "1 ledgers that BookKeeper has no more: 6",
        ],
        "restore": "",
    }
    # The first of its records is the cursor's.
    assert dropped - 1000 < one["expires_ms"] - 3600_000 < dropped
    text = run(site, "list", "t/n").stdout
    assert "b1.example:8080" in text
    assert "0/99: trash: a node is not as it must be" in " ".join(text.split())
    for scope in ("persistent://t/n/other", "t/other"):
        assert data(site, "list", scope)["generations"] == []


def test_a_list_of_nothing_says_of_what(site: Site) -> None:
    assert run(site, "list", "t/other").stdout == "The trash has nothing of t/other.\n"
    assert run(site, "purge", "--execute").exit_code == 0
    assert run(site, "list").stdout == "The trash is empty.\n"


def test_a_restore_is_planned_until_execute(site: Site) -> None:
    before = site.store.list_children("/managed-ledgers/t/n/persistent")
    planned = data(site, "restore", "persistent://t/n/a")
    assert (planned["executed"], planned["partitions"]) == (False, 0)
    (topic,) = planned["topics"]
    assert topic["subscriptions"] == [{"name": "s/1", "position": "5:3", "joined": False}]
    assert (topic["ledgers"], topic["entries"], topic["schema_versions"]) == ([5, 6, 7], 20, 1)
    assert site.store.list_children("/managed-ledgers/t/n/persistent") == before
    assert topic["unseen"] == ["its policies and permissions: the sweep has not looked for them yet"]
    assert "Set policies that do not come back again" in " ".join(run(site, "restore", "t/n/a").stdout.split())
    done = data(site, "restore", "t/n/a", "--execute")
    assert (done["executed"], done["topics"][0]["problems"]) == (True, [])
    assert site.listed() == [5, 6, 7]
    assert data(site, "list")["generations"] == []
    missing = run(site, "restore", "t/n/a", "--generation", "5")
    assert missing.exit_code == 4
    assert "nothing of generation 5" in missing.output


def test_a_topic_comes_back_under_another_name_by_the_command(site: Site) -> None:
    options = ("restore", "t/n/a", "--as", "t/n/b")
    (planned,) = data(site, *options)["topics"]
    assert (planned["topic"], planned["restored_from"]) == ("persistent://t/n/b", "persistent://t/n/a")
    assert "restored from" in run(site, *options).stdout
    for more in (("--under-live",), ("--from-ledgers",)):
        assert run(site, *options, *more).exit_code == 2
    assert run(site, "restore", "--namespace", "t/n", "--as", "t/n/b").exit_code == 2
    for name, why in (
        ("t/n/a", "own name"),
        ("t/n/b-partition-0", "their partitions follow"),
        ("t/n/b-s__transaction_pending_ack", "with its topic alone"),
    ):
        refused = run(site, "restore", "t/n/a", "--as", name)
        assert (refused.exit_code, why in " ".join(refused.output.split())) == (5, True)
    done = data(site, *options, "--execute")
    assert (done["executed"], done["topics"][0]["problems"]) == (True, [])
    assert site.listed("/managed-ledgers/t/n/persistent/b") == [5, 6, 7]
    assert site.store.get(NODE) is None
    assert data(site, "list")["generations"] == []
    refused = run(site, "restore", "t/n/a", "--as", "t/n/b")
    assert refused.exit_code == 4


def loaded(site: Site, topic: str) -> Mapping[str, Any]:
    """Return what a broker says of a topic without subscriptions, or of the one with its own."""
    own = TopicName.parse(topic).managed_ledger
    if own == TOPIC:
        return Broker(site.store, site.entries).stats()
    site.get(f"/managed-ledgers/{own}")
    return {"lastConfirmedEntry": "5:9", "ledgers": [{"ledgerId": 5, "entries": 10}], "cursors": {}}


def gone_namespace(site: Site) -> NamespaceCopy:
    """Have the namespace gone with its topics: TOPIC and one of two partitions; another was deleted before."""
    name = "t/n/persistent/p"
    for number in range(2):
        path = f"/managed-ledgers/{name}-partition-{number}"
        site.store.create(path, listing((5, 10)))
        record = site.remove(path)
        partition = f"{name}-partition-{number}"
        site.keep(TrashRecord(partition, record.time_ms, record.created_ms, node=record.node))
    site.keep(TrashRecord("t/n/persistent/before", 1000, 1000, node=FormerNode(b"", 0, 1000, 1000)))
    alive_ms = int(site.now * 1000)
    copy = NamespaceCopy("t/n", alive_ms - 10, b'{"retention_policies":null}', b"bundles", alive_ms + 10, alive_ms)
    site.store.create("/admin/policies/t", b"", make_parents=True)
    site.store.create(copy_node(copy), encode_copy(copy), make_parents=True)
    return copy


def test_a_namespace_comes_back_with_what_was_deleted_with_it(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    copy = gone_namespace(site)
    monkeypatch.setattr(Broker, "internal_stats", lambda _, topic: loaded(site, topic))
    topics = ["persistent://t/n/a", "persistent://t/n/p-partition-0", "persistent://t/n/p-partition-1"]
    assert data(site, "list", "t/n")["namespaces"] == {"t/n": copy.gone_ms}
    assert data(site, "list", "t/other")["namespaces"] == data(site, "list", "t/n/a")["namespaces"] == {}
    planned = data(site, "restore", "--namespace", "t/n")
    assert [one["topic"] for one in planned["topics"]] == topics
    assert (planned["executed"], planned["policies"]) == (False, "to be made again")
    assert site.store.get("/admin/policies/t/n") is None
    # A client makes one of them again meanwhile: the others come back.
    site.store.create(NODE, listing((20, 0)))
    done = data(site, "restore", "--namespace", "t/n", "--execute", code=27)
    assert list(done["not_restored"]) == ["persistent://t/n/a"]
    assert [one["topic"] for one in done["topics"]] == topics[1:]
    assert site.value("/admin/policies/t/n") == copy.policies
    assert data(site, "list")["namespaces"] == {}
    assert site.value("/admin/local-policies/t/n") == copy.local
    assert site.value("/admin/partitioned-topics/t/n/persistent/p") == b'{"partitions":2}'
    # Run again it does the rest.
    site.remove(NODE)
    rest = data(site, "restore", "--namespace", "t/n", "--execute")
    assert (rest["policies"], [one["topic"] for one in rest["topics"]]) == ("they are there", topics[:1])
    assert site.store.get("/managed-ledgers/t/n/persistent/before") is None
    for options in ((), ("t/n/a", "--namespace", "t/n"), ("--namespace", "t/n", "--subscription", "s")):
        assert run(site, "restore", *options).exit_code == 2
    assert run(site, "restore", "--namespace", "t/other").exit_code == 4


def test_a_life_that_is_over_comes_before_what_the_live_topic_dropped(site: Site) -> None:
    over = site.trashed().generation.created_ms
    site.store.create(NODE, listing((20, 0)))
    live = site.get(NODE).created_ms
    entries = ledger_entries(listing((5, 10)))
    site.keep(TrashRecord(TOPIC, live + 1, live, data=(5,), entries=(entries[5],)))
    for options, expected in (((), over), (("--generation", str(live)), live), (("--subscription", "s/1"), over)):
        (planned,) = data(site, "restore", "t/n/a", "--under-live", *options)["topics"]
        assert planned["generation"] == expected


def test_all_partitions_come_back_and_the_topic_is_a_partitioned_one_then(site: Site) -> None:
    name = "t/n/persistent/p"
    for number in (0, 2, 10):
        path = f"/managed-ledgers/{name}-partition-{number}"
        site.store.create(path, listing((5, 10)))
        record = site.remove(path)
        site.keep(type(record)(f"{name}-partition-{number}", record.time_ms, record.created_ms, node=record.node))
    assert data(site, "restore", "t/n/p")["partitions"] == 11
    assert site.store.get(f"/admin/partitioned-topics/{name}") is None


@pytest.mark.parametrize("arguments", [("t/n/a",), ("--namespace", "t/n")], ids=["topic", "namespace"])
def test_a_log_of_acknowledgements_in_transactions_comes_back_before_its_topic(
    site: Site, arguments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    log = "t/n/persistent/a-s%2F1__transaction_pending_ack"
    site.store.create(f"/managed-ledgers/{log}", listing((5, 10)))
    site.keep(replace(site.remove(f"/managed-ledgers/{log}"), managed_ledger=log))
    if len(arguments) > 1:
        gone_namespace(site)

    def load(_: Broker, topic: str) -> Mapping[str, Any]:
        # Brokers load no log by itself, and find it when they load its topic.
        assert "pending_ack" not in topic
        site.get(f"/managed-ledgers/{log}")
        return loaded(site, topic)

    monkeypatch.setattr(Broker, "internal_stats", load)
    planned = data(site, "restore", *arguments)["topics"]
    assert [one["topic"] for one in planned][:2] == [
        "persistent://t/n/a-s/1__transaction_pending_ack",
        "persistent://t/n/a",
    ]
    data(site, "restore", *arguments, "--execute")
    assert site.listed() == [5, 6, 7]
    assert data(site, "list", "t/n/a")["generations"] == []


def test_a_finished_restore_whose_journal_is_left_is_over(site: Site) -> None:
    fields = {"step": "proven", "by": "me", "holder": {"host": "h", "pid": 1, "began": "x", "id": "y"}, "isHeld": True}
    left = TOPIC.replace("/a", "/b")
    site.store.create(restore_node(left), json.dumps(fields).encode(), make_parents=True)
    assert "restored already" in run(site, "restore", "t/n/b", "--execute").stdout
    assert site.store.get(restore_node(left)) is None
    assert run(site, "restore", "t/n/b", "--execute").exit_code == 4


def test_what_is_purged_is_marked_and_gone_from_the_trash(site: Site) -> None:
    planned = data(site, "purge", "t/n")
    assert planned == {"executed": False, "records": 3, "gone": 0, "marks": {"LEDGER": 5}, "kept": {}}
    assert site.sender.sent == []
    site.sender.fails = True
    failed = data(site, "purge", "--execute", code=27)
    assert (failed["records"], len(failed["kept"])) == (0, 3)
    site.sender.fails = False
    site.sender.sent.clear()
    done = data(site, "purge", "--execute")
    assert (done["records"], done["marks"]) == (3, {"LEDGER": 5})
    assert {(mark.ledger_id, mark.ledger_type) for mark in site.sender.sent} == {
        (one, LedgerType.LEDGER) for one in (5, 6, 7, 40, 50)
    }
    assert data(site, "list")["generations"] == []


def test_what_is_being_restored_is_not_purged(site: Site) -> None:
    fields = {"step": "writing", "by": "me", "holder": {"host": "h", "pid": 1, "began": "x", "id": "y"}, "isHeld": True}
    site.store.create(restore_node(TOPIC), json.dumps(fields).encode(), make_parents=True)
    kept = data(site, "purge", "--execute", code=27)
    assert kept["kept"] == {"persistent://t/n/a": "it is being restored"}
    assert site.sender.sent == []
    assert data(site, "list")["generations"][0]["restore"] == "writing, by me"


def test_inflight_shows_the_trash_next_to_the_outbox(site: Site) -> None:
    now_s = site._clock()
    found = inflight.WaitingBefore.read(site.store)
    count = len([one for trashed in site.records.read().generations for one in trashed.found])
    trash = dict(found.facts(now_s))["trash"]
    assert trash.startswith(f"{count} records, ")
    assert trash.endswith("; brokers keep nothing")
    lease = TrashLease(int(now_s * 1000) + 1, "me", 1, (KeepRule("*", 60),))
    site.store.create(TRASH_LEASE, encode_lease(lease), make_parents=True)
    found = inflight.WaitingBefore.read(site.store)
    assert "brokers keep what they drop until" in dict(found.facts(now_s))["trash"]
    assert "brokers keep nothing" in dict(found.facts(now_s + 1))["trash"]
    data = found.data(now_s + 100)["trash"]
    assert isinstance(data, dict)
    assert (data["records"], data["lease_until"]) == (count, lease.defer_until_ms)
    assert data["oldest_seconds"] >= 100
    site.store.__dict__["_closed"] = True
    assert all(text.startswith("not known: ") for _, text in inflight.WaitingBefore.read(site.store).facts(now_s))


def test_an_empty_trash_is_shown_as_such() -> None:
    facts = dict(inflight.WaitingBefore.read(MemoryStore()).facts(0))
    assert facts == {"outbox of brokers that mark": "empty", "trash": "empty; brokers keep nothing"}


def test_from_ledgers_comes_what_no_trash_has(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bookwarden.cli.trash.roots_proof_of", lambda _: SimpleNamespace(require=list))
    name = TopicName.parse("persistent://t/n/lost")
    custom = {
        key: text.encode() for key, text in expected_custom_metadata(ManagedLedgerHolder(name.managed_ledger)).items()
    }
    metadata = LedgerMetadata(*(3, LedgerState.CLOSED, 1, 1, 1, (Segment(0, ("b1:3181",)),), 500, 4), custom=custom)
    path = ledger_path("/ledgers", 70, LedgerLayout.HIERARCHICAL)
    site.store.create(path, encode_ledger_metadata(metadata), make_parents=True)
    refused = run(site, "restore", "persistent://t/n/a", "--from-ledgers")
    assert refused.exit_code == 5
    assert "the trash has persistent://t/n/a" in refused.output
    assert run(site, "restore", str(name), "--from-ledgers", "--generation", "1").exit_code == 2
    planned = data(site, "restore", str(name), "--from-ledgers")
    (topic,) = planned["topics"]
    assert (topic["ledgers"], topic["entries"], topic["subscriptions"]) == ([70], 5, [])
    assert [what for what, _ in topic["lost"]] == ["properties", "other subscriptions", "what was removed before"]
    text = " ".join(run(site, "restore", str(name), "--from-ledgers").stdout.split())
    assert "from its ledgers" in text
    assert "Nothing was changed" in text
    missing = run(site, "restore", "persistent://t/n/nothing", "--from-ledgers")
    assert missing.exit_code == 4
    assert "no ledger of an earlier life of persistent://t/n/nothing" in missing.output
