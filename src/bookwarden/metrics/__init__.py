"""Metrics: the table of all names, and what publishes them."""
