"""Undo of deletions."""
