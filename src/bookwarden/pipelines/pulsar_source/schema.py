"""The columns that the source gives, for Spark and for Arrow."""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql.types import (
    BinaryType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

# The property of a row without a value that says why what is in its place was not read.
UNREAD = "bookwarden.unread"

MESSAGE_ID = StructType(
    [
        StructField("ledger_id", LongType(), nullable=False),
        StructField("entry_id", LongType(), nullable=False),
        StructField("batch_index", IntegerType(), nullable=False),
        StructField("batch_size", IntegerType(), nullable=False),
    ]
)

SCHEMA = StructType(
    [
        StructField("topic", StringType(), nullable=False),
        StructField("partition", IntegerType(), nullable=False),
        StructField("message_id", MESSAGE_ID, nullable=False),
        StructField("key", StringType(), nullable=True),
        StructField("ordering_key", StringType(), nullable=True),
        StructField("value", BinaryType(), nullable=True),
        StructField("properties", MapType(StringType(), StringType(), valueContainsNull=False), nullable=False),
        StructField("publish_time", TimestampType(), nullable=False),
        StructField("event_time", TimestampType(), nullable=True),
        StructField("producer_name", StringType(), nullable=False),
        StructField("schema_version", BinaryType(), nullable=True),
    ]
)

ARROW_MESSAGE_ID = pa.struct(
    [
        pa.field("ledger_id", pa.int64(), nullable=False),
        pa.field("entry_id", pa.int64(), nullable=False),
        pa.field("batch_index", pa.int32(), nullable=False),
        pa.field("batch_size", pa.int32(), nullable=False),
    ]
)
ARROW_TIME = pa.timestamp("us", tz="UTC")
ARROW_PROPERTIES = pa.map_(pa.string(), pa.field("value", pa.string(), nullable=False), keys_sorted=False)

# Spark accepts a record batch only if this equals its own conversion of SCHEMA.
ARROW_SCHEMA = pa.schema(
    [
        pa.field("topic", pa.string(), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("message_id", ARROW_MESSAGE_ID, nullable=False),
        pa.field("key", pa.string(), nullable=True),
        pa.field("ordering_key", pa.string(), nullable=True),
        pa.field("value", pa.binary(), nullable=True),
        pa.field("properties", ARROW_PROPERTIES, nullable=False),
        pa.field("publish_time", ARROW_TIME, nullable=False),
        pa.field("event_time", ARROW_TIME, nullable=True),
        pa.field("producer_name", pa.string(), nullable=False),
        pa.field("schema_version", pa.binary(), nullable=True),
    ]
)
