"""A development cluster with three bookies, for ledgers on several: all speak TLS too, and one has a name for an id.

Those without such a name have an HTTP server; they collect garbage when asked.
"""

from __future__ import annotations

import dataclasses
from contextlib import closing
from pathlib import Path

from bookwarden.metastore.urls import open_store
from bookwarden_dev.devcluster import ClusterOptions, DevCluster, ServerProcess
from bookwarden_dev.devcluster.certificates import Authority
from bookwarden_dev.devcluster.ports import LOOPBACK, free_ports
from bookwarden_dev.devcluster.servers.object_store import ObjectStore
from bookwarden_dev.devcluster.servers.specs import ServerFactory
from servers.class_archives import quick_runtime
from servers.pool import ENTRIES_PER_LEDGER

NAMED = "a-bookie-with-a-name"
_NO_HTTP = {"httpServerEnabled": "false", "statsProviderClass": "org.apache.bookkeeper.stats.NullStatsProvider"}
# Small entry logs, in which entries soon are, and a major compaction of each that has a ledger less.
_GARBAGE = {
    "logSizeLimit": "1048576",
    "flushInterval": "1000",
    "gcWaitTime": "3600000",
    "majorCompactionThreshold": "0.99",
}


class ThreeBookies:
    """The cluster, its ``bookies`` by id, and what their TLS clients need; each bookie is in a folder of its own.

    That with a name is not to be started again at once after a kill: nobody takes its registration away.
    """

    def __init__(self, folder: Path) -> None:
        authority = Authority("bookies")
        files = [folder / name for name in ("server.pem", "server.key", "client.pem", "client.key")]
        contents = (authority.certificate, authority.private_key, *authority.client_certificate("reader"))
        for file, content in zip(files, contents, strict=True):
            file.write_bytes(content)
        self.authority, self.client_certificate = files[0], (files[2], files[3])
        port, of_named, *of_http = free_ports(4)
        settings = {**_tls_settings(files[0], files[1]), **_GARBAGE}
        options = ClusterOptions(
            max_entries_per_ledger=ENTRIES_PER_LEDGER,
            # Where to, is a policy of a namespace.
            offload=True,
            broker_environment=ObjectStore.broker_environment,
            bookie_settings={**settings, **_http_settings(of_http[0])},
        )
        self.cluster = DevCluster(folder / "pulsar", options)
        self.bookies = {
            f"127.0.0.1:{self.cluster.ports.bookie}": self.cluster.bookie,
            f"127.0.0.1:{port}": ServerProcess(self._factory("second", port, **_http_settings(of_http[1])).bookie()),
            NAMED: self._named(of_named),
        }

    @property
    def servers(self) -> list[ServerProcess]:
        _, *more = self.bookies.values()
        return [*self.cluster.servers, *more]

    @classmethod
    def started(cls, folder: Path) -> ThreeBookies:
        """Make and start all, and wait until they serve."""
        made = cls(folder)
        try:
            made.cluster.up()
            _, *more = made.bookies.values()
            for bookie in more:
                bookie.start(wait=False)
            for bookie in more:
                bookie.wait_until_ready()
        except BaseException:
            made.kill()
            raise
        return made

    def kill(self) -> None:
        for server in self.servers:
            server.kill()

    def _factory(self, name: str, port: int, **settings: str) -> ServerFactory:
        home, options = self.cluster.home / name, self.cluster.options
        home.mkdir(parents=True)
        options = dataclasses.replace(options, bookie_settings={**options.bookie_settings, **settings})
        ports = dataclasses.replace(self.cluster.ports, bookie=port)
        return ServerFactory(home, ports, options, lambda: quick_runtime(options.pulsar))

    def _named(self, port: int) -> ServerProcess:
        def is_registered(_started_at: float) -> bool:
            with closing(open_store(self.cluster.store_url)) as store:
                return store.get(f"/ledgers/available/{NAMED}") is not None

        spec = self._factory("named", port, bookieId=NAMED, **_NO_HTTP).bookie()
        return ServerProcess(dataclasses.replace(spec, is_ready=is_registered))


def _http_settings(port: int) -> dict[str, str]:
    return {
        "httpServerEnabled": "true",
        "httpServerHost": LOOPBACK,
        "httpServerPort": str(port),
        "statsProviderClass": "org.apache.bookkeeper.stats.prometheus.PrometheusMetricsProvider",
    }


def _tls_settings(certificate: Path, private_key: Path) -> dict[str, str]:
    return {
        "tlsProvider": "OpenSSL",
        "tlsProviderFactoryClass": "org.apache.bookkeeper.tls.TLSContextFactory",
        "tlsClientAuthentication": "true",
        "tlsKeyStoreType": "PEM",
        "tlsKeyStore": str(private_key),
        "tlsCertificatePath": str(certificate),
        "tlsTrustStoreType": "PEM",
        "tlsTrustStore": str(certificate),
    }
