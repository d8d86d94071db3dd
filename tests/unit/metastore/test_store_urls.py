"""Which store a URL means, as Pulsar writes it."""

from __future__ import annotations

import pytest

from bookwarden.errors import ConfigError
from bookwarden.metastore.memory import MemoryStore
from bookwarden.metastore.urls import _LOADERS, is_same_store, open_store, scheme_of, split_chroot
from bookwarden.metastore.zookeeper.store import ZooKeeperStore
from contract.test_metadata_store import FACTORIES


@pytest.mark.parametrize(
    ("url", "hosts", "chroot"),
    [
        ("zk:zk1:2181", "zk1:2181", ""),
        ("zk:zk2:2181,zk1:2182/pulsar", "zk2:2181,zk1:2182", "/pulsar"),
        ("zk:zk1/pulsar/eu/", "zk1:2181", "/pulsar/eu"),
        ("zk:zk1:2181/", "zk1:2181", ""),
        ("zk:zk1:2181, zk2:2181", "zk1:2181,zk2:2181", ""),
        ("zk://zk1:2181/pulsar", "zk1:2181", "/pulsar"),
        ("zk:[fd00::1]:2181,[fd00::2]", "[fd00::1]:2181,[fd00::2]:2181", ""),
        # The former settings zookeeperServers and configurationStoreServers have no scheme.
        ("zk1:2181,zk2:2181", "zk1:2181,zk2:2181", ""),
        ("zookeeper.pulsar.svc/pulsar", "zookeeper.pulsar.svc:2181", "/pulsar"),
    ],
)
def test_the_hosts_and_the_chroot_of_a_zookeeper(url: str, hosts: str, chroot: str) -> None:
    store = open_store(url)
    assert isinstance(store, ZooKeeperStore)
    connection = store._session.connection
    assert (connection.hosts, connection.chroot) == (hosts, chroot)
    assert scheme_of(url) == "zk"
    assert split_chroot(url) == (f"zk:{','.join(sorted(hosts.split(',')))}", chroot)


def test_a_memory_store_has_no_chroot() -> None:
    assert isinstance(open_store("memory:urls"), MemoryStore)
    assert open_store("memory:urls") is open_store("memory:urls")
    assert split_chroot("memory:urls") == ("memory:urls", "")
    assert scheme_of("memory:urls") == "memory"


@pytest.mark.parametrize(
    ("url", "ensemble"),
    [
        ("oxia://oxia:6648", "oxia://oxia:6648/default"),
        ("oxia://oxia:6648/", "oxia://oxia:6648/default"),
        ("oxia://oxia:6648/default", "oxia://oxia:6648/default"),
        ("oxia://oxia:6648/bookkeeper", "oxia://oxia:6648/bookkeeper"),
    ],
)
def test_an_oxia_has_a_namespace_and_no_chroot(url: str, ensemble: str) -> None:
    assert split_chroot(url) == (ensemble, "")
    assert scheme_of(url) == "oxia"


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("", "expected one of .*zk:"),
        ("zk:", "'' is no host"),
        ("zk:/pulsar", "'' is no host"),
        ("zk:a:1,,b:1", "'' is no host"),
        ("zk:a:1;b:1", "'a:1;b:1' is no host; expected zk:host:port,host:port/chroot"),
        ("zk:a:port", "'a:port' is no host"),
        ("zk:a:0", "'a:0' is no host"),
        ("zk:a:65536", "'a:65536' is no host"),
        ("zk:me@a:1", "'me@a:1' is no host"),
        ("zk:a:1/x//y", "it has an empty part"),
        ("zk:a:1/../x", "it has a relative part"),
        ("memory", "unknown scheme; expected one of memory:, "),
        ("etcd:http://a:2379", "unknown scheme"),
        ("rocksdb:///data", "unknown scheme"),
        ("ZK:a:1/x", "unknown scheme"),
        ("http://a:1", "unknown scheme"),
        ("zk+hierarchical://a:1/ledgers", "metadataServiceUri of BookKeeper, which is for .*bookkeeper_url alone"),
        ("metadata-store:zk:a:1", "metadataServiceUri of BookKeeper, which is for .*bookkeeper_url alone"),
    ],
)
def test_what_means_no_store_is_refused_with_the_reason(url: str, says: str) -> None:
    for question in (open_store, split_chroot):
        with pytest.raises(ConfigError, match=says):
            question(url)


@pytest.mark.parametrize(
    ("url", "other", "same"),
    [
        ("zk:a,b/pulsar", "zk:c:2181,a:2181/pulsar/", True),
        ("zk:a/pulsar", "zk:a/other", False),
        ("zk:a", "zk:b", False),
        ("zk:a:2181", "zk:a:2182", False),
        ("oxia://o:6648", "oxia://o:6648/default", True),
        ("oxia://o:6648/one", "oxia://o:6648/two", False),
        ("zk:a", "memory:a", False),
    ],
)
def test_two_urls_of_one_store_have_a_host_and_the_chroot_in_common(url: str, other: str, same: bool) -> None:
    assert is_same_store(url, other) is same
    assert is_same_store(other, url) is same


def test_every_store_that_can_be_written_is_held_by_the_contract_test() -> None:
    held = {factory.__name__ for factory in FACTORIES}
    assert {"zookeeper" if scheme == "zk" else scheme for scheme in _LOADERS} - {"zk-snapshot"} <= held
