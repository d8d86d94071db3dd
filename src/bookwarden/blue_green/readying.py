"""Both clusters observed for a migration, judged, and what prepares them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final
from urllib.parse import urlsplit

from bookwarden.blue_green.preparing.journal import PreparationJournal
from bookwarden.blue_green.preparing.operation import Cluster, Preparation
from bookwarden.blue_green.preparing.ports import Making, Reading
from bookwarden.blue_green.preparing.steps import Side
from bookwarden.blue_green.readiness.findings import Judged
from bookwarden.blue_green.readiness.judging import judge
from bookwarden.blue_green.scope import namespace_of
from bookwarden.blue_green.sides.observing import SideObserver, all_namespaces
from bookwarden.blue_green.sides.ports import SideSources
from bookwarden.blue_green.sides.values import LookupSeen, Observations
from bookwarden.disk_space import DiskSpace
from bookwarden.errors import BookwardenError
from bookwarden.redirects import RedirectUrls

Tell = Callable[[str], None]

# In the one namespace that every cluster has; the topic is not created by being looked up.
_LOOKED_UP: Final = "persistent://pulsar/system/bookwarden-lookup"
_BROKERS_OWN: Final = "pulsar/system"


def _quiet(_namespace: str) -> None:
    """Report to nobody."""


@dataclass(frozen=True, slots=True)
class Ways:
    """The ways from clients to green, and on to its bookies. Every call may raise BookwardenError."""

    #: Looks a topic up through an address of one host: its owner's address, and the version of the server.
    look_up: Callable[[str, str], tuple[str, str]]
    #: Lists the ids of the brokers of the cluster that a web address leads to.
    web_brokers: Callable[[str], frozenset[str]]
    #: Asks the bookies that take green's new ledgers for the space on their disks, by id.
    disks: Callable[[], Mapping[str, DiskSpace]]


@dataclass(frozen=True, slots=True)
class Written:
    """Reader and writer of one cluster while it is prepared."""

    reading: Reading
    making: Making


class Readiness:
    """The pre-flight and the preparation of a migration; ``deletion_topics`` are bookwarden's own."""

    def __init__(
        self,
        blue: SideSources,
        green: SideSources,
        ways: Ways,
        urls: RedirectUrls,
        written: Mapping[Side, Written],
        journal: PreparationJournal,
        deletion_topics: Iterable[str],
    ) -> None:
        self._blue, self._green = blue, green
        self._ways = ways
        self._urls = urls
        self._written = written
        self._journal = journal
        self._kept_out = frozenset({_BROKERS_OWN, *map(namespace_of, deletion_topics)})

    def namespaces(self) -> list[str]:
        """List the namespaces of blue that can be moved: not those of brokers, nor those of bookwarden's topics."""
        return [name for name in all_namespaces(self._blue.admin) if name not in self._kept_out]

    def observe(self, namespaces: Sequence[str], tell: Tell = _quiet) -> Observations:
        """Observe both clusters with these namespaces; each topic of them is loaded. Raises BookwardenError."""
        blue, green = SideObserver(self._blue), SideObserver(self._green)
        of_blue, of_green = blue.observe(namespaces, tell), green.observe(namespaces)
        # Addresses of this kind may be those of the brokers' own machines.
        is_one = of_blue.clusters == of_green.clusters
        shared = blue.configurations() & green.configurations() if is_one else ()
        disks, disk_trouble = self._disks()
        return Observations(
            scope=tuple(namespaces),
            blue=of_blue,
            green=of_green,
            urls=self._urls,
            at_ms=int(time.time() * 1000),
            lookups=tuple(map(self._look_up, self._hosts())),
            web_brokers={url: self._web_brokers(url) for url in self._web_urls()},
            disks=disks,
            disk_trouble=disk_trouble,
            kept_out=self._kept_out,
            shared_configuration=min(shared, default=""),
        )

    def preflight(self, namespaces: Sequence[str], tell: Tell = _quiet) -> tuple[Judged, ...]:
        """Judge whether these namespaces can be moved; changes nothing but that their topics are loaded."""
        return judge(self.observe(namespaces, tell))

    def preparation(self, namespaces: Sequence[str], tell: Tell = _quiet) -> Preparation:
        """Return what plans and carries out the preparation of these namespaces."""
        names = {Side.BLUE: self._blue.cluster(), Side.GREEN: self._green.cluster()}
        clusters = {side: Cluster(names[side], one.reading, one.making) for side, one in self._written.items()}
        return Preparation(partial(self.observe, namespaces, tell), clusters, self._journal)

    def _hosts(self) -> list[str]:
        """List the broker addresses for clients, one for each host that they name."""
        found = []
        for url in (self._urls.broker_service_url, self._urls.broker_service_url_tls):
            scheme, _, hosts = url.partition("://")
            found += [f"{scheme}://{host}" for host in urlsplit(f"//{hosts}").netloc.split(",") if host]
        return found

    def _look_up(self, url: str) -> LookupSeen:
        try:
            owner, server = self._ways.look_up(url, _LOOKED_UP)
        except BookwardenError as error:
            return LookupSeen(url, _LOOKED_UP, trouble=str(error))
        return LookupSeen(url, _LOOKED_UP, owner, server)

    def _disks(self) -> tuple[Mapping[str, DiskSpace], str]:
        try:
            return self._ways.disks(), ""
        except BookwardenError as error:
            return {}, str(error)

    def _web_urls(self) -> list[str]:
        return [url for url in (self._urls.web_service_url, self._urls.web_service_url_tls) if url]

    def _web_brokers(self, url: str) -> frozenset[str] | str:
        try:
            return self._ways.web_brokers(url)
        except BookwardenError as error:
            return str(error)
