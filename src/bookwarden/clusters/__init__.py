"""Adapters to the clusters that ledgers live in."""
