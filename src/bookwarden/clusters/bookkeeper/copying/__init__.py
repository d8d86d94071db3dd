"""Ledgers copied to the bookies of another cluster, entry by entry, and proven there."""
