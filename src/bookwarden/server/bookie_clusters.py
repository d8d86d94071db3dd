"""/admin/v2/bookie-clusters: the commands of `bookwarden bookie-clusters`, one to one.

Paths: of PIP-470 where it names them. Each request opens what it needs and closes it again: they are few, and a store
that moved is found again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any, Final, NamedTuple

from fastapi import APIRouter, Body, Path, Query
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field

from bookwarden.bookie_clusters.broker_jar import SUPERSEDED
from bookwarden.bookie_clusters.checks.observing import run_precheck
from bookwarden.bookie_clusters.documents import (
    cleaned_data,
    import_data,
    left_data,
    lost_data,
    promoted_data,
    raised_data,
    read_overview,
    registration_data,
    state_data,
    switch_data,
    targets_data,
    unregistration_data,
    upgrade_data,
    uri_data,
)
from bookwarden.bookie_clusters.operation import PlannedSwitch, SwitchOptions
from bookwarden.bookie_clusters.registering import ClusterSpec, RegistrationPlan
from bookwarden.bookie_clusters.registry import cluster_data, registry_data, serialize_registry
from bookwarden.bookie_clusters.repair import IdRaiser, RegistryImport, Upgrade, UriChange
from bookwarden.clusters.bookkeeper.service_uris import place_for_brokers
from bookwarden.config import Settings
from bookwarden.errors import RefusedError
from bookwarden.wiring.bookie_clusters import (
    SwitchOperations,
    lost_clusters_of,
    registration_of,
    unregistration_of,
)
from bookwarden.wiring.cluster import Cluster
from bookwarden.wiring.moving import MoveOperations

_PREFIX: Final = "/admin/v2/bookie-clusters"
_LONGEST_WAIT_S: Final = 600.0

_Name = Annotated[str, Path(description="Name of a bookie cluster.", min_length=1)]
_SOURCE: Final = "This former bookie cluster alone; of the active one unfinished copies."
_Source = Annotated[str | None, Query(description=_SOURCE)]
_Lost = Annotated[bool, Query(description="Its metadata is gone for good: what only it had is lost.")]
_Confirm = Annotated[str, Query(description="With lost: the name again, since this cannot be undone.")]
_DryRun = Annotated[bool, Query(description="Look at everything, change nothing.")]
_WAIT: Final = "Maximum seconds to wait for brokers."
_Timeout = Annotated[float, Query(description=_WAIT, ge=0, le=_LONGEST_WAIT_S)]


def _wait() -> Any:
    return Field(default=60.0, ge=0, le=_LONGEST_WAIT_S, alias="timeoutSeconds", description=_WAIT)


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", populate_by_name=True)


class RegisterRequest(_Body):
    """A bookie cluster to be registered."""

    metadata_service_uri: str = Field(alias="metadataServiceUri", description="As its bookies have it.")
    bootstrap: bool = Field(default=False, description="It is the one that brokers use now: the first of all.")
    shared: bool = Field(default=False, description="Others write there too: only ledgers with our mark are ours.")
    owners: tuple[str, ...] = Field(
        default=(), description="With bootstrap: owner marks of its ledgers, from earlier registries; the first stays."
    )
    unmarked_below: int | None = Field(
        default=None,
        ge=0,
        alias="unmarkedBelow",
        description="Where an earlier registry was lost: ledgers there without an owner mark are ours below this id.",
    )
    raise_ids: bool = Field(
        default=False, alias="raiseIds", description="Raise the next ledger id where it is behind; else it is refused."
    )
    timeout_s: float = _wait()  #: Maximum seconds to wait for brokers.


class SetUriRequest(_Body):
    """A new address of a registered cluster's metadata."""

    metadata_service_uri: str = Field(alias="metadataServiceUri", description="As its bookies have it now.")
    dry_run: bool = Field(default=True, alias="dryRun", description="Look at both addresses, change nothing.")
    timeout_s: float = _wait()  #: Maximum seconds to wait for brokers.


class ImportRequest(_Body):
    """A saved registry, to be put back where its node is gone, or is none."""

    registry: dict[str, Any] = Field(description="As GET returned it.")
    dry_run: bool = Field(default=True, alias="dryRun", description="Compare it with everything, change nothing.")


