"""Which clients follow, by the version that they tell brokers."""

from __future__ import annotations

import pytest

from bookwarden.cluster_migration.readiness.clients import Follows, follows


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("2.10.6", Follows.NO),
        ("2.11.4", Follows.NO),
        ("Pulsar-Java-v2.11.4", Follows.NO),
        ("Pulsar-Java-v3.0.0", Follows.IF_TESTED),
        ("Pulsar-Java-v3.1.3", Follows.IF_TESTED),
        ("Pulsar-Java-v3.2.0", Follows.YES),
        ("Pulsar-Java-v4.0.8", Follows.YES),
        ("Pulsar-Java-v4.0.8-the orders", Follows.YES),
        ("Pulsar-Java-v2.11.4-the 4.0 orders", Follows.NO),
        ("Pulsar-Java-v4x", Follows.UNKNOWN),
        ("Pulsar-CPP-v3.4.2", Follows.NO),
        ("Pulsar-CPP-v3.5.0", Follows.MAY_HANG),
        ("Pulsar-CPP-v4.2.0", Follows.MAY_HANG),
        ("Pulsar Go 0.13.0", Follows.UNKNOWN),
        ("Flink 1.17", Follows.UNKNOWN),
        ("", Follows.UNKNOWN),
    ],
)
def test_a_version_follows_or_not(version: str, expected: Follows) -> None:
    assert follows(version) is expected
