"""/admin/v2/bookie-clusters: the commands of `bookwarden bookie-clusters`, one to one.

Paths: of PIP-470 where it names them. Each request opens what it needs and closes it again: they are few, and a store
that moved is found anew.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, NamedTuple

from fastapi import APIRouter, Path, Query
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field

from bookwarden.config import Settings
from bookwarden.errors import NotFoundError, RefusedError
from bookwarden.server.metrics import read_standing
from bookwarden.switching.documents import (
    SUPERSEDED,
    cleaned_data,
    cluster_data,
    left_data,
    promoted_data,
    raised_data,
    registration_data,
    registry_data,
    state_data,
    switched_data,
    targets_data,
)
from bookwarden.switching.operation import Planned
from bookwarden.switching.registering import Wanted
from bookwarden.wiring.former_clusters import FormerClustersContext
from bookwarden.wiring.switch import SwitchContext
from bookwarden.wiring.switching import SwitchingContext, place_of_uri

_PREFIX: Final = "/admin/v2/bookie-clusters"
_LONGEST_WAIT_S: Final = 600.0

_Name = Annotated[str, Path(description="Name of a bookie cluster.", min_length=1)]
_Trial = Annotated[bool, Query(description="Write a trial ledger to the target's bookies, and delete it.")]
_Source = Annotated[str | None, Query(description="This former bookie cluster alone.")]
_DryRun = Annotated[bool, Query(description="Look at everything, change nothing.")]


_Timeout = Annotated[float, Query(description="Maximum seconds to wait for brokers.", ge=0, le=_LONGEST_WAIT_S)]


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", populate_by_name=True)


class Registering(_Body):
    """A bookie cluster to be registered."""

    metadata_service_uri: str = Field(alias="metadataServiceUri", description="As its bookies have it.")
    bootstrap: bool = Field(default=False, description="It is the one that brokers use now: the first of all.")
    shared: bool = Field(default=False, description="Others write there too: only ledgers with our mark are ours.")
    owners: tuple[str, ...] = Field(
        default=(), description="With bootstrap: owner marks of its ledgers, from earlier registries; the first stays."
    )
    raise_ids: bool = Field(
        default=False, alias="raiseIds", description="Raise the next ledger id where it is behind; else it is refused."
    )
    timeout_s: float = Field(
        default=60.0,
        ge=0,
        le=_LONGEST_WAIT_S,
        alias="timeoutSeconds",
        description="Maximum seconds to wait for brokers.",
    )


class Deprecating(_Body):
    """A cluster to be kept from becoming active, or not any more."""

    deprecated: bool


class Carrying(_Body):
    """The way in which a switch is carried out."""

    dry_run: bool = Field(default=False, alias="dryRun", description="Run the precheck alone.")
    skip_precheck: bool = Field(
        default=False, alias="skipPrecheck", description="For laboratories only: messages can be lost."
    )
    trial: bool = Field(default=True, description="Write a trial ledger to the target's bookies, and delete it.")
    timeout_s: float = Field(
        default=60.0, ge=0, le=_LONGEST_WAIT_S, alias="timeoutSeconds", description="Wait so long for brokers."
    )


class Switching(Carrying):
    """An order to switch."""

    target: str = Field(min_length=1, description="The bookie cluster that new ledgers are to go to.")


class PromotingLedgers(_Body):
    """An order to have all brokers read from the active cluster what it has whole."""

    dry_run: bool = Field(default=True, alias="dryRun", description="Only count what would be promoted.")
    per_second: float = Field(default=5.0, gt=0, alias="perSecond", description="Topics unloaded in a second.")
    stamp: bool = Field(default=False, description="Also write PIP-477's key to subscriptions of loaded topics.")


class CleaningUp(_Body):
    """An order to clean up former bookie clusters, by the names of the proposal."""

    dry_run: bool = Field(default=True, alias="dryRun", description="Only list what would be marked.")
    source: str | None = Field(default=None, alias="srcClusterFilter", description="This former cluster alone.")
    max_deletions: int = Field(default=0, ge=0, alias="maxDeletions", description="Mark so many at most; 0: all.")
    force: bool = Field(default=False, description="Within the rollback window too: for laboratories.")


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
    router.post("/promote", summary="Have brokers read from the active cluster what it has whole")(endpoints.promote)
    router.post("/cleanup", summary="Mark what former bookie clusters need not have any more")(endpoints.cleanup)
    for operation in SUPERSEDED:
        router.post(f"/{operation}", summary="Changes nothing; says what takes its place")(_superseded(operation))
    router.get("/{name}", summary="Show one bookie cluster")(endpoints.get)
    router.put("/{name}", summary="Register a bookie cluster")(endpoints.register)
    router.delete("/{name}", summary="Unregister a bookie cluster")(endpoints.unregister)
    router.post("/{name}/deprecated", summary="Keep a bookie cluster from becoming active")(endpoints.deprecate)
    router.post("/{name}/raise-ids", summary="Raise a bookie cluster's own counter of ledger ids")(endpoints.raise_ids)
    router.get("/{name}/precheck", summary="Check whether brokers can be switched")(endpoints.precheck)
    router.get("/{name}/drain", summary="Count what a former bookie cluster still has, and say why")(endpoints.left)
    return router


class _Endpoints(NamedTuple):
    settings: Settings

    def list(self) -> dict[str, Any]:
        with SwitchingContext(self.settings) as context:
            found = context.registry.read()
            return {"registry": context.pulsar_url, **registry_data(None if found is None else found.registry)}

    def get(self, name: _Name) -> dict[str, Any]:
        with SwitchingContext(self.settings) as context:
            found = context.registry.read()
            if found is None or name not in found.registry.clusters:
                raise NotFoundError(f"no bookie cluster {name!r} is registered in {context.pulsar_url}")
            return cluster_data(found.registry, name)

    def register(self, name: _Name, body: Registering, dryRun: _DryRun = False) -> dict[str, Any]:
        uri = body.metadata_service_uri
        place = place_of_uri(uri)
        wanted = Wanted(name, uri, place, bootstrap=body.bootstrap, shared=body.shared, owners=body.owners)
        with SwitchingContext(self.settings) as context:
            plan = context.registration.plan(wanted)
            raised = plan.behind
            if raised and not (body.raise_ids or dryRun):
                raise RefusedError(
                    f"the next ledger id is {plan.next_id}, and {name} has ids up to {plan.free_id - 1}: with raiseIds "
                    f"the {raised:,} between are left out"
                )
            if not dryRun:
                if raised:
                    context.registration.raise_ids(plan)
                plan = context.registration.carry_out(wanted, wait_s=body.timeout_s)
            return registration_data(context.pulsar_url, plan, raised, dry_run=dryRun)

    def unregister(self, name: _Name, dryRun: _DryRun = False, timeoutSeconds: _Timeout = 60.0) -> dict[str, Any]:
        with SwitchingContext(self.settings) as context:
            plan = context.unregistration.plan(name, wait_s=timeoutSeconds)
            if not dryRun:
                context.unregistration.carry_out(plan)
            shown = registry_data(plan.before.registry if dryRun else plan.after)
            return {**shown, "ledgersOfOthers": plan.foreign}

    def deprecate(self, name: _Name, body: Deprecating) -> dict[str, Any]:
        with SwitchingContext(self.settings) as context:
            seen = context.registry.require()
            after = seen.registry
            if after.cluster(name).deprecated != body.deprecated:
                after = after.with_deprecated(name, body.deprecated)
                context.registry.replace(seen, after)
            return registry_data(after)

    def raise_ids(self, name: _Name, dryRun: _DryRun = False) -> dict[str, Any]:
        with SwitchingContext(self.settings) as context:
            plan = context.id_raising.plan(name)
            raised = plan.behind
            if raised and not dryRun:
                plan = context.id_raising.carry_out(plan)
            return raised_data(plan, raised, dry_run=dryRun)

    def precheck(self, name: _Name, trial: _Trial = False) -> dict[str, Any]:
        with SwitchContext(self.settings) as context:
            return context.precheck(name, with_trial=trial).as_json()

    def left(self, name: _Name) -> dict[str, Any]:
        with FormerClustersContext(self.settings) as context:
            return left_data(context.draining.left(name))

    def switch(self, body: Switching) -> JSONResponse:
        with SwitchContext(self.settings) as context:
            return _carry_out(context, context.switch.plan(body.target), body)

    def rollback(self, body: Carrying) -> JSONResponse:
        with SwitchContext(self.settings) as context:
            return _carry_out(context, context.switch.plan_back(), body)

    def promote(self, body: PromotingLedgers) -> dict[str, Any]:
        with FormerClustersContext(self.settings) as context:
            plan = context.promoting.plan()
            if body.dry_run:
                return promoted_data(plan, None)
            done = context.promoting.carry_out(plan, body.per_second)
            stamped = context.stamping.stamp(plan.active.name, body.per_second) if body.stamp else None
            return promoted_data(plan, done, stamped)

    def cleanup_targets(self, srcClusterFilter: _Source = None) -> dict[str, Any]:
        with FormerClustersContext(self.settings) as context:
            return targets_data(context.cleanup.targets(srcClusterFilter))

    def cleanup(self, body: CleaningUp) -> dict[str, Any]:
        with FormerClustersContext(self.settings) as context:
            found = context.cleanup.targets(body.source)
            if body.dry_run:
                return cleaned_data(found, None)
            done = context.cleanup.mark(body.source, at_most=body.max_deletions, force=body.force)
            return cleaned_data(found, done)

    def status(self) -> dict[str, Any]:
        with SwitchContext(self.settings) as context:
            return _state(context)


def _carry_out(context: SwitchContext, planned: Planned, asked: Carrying) -> JSONResponse:
    if not context.switch.is_made(planned) and (asked.dry_run or not asked.skip_precheck):
        with_trial = asked.trial and not asked.dry_run
        order = planned.plan.order
        result = context.precheck(order.target, with_trial=with_trial, is_rollback=order.is_rollback)
        if result.failing or asked.dry_run:
            return JSONResponse(result.as_json(), 409 if result.failing else 200)
    elif asked.dry_run:
        return JSONResponse(_state(context))
    switched = context.switch.carry_out(planned, wait_s=asked.timeout_s, is_checked=not asked.skip_precheck)
    return JSONResponse(switched_data(switched))


def _state(context: SwitchContext) -> dict[str, Any]:
    found = read_standing(context)
    return state_data(context.pulsar_url, found.state, found.promotion, found.build, found.move)


def _superseded(operation: str) -> Any:
    def answer() -> Superseded:
        return Superseded(changed=False, instead=SUPERSEDED[operation])

    return answer
