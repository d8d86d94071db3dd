"""A saved registry, put back where its node is gone or damaged, with an epoch above all that brokers ever followed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from bookwarden.errors import ConfigError, FormatError, RefusedError
from bookwarden.findings import some
from bookwarden.metastore.interface import MetadataStore
from bookwarden.switching.brokers import read_brokers
from bookwarden.switching.followers import read_followers
from bookwarden.switching.ports import IdGenerator, OpensCluster
from bookwarden.switching.promoted import void_promotion
from bookwarden.switching.record import find_order
from bookwarden.switching.registering import looked
from bookwarden.switching.registry import Directive, OtherFormatError, Registry, parse_registry
from bookwarden.switching.registry_node import RegistryNode


@dataclass(frozen=True, slots=True)
class ImportPlan:
    """A registry that can be put back."""

    registry: Registry  #: As it will be written.
    saved_epoch: int  #: Of the file.
    damaged_version: int | None  #: Of the node that it replaces, which has no registry; None where there is no node.
    next_id: int  #: The id that the next ledger of any cluster gets now.
    free_id: int  #: The smallest that it must be: above every id of the clusters.

    @property
    def behind(self) -> int:
        """How far the next id has to be raised, as where its counter was lost too; 0 if it is above all."""
        return max(0, self.free_id - self.next_id)


@dataclass(frozen=True)
class RegistryImport:
    """Puts saved registries back into one Pulsar cluster."""

    registry: RegistryNode  #: Of this Pulsar cluster.
    pulsar: MetadataStore  #: Its own metadata store.
    open_cluster: OpensCluster  #: Opens a place.
    generator: Callable[[str], IdGenerator]  #: Of ids below a root of Pulsar's own store.

    def plan(self, saved: bytes) -> ImportPlan:
        """Compare the file with the clusters, the brokers and the newest switch; change nothing.

        Raises RefusedError where a registry is there, or the file contradicts any of these, ConfigError for a file
        that has no registry, and StoreError where a store does not answer.
        """
        try:
            registry = parse_registry(saved)
        except FormatError as error:
            raise ConfigError(f"what is to be imported is {error}") from error
        damaged = self._require_no_registry()
        reasons, free_id = self._against_clusters(registry)
        generator = self.generator(registry.id_root)
        next_id = generator.next_id()
        leaps = free_id > next_id and generator.needs_leap(free_id)
        reasons += self._against_followers(registry, leaps=leaps)
        epochs = [registry.epoch, *(each.epoch for each in read_followers(self.pulsar) if each.epoch is not None)]
        last = find_order(self.pulsar)
        if last is not None:
            epochs.append(last.order.epoch)
            # One that is under way may not have been carried out; then those who follow tell.
            is_made = not last.order.is_under_way or not read_followers(self.pulsar)
            if is_made and last.order.epoch > registry.epoch and last.order.target != registry.active:
                reasons.append(
                    f"the newest order made {last.order.target} active in epoch {last.order.epoch}, and in the file, "
                    f"of epoch {registry.epoch}, it is {registry.active}: the file is older than that switch"
                )
            elif last.order.epoch > registry.epoch and last.order.target == registry.active:
                # Brokers wrote elsewhere since the file was saved, and came back: what they opened there counts.
                order = last.order
                newest = Directive(order.source, order.target, order.origin, order.epoch, order.time_ms)
                registry = replace(registry, directive=newest)
        if reasons:
            raise RefusedError(f"the registry is not imported: {'; '.join(reasons)}")
        return ImportPlan(replace(registry, epoch=max(epochs) + 1), registry.epoch, damaged, next_id, free_id)

    def carry_out(self, saved: bytes, progress: Callable[[int], object] = lambda _: None) -> ImportPlan:
        """Compare again, raise the next ledger id if it is behind, and write the registry.

        ``progress`` is called with how many ids were passed. May be killed and repeated. LostRaceError if the node is
        not as it was.
        """
        plan = self.plan(saved)
        if plan.behind:
            next_id, generator = plan.next_id, self.generator(plan.registry.id_root)
            generator.raise_to(plan.free_id, lambda reached: progress(reached - next_id))
            plan = self.plan(saved)
        # What was promoted before may have been void.
        void_promotion(self.pulsar)
        self.registry.write_imported(plan.registry, plan.damaged_version)
        return plan

    def _require_no_registry(self) -> int | None:
        """Return the version of a damaged node, None without a node; RefusedError where there is a registry."""
        try:
            found = self.registry.read()
        except OtherFormatError as error:
            raise RefusedError(f"the registry is not imported: {error}") from error
        except FormatError:
            return self.registry.version()
        if found is None:
            return None
        raise RefusedError(
            f"the registry is not imported: {self.registry.url} has one, of epoch {found.registry.epoch}, with "
            f"{', '.join(sorted(found.registry.clusters))}"
        )

    def _against_clusters(self, registry: Registry) -> tuple[list[str], int]:
        """Return what contradicts the file, and the smallest id above all that the clusters have."""
        reasons, free_id = list[str](), 0
        for name, cluster in sorted(registry.clusters.items()):
            metadata = self.open_cluster(self.registry.place_of(cluster))
            instance = looked(metadata, name).instance
            if instance != cluster.instance:
                where = f"{cluster.ledgers_root} in {metadata.url} of {name!r}"
                reasons.append(f"{where} is the instance {instance}, not {cluster.instance}")
            elif not cluster.shared:
                free_id = max(free_id, metadata.first_free_id())
        return reasons, free_id

    def _against_followers(self, registry: Registry, *, leaps: bool) -> Iterator[str]:
        brokers = read_brokers(self.pulsar)
        stock = [broker.name for broker in brokers if broker.follower is None]
        if stock and len(registry.clusters) > 1:
            yield f"brokers without the jar live, such as {stock[0]}, and know one cluster alone: stop them"
        elif stock and leaps:
            yield f"ledger ids have to leap over 2**32, which {stock[0]}, without the jar, would not notice: stop it"
        followers = [each.follower for each in read_followers(self.pulsar) if each.follower is not None]
        owners = {each.owner for each in followers} - {registry.owner}
        if owners:
            yield f"brokers follow the registry of owner {some(sorted(owners))}, and the file is of {registry.owner}"
        for each in followers:
            unknown = {
                name
                for name, instance in each.instances.items()
                if name not in registry.clusters or registry.clusters[name].instance != instance
            }
            if unknown:
                names = some(sorted(unknown))
                yield f"a broker follows epoch {each.epoch} with {names}, which the file does not have so"
                return
            if each.active != registry.active and each.epoch >= registry.epoch:
                yield (
                    f"a broker follows epoch {each.epoch}, in which {each.active} is active, and in the file, of epoch "
                    f"{registry.epoch}, it is {registry.active}"
                )
                return
