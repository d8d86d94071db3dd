"""Where BookKeeper's metadata is, from what bookkeeper.conf has as metadataServiceUri."""

from __future__ import annotations

import pytest

from bookwarden.clusters.bookkeeper.service_uris import LedgersRoot, bookkeeper_place
from bookwarden.config import Settings, load_settings
from bookwarden.errors import ConfigError
from bookwarden.metastore.urls import split_chroot
from bookwarden.wiring.cluster import Cluster
from bookwarden.wiring.stores import bookkeeper_place_of


@pytest.mark.parametrize(
    ("text", "url", "root"),
    [
        ("zk+hierarchical://a:2181/ledgers", "zk:a:2181", "/ledgers"),
        ("zk+hierarchical://a:2181;b:2181/pulsar/ledgers", "zk:a:2181,b:2181", "/pulsar/ledgers"),
        ("zk+longhierarchical://a:2181,b:2181/ledgers/", "zk:a:2181,b:2181", "/ledgers"),
        ("zk+flat://a/ledgers", "zk:a", "/ledgers"),
        ("zk+null://a:2181/l%20x", "zk:a:2181", "/l x"),
        ("zk://a:2181/ledgers", "zk:a:2181", "/ledgers"),
        ("ZK+Hierarchical://a:2181/ledgers", "zk:a:2181", "/ledgers"),
        (" zk+null://a:2181/ledgers\n", "zk:a:2181", "/ledgers"),
        ("metadata-store:zk:a:2181", "zk:a:2181", "/ledgers"),
        # Java sees no path in it: what stands there is the chroot of Pulsar's store.
        ("metadata-store:zk:a:2181,b:2181/pulsar", "zk:a:2181,b:2181/pulsar", "/ledgers"),
        ("metadata-store:zk:a:2181;b:2181/ledgers", "zk:a:2181,b:2181/ledgers", "/ledgers"),
        ("metadata-store:a:2181", "a:2181", "/ledgers"),
        ("metadata-store:zk:a:1?sessionTimeoutMillis=60000&batchingEnabled=false", "zk:a:1", "/ledgers"),
        ("metadata-store:oxia://a:6648/bookkeeper", "oxia://a:6648/bookkeeper", "/ledgers"),
        ("metadata-store:memory:x", "memory:x", "/ledgers"),
        ("zk:a:2181/pulsar", "zk:a:2181/pulsar", "/ledgers"),
        ("a:2181", "a:2181", "/ledgers"),
    ],
)
def test_each_form_names_a_store_and_a_ledgers_root(text: str, url: str, root: str) -> None:
    assert bookkeeper_place(text) == LedgersRoot(url, root)
    assert bookkeeper_place(text, root) == LedgersRoot(url, root)
    assert split_chroot(url)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("zk+ms://a:1/ledgers", "ledgers of the manager 'ms' cannot be read; those of hierarchical, "),
        ("zk+other://a:1/ledgers", "the manager 'other'"),
        ("zk+hierarchical:a:1/ledgers", "has no //; expected zk\\+hierarchical://host:port/ledgers"),
        ("zk+hierarchical://a:1", "names no ledgers root; expected zk\\+hierarchical://host:port/ledgers"),
        ("zk+hierarchical:///ledgers", "'' is no host"),
        ("zk+hierarchical://me@a:1/ledgers", "'me@a:1' is no host"),
        ("zk+hierarchical://a:1/x//ledgers", "it has an empty part"),
        ("metadata-store:", "expected one of"),
        ("metadata-store:zk:a b", "'a b' is no host"),
        ("metadata-store:zk:a:1/pulsar?retries=3", "'retries' is no parameter"),
        ("metadata-store:etcd:http://a:2379", "unknown scheme"),
        ("etcd+hierarchical:http://a:2379", "there is no store for etcd"),
        ("", "unknown scheme"),
    ],
)
def test_what_names_no_place_is_refused_with_the_reason(text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        bookkeeper_place(text)


def settings(**values: str) -> Settings:
    return load_settings(overrides={f"metadata_store.{name}": value for name, value in values.items()})


def test_two_different_ledgers_roots_are_refused() -> None:
    assert bookkeeper_place_of(settings(ledgers_root="/x/").metadata_store) == LedgersRoot("zk:127.0.0.1:2181", "/x")
    assert bookkeeper_place_of(settings(bookkeeper_url="zk:b:1", ledgers_root="/x").metadata_store) == LedgersRoot(
        "zk:b:1", "/x"
    )
    with pytest.raises(ConfigError, match=r"ledgers_root is /x, and bookkeeper_url zk://b:1/y means /y: leave"):
        bookkeeper_place_of(settings(bookkeeper_url="zk://b:1/y", ledgers_root="/x").metadata_store)


def test_the_first_metadata_root_is_a_store_and_never_a_service_uri() -> None:
    assert bookkeeper_place_of(settings(urls="['zk://a:1/pulsar']").metadata_store) == LedgersRoot(
        "zk://a:1/pulsar", "/ledgers"
    )


@pytest.mark.parametrize(
    ("bookkeeper_url", "is_shared"),
    [("metadata-store:zk:a:1;b:1/x", True), ("zk:b:1,a:1/x", True), ("zk+null://a:1;b:1/x/ledgers", False)],
)
def test_a_store_that_is_a_metadata_root_too_is_opened_once(bookkeeper_url: str, is_shared: bool) -> None:
    with Cluster(settings(urls="['zk:a:1,b:1/x']", bookkeeper_url=bookkeeper_url)) as cluster:
        assert (cluster.bookkeeper.store is cluster.store) is is_shared
