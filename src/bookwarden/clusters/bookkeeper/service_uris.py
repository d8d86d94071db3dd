"""The place of BookKeeper's metadata, from its settings.

Format: metadataServiceUri. With BookKeeper's own drivers (meta.zk.ZKMetadataDriverBase, BookKeeper 4.17) it is
``zk+<ledger manager>://host:port;host:port/ledgers``: ``;`` or ``,`` parts the hosts, and the path is the ledgers
root, never a chroot. With Pulsar's (bookkeeper.AbstractMetadataDriver and MetadataStoreUrl of pulsar-metadata) it is
``metadata-store:`` and a store's URL: a path in it is a chroot, and the ledgers root below is ``/ledgers``, because
Java's URI sees no path there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote, urlsplit

from bookwarden.clusters.bookkeeper.catalog import DEFAULT_LEDGERS_ROOT
from bookwarden.errors import ConfigError, FormatError, RefusedError
from bookwarden.metastore.paths import validate_path
from bookwarden.metastore.urls import split_chroot

_PULSAR_DRIVER: Final = "metadata-store:"
_LEDGER_MANAGERS: Final = ("hierarchical", "longhierarchical", "flat", "null")
_OTHER_PATHS: Final = ("longhierarchical", "flat")

# From 4.2 on Pulsar takes these as settings of its client and not as part of the URL (MetadataStoreConfigQueryParams).
_CLIENT_PARAMETERS: Final = frozenset(
    {
        "allowReadOnlyOperations",
        "batchingEnabled",
        "batchingMaxDelayMillis",
        "batchingMaxOperations",
        "batchingMaxSizeKb",
        "configFilePath",
        "fsyncEnable",
        "numSerDesThreads",
        "sessionTimeoutMillis",
    }
)


@dataclass(frozen=True, slots=True)
class LedgersRoot:
    """The URL of the store that BookKeeper's metadata is in, and the ledgers root there."""

    url: str
    ledgers_root: str


def place_for_brokers(uri: str) -> LedgersRoot:
    """Parse the metadataServiceUri of a bookie cluster whose ledgers Pulsar's own ledger manager finds.

    ConfigError if it is none, such as the URL of a store; RefusedError where that manager has other paths.
    """
    text = uri.strip()
    if not (text.startswith(_PULSAR_DRIVER) or text.lower().startswith(("zk://", "zk+"))):
        raise ConfigError(
            f"{uri} is no metadataServiceUri: expected zk+hierarchical://host:port/ledgers or "
            "metadata-store:zk:host:port, as bookies have it"
        )
    place = bookkeeper_place(text)
    manager = text.lower().partition("://")[0].partition("+")[2]
    if manager in _OTHER_PATHS:
        raise RefusedError(f"{uri}: Pulsar's ledger manager has the paths of hierarchical alone, not of {manager}")
    return place


def authority_of(place: LedgersRoot) -> str:
    """Return HOST:PORT/ROOT of the place, as a metadataServiceUri has it after its scheme."""
    ensemble, chroot = split_chroot(place.url)
    hosts = ensemble.partition(":")[2].removeprefix("//").partition("/")[0]
    return f"{hosts.replace(',', ';')}{chroot}{place.ledgers_root}"


def bookkeeper_place(text: str, ledgers_root: str | None = None) -> LedgersRoot:
    """Parse a metadataServiceUri, or a store's URL, to which ``ledgers_root`` (default ``/ledgers``) belongs.

    Raises ConfigError for other text, and where a metadataServiceUri names another ledgers root.
    """
    text = text.strip()
    if text.startswith(_PULSAR_DRIVER):
        place = LedgersRoot(_store_url(text), DEFAULT_LEDGERS_ROOT)
    elif text.lower().startswith(("zk://", "zk+")):
        place = _place_of_zookeeper(text)
    else:
        scheme = text.partition(":")[0]
        if "+" in scheme:
            raise ConfigError(f"bookkeeper_url {text}: there is no store for {scheme.partition('+')[0]}")
        # Raises for a URL that is no store's.
        split_chroot(text)
        return LedgersRoot(text, DEFAULT_LEDGERS_ROOT if ledgers_root is None else ledgers_root.rstrip("/"))
    if ledgers_root is not None and ledgers_root.rstrip("/") != place.ledgers_root:
        raise ConfigError(
            f"metadata_store.ledgers_root is {ledgers_root}, and bookkeeper_url {text} means {place.ledgers_root}: "
            "leave ledgers_root null"
        )
    return place


def _store_url(text: str) -> str:
    url, _, query = text.removeprefix(_PULSAR_DRIVER).partition("?")
    names = {parameter.partition("=")[0] for parameter in query.split("&") if parameter}
    unknown = sorted(unquote(name) for name in names if unquote(name) not in _CLIENT_PARAMETERS)
    if unknown:
        raise ConfigError(f"bookkeeper_url {text}: {unknown[0]!r} is no parameter that Pulsar takes there")
    url = url.replace(";", ",")
    try:
        split_chroot(url)
    except ConfigError as error:
        raise ConfigError(f"bookkeeper_url {text}: {error}") from error
    return url


def _place_of_zookeeper(text: str) -> LedgersRoot:
    service, separator, _ = text.partition("://")
    scheme, _, manager = service.lower().partition("+")
    if not separator:
        raise ConfigError(f"bookkeeper_url {text} has no //; expected {service.partition(':')[0]}://host:port/ledgers")
    if manager and manager not in _LEDGER_MANAGERS:
        raise ConfigError(
            f"bookkeeper_url {text}: ledgers of the manager {manager!r} cannot be read; those of "
            f"{', '.join(_LEDGER_MANAGERS)} can"
        )
    parts = urlsplit(text)
    root = unquote(parts.path).rstrip("/")
    if not root:
        raise ConfigError(f"bookkeeper_url {text} names no ledgers root; expected zk+hierarchical://host:port/ledgers")
    try:
        validate_path(root)
        url = f"{scheme}:{parts.netloc.replace(';', ',')}"
        split_chroot(url)
    except (FormatError, ConfigError) as error:
        raise ConfigError(f"bookkeeper_url {text}: {error}") from error
    return LedgersRoot(url, root)
