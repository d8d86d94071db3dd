"""The registry, a registration, a switch and its state as JSON values: the same for commands and for REST."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, NamedTuple

from bookwarden.bookie_clusters.brokers import Broker
from bookwarden.bookie_clusters.checks.precheck import findings_data
from bookwarden.bookie_clusters.moving.build import FoundBuild, find_build
from bookwarden.bookie_clusters.moving.cleanup import CleanupResult, Targets
from bookwarden.bookie_clusters.moving.draining import RemainingLedgers
from bookwarden.bookie_clusters.moving.promotion import PromotionPlan, PromotionResult
from bookwarden.bookie_clusters.offline.ledgers import CopyStatus
from bookwarden.bookie_clusters.offline.move import CopyTally, MovePlan, MoveResult
from bookwarden.bookie_clusters.offline.record import MoveNode, MoveRecord
from bookwarden.bookie_clusters.offline.saved_nodes import NodeDifferences
from bookwarden.bookie_clusters.operation import Switch, SwitchOutcome, SwitchResult, SwitchState
from bookwarden.bookie_clusters.promoted import Promotion, promotion_that_counts, read_promotion
from bookwarden.bookie_clusters.registering import RegistrationResult
from bookwarden.bookie_clusters.registry import cluster_data, registry_data
from bookwarden.bookie_clusters.repair import ImportResult, RaiseResult, UpgradePlan, UriResult
from bookwarden.bookie_clusters.unregistering import LostPlan, UnregistrationPlan


class Overview(NamedTuple):
    """The state of the newest switch, and of each move of ledgers."""

    state: SwitchState
    promotion: Promotion | None  #: The newest, if it counts.
    build: FoundBuild | None  #: None if there was none yet.
    move: MoveRecord | None  #: The newest without the jar.


def read_overview(switch: Switch) -> Overview:
    """Read everything from Pulsar's own store; changes nothing."""
    state, store = switch.state(), switch.registry.store
    move = MoveNode(store).read()
    promotion = promotion_that_counts(state.registry, read_promotion(store))
    return Overview(state, promotion, find_build(store), None if move is None else move.record)


def raised_data(result: RaiseResult) -> dict[str, Any]:
    """Return a cluster's counter of ids, as it is now."""
    plan = result.plan
    return {
        "name": plan.name,
        "idRoot": plan.place.ledgers_root,
        "nextLedgerId": plan.next_id,
        "firstFreeLedgerId": plan.free_id,
        "raised": result.raised,
        "dryRun": result.dry_run,
    }


def registration_data(url: str, result: RegistrationResult) -> dict[str, Any]:
    """Return a registration in the registry of the store at ``url``."""
    plan = result.plan
    return {
        "registered": not result.dry_run,
        "registry": url,
        "epoch": plan.after.epoch,
        "idRoot": plan.after.id_root,
        "cluster": cluster_data(plan.after, plan.cluster.name),
        "bookies": sorted(plan.bookies),
        "nextLedgerId": plan.next_id,
        "aboveItsLedgers": plan.free_id,
        "raisedBy": result.raised,
        "foreignLedgers": plan.foreign,
    }


def unregistration_data(url: str, plan: UnregistrationPlan, *, dry_run: bool) -> dict[str, Any]:
    """Return the registry of the store at ``url`` as it is now, and what stays of the cluster."""
    registry = plan.before.registry if dry_run else plan.after
    return {**registry_data(url, registry), "foreignLedgers": plan.foreign, "dryRun": dry_run}


def upgrade_data(url: str, plan: UpgradePlan, *, dry_run: bool) -> dict[str, Any]:
    """Return the registry of the store at ``url`` as it is now, and what was, or would be, written down."""
    return {
        **registry_data(url, plan.before.registry if dry_run else plan.after),
        "unmarkedBelow": dict.fromkeys(plan.closed, plan.below),
        "addedOwners": list(plan.added),
        "dryRun": dry_run,
    }


def switch_data(result: SwitchResult, switch: Switch) -> dict[str, Any]:
    """Return the result of an order to switch: of the switch, else of the precheck, else where everything stands."""
    if result.switched is not None:
        return switched_data(result.switched)
    return (
        state_data(switch.registry.url, read_overview(switch)) if result.precheck is None else result.precheck.as_json()
    )


