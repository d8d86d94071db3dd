"""Nodes of a Pulsar metadata root."""
