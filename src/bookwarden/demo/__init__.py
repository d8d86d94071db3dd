"""The demo: the main job on a real Pulsar, from topics to a table of what became of each ledger."""
