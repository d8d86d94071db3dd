"""The data source `pulsar` for Spark 4.2 and later: streaming and batch reads that lose nothing."""

from bookwarden.pipelines.pulsar_source.options import options_of
from bookwarden.pipelines.pulsar_source.source import PulsarDataSource, register

__all__ = ["PulsarDataSource", "options_of", "register"]
