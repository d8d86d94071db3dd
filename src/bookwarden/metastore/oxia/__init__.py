"""Oxia as a metadata store."""
