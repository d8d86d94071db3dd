"""The Spark properties that the sweep starts with."""

from __future__ import annotations

import json

import pytest

from bookwarden.config import load_settings
from bookwarden.pipelines.session import spark_properties

MANAGER = "spark.sql.streaming.checkpointFileManagerClass"


@pytest.mark.parametrize(
    ("checkpoint", "local", "quick"),
    [
        ("/var/lib/bookwarden/checkpoint", True, True),
        ("file:///var/lib/bookwarden/checkpoint", False, True),
        ("/var/lib/bookwarden/checkpoint", False, False),
        ("hdfs://namenode/checkpoint", True, False),
        ("s3a://bucket/checkpoint", False, False),
    ],
)
def test_only_a_checkpoint_on_a_local_file_system_is_written_without_starting_programs(
    checkpoint: str, local: bool, quick: bool
) -> None:
    properties = spark_properties(load_settings(None, {"sweep.checkpoint": checkpoint}), local=local)
    assert (MANAGER in properties) is quick


def test_the_operator_has_the_last_word_about_a_property() -> None:
    settings = load_settings(None, {"spark.conf": json.dumps({MANAGER: "own", "spark.speculation": "true"})})
    properties = spark_properties(settings, local=True)
    assert (properties[MANAGER], properties["spark.speculation"]) == ("own", "true")
