"""Everything moved from one bookie cluster to the other under load, and back; the one that was left is stopped."""

from __future__ import annotations

import argparse
import logging
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from servers.object_store import ACCESS_KEY, REGION, SECRET_KEY, ObjectStore, running_object_store
from servers.switching.moving import Moving
from servers.switching.open_transactions import open_transactions
from servers.switching.rolled_back import RolledBack
from servers.switching.site import SwitchingSite, switching_site
from servers.switching.topics_of_all_kinds import BROKER_SETTINGS, TopicsOfAllKinds
from servers.switching.watched_load import watched_load

_PER_SECOND = 10
_BUCKET = "pulsar-offload"
# In ms: what was cleaned up comes back only once its bookies have collected the garbage.
_BOOKIES = {"gcWaitTime": "2000"}
_SLOWLY = ("--max-ledgers-per-second", "0.5")


def move(site: SwitchingSite, home: Path, target: str, loaded: int, tell: Callable[[str], object]) -> None:
    """Move all to this cluster, under load on so many topics; AssertionError if anything is missed afterwards."""
    source = site.registry().active
    moving = Moving(site, home)
    transacted = site.new_topics(2)
    with (
        closing(site.connection.client()) as client,
        open_transactions(site.connection.service_url, transacted, home / "transactions.log") as transactions,
        watched_load(site, loaded, _PER_SECOND) as load,
    ):
        topics = TopicsOfAllKinds(site, client, offload=True)
        transactions.wait_for(1)
        count = loaded + len(transacted) + len(topics.names) + len(topics.doomed)
        tell(f"{count} topics; switching from {source} to {target}")
        moving.switch(target)
        transactions.go_on(2)
        load.goes_on()
        tell("building, while topics change")
        moving.roll()
        # However many ledgers there are: what is left is built at full speed.
        with moving.building(*_SLOWLY, kill=True):
            topics.change()
        topics.check()
        tell(f"emptying {source}")
        written = moving.empty()
        tell(f"{len(written)} ledgers still written there; starting brokers again")
        left = moving.leave(source)
        tell(f"the bookies of {source} are stopped, and brokers started again; {len(left)} ledgers are still there")
        load.goes_on()
        topics.check()
        topics.check_gone()
        transactions.go_on(3)
        found = load.end()
    tell(str(found))
    assert found.harm == {}


def roll_back_in_each_phase(site: SwitchingSite, home: Path, loaded: int, tell: Callable[[str], object]) -> None:
    """Move from a to b, up to each phase, and roll it back; AssertionError if anything is missed afterwards."""
    folder = home / "rolled-back"
    folder.mkdir()
    moving = Moving(site, folder)
    with closing(site.connection.client()) as client, watched_load(site, loaded, _PER_SECOND) as load:
        topics = TopicsOfAllKinds(site, client)
        rolled_back = RolledBack(site, moving, topics, load)
        phases = {
            "the switch": rolled_back.switched,
            "a build that was killed": rolled_back.killed_in_build,
            "a build": rolled_back.built,
            "a promotion": rolled_back.promoted,
            "marks that are not swept": rolled_back.marked,
        }
        for name, play in phases.items():
            play()
            tell(f"rolled back after {name}")
        found = load.end()
    tell(str(found))
    assert found.harm == {}


def main() -> int:
    """Play it there and back, as `make soak STORM=move` does."""
    parser = argparse.ArgumentParser(prog="python -m servers.switching.moving_soak", description=__doc__)
    parser.add_argument("--topics", type=int, default=10, help="under load, beside those of all kinds")
    asked = parser.parse_args()
    logging.getLogger("pulsar").setLevel(logging.CRITICAL)
    # It stays if anything fails, with all logs.
    home = Path(tempfile.mkdtemp(prefix="bookwarden-soak-"))
    _say(f"servers in {home}")
    with running_object_store(home / "offloaded") as offloads:
        offloads.client.create_bucket(Bucket=_BUCKET)
        _there_and_back(offloads, home, asked.topics)
    shutil.rmtree(home)
    _say("nothing was lost")
    return 0


def _there_and_back(offloads: ObjectStore, home: Path, topics: int) -> None:
    settings = {
        **BROKER_SETTINGS,
        "managedLedgerOffloadDriver": "S3",
        "managedLedgerOffloadBucket": _BUCKET,
        "managedLedgerOffloadRegion": REGION,
        "managedLedgerOffloadServiceEndpoint": offloads.endpoint,
    }
    environment = {"ACCESS_KEY_ID": ACCESS_KEY, "ACCESS_KEY_SECRET": SECRET_KEY}
    with switching_site(
        home, ("4.0.8",), broker_settings=settings, bookie_settings=_BOOKIES, offload_environment=environment
    ) as site:
        site.ensure("a")
        for source, target in ("ab", "ba"):
            folder = home / f"to-{target}"
            folder.mkdir()
            move(site, folder, target, topics, _say)
            for bookie in site.servers.clusters[source].processes:
                bookie.start()
        roll_back_in_each_phase(site, home, topics, _say)


def _say(line: str) -> None:
    sys.stdout.write(f"{time.strftime('%H:%M:%S')} {line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
