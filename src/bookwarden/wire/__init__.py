"""Wire formats of Pulsar and BookKeeper, and of our own messages."""
