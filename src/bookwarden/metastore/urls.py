"""URLs of metadata stores, written as Pulsar's brokers write them.

Format: impl.MetadataStoreFactoryImpl and impl.ZKMetadataStore of pulsar-metadata 4.0 and 4.2; the hosts and the chroot
of a ZooKeeper: client.ConnectStringParser, ZooKeeper 3.9.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import parse_qsl

from bookwarden.errors import ConfigError, FormatError, MissingExtraError
from bookwarden.metastore.interface import MetadataStore
from bookwarden.metastore.paths import validate_path

_ZOOKEEPER_PORT: Final = 2181
_OXIA_NAMESPACE: Final = "default"
_HOST = re.compile(r"([\w.-]+|\[[0-9A-Fa-f:.]+\])(?::([0-9]{1,5}))?")


def open_store(url: str, **options: Any) -> MetadataStore:
    """Make the store that the URL names; nothing is connected before its first call.

    ``zk:host1:port,host2:port/chroot`` takes the fields of ZooKeeperConnection as options; so do hosts without a
    scheme, which are a ZooKeeper's for Pulsar. ``memory:name`` is one store for each name in this process, and ignores
    them. ``zk-snapshot:/path/snapshot.4f#/chroot`` reads a snapshot file, and ignores them too; ``?logs=/folder``
    before the # names the folder of its transaction logs if it is another one, ``work=/folder`` the one to unpack a
    compressed snapshot in, and ``fuzzy=yes`` reads it without logs. ``oxia://host:port/namespace`` takes the fields of
    OxiaConnection as options; the namespace is ``default`` if there is none.
    Raises ConfigError for another scheme or option, MissingExtraError where an Oxia's libraries are not installed.
    """
    scheme, rest = _parted(url)
    return _LOADERS[scheme](rest, options)


def scheme_of(url: str) -> str:
    """Return the scheme of the URL, ``zk`` for hosts without one; ConfigError if it is unknown."""
    return _parted(url)[0]


def split_chroot(url: str) -> tuple[str, str]:
    """Split a store's URL into that of its ensemble and its chroot, which is empty or begins with a slash.

    The hosts of a ZooKeeper come in one order and with their ports, an Oxia's namespace is always named, so that equal
    ensembles have equal URLs. Only a ZooKeeper has chroots. Raises ConfigError for a URL that means no store.
    """
    scheme, rest = _parted(url)
    if scheme == "zk-snapshot":
        ensemble, _, chroot = url.partition("#")
        return ensemble, chroot.rstrip("/")
    if scheme == "oxia":
        address, _, namespace = rest.removeprefix("//").rstrip("/").partition("/")
        return f"oxia://{address}/{namespace or _OXIA_NAMESPACE}", ""
    if scheme != "zk":
        return url, ""
    hosts, chroot = _hosts_and_chroot(rest)
    return f"zk:{','.join(sorted(hosts))}", chroot


def is_same_store(url: str, other: str) -> bool:
    """Return whether both URLs certainly mean one store and one chroot of it: a host is in one ensemble only.

    False where the URLs do not show it, as of an ensemble with other names.
    """
    (ensemble, chroot), (other_ensemble, other_chroot) = split_chroot(url), split_chroot(other)
    if scheme_of(url) != "zk" or scheme_of(other) != "zk":
        return (ensemble, chroot) == (other_ensemble, other_chroot)
    hosts, other_hosts = (set(one.removeprefix("zk:").split(",")) for one in (ensemble, other_ensemble))
    return chroot == other_chroot and not hosts.isdisjoint(other_hosts)


def path_before(url: str, other: str) -> str | None:
    """Return the prefix that turns paths of the other store into paths of this URL's store to the same nodes.

    None where they are not the same ensemble, where the other's nodes are not all below this one's chroot, and where
    the store has no transactions over several nodes: only ZooKeeper, and the store in memory, have.
    """
    (ensemble, chroot), (other_ensemble, other_chroot) = split_chroot(url), split_chroot(other)
    if scheme_of(url) not in ("zk", "memory") or ensemble != other_ensemble:
        return None
    return other_chroot[len(chroot) :] if f"{other_chroot}/".startswith(f"{chroot}/") else None


def _parted(url: str) -> tuple[str, str]:
    scheme, separator, rest = url.partition(":")
    if separator and scheme in _LOADERS:
        return scheme, rest
    hosts = url.partition("/")[0].split(",")
    if url not in _LOADERS and all(_HOST.fullmatch(host.strip()) for host in hosts):
        return "zk", url
    known = ", ".join(f"{name}:" for name in sorted(_LOADERS))
    what = "unknown scheme"
    if "+" in scheme or scheme == "metadata-store":
        what = "this is a metadataServiceUri of BookKeeper, which is for metadata_store.bookkeeper_url alone"
    raise ConfigError(f"metadata store URL {url!r}: {what}; expected one of {known}")


def with_chroot(ensemble: str, chroot: str) -> str:
    """Return the URL of the store at a chroot of an ensemble, both as `split_chroot` gives them."""
    return f"{ensemble}#{chroot}" if ensemble.startswith("zk-snapshot:") and chroot else ensemble + chroot


def _hosts_and_chroot(rest: str) -> tuple[list[str], str]:
    """Read a ZooKeeper's hosts, each with its port, and the chroot behind them."""
    hosts, slash, chroot = rest.removeprefix("//").partition("/")
    chroot = (slash + chroot).rstrip("/")
    try:
        if chroot:
            validate_path(chroot)
    except FormatError as error:
        raise ConfigError(f"metadata store URL zk:{rest}: {error}") from error
    return [_with_port(host.strip(), rest) for host in hosts.split(",")], chroot