def switched_data(switched: SwitchOutcome) -> dict[str, Any]:
    """Return the result of a switch that was made."""
    order = switched.order
    return {
        "phase": order.phase.value,
        "source": order.source,
        "target": order.target,
        "isRollback": order.is_rollback,
        "epoch": switched.epoch,
        "brokers": [{"name": one.broker, "seconds": one.seconds} for one in switched.followed],
        "behind": list(switched.behind),
        "troubles": list(order.errors),
    }


def state_data(url: str, overview: Overview) -> dict[str, Any]:
    """Return where everything stands, by the registry of the store at ``url``."""
    state, promotion, build, move = overview
    found = state.order
    return {
        "phase": state.phase.value,
        **registry_data(url, state.registry),
        "order": None
        if found is None
        else {
            "source": found.order.source,
            "target": found.order.target,
            "epoch": found.order.epoch,
            "origin": found.order.origin,
            "time": found.order.time_ms,
            "phase": found.order.phase.value,
            "isRollback": found.order.is_rollback,
            "troubles": list(found.order.errors),
            "isHeld": not found.is_free,
            "holder": found.holder,
        },
        "brokers": [_broker(each) for each in state.brokers],
        "build": None if build is None else build.as_json(),
        "promotion": None if promotion is None else _promotion(promotion),
        "move": None if move is None else record_data(move),
    }


def _broker(broker: Broker) -> dict[str, Any]:
    one = broker.follower
    return {
        "name": broker.name,
        "epoch": None if one is None else one.epoch,
        "active": None if one is None else one.active,
        "jar": None if one is None else one.jar,
        "unreachable": [] if one is None else sorted(one.unreachable),
        "trouble": broker.error or None,
    }


def targets_data(found: Targets) -> dict[str, Any]:
    """Return what former bookie clusters have that may go, and what stays there."""
    return {
        "activeCluster": found.active,
        "rollbackWindowLeftSeconds": round(found.window_left_s),
        "targets": [
            {"cluster": key[0], "kind": key[1], "ledgers": found.ledgers[key], "bytes": found.sizes[key]}
            for key in sorted(found.ledgers)
        ],
        "kept": [
            {"cluster": cluster, "reason": why, "ledgers": found.kept[cluster, why]}
            for cluster, why in sorted(found.kept)
        ],
    }


def _promotion_plan(plan: PromotionPlan) -> dict[str, Any]:
    return {
        "activeCluster": plan.active.name,
        "toPromote": [
            {"cluster": key[0], "kind": key[1], "ledgers": plan.ledgers[key]} for key in sorted(plan.ledgers)
        ],
        "promotedBefore": plan.promoted,
        "notPromoted": [
            {"cluster": one.cluster, "reason": one.reason, "ledgers": plan.stays[one]} for one in sorted(plan.stays)
        ],
        "topicsToUnload": len(plan.topics),
    }


def promoted_data(result: PromotionResult) -> dict[str, Any]:
    """Return what is to be promoted, and what was; stamped only if that was asked for."""
    done, stamped = result.done, result.stamped
    return {
        **_promotion_plan(result.plan),
        "dryRun": result.dry_run,
        "promotion": None if done is None else _promotion(done.promotion),
        "unloaded": 0 if done is None else len(done.unloaded) - len(done.failed),
        "failed": [] if done is None else [{"topic": one.topic, "trouble": one.error} for one in done.failed],
        "stamped": None
        if stamped is None
        else {
            "written": stamped.written,
            "right": stamped.right,
            "failed": [one._asdict() for one in stamped.failed],
        },
    }


def _promotion(promotion: Promotion) -> dict[str, Any]:
    return {"cluster": promotion.target, "through": promotion.through_ms, "failed": sorted(promotion.failed)}


def cleaned_data(result: CleanupResult) -> dict[str, Any]:
    """Return the same with what was marked."""
    done = result.done
    failed = () if done is None else done.failed
    return {
        **targets_data(result.targets),
        "dryRun": result.dry_run,
        "marked": 0 if done is None else done.sent,
        "failed": [{"ledgerId": ledger_id, "reason": reason} for ledger_id, reason in failed],
    }