class UpgradeRequest(_Body):
    """The rule of which ledgers are ours, to be written into a registry of 0.1.0."""

    owners: tuple[str, ...] = Field(default=(), description="Owner marks of earlier registries, to be named too.")
    dry_run: bool = Field(default=True, alias="dryRun", description="Look at everything, change nothing.")


class DeprecateRequest(_Body):
    """A cluster to be kept from becoming active, or not any more."""

    deprecated: bool


class PrecheckRequest(_Body):
    """A precheck with a trial ledger."""

    trial: bool = Field(default=True, description="Write a trial ledger to the target's bookies, and delete it.")


class OrderRequest(_Body):
    """The way in which a switch is carried out."""

    dry_run: bool = Field(default=False, alias="dryRun", description="Run the precheck alone, without a trial ledger.")
    skip_precheck: bool = Field(
        default=False, alias="skipPrecheck", description="For testing only: messages can be lost."
    )
    trial: bool = Field(default=True, description="Write a trial ledger to the target's bookies, and delete it.")
    timeout_s: float = _wait()  #: Maximum seconds to wait for brokers.


class SwitchRequest(OrderRequest):
    """An order to switch."""

    target: str = Field(min_length=1, description="The bookie cluster that new ledgers are to go to.")


class PromoteRequest(_Body):
    """An order to have all brokers read from the active cluster what it has whole."""

    dry_run: bool = Field(default=True, alias="dryRun", description="Only count what would be promoted.")
    per_second: float = Field(default=5.0, gt=0, alias="perSecond", description="Topics unloaded in a second.")
    stamp: bool = Field(default=False, description="Also write PIP-477's key to subscriptions of loaded topics.")


class CleanupRequest(_Body):
    """An order to clean up former bookie clusters, by the names of the proposal."""

    dry_run: bool = Field(default=True, alias="dryRun", description="Only list what would be marked.")
    source: str | None = Field(default=None, alias="srcClusterFilter", description=_SOURCE)
    max_deletions: int = Field(
        default=0, ge=0, alias="maxDeletions", description="Maximum number of ledgers to mark; 0: all."
    )
    force: bool = Field(default=False, description="Within the rollback window too: for testing only.")


class Reason(BaseModel):
    """The reason that a request was not carried out."""

    reason: str


class Superseded(BaseModel):
    """An operation that nothing is left to do for."""

    changed: bool
    instead: str


_FAILURES: Final[dict[int | str, dict[str, Any]]] = {
    400: {"model": Reason, "description": "What was asked for cannot be."},
    401: {"model": Reason, "description": "The token is missing or another."},
    404: {"model": Reason, "description": "There is no such thing."},
    415: {"model": Reason, "description": "What changes something is JSON: Content-Type says so, without a body too."},
    409: {"description": "Refused: by the precheck, whose result is the answer then, or with its reason."},
    500: {"model": Reason, "description": "Something that was read is not what it must be."},
    501: {"model": Reason, "description": "A library is not installed."},
    502: {"model": Reason, "description": "A store or broker refuses our credentials."},
    503: {"model": Reason, "description": "A store or broker does not answer: try again."},
}


