"""Whole columns of nodes and references, read into Arrow."""
