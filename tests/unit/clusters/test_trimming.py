"""The policies that decide about a trim: the topic's own before its namespace's, before the brokers' settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from bookwarden.clusters.pulsar.rest.trimming import PolicySet, deletion_lag_of, retention_of
from bookwarden.ledgers.pins import DeletionLag, Retention

SETTINGS = {
    "defaultRetentionTimeInMinutes": "7",
    "defaultRetentionSizeInMB": "8",
    "managedLedgerOffloadDeletionLagMs": "14400000",
}
WITHOUT_LAG = {**SETTINGS, "managedLedgerOffloadDeletionLagMs": ""}
OF_BROKERS, OF_NAMESPACE, OF_TOPIC = "the brokers' settings", "the namespace t/n", "the topic"
LAG = "managedLedgerOffloadDeletionLagInMillis"


def kept(minutes: int, megabytes: int) -> dict[str, int]:
    return {"retentionTimeInMinutes": minutes, "retentionSizeInMB": megabytes}


@pytest.mark.parametrize(
    ("topic", "namespace", "settings", "expected"),
    [
        ({}, {}, SETTINGS, Retention(7, 8, OF_BROKERS)),
        ({}, {"retention_policies": kept(0, 0)}, SETTINGS, Retention(0, 0, OF_NAMESPACE)),
        ({"retentionPolicies": kept(-1, 5)}, {"retention_policies": kept(0, 0)}, None, Retention(-1, 5, OF_TOPIC)),
        ({}, {"retention_policies": None}, None, None),
        (None, {"retention_policies": kept(0, 0)}, SETTINGS, None),
        ({}, None, SETTINGS, None),
    ],
)
def test_the_retention_that_applies(
    topic: Mapping[str, Any] | None,
    namespace: Mapping[str, Any] | None,
    settings: Mapping[str, str] | None,
    expected: Retention | None,
) -> None:
    assert retention_of(PolicySet(topic, namespace, settings), "t/n") == expected


@pytest.mark.parametrize(
    ("topic", "namespace", "settings", "expected"),
    [
        ({}, {}, SETTINGS, DeletionLag(14_400_000, OF_BROKERS)),
        ({}, {"offload_deletion_lag_ms": 5}, SETTINGS, DeletionLag(5, OF_NAMESPACE)),
        ({}, {"offload_policies": {LAG: 6}, "offload_deletion_lag_ms": 5}, None, DeletionLag(6, OF_NAMESPACE)),
        ({"offloadPolicies": {LAG: -1}}, {"offload_policies": {LAG: 6}}, None, DeletionLag(None, OF_TOPIC)),
        ({}, {"offload_policies": {LAG: None}}, WITHOUT_LAG, DeletionLag(None, OF_BROKERS)),
        ({}, {}, None, None),
        (None, {}, SETTINGS, None),
    ],
)
def test_the_deletion_lag_that_applies(
    topic: Mapping[str, Any] | None,
    namespace: Mapping[str, Any] | None,
    settings: Mapping[str, str] | None,
    expected: DeletionLag | None,
) -> None:
    assert deletion_lag_of(PolicySet(topic, namespace, settings), "t/n") == expected
