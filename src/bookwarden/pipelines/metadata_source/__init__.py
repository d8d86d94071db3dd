"""The data source `pulsar-metadata`: the ledgers that nodes of Pulsar's metadata name, all at first, then changes."""

from bookwarden.pipelines.metadata_source.source import MetadataDataSource, bound_source

__all__ = ["MetadataDataSource", "bound_source"]
