"""A broker that marks next to a stock one, under load, while bundles move from one to the other."""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Final

from bookwarden.clusters.pulsar.rest.admin import PulsarAdmin
from bookwarden.errors import NotFoundError, PulsarError
from bookwarden.ledgers.naming import unpack
from bookwarden_dev.devcluster import ClusterOptions
from bookwarden_dev.devcluster.ports import LOOPBACK
from servers.blue_green.further_broker import SHARING, further_broker
from servers.broker_marks.publishing import Make
from servers.broker_marks.site import MarkingSite
from servers.follow.site import FollowingSite
from servers.marking_brokers import run
from servers.short_lived import running_until_killed
from servers.waiting import eventually

#: Exit code of `broker-marks status` while a live broker does not mark.
_NOT_ALL_MARK: Final = 22
_MOVE_S: Final = 3.0
# Next to brokers that mark follow comes five minutes after its grace, of mode two-phase seven; and one that recovers
# buckets of delayed messages may answer nobody for four.
_FOLLOWED_S: Final = 900.0


def live_beside_stock(
    home: Path,
    make: Make,
    marking: ClusterOptions,
    stock: ClusterOptions,
    seed: int,
    minutes: float,
    delay_s: int,
    say: Callable[[str], None],
) -> None:
    """Let topics live on both, then kill the stock one; AssertionError if the other one dropped anything unmarked."""
    home.mkdir()
    marking, stock = _sharing(marking), _sharing(stock)
    with (
        running_until_killed(make(home / "pulsar", marking)) as cluster,
        further_broker(cluster, home / "stock", stock) as (process, connection),
        closing(PulsarAdmin(cluster.connection(), timeout_s=60)) as admin,
    ):
        names = [f"{LOOPBACK}:{cluster.ports.web}", connection.admin_url.partition("://")[2].rstrip("/")]
        site = MarkingSite(cluster, "side", home / "site", delay_s, stock=names[1])
        admin.put("/namespaces/side/left", {"bundles": {"numBundles": 1}})
        following = FollowingSite(site.site)
        following.start()
        try:
            with site.played(seed, say) as done:
                end, moves = time.monotonic() + minutes * 60, 0
                for number in itertools.count():
                    if time.monotonic() > end:
                        break
                    moves += _move_all(admin, "side/life", [names[number % 2], names[1 - number % 2]])
                    say(f"{moves} bundles moved; {dict(done)}")
                shown = run(site.site, "status", codes=(_NOT_ALL_MARK,))
                assert {one["name"] for one in shown["brokers"] if not one["marks"]} == {names[1]}
                # Its topics go to the marking broker, which knows nothing of what it dropped.
                _move(admin, "side/left", "0x00000000_0xffffffff", names[1])

                followed: set[int] = set()

                def is_followed(path: str, ledgers: set[int]) -> bool:
                    followed.update(ledgers)
                    named = (
                        set(unpack(naming).places) for _, node, naming in following.state().items() if node == path
                    )
                    return any(ledgers <= each for each in named)

                left = set(site.kill_between(0, broker=process, namespace="left", is_known=is_followed))
                drops = site.drops()
                unmarked = left & drops.unmarked_by_stock.keys() - (drops.unseen - followed)
                assert unmarked
                say(f"the stock broker was killed, and left {len(unmarked)} ledgers behind that nobody marked")
                eventually(lambda: unmarked <= set(following.marked()), _FOLLOWED_S, 2)
                say(f"follow marked them: {dict(following.looked_at())}")
        finally:
            following.process.kill()


def _sharing(options: ClusterOptions) -> ClusterOptions:
    return dataclasses.replace(options, broker_settings={**options.broker_settings, **SHARING})


def _move_all(admin: PulsarAdmin, namespace: str, brokers: list[str]) -> int:
    """Move each bundle, one after the other, by turns to each of the brokers; return how many moved."""
    moved = 0
    borders = admin.get_json(f"/namespaces/{namespace}/bundles")["boundaries"]
    for (first, last), broker in zip(itertools.pairwise(borders), itertools.cycle(brokers)):
        # One that was split meanwhile is no more.
        with suppress(PulsarError, NotFoundError):
            _move(admin, namespace, f"{first}_{last}", broker)
            moved += 1
        time.sleep(_MOVE_S)
    return moved


def _move(admin: PulsarAdmin, namespace: str, bundle: str, broker: str) -> None:
    admin.put(f"/namespaces/{namespace}/{bundle}/unload", params={"destinationBroker": broker})
