"""Which metadata store a URL means."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from bookwarden.errors import ConfigError
from bookwarden.metastore.interface import MetadataStore


def open_store(url: str, **options: Any) -> MetadataStore:
    """Make the store that the URL names; nothing is connected before its first call.

    ``zk:host1:port,host2:port/chroot`` takes the fields of ZooKeeperConnection as options; ``memory:name`` is
    one store for each name in this process, and ignores them. Raises ConfigError for another scheme or option.
    """
    scheme, separator, rest = url.partition(":")
    if not separator or scheme not in _LOADERS:
        known = ", ".join(f"{name}:" for name in sorted(_LOADERS))
        raise ConfigError(f"metadata store URL {url!r}: unknown scheme; expected one of {known}")
    return _LOADERS[scheme](rest, options)


def _open_zookeeper(rest: str, options: Mapping[str, Any]) -> MetadataStore:
    from bookwarden.metastore.zookeeper import ZooKeeperStore
    from bookwarden.metastore.zookeeper_session import ZooKeeperConnection

    hosts, slash, chroot = rest.removeprefix("//").partition("/")
    try:
        connection = ZooKeeperConnection(hosts=hosts, chroot=slash + chroot.rstrip("/"), **options)
    except TypeError as error:
        raise ConfigError(f"metadata store URL zk:{rest}: {error}") from error
    return ZooKeeperStore(connection)


def _open_memory(rest: str, options: Mapping[str, Any]) -> MetadataStore:
    from bookwarden.metastore.memory import shared_memory_store

    return shared_memory_store(rest)


_LOADERS: dict[str, Callable[[str, Mapping[str, Any]], MetadataStore]] = {
    "memory": _open_memory,
    "zk": _open_zookeeper,
}