def bookie_clusters_router(settings: Settings) -> APIRouter:
    """Make the routes; the settings say where the registry is."""
    router = APIRouter(prefix=_PREFIX, tags=["bookie-clusters"], responses=_FAILURES)
    endpoints = _Endpoints(settings)
    # Those with a word of their own before those with a name.
    router.get("", summary="List the registered bookie clusters")(endpoints.list)
    router.get("/status", summary="Show where a switch stands")(endpoints.status)
    router.post("/switch", summary="Make another bookie cluster active")(endpoints.switch)
    router.post("/rollback", summary="Return to the bookie cluster before the switch")(endpoints.rollback)
    router.get("/cleanup-targets", summary="Count what former bookie clusters need not have any more")(
        endpoints.cleanup_targets
    )
    router.get("/registry", summary="Export the registry's node")(endpoints.export_registry)
    router.post("/registry", summary="Put a saved registry back")(endpoints.import_registry)
    router.post("/upgrade", summary="Write down which ledgers are ours")(endpoints.upgrade)
    router.post("/promote", summary="Have brokers read from the active cluster what it has whole")(endpoints.promote)
    router.post("/cleanup", summary="Mark what former bookie clusters need not have any more")(endpoints.cleanup)
    for operation in SUPERSEDED:
        router.post(f"/{operation}", summary="Changes nothing; says what takes its place")(_superseded(operation))
    router.get("/{name}", summary="Show one bookie cluster")(endpoints.get)
    router.put("/{name}", summary="Register a bookie cluster")(endpoints.register)
    router.delete("/{name}", summary="Unregister a bookie cluster")(endpoints.unregister)
    router.post("/{name}/deprecated", summary="Keep a bookie cluster from becoming active")(endpoints.deprecate)
    router.post("/{name}/metadata-service-uri", summary="Change the address of its metadata")(endpoints.set_uri)
    router.post("/{name}/raise-ids", summary="Raise a bookie cluster's own counter of ledger ids")(endpoints.raise_ids)
    router.get("/{name}/precheck", summary="Check whether brokers can be switched")(endpoints.precheck)
    router.post("/{name}/precheck", summary="Likewise, with a trial ledger")(endpoints.precheck_with_trial)
    router.get("/{name}/drain", summary="Count what a former bookie cluster still has, and say why")(endpoints.left)
    return router


