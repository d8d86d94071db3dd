"""The demo: the main job on a real Pulsar, from topics to a table of each ledger's end."""
