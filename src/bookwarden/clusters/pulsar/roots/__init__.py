"""Metadata roots, and the BookKeeper that they share."""
