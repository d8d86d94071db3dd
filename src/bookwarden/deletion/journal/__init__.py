"""The journal of deletions."""
