"""The orphan scan on Spark."""
