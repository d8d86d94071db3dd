"""A switch under load and back, on whatever the metadata is in: what every site must come through."""

from __future__ import annotations

import time
from collections.abc import Sequence

from bookwarden_dev.demo.load import Load
from servers.switching.site import SwitchingSite

# One bookie is enough for a ledger.
LONE_BOOKIES = {f"managedLedgerDefault{what}": "1" for what in ("EnsembleSize", "WriteQuorum", "AckQuorum")}
#: Few enough entries that a load fills several ledgers in some seconds.
SMALL_LEDGERS = {**LONE_BOOKIES, "managedLedgerMaxEntriesPerLedger": "20"}
TOPICS = 3
_PER_SECOND = 20
# More than a ledger of each topic.
_ENOUGH = 28
_PATIENCE = 120


def register_and_switch_to(site: SwitchingSite, target: str) -> Load:
    """Register a further cluster, switch to it and back under load, read all after the brokers were killed.

    Return what was sent, to topics whose ledgers are in both clusters.
    """
    source = site.registry().active
    topics = site.new_topics(TOPICS)
    with Load(site.connection, topics, _PER_SECOND) as load:
        load.start()
        load.wait_for(_PER_SECOND, _PATIENCE)
        site.register(target)
        site.wait_until_followed()
        assert site.command("precheck", "--name", target)["ready"]
        _switch(site, load, ("switch", "--target", target), target, source)
        assert site.command("status", "--ledgers")["phase"] == "DONE"
        _switch(site, load, ("rollback",), source, target)
        tallies = load.stop()
        assert [tally for tally in tallies if tally.lost or tally.send_errors or not tally.sent] == []
        site.kill_brokers()
        assert set(load.lost_to_a_reader(site.connection).values()) == {0}
    places = site.places()
    assert places.astray == ()
    for topic in topics:
        counted = places.of_topic(site.store, topic)
        assert {name for name, count in counted.items() if count} == {source, target}
    return load


def _switch(site: SwitchingSite, load: Load, words: Sequence[str], active: str, left: str) -> None:
    switched = site.command(*words, "--yes")
    before, begin = site.places(), time.monotonic()
    load.wait_for(_ENOUGH, _PATIENCE)
    assert {each["name"] for each in switched["brokers"]} == {broker.broker_id for broker in site.brokers}
    assert site.metric("epoch") == [switched["epoch"]] * len(site.brokers)
    assert site.metric("refusals_total") == [0.0] * len(site.brokers), begin
    places = site.places()
    assert places.astray == ()
    made = places.since(before)
    assert len(made[active]) >= TOPICS
    assert not made[left]
