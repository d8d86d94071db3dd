"""The sweep on Spark."""
