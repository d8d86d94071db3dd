"""A switch while one broker's session with the metadata store ends."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager

from bookwarden.bookie_clusters.brokers import read_brokers
from bookwarden_dev.devcluster.bookie_clusters import SiteBroker
from servers.lossy_proxy import LossyProxy
from servers.switching.site import SwitchingSite
from servers.waiting import eventually

_PATIENCE_S = 120.0


def switch_without(site: SwitchingSite, broker: SiteBroker, away: AbstractContextManager[object], target: str) -> None:
    """Switch to another cluster while a broker is away for longer than its session; it has to follow when it is back.

    In ``away`` the broker does not reach the store.
    """
    others = {one.broker_id for one in site.brokers} - {broker.broker_id}
    with away:
        eventually(lambda: {one.name for one in read_brokers(site.store)} == others, _PATIENCE_S)
        switched = site.command("switch", "--target", target, "--yes")
        assert {one["name"] for one in switched["brokers"]} == others
    # Its name is there again with its new session, and with that what it follows.
    site.wait_until_followed()
    eventually(lambda: len(read_brokers(site.store)) == len(site.brokers), _PATIENCE_S)
    # What failed in between counts until the next look.
    eventually(lambda: not any(one.follower and one.follower.unreachable for one in read_brokers(site.store)))
    told = {one["name"]: one["epoch"] for one in site.command("status")["brokers"]}
    assert told == dict.fromkeys({*others, broker.broker_id}, switched["epoch"])
    assert site.command("precheck", "--name", switched["source"])["ready"]


@contextmanager
def behind_a_proxy(site: SwitchingSite, broker: SiteBroker) -> Iterator[LossyProxy]:
    """Let a broker reach the store through a proxy in the block; it is started anew before and after it."""
    with closing(LossyProxy(int(site.servers.store_url.rpartition(":")[2]))) as proxy:
        url = f"zk:127.0.0.1:{proxy.port}"
        broker.settings.update(metadataStoreUrl=url, configurationMetadataStoreUrl=url)
        broker.process.restart()
        site.wait_until_followed()
        yield proxy
        broker.settings.clear()
        broker.process.restart()
        site.wait_until_followed()


@contextmanager
def cut_off(proxy: LossyProxy) -> Iterator[None]:
    """Let nothing through in the block."""
    proxy.cut_off()
    try:
        yield
    finally:
        proxy.let_through()
