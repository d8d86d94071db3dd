"""Which metadata store a URL means."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import parse_qsl

from bookwarden.errors import ConfigError
from bookwarden.metastore.interface import MetadataStore


def open_store(url: str, **options: Any) -> MetadataStore:
    """Make the store that the URL names; nothing is connected before its first call.

    ``zk:host1:port,host2:port/chroot`` takes the fields of ZooKeeperConnection as options; ``memory:name`` is
    one store for each name in this process, and ignores them. ``zk-snapshot:/path/snapshot.4f#/chroot`` reads a
    snapshot file, and ignores them too; ``?logs=/folder`` before the # names the folder of its transaction logs if it
    is another one, ``work=/folder`` where a compressed one is unpacked, and ``fuzzy=yes`` reads it without logs.
    Raises ConfigError for another scheme or option.
    """
    scheme, separator, rest = url.partition(":")
    if not separator or scheme not in _LOADERS:
        known = ", ".join(f"{name}:" for name in sorted(_LOADERS))
        raise ConfigError(f"metadata store URL {url!r}: unknown scheme; expected one of {known}")
    return _LOADERS[scheme](rest, options)


def split_chroot(url: str) -> tuple[str, str]:
    """Part a store's URL into that of its ensemble and its chroot, which is empty or begins with a slash.

    The hosts of a ZooKeeper come in one order, so that equal ensembles have equal URLs.
    """
    scheme, _, rest = url.partition(":")
    if scheme == "zk-snapshot":
        ensemble, _, chroot = url.partition("#")
        return ensemble, chroot.rstrip("/")
    if scheme != "zk":
        return url, ""
    hosts, chroot = _hosts_and_chroot(rest)
    return f"zk:{','.join(sorted(hosts.split(',')))}", chroot


def with_chroot(ensemble: str, chroot: str) -> str:
    """Name the store at a chroot of an ensemble, both as `split_chroot` gives them."""
    return f"{ensemble}#{chroot}" if ensemble.startswith("zk-snapshot:") and chroot else ensemble + chroot


def _hosts_and_chroot(rest: str) -> tuple[str, str]:
    hosts, slash, chroot = rest.removeprefix("//").partition("/")
    return hosts, (slash + chroot).rstrip("/")


def _open_zookeeper(rest: str, options: Mapping[str, Any]) -> MetadataStore:
    from bookwarden.metastore.zookeeper import ZooKeeperStore
    from bookwarden.metastore.zookeeper_session import ZooKeeperConnection

    hosts, chroot = _hosts_and_chroot(rest)
    try:
        connection = ZooKeeperConnection(hosts=hosts, chroot=chroot, **options)
    except TypeError as error:
        raise ConfigError(f"metadata store URL zk:{rest}: {error}") from error
    return ZooKeeperStore(connection)


def _open_memory(rest: str, options: Mapping[str, Any]) -> MetadataStore:
    from bookwarden.metastore.memory import shared_memory_store

    return shared_memory_store(rest)


def _open_snapshot(rest: str, options: Mapping[str, Any]) -> MetadataStore:
    from bookwarden.metastore.zookeeper_snapshot import SnapshotFile
    from bookwarden.metastore.zookeeper_snapshot_store import SnapshotStore

    before, _, chroot = rest.removeprefix("//").partition("#")
    file, _, query = before.partition("?")
    given = dict(parse_qsl(query, keep_blank_values=True))
    logs, work, fuzzy = given.pop("logs", None), given.pop("work", None), given.pop("fuzzy", "no")
    if not file or given or fuzzy not in ("yes", "no") or (chroot and not chroot.startswith("/")):
        raise ConfigError(
            f"metadata store URL zk-snapshot:{rest}: expected zk-snapshot:/path/snapshot.<number>, then ?logs=/folder, "
            "work=/folder or fuzzy=yes joined by & if needed, then #/chroot if there is one"
        )
    return SnapshotStore(SnapshotFile(file, chroot, logs=logs, work_folder=work, allow_fuzzy=fuzzy == "yes"))


_LOADERS: dict[str, Callable[[str, Mapping[str, Any]], MetadataStore]] = {
    "memory": _open_memory,
    "zk": _open_zookeeper,
    "zk-snapshot": _open_snapshot,
}
