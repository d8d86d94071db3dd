"""Phase one: marks, and then the removal of their ledgers from the metadata."""
