"""Clients moved from one Pulsar cluster to another, blue to green (PIP-188), by what brokers as released can do."""
