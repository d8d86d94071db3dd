"""Builds what prepares, begins and follows a migration of a metadata store, from the settings."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from bookwarden.clusters.pulsar.metadata.participants import Participant, read_participants
from bookwarden.clusters.pulsar.rest.admin import PulsarAdmin
from bookwarden.clusters.pulsar.rest.migration import BrokerStatus, MigrationAdmin
from bookwarden.clusters.pulsar.rest.registered_brokers import RegisteredBroker, read_registered_brokers
from bookwarden.config import Settings
from bookwarden.errors import BookwardenError, ConfigError, FormatError, RefusedError, StoreError
from bookwarden.metastore.following.flag import MIGRATION_PATH, parse_flag
from bookwarden.metastore.interface import MetadataStore
from bookwarden.metastore.urls import scheme_of, split_chroot
from bookwarden.metastore.wrappers import throttled
from bookwarden.migration.observations import BrokerSeen, Observations, TargetSeen
from bookwarden.migration.survey import Survey, survey
from bookwarden.migration.watching import Copied, Look
from bookwarden.resources import Resources
from bookwarden.wiring.migration import former_store
from bookwarden.wiring.pulsar import connection_of
from bookwarden.wiring.stores import bookkeeper_place_of, open_single_store

# How long a target that did not answer is not asked again.
_TARGET_AVOIDED_S: Final = 60.0


class MigrationControl(Resources):
    """A source, its brokers, and the target; reads only, but for `start`. Close it, or use it in a with statement.

    ``source`` is the URL of the store that is to be moved, None for what the settings name.
    ``max_reads_per_second`` is for the survey of the source.
    """

    def __init__(
        self, settings: Settings, *, source: str | None = None, max_reads_per_second: float | None = None
    ) -> None:
        super().__init__()
        self._settings = settings
        self._targets: dict[str, MetadataStore] = {}
        self._target_avoided_until = 0.0
        with self._closed_on_error():
            self.source_url = source or former_store(settings)
            # The raw source: the store that follows a migration would redirect reads.
            self._source = self._keep(open_single_store(settings, self.source_url))
            self._surveyed = throttled(self._source, max_reads_per_second)
            self._admin = MigrationAdmin(self._keep(PulsarAdmin(connection_of(settings))))

    def broker_status(self) -> BrokerStatus:
        """Ask the broker; raises as `MigrationAdmin.status`."""
        return self._admin.status()

    def look(self) -> Look:
        """Read the flag and who is registered, after a sync; raise StoreError or FormatError if that fails."""
        at_ms = int(time.time() * 1000)
        self._source.sync()
        participants = {one.name: one.whose for one in self._registered()}
        node = self._source.get(MIGRATION_PATH)
        if node is None:
            return Look(at_ms, participants=participants)
        state = parse_flag(node)
        return Look(at_ms, state.phase, state.target_url, node.created_ms, state.changed_ms, participants)

    def look_at_copy(self, found: Survey, target_url: str | None) -> Copied | None:
        """Return how much of the source the target has, by the survey's sample; None where the target tells nothing."""
        if not found.sample or target_url is None or time.monotonic() < self._target_avoided_until:
            return None
        try:
            nodes = self._target(target_url).get_many(found.sample)
        except BookwardenError:
            # Brokers may reach a target that we do not; the watch goes on without the figure, and without waiting.
            self._target_avoided_until = time.monotonic() + _TARGET_AVOIDED_S
            return None
        there = sum(node is not None for node in nodes)
        return Copied(round(found.nodes * there / len(nodes)), found.nodes, not found.is_sampled_whole)

    def survey(self, progress: Callable[[int], object] = lambda _: None) -> Survey:
        """Read all of the source."""
        return survey(self._surveyed, progress=progress)

    def observe(self, target_url: str, found: Survey, *, may_write: bool) -> Observations:
        """Look at everything that a migration depends on, after the survey of the source.

        ``may_write`` lets the target be probed with a key that is deleted again. Raises StoreError where the source
        does not answer, and ConfigError where it is none that can be moved.
        """
        source_is, chroot = split_chroot(self.source_url)
        if scheme_of(self.source_url) != "zk":
            raise ConfigError(f"{self.source_url} is no ZooKeeper: brokers move metadata from ZooKeeper to Oxia alone")
        look = self._look_at_any_flag()
        registered = self._registered()
        place = bookkeeper_place_of(self._settings)
        root = place.ledgers_root if split_chroot(place.url) == (source_is, chroot) else None
        others = {
            url for url in (*self._settings.metadata_store.urls, place.url) if split_chroot(url) != (source_is, chroot)
        }
        bookies, known = self._bookies(root) if root is not None else ((), ())
        store = self._settings.metadata_store
        return Observations(
            source_url=self.source_url,
            target_url=target_url,
            chroot=chroot,
            ledgers_root=root or place.ledgers_root,
            phase=look.phase,
            flag_target=look.target_url,
            participants={one.name: one.whose for one in registered},
            not_taking_part=self._not_taking_part(found, registered),
            survey=found,
            brokers=tuple(map(_broker_seen, read_registered_brokers(self._source, connection_of(self._settings)))),
            admin_trouble=_trouble_of(self._admin.status),
            admin_brokers=self._admin_brokers(),
            has_numbered_ledgers=root is not None and self._source.get(f"{root}/idgen") is not None,
            bookies=bookies,
            bookies_known=known,
            target=self._target_seen(target_url, may_write=may_write),
            other_stores=tuple(sorted(others)),
            session_timeout_s=store.session_timeout_seconds,
            drain_limit_s=store.migration_drain_seconds,
        )

    def start(self, target_url: str) -> None:
        """Have the broker begin, unless there is a flag; raises as `MigrationAdmin.start`, and RefusedError for a flag.

        An order beside a flag that is there is dangerous: 4.2.4 writes FAILED over what it says, also in mid-copy.
        """
        look = self.look()
        if look.phase is not None:
            raise RefusedError(
                f"{MIGRATION_PATH} of {self.source_url} says {look.phase}: a broker that is told to start now would "
                "write FAILED over it; see `bookwarden metadata-migration status`"
            )
        self._admin.start(target_url)

    def _admin_brokers(self) -> tuple[str, ...]:
        try:
            return tuple(self._admin.brokers())
        except BookwardenError:
            # What is wrong with that broker its status tells.
            return ()

    def _look_at_any_flag(self) -> Look:
        try:
            return self.look()
        except FormatError:
            return Look(int(time.time() * 1000), "not understood")

    def _registered(self) -> list[Participant]:
        return read_participants(self._source)

    def _bookies(self, root: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
        available = f"{root}/available"
        writable, read_only, known = self._source.list_many([available, f"{available}/readonly", f"{root}/cookies"])
        return tuple(name for name in (*writable, *read_only) if name != "readonly"), tuple(known)

    def _not_taking_part(self, found: Survey, registered: list[Participant]) -> dict[int | None, tuple[str, ...]]:
        """Return the sessions that keep nodes and have not registered, if they still keep them."""
        taking_part = {one.session for one in registered}
        left: dict[int | None, tuple[str, ...]] = {}
        for session, paths in found.sessions.items():
            if session in taking_part:
                continue
            nodes = self._source.get_many(paths)
            still = [
                path for path, node in zip(paths, nodes, strict=True) if node is not None and node.session == session
            ]
            if still:
                left[session] = tuple(still)
        return left

    def _target_seen(self, url: str, *, may_write: bool) -> TargetSeen | str:
        if scheme_of(url) != "oxia":
            return f"{url} is no Oxia: brokers take a target that begins with oxia:// alone"
        try:
            from bookwarden.metastore.oxia.probe import probe_namespace
            from bookwarden.metastore.oxia.store import OxiaStore

            store = self._target(url)
            assert isinstance(store, OxiaStore)
            seen = probe_namespace(store.connection, may_write=may_write)
        except (StoreError, ConfigError) as error:
            return str(error)
        return TargetSeen(seen.names, seen.hierarchical, seen.is_0_15)

    def _target(self, url: str) -> MetadataStore:
        if url not in self._targets:
            self._targets[url] = self._keep(open_single_store(self._settings, url))
        return self._targets[url]


def _broker_seen(broker: RegisteredBroker) -> BrokerSeen:
    settings = broker.settings or {}
    own, configuration = (settings.get(name, "") for name in ("metadataStoreUrl", "configurationMetadataStoreUrl"))
    other = configuration if configuration and not _same_store(own, configuration) else None
    return BrokerSeen(broker.name, broker.version, broker.settings, broker.trouble, other)


def _same_store(one: str, other: str) -> bool:
    try:
        return one == other or split_chroot(one) == split_chroot(other)
    except ConfigError:
        return False


def _trouble_of(call: Callable[[], object]) -> str | None:
    try:
        call()
    except BookwardenError as error:
        return str(error)
    return None
