"""The file that says whose a checkpoint is, written and read as Spark does its own files of a checkpoint."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from bookwarden.errors import RefusedError, SparkError
from bookwarden.pipelines.streams.checkpoint_identity import (
    IDENTITY_FILE,
    CheckpointIdentity,
    SparkIdentityFile,
    identity_file_of,
    require_own,
)

OURS = CheckpointIdentity(frozenset({"blue"}), "", frozenset({"i-1"}), {"persistent://t/n/ü-partition-0": 8})


@pytest.mark.parametrize("prefix", ["", "file:", "file://"])
def test_it_is_written_whole_over_a_former_one_and_read_back(spark: SparkSession, tmp_path: Path, prefix: str) -> None:
    file = identity_file_of(spark, f"{prefix}{tmp_path}/new/checkpoint")
    assert (file.read(), file.has_checkpoint()) == (None, False)
    assert file.folder == f"{tmp_path}/new/checkpoint"
    for value in (b"\xff\x00one", b"two, which is longer", b""):
        file.write(value)
        assert file.read() == value
    assert (tmp_path / "new" / "checkpoint" / IDENTITY_FILE).read_bytes() == b""


def test_a_query_takes_no_notice_of_it_and_its_checkpoint_is_known(spark: SparkSession, tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint"
    file = identity_file_of(spark, str(checkpoint))
    require_own(file, OURS, "sweep.checkpoint")
    for _ in range(2):
        rates = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load()
        writer = rates.writeStream.format("noop").option("checkpointLocation", str(checkpoint))
        writer.trigger(availableNow=True).start().awaitTermination()
    file = identity_file_of(spark, str(checkpoint))
    assert file.has_checkpoint()
    written = file.read()
    assert written is not None
    assert CheckpointIdentity.parse(written) == OURS
    with pytest.raises(RefusedError, match=f"{checkpoint} is the checkpoint of another"):
        require_own(file, CheckpointIdentity(frozenset({"green"})), "sweep.checkpoint")


def test_a_file_system_that_spark_has_not_is_an_error_of_ours(spark: SparkSession) -> None:
    with pytest.raises(SparkError, match=r'checkpoint nosuch://a/b cannot be reached by Spark: .*"nosuch"'):
        SparkIdentityFile(spark, "nosuch://a/b")
    with pytest.raises(SparkError, match="cannot be reached by Spark"):
        SparkIdentityFile(spark, "file:relative/../../:\0")


def test_on_another_file_system_it_is_written_and_read_by_spark(spark: SparkSession, tmp_path: Path) -> None:
    file = SparkIdentityFile(spark, str(tmp_path / "checkpoint"))
    file.write(b"\xff\x00one")
    assert file.read() == b"\xff\x00one"
    # The writer of a session that runs on this machine alone replaces none.
    with pytest.raises(SparkError, match=r"checkpoint/identity\.json could not be replaced"):
        file.write(b"two")