class _Endpoints(NamedTuple):
    settings: Settings

    def list(self) -> dict[str, Any]:
        with Cluster(self.settings) as cluster:
            found = cluster.registry.read()
            return registry_data(cluster.url, None if found is None else found.registry)

    def get(self, name: _Name) -> dict[str, Any]:
        with Cluster(self.settings) as cluster:
            return cluster_data(cluster.registry.require_cluster(name), name)

    def register(self, name: _Name, body: RegisterRequest, dryRun: _DryRun = False) -> dict[str, Any]:
        uri = body.metadata_service_uri
        wanted = ClusterSpec(
            name, uri, place_for_brokers(uri), body.bootstrap, body.shared, body.owners, body.unmarked_below
        )

        @contextmanager
        def require_order(plan: RegistrationPlan) -> Iterator[Callable[[int], object]]:
            if not body.raise_ids:
                raise RefusedError(
                    f"the next ledger id is {plan.next_id}, and {name} has ids up to {plan.free_id - 1}: with raiseIds "
                    f"the {plan.behind:,} between are left out"
                )
            yield lambda _: None

        with Cluster(self.settings) as cluster:
            result = registration_of(cluster).register(
                wanted, wait_s=body.timeout_s, dry_run=dryRun, confirm=require_order
            )
            return registration_data(cluster.url, result)

    def export_registry(self) -> dict[str, Any]:
        with Cluster(self.settings) as cluster:
            saved: dict[str, Any] = json.loads(serialize_registry(cluster.registry.require().registry))
            return saved

    def import_registry(self, body: ImportRequest) -> dict[str, Any]:
        saved = json.dumps(body.registry).encode()
        with Cluster(self.settings) as cluster:
            result = RegistryImport(cluster.registry).put_back(saved, dry_run=body.dry_run)
            return import_data(cluster.url, result)

    def upgrade(self, body: Annotated[UpgradeRequest, Body(default_factory=UpgradeRequest)]) -> dict[str, Any]:
        with Cluster(self.settings) as cluster:
            plan = Upgrade(cluster.registry).upgrade(body.owners, dry_run=body.dry_run)
            return upgrade_data(cluster.url, plan, dry_run=body.dry_run)

    def set_uri(self, name: _Name, body: SetUriRequest) -> dict[str, Any]:
        uri = body.metadata_service_uri
        wanted = ClusterSpec(name, uri, place_for_brokers(uri))
        with Cluster(self.settings) as cluster:
            return uri_data(
                UriChange(registration_of(cluster)).change(wanted, wait_s=body.timeout_s, dry_run=body.dry_run)
            )

    def unregister(
        self,
        name: _Name,
        dryRun: _DryRun = False,
        lost: _Lost = False,
        confirm: _Confirm = "",
        timeoutSeconds: _Timeout = 60.0,
    ) -> dict[str, Any]:
        with Cluster(self.settings) as cluster:
            if lost:
                lost_plan = lost_clusters_of(cluster).unregister(name, dry_run=dryRun, confirm=lambda _: confirm)
                return lost_data(cluster.url, lost_plan, dry_run=dryRun)
            plan = unregistration_of(cluster).unregister(name, wait_s=timeoutSeconds, dry_run=dryRun)
            return unregistration_data(cluster.url, plan, dry_run=dryRun)

    def deprecate(self, name: _Name, body: DeprecateRequest) -> dict[str, Any]:
        with Cluster(self.settings) as cluster:
            return registry_data(cluster.url, cluster.registry.deprecate(name, body.deprecated))

    def raise_ids(self, name: _Name, dryRun: _DryRun = False) -> dict[str, Any]:
        with Cluster(self.settings) as cluster:
            return raised_data(IdRaiser(cluster.registry).raise_ids(name, dry_run=dryRun))

    def precheck(self, name: _Name) -> dict[str, Any]:
        with Cluster(self.settings) as cluster:
            return run_precheck(SwitchOperations(cluster).observer, name, with_trial=False).as_json()

    def precheck_with_trial(
        self, name: _Name, body: Annotated[PrecheckRequest, Body(default_factory=PrecheckRequest)]
    ) -> dict[str, Any]:
        with Cluster(self.settings) as cluster:
            return run_precheck(SwitchOperations(cluster).observer, name, with_trial=body.trial).as_json()

    def left(self, name: _Name) -> dict[str, Any]:
        with Cluster(self.settings) as cluster:
            return left_data(MoveOperations(cluster, looks_only=True).drainer.left(name))

    def switch(self, body: SwitchRequest) -> JSONResponse:
        with Cluster(self.settings) as cluster:
            operations = SwitchOperations(cluster)
            return _carry_out(operations, operations.switch.plan(body.target), body)

    def rollback(self, body: Annotated[OrderRequest, Body(default_factory=OrderRequest)]) -> JSONResponse:
        with Cluster(self.settings) as cluster:
            operations = SwitchOperations(cluster)
            return _carry_out(operations, operations.switch.plan_back(), body)

    def promote(self, body: Annotated[PromoteRequest, Body(default_factory=PromoteRequest)]) -> dict[str, Any]:
        with Cluster(self.settings) as cluster:
            operations = MoveOperations(cluster)
            stamping = operations.stamper if body.stamp else None
            return promoted_data(operations.promoter.promote(body.per_second, stamping=stamping, dry_run=body.dry_run))

    def cleanup_targets(self, srcClusterFilter: _Source = None) -> dict[str, Any]:
        with Cluster(self.settings) as cluster:
            return targets_data(MoveOperations(cluster, looks_only=True).cleanup.targets(srcClusterFilter))

    def cleanup(self, body: Annotated[CleanupRequest, Body(default_factory=CleanupRequest)]) -> dict[str, Any]:
        with Cluster(self.settings) as cluster:
            cleanup = MoveOperations(cluster).cleanup
            return cleaned_data(
                cleanup.clean_up(body.source, at_most=body.max_deletions, force=body.force, dry_run=body.dry_run)
            )

    def status(self) -> dict[str, Any]:
        with Cluster(self.settings) as cluster:
            return state_data(cluster.url, read_overview(SwitchOperations(cluster).switch))


def _carry_out(operations: SwitchOperations, planned: PlannedSwitch, asked: OrderRequest) -> JSONResponse:
    options = SwitchOptions(asked.dry_run, asked.skip_precheck, asked.trial, asked.timeout_s)
    result = operations.switch.run(planned, options, operations.observer)
    data = switch_data(result, operations.switch)
    return JSONResponse(data, 409 if result.is_refused else 200)


def _superseded(operation: str) -> Any:
    def answer() -> Superseded:
        return Superseded(changed=False, instead=SUPERSEDED[operation])

    return answer
