"""A Spark in this process, for jobs on a test's cluster."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import SparkSession

from bookwarden.config import load_settings
from bookwarden.pipelines.own_jvm import own_jvm
from bookwarden.pipelines.pulsar_source import register
from bookwarden.pipelines.session import end_session, spark_properties


@contextmanager
def local_spark() -> Iterator[SparkSession]:
    """Run one for the block, set up as that of a sweep; its workers run in this installation."""
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    with own_jvm() as jvm:
        session = (
            SparkSession.builder.master("local[2]")
            .appName("bookwarden tests")
            .config(map={**jvm.properties, **spark_properties(load_settings(), local=True)})
            .config("spark.driver.memory", "768m")
            .config("spark.sql.shuffle.partitions", "2")
            .config("spark.sql.streaming.stopTimeout", "60s")
            .config("spark.executor.heartbeatInterval", "1s")
            .config("spark.log.level", "ERROR")
            .getOrCreate()
        )
        try:
            session.sparkContext.setLogLevel("ERROR")
            register(session)
            yield session
        finally:
            end_session(session)