def left_data(left: RemainingLedgers) -> dict[str, Any]:
    """Return what is left in a cluster that is drained."""
    return {
        "cluster": left.cluster,
        "active": left.active,
        "ledgers": left.total,
        "byKind": dict(sorted(left.ledgers.items())),
        "bytes": left.size,
        "open": len(left.open),
        "mayGo": left.may_go,
        "stay": dict(sorted(left.stays.items())),
        "toCopy": {
            "ledgers": left.to_copy,
            "bytes": left.to_copy_size,
            "seconds": None if left.copying_s is None else round(left.copying_s),
        },
        "windowLeftSeconds": round(left.window_left_s),
    }


def lost_data(url: str, plan: LostPlan, *, dry_run: bool) -> dict[str, Any]:
    """Return what is lost with a cluster whose metadata is gone, and the registry."""
    return {
        "unregistered": not dry_run,
        "name": plan.cluster.name,
        "reason": plan.reason,
        "ledgers": plan.ledgers,
        "references": dict(sorted(plan.references.items())),
        "examples": list(plan.examples),
        "doubts": list(plan.doubts),
        "silent": list(plan.silent),
        **registry_data(url, plan.before.registry if dry_run else plan.after),
    }


def uri_data(result: UriResult) -> dict[str, Any]:
    """Return where a cluster is from now on, and which brokers do not reach it there."""
    plan = result.plan
    return {
        "changed": not result.dry_run,
        "behind": list(result.behind),
        "epoch": plan.after.epoch,
        "bookies": sorted(plan.bookies),
        "cluster": cluster_data(plan.after, plan.cluster.name),
    }


def import_data(url: str, result: ImportResult) -> dict[str, Any]:
    """Return the registry that was, or would be, put back."""
    plan = result.plan
    return {
        "imported": not result.dry_run,
        "savedEpoch": plan.saved_epoch,
        "nextLedgerId": plan.next_id,
        "aboveItsLedgers": plan.free_id,
        **registry_data(url, plan.registry),
    }


def broker_lines(record: MoveRecord) -> tuple[str, ...]:
    """Return the lines of broker.conf with which brokers use the target."""
    return (f"bookkeeperMetadataServiceUri={record.uri}",)


def settings_lines(record: MoveRecord) -> tuple[str, ...]:
    """Return bookwarden's own settings with which it looks there."""
    return ("metadata_store:", f"  bookkeeper_url: {record.uri}", "  ledgers_root: null")


def record_data(record: MoveRecord) -> dict[str, Any]:
    """Return where a move stands."""
    return {
        "phase": record.phase.value,
        "source": {**asdict(record.source), "instance": record.source_instance},
        "target": {**asdict(record.target), "instance": record.target_instance},
        "owner": record.owner,
        "saved": record.saved or None,
        "broker.conf": list(broker_lines(record)),
        "settings": list(settings_lines(record)),
    }


def plan_data(plan: MovePlan) -> dict[str, Any]:
    """Return what would be done."""
    return {
        **record_data(plan.record),
        "ready": not plan.failing,
        "brokers": list(plan.brokers),
        "ledgers": _tally_data(plan.tally),
        "nextLedgerId": plan.next_id,
        "aboveTheSource": plan.free_id,
        "checks": findings_data(plan.findings),
    }


def moved_data(moved: MoveResult) -> dict[str, Any]:
    """Return what was done."""
    return {
        **record_data(moved.record),
        "copied": moved.copied,
        "recovered": moved.recovered,
        "ledgers": _tally_data(moved.tally),
        "nextLedgerId": moved.next_id,
        "troubles": list(moved.errors),
    }


def restoration_data(found: NodeDifferences, written: int | None) -> dict[str, Any]:
    """Return how the store differs from saved nodes; ``written`` of them were put back, None by a dry run."""
    return {
        "nodes": found.nodes,
        "changed": found.changed,
        "gone": found.gone,
        "such as": list(found.shown),
        "written": written,
        "dryRun": written is None,
    }


def _tally_data(tally: CopyTally) -> dict[str, Any]:
    counts = {status.value: tally.counts[status] for status in CopyStatus}
    return {"named": tally.total, **counts, "missing such as": list(tally.missing)}
