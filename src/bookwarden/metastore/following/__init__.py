"""A metadata store that follows a migration of Pulsar's metadata (PIP-454)."""
