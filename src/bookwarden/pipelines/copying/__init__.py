"""Ledgers copied to another bookie cluster on Spark."""
