"""Servers of the development cluster, and what they need to run."""
