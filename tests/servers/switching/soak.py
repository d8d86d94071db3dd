"""Switch bookie clusters under load: with random kills, with brokers that disagree, with one cut off from the store."""

from __future__ import annotations

import argparse
import logging
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path

from bookwarden_dev.devcluster.bookie_clusters import TWO_CLUSTERS, ClusterPlan, SiteBroker
from bookwarden_dev.devcluster.servers.settings import PULSAR_VERSIONS
from servers.switching.disagreement import disagreement, move_bundles
from servers.switching.lost_session import behind_a_proxy, cut_off, switch_without
from servers.switching.site import SwitchingSite, switching_site
from servers.switching.storm import KINDS, NEWCOMER, SUSPENDED, Storm
from servers.switching.watched_load import Outcome, watched_load

TOPICS = 6
PER_SECOND = 20


def main() -> int:
    """Play it all; 1 if there was any harm. An AssertionError tells of what did not come back."""
    parser = argparse.ArgumentParser(prog="python -m servers.switching.soak", description=__doc__)
    parser.add_argument("--kills", type=int, default=20, help="kills in all; 0 leaves them out")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long brokers disagree; 0 leaves it out")
    parser.add_argument("--seed", type=int, default=random.randrange(2**32), help="of the kills")
    asked = parser.parse_args()
    logging.getLogger("pulsar").setLevel(logging.CRITICAL)
    # It stays if anything fails, with all logs.
    home = Path(tempfile.mkdtemp(prefix="bookwarden-soak-"))
    _say(f"servers in {home}")
    found = []
    clusters = (*TWO_CLUSTERS, ClusterPlan(NEWCOMER, "/bookies-c", own_zookeeper=True))
    with switching_site(home, PULSAR_VERSIONS, clusters) as site:
        site.register("b")
        site.wait_until_followed()
        if asked.kills:
            found.append(_storm(site, asked.kills, asked.seed, home))
        if asked.seconds:
            found.append(_disagreement(site, asked.seconds))
        found += [_cut_off(site, broker) for broker in site.brokers]
    harm = [each.harm for each in found if each.harm]
    if harm:
        _say(f"harm: {harm}")
        return 1
    shutil.rmtree(home)
    _say("nothing was lost")
    return 0


def _storm(site: SwitchingSite, kills: int, seed: int, home: Path) -> Outcome:
    _say(f"{kills} kills, seed {seed}")
    kinds = [SUSPENDED, *(KINDS[number % len(KINDS)] for number in range(kills - 1))]
    with watched_load(site, TOPICS, PER_SECOND) as load:
        Storm(site, load, seed, home).rage(kinds, lambda kill: _say(str(kill)))
        found = load.end()
    _say(str(found))
    return found


def _disagreement(site: SwitchingSite, seconds: float) -> Outcome:
    _say(f"two brokers disagree for {seconds:.0f} s")
    with watched_load(site, TOPICS, PER_SECOND) as load:
        with disagreement(site):
            moves = move_bundles(site, load, seconds)
        load.goes_on()
        found = load.end()
    _say(f"bundles moved {moves} times: {found}")
    return found


def _cut_off(site: SwitchingSite, broker: SiteBroker) -> Outcome:
    _say(f"a broker of {broker.version} is cut off from the metadata store while it is switched, there and back")
    registry = site.registry()
    other = min(registry.clusters.keys() - {registry.active})
    with behind_a_proxy(site, broker) as proxy, watched_load(site, TOPICS, PER_SECOND) as load:
        for target in (other, registry.active):
            switch_without(site, broker, cut_off(proxy), target)
            load.goes_on()
        found = load.end()
    _say(str(found))
    return found


def _say(line: str) -> None:
    sys.stdout.write(f"{time.strftime('%H:%M:%S')} {line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
