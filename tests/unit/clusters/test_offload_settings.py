"""The settings of stores of offloaded copies: what cannot work is refused by name, secrets stay masked."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import get_args
from uuid import UUID

import pytest

from bookwarden.clusters.offload.requests import RequestLimits
from bookwarden.clusters.offload.stores import OffloadStores, normal_endpoint
from bookwarden.config import _OF_DRIVER, _OF_EVERY_DRIVER, OffloadStoreSettings, load_settings
from bookwarden.errors import ConfigError, MissingExtraError
from bookwarden.ledgers.offloaded_copies import (
    _DRIVERS,
    CopyFate,
    OffloadedCopy,
    StoreLocation,
    UnreadableCopy,
    store_location,
)
from bookwarden.wiring.offload import _OPENERS, allowed_store, offload_stores_of

MINIO = "driver: S3, endpoint: 'http://minio:9000', buckets: [offload]"


@pytest.mark.parametrize(
    ("store", "says"),
    [
        ("driver: aliyun-oss", "driver"),
        ("driver: S3, buckets: [b]", "endpoint"),
        ("driver: aws-s3", "buckets"),
        (f"{MINIO}, access_key: a", "secret_key"),
        (f"{MINIO}, account_key: a", "account_key"),
        ("driver: azureblob, buckets: [b]", "account_url"),
        ("driver: filesystem", "fs.defaultFS"),
        ("driver: google-cloud-storage, buckets: [b], profile: p", "profile"),
    ],
)
def test_a_store_that_cannot_work_is_refused_by_name(store: str, says: str) -> None:
    with pytest.raises(ConfigError, match=f"offload.stores.*{says}"):
        load_settings(overrides={"offload.stores": f"[{{{store}}}]"})


def test_every_driver_of_the_settings_has_fields_a_store_and_a_recorded_name() -> None:
    drivers = set(get_args(OffloadStoreSettings.model_fields["driver"].annotation))
    assert set(_OF_DRIVER) == set(_OPENERS) == set(_DRIVERS.values()) == drivers
    of_some = set().union(*_OF_DRIVER.values())
    assert set(OffloadStoreSettings.model_fields) == _OF_EVERY_DRIVER | of_some
    example = (Path(__file__).parents[3] / "conf" / "bookwarden.yaml").read_text(encoding="utf-8")
    assert set(re.findall(r"^  # (?:- |  )(\w+): ", example, re.MULTILINE)) >= set(OffloadStoreSettings.model_fields)


def test_secrets_are_masked_and_reach_only_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(
        "BOOKWARDEN_OFFLOAD__STORES",
        '[{"driver":"S3","endpoint":"http://minio:9000","buckets":["offload"],"access_key":"id","secret_key":"hidden"}]',
    )
    settings = load_settings()
    assert "hidden" not in repr(settings)
    secret = settings.offload.stores[0].secret_key
    assert secret is not None
    assert secret.get_secret_value() == "hidden"
    offload_stores_of(settings.offload).close()


@pytest.mark.parametrize(
    ("place", "library", "extra"),
    [
        (OffloadStoreSettings(driver="S3", endpoint="http://minio:9000", buckets=("b",)), "boto3", "s3"),
        (OffloadStoreSettings(driver="aws-s3", buckets=("b",)), "boto3", "s3"),
        (OffloadStoreSettings(driver="google-cloud-storage", buckets=("b",)), "google.cloud.storage", "gcs"),
        (
            OffloadStoreSettings(driver="azureblob", account_url="https://a", buckets=("b",)),
            "azure.storage.blob",
            "azure",
        ),
    ],
)
def test_a_library_that_is_missing_is_told_with_what_to_install(
    monkeypatch: pytest.MonkeyPatch, place: OffloadStoreSettings, library: str, extra: str
) -> None:
    for name in ("s3", "gcs", "azure"):
        monkeypatch.delitem(sys.modules, f"bookwarden.clusters.offload.{name}", raising=False)
    monkeypatch.setitem(sys.modules, library, None)
    if library == "google.cloud.storage":
        monkeypatch.setitem(sys.modules, "google.cloud", None)
    with pytest.raises(MissingExtraError, match=rf"pip install 'bookwarden\[{extra}\]'"):
        allowed_store(place, RequestLimits())


def test_a_file_system_needs_no_library() -> None:
    assert (
        allowed_store(OffloadStoreSettings(driver="filesystem", endpoint="file:///mnt"), RequestLimits()).driver
        == "filesystem"
    )


def test_without_any_store_every_copy_is_kept_with_its_place_in_the_reason() -> None:
    copy = OffloadedCopy(7, "t/n/persistent/x", UUID(int=1), StoreLocation("aws-s3", "b", "eu-west-1", ""))
    (reading,), (done,) = OffloadStores().read_many([copy]), OffloadStores().delete_many([copy])
    assert isinstance(reading, UnreadableCopy)
    assert not reading.has_store
    assert done.fate is CopyFate.FAILED
    for reason in (reading.reason, done.reason):
        assert "no driver 'aws-s3'" in reason
        assert "bucket 'b'" in reason


@pytest.mark.parametrize(
    ("driver", "metadata", "expected"),
    [
        ("S3", {"bucket": "b", "region": "r", "serviceEndpoint": "e"}, StoreLocation("S3", "b", "r", "e")),
        ("", {"managedLedgerOffloadDriver": "AWS_S3", "bucket": "b"}, StoreLocation("aws-s3", "b", "", "")),
        ("AzureBlob", {"bucket": "b"}, StoreLocation("azureblob", "b", "", "")),
        (
            "filesystem",
            {"storageBasePath": "hdfs://n:1", "bucket": "b"},
            StoreLocation("filesystem", "", "", "hdfs://n:1"),
        ),
        ("aliyun-oss", {"bucket": "b"}, StoreLocation("aliyun-oss", "b", "", "")),
        ("", {}, StoreLocation("", "", "", "")),
    ],
)
def test_a_location_is_read_as_brokers_record_it(
    driver: str, metadata: dict[str, str], expected: StoreLocation
) -> None:
    assert store_location(driver, metadata) == expected


def test_endpoints_that_mean_the_same_are_equal() -> None:
    assert normal_endpoint("HTTP://MinIO:9000/") == normal_endpoint("http://minio:9000")
    assert normal_endpoint("http://minio:9000/A") != normal_endpoint("http://minio:9000/a")
    assert normal_endpoint("") == ""
