"""Moves of ledgers between bookie clusters while brokers run: what is moved, in which order, and how far it is."""
