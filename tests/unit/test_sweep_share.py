"""What a sweep may ask of a metadata store is divided among its tasks."""

from __future__ import annotations

import pytest

from bookwarden.config import load_settings
from bookwarden.pipelines.ledger_deletion import share_of_task


@pytest.mark.parametrize(("cores", "partitions", "share"), [(1, 4, 600), (2, 4, 300), (64, 4, 75), (64, 1, 300)])
def test_the_tasks_that_run_at_once_share_the_limit(cores: int, partitions: int, share: float) -> None:
    settings = load_settings(
        overrides={
            "metadata_store.max_requests_per_second": "600",
            "deletion.two_phase_deletion_ledger_deletion_parallelism": str(partitions),
        }
    )
    divided = share_of_task(settings, cores)
    assert divided.metadata_store.max_requests_per_second == share
    store = settings.metadata_store.model_copy(update={"max_requests_per_second": share})
    assert divided == settings.model_copy(update={"metadata_store": store})


def test_without_a_limit_there_is_nothing_to_divide() -> None:
    settings = load_settings()
    assert share_of_task(settings, 4) is settings
