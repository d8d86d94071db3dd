"""The act in which follow runs on a Spark cluster whose executors are killed."""

from __future__ import annotations

import random
import signal
from collections import Counter
from contextlib import closing

from bookwarden.clusters.bookkeeper.ledger_paths import ledger_path
from bookwarden.clusters.pulsar.rest.admin import PulsarAdmin
from bookwarden.ledgers.kinds import ManagedLedgerHolder
from bookwarden.metastore.interface import Write
from bookwarden.wiring.pulsar import connection_of
from servers.follow.site import FollowingSite
from servers.population import Population, closed_ledger, tags_of
from servers.spark_storm.stage import START_S, Stage
from servers.waiting import eventually

_TOPICS = 200
_FIRST_ID = 8_000_000_000
_GRACE_S = 10.0


def follow(stage: Stage, kills: int) -> None:
    """Drop ledgers while follow runs, and kill its executors; each is marked, and nothing else."""
    chance = random.Random(stage.seed)
    site = stage.site("follow", **{"follow.trigger_seconds": "1"})
    with stage.store() as store:
        following = FollowingSite(site, grace_s=_GRACE_S)
        submission = stage.submission(site, "reference_changes.py", {})
        following.log = submission.process.spec.log_file
        population = Population(store)
        holders = [ManagedLedgerHolder(f"{site.namespace}/persistent/topic-{n}") for n in range(_TOPICS)]
        ids = range(_FIRST_ID, _FIRST_ID + stage.marks + _TOPICS)
        writes = [
            Write(ledger_path("/ledgers", ledger_id), closed_ledger(tags_of(holders[ledger_id % _TOPICS])), None)
            for ledger_id in ids
        ]
        assert not any(store.write_many(writes))
        named = {holder: [ledger for ledger in ids if holders[ledger % _TOPICS] == holder] for holder in holders}
        for holder, ledgers in named.items():
            population.names(holder, ledgers)
        submission.start()
        try:
            eventually(lambda: following.told("following "), START_S, pause=0.2)
            # Each kill comes in the midst of drops.
            for number in range(kills):
                for holder in holders[number::kills]:
                    population.names(holder, named[holder][-1:])
                    if chance.random() < kills / _TOPICS:
                        _kill_one(stage, chance)
                _kill_one(stage, chance)
            expected = {ledger for ledgers in named.values() for ledger in ledgers[:-1]}
            eventually(lambda: set(following.marked()) >= expected, START_S + _GRACE_S, pause=1)
            eventually(following.is_settled, START_S, pause=1)
            submission.stop()
        finally:
            submission.kill()
    marked = Counter(following.marked())
    with closing(PulsarAdmin(connection_of(site.settings.pulsar), timeout_s=60)) as admin:
        stats = admin.get_json(f"/persistent/{site.namespace}/deletion/partitioned-stats")
    again = stats["msgInCounter"] - len(marked)
    stage.say(f"  {len(expected)} ledgers dropped, {len(marked)} marked, {again} of them again")
    assert set(marked) == expected, set(marked) ^ expected
    assert (marked.total(), again) == (len(marked), 0)


def _kill_one(stage: Stage, chance: random.Random) -> None:
    executors = eventually(stage.spark.executors, START_S)
    one = chance.choice(executors)
    one.signal(signal.SIGKILL)
    stage.say(f"  executor {one.pid} killed")
    eventually(lambda: one.pid not in {each.pid for each in stage.spark.executors()}, 30)
