"""The pre-flight: both clusters observed, with the addresses that clients are to be sent to, and judged."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from bookwarden.blue_green.readiness.findings import Judged
from bookwarden.blue_green.readiness.judging import judge
from bookwarden.blue_green.scope import namespace_of
from bookwarden.blue_green.sides.observing import SideObserver, all_namespaces
from bookwarden.blue_green.sides.ports import SideSources
from bookwarden.blue_green.sides.values import LookupSeen, Observations
from bookwarden.errors import BookwardenError
from bookwarden.redirects import RedirectUrls, hosts_of

Tell = Callable[[str], None]

# In the one namespace that every cluster has; the topic is not created by being looked up.
_LOOKED_UP: Final = "persistent://pulsar/system/bookwarden-lookup"
_BROKERS_OWN: Final = "pulsar/system"


class LookedUp(Protocol):
    """The answer to a lookup."""

    @property
    def owner(self) -> str:
        """The address of the broker that serves the topic."""

    @property
    def server(self) -> str:
        """The version of the server that was reached."""


@dataclass(frozen=True, slots=True)
class Addresses:
    """The addresses that clients are to be sent to, and how they are tried. Every call may raise BookwardenError."""

    urls: RedirectUrls
    #: Looks a topic up through an address of one host, as a client does.
    lookup: Callable[[str, str], LookedUp]
    #: Lists the ids of the brokers of the cluster that a web address reaches.
    web_brokers: Callable[[str], frozenset[str]]


class Readiness:
    """Observes and judges both clusters; ``own_topics`` are those of two-phase deletion, which move with no namespace.

    Nothing is changed but that the topics of the scope are loaded.
    """

    def __init__(
        self, blue: SideSources, green: SideSources, addresses: Addresses, own_topics: Collection[str]
    ) -> None:
        self._blue = blue
        self._green = green
        self._addresses = addresses
        self._kept_out = frozenset({_BROKERS_OWN, *map(namespace_of, own_topics)})

    def namespaces(self) -> list[str]:
        """List the namespaces of blue that can be moved: not those of brokers, nor those of bookwarden's topics."""
        return [name for name in all_namespaces(self._blue.admin) if name not in self._kept_out]

    def observe(self, namespaces: Sequence[str], tell: Tell = lambda _name: None) -> Observations:
        """Observe both clusters with these namespaces; each topic of them is loaded. Raises BookwardenError."""
        blue, green = SideObserver(self._blue), SideObserver(self._green)
        of_blue, of_green = blue.observe(namespaces, tell), green.observe(namespaces)
        # Addresses of this kind may be those of the brokers' own machines.
        is_one = of_blue.clusters == of_green.clusters
        shared = blue.configurations() & green.configurations() if is_one else ()
        urls = self._addresses.urls
        return Observations(
            scope=tuple(namespaces),
            blue=of_blue,
            green=of_green,
            urls=urls,
            lookups=tuple(self._lookups()),
            web_brokers={
                url: self._web_brokers(url) for url in (urls.web_service_url, urls.web_service_url_tls) if url
            },
            kept_out=self._kept_out,
            shared_configuration=min(shared, default=""),
        )

    def preflight(self, namespaces: Sequence[str], tell: Tell = lambda _name: None) -> tuple[Judged, ...]:
        """Judge whether these namespaces can be moved. Raises BookwardenError."""
        return judge(self.observe(namespaces, tell))

    def _lookups(self) -> Iterator[LookupSeen]:
        urls = self._addresses.urls
        for told in (urls.broker_service_url, urls.broker_service_url_tls):
            for host in hosts_of(told):
                yield self._look_up(host)

    def _look_up(self, url: str) -> LookupSeen:
        try:
            found = self._addresses.lookup(url, _LOOKED_UP)
        except BookwardenError as error:
            return LookupSeen(url, _LOOKED_UP, trouble=str(error))
        return LookupSeen(url, _LOOKED_UP, found.owner, found.server)

    def _web_brokers(self, url: str) -> frozenset[str] | str:
        try:
            return self._addresses.web_brokers(url)
        except BookwardenError as error:
            return str(error)
