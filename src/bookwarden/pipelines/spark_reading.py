"""Whether Spark reads what bookwarden writes: on a store of objects each has a client, and settings, of its own."""

from __future__ import annotations

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from bookwarden.errors import SparkError
from bookwarden.pipelines.folders import Folder

_HOW = (
    "Spark needs Hadoop's client of that store, for S3 the package org.apache.hadoop:hadoop-aws in the version of its "
    "Hadoop, and its settings, spark.hadoop.fs.s3a.*: docs/orphans.md, The folder on S3"
)


def require_spark_reads(spark: SparkSession, folder: Folder, name: str) -> None:
    """Let a Spark task read this file of the folder; SparkError if it cannot, or reads another.

    Nothing is asked for a folder of this machine, nor for a file that is not there. A scan itself lets Spark read only
    when all is listed, which may be hours later.
    """
    if folder.local_path is not None or not folder.exists(name):
        return
    written, location = folder.read(name).decode(), folder.for_spark(name)
    try:
        found = [row["value"] for row in spark.read.text(location, wholetext=True).collect()]
    except (PySparkException, Py4JJavaError) as error:
        raise SparkError(f"Spark cannot read {location}, which is there ({_reason(error)}): {_HOW}") from error
    if found != [written]:
        raise SparkError(f"Spark reads another {location} than was written to {folder.location}/{name}: {_HOW}")


def _reason(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines()]
    told = [line for line in lines if line and not line.startswith(("at ", "...", "An error occurred"))]
    return told[0].removeprefix(": ") if told else type(error).__name__