def _with_port(host: str, rest: str) -> str:
    match = _HOST.fullmatch(host)
    port = int(match.group(2) or _ZOOKEEPER_PORT) if match else 0
    if match is None or not 0 < port < 65536:
        raise ConfigError(f"metadata store URL zk:{rest}: {host!r} is no host; expected zk:host:port,host:port/chroot")
    return f"{match.group(1)}:{port}"


def _open_zookeeper(rest: str, options: Mapping[str, Any]) -> MetadataStore:
    from bookwarden.metastore.zookeeper.session import ZooKeeperConnection
    from bookwarden.metastore.zookeeper.store import ZooKeeperStore

    hosts, chroot = _hosts_and_chroot(rest)
    try:
        connection = ZooKeeperConnection(hosts=",".join(hosts), chroot=chroot, **options)
    except TypeError as error:
        raise ConfigError(f"metadata store URL zk:{rest}: {error}") from error
    return ZooKeeperStore(connection)


def _open_memory(rest: str, options: Mapping[str, Any]) -> MetadataStore:
    from bookwarden.metastore.memory import shared_memory_store

    return shared_memory_store(rest)


def _open_snapshot(rest: str, options: Mapping[str, Any]) -> MetadataStore:
    from bookwarden.metastore.snapshot.file import SnapshotFile
    from bookwarden.metastore.snapshot.store import SnapshotStore

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


def _open_oxia(rest: str, options: Mapping[str, Any]) -> MetadataStore:
    try:
        from bookwarden.metastore.oxia.channels import OxiaConnection
        from bookwarden.metastore.oxia.store import OxiaStore
    except ImportError as error:
        raise MissingExtraError(
            f"metadata store URL oxia:{rest} needs libraries: pip install 'bookwarden[oxia]'"
        ) from error

    address, _, namespace = rest.removeprefix("//").partition("/")
    try:
        connection = OxiaConnection(address=address, namespace=namespace or _OXIA_NAMESPACE, **options)
    except TypeError as error:
        raise ConfigError(f"metadata store URL oxia:{rest}: {error}") from error
    return OxiaStore(connection)


_LOADERS: dict[str, Callable[[str, Mapping[str, Any]], MetadataStore]] = {
    "memory": _open_memory,
    "oxia": _open_oxia,
    "zk": _open_zookeeper,
    "zk-snapshot": _open_snapshot,
}
