"""Pulsar: topics, live references, admin REST and clients."""
