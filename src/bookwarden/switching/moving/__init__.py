"""Moves of ledgers between bookie clusters: what is moved, in which order, and how far it is."""
